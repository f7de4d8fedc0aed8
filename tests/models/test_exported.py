"""The graph's decoding against `decode.py`, on raw maps, without exporting anything."""

import pytest
import torch
from torch import Tensor, nn

from dsl.models.decode import Decoder
from dsl.models.exported import (
    NO_LABEL,
    ExportedDetector,
    Suppress,
    suppress_by_operator,
    suppress_by_torchvision,
)  # fmt: skip
from dsl.types import DenseOutput, ImageBatch

CLASSES = 3
SIDES = {8: 16, 16: 8, 32: 4, 64: 2, 128: 1}  # stride -> cells of a level of 128 px


class Maps(nn.Module):
    """Stands for a network: gives these maps, whatever it sees."""

    num_classes = CLASSES

    def __init__(self, output: DenseOutput) -> None:
        super().__init__()
        self.output = output

    def forward(self, batch: ImageBatch) -> DenseOutput:
        return self.output


def maps(*, images: int = 2, bias: float = 0.0) -> DenseOutput:
    random = torch.Generator().manual_seed(0)

    def draw(channels: int) -> list[Tensor]:
        shapes = [(images, channels, side, side) for side in SIDES.values()]
        return [torch.randn(shape, generator=random) for shape in shapes]

    logits = [2 * m + bias for m in draw(CLASSES)]
    distances = [2 * m.abs() for m in draw(4)]
    return DenseOutput(logits, distances, draw(1), tuple(SIDES))


def run(output: DenseOutput, decoder: Decoder, suppress: Suppress, sizes: Tensor) -> list[Tensor]:
    network: nn.Module = Maps(output)
    detector = ExportedDetector(network, decoder, suppress)  # type: ignore[arg-type]
    images = torch.zeros(len(sizes), 3, 128, 128, dtype=torch.uint8)
    return list(detector(images, sizes))


@pytest.mark.parametrize("suppress", [suppress_by_torchvision, suppress_by_operator])
@pytest.mark.parametrize(
    "decoder",
    [Decoder(), Decoder(per_level=50), Decoder(max_detections=5), Decoder(nms_iou=0.2)],
    ids=["defaults", "few per level", "few kept", "strict"],
)
def test_it_finds_what_the_decoder_finds(suppress: Suppress, decoder: Decoder) -> None:
    output, sizes = maps(), torch.tensor([[128, 128], [70, 101]])
    expected = decoder(output, sizes)
    boxes, scores, labels, counts = run(output, decoder, suppress, sizes)
    assert boxes.shape == (2, decoder.max_detections, 4)
    assert counts.tolist() == [len(found) for found in expected]
    for image, found in enumerate(expected):
        count = len(found)
        assert count > 3
        torch.testing.assert_close(boxes[image, :count], found.boxes)
        torch.testing.assert_close(scores[image, :count], found.scores)
        assert labels[image, :count].tolist() == found.labels.tolist()


@pytest.mark.parametrize("suppress", [suppress_by_torchvision, suppress_by_operator])
def test_nothing_found_is_zeros_and_no_label(suppress: Suppress) -> None:
    sizes = torch.tensor([[128, 128], [70, 101]])
    boxes, scores, labels, counts = run(maps(bias=-50), Decoder(), suppress, sizes)
    assert counts.tolist() == [0, 0]
    assert boxes.abs().sum() == 0
    assert scores.abs().sum() == 0
    assert labels.unique().tolist() == [NO_LABEL]
