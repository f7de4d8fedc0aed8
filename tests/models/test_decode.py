"""Decoding against a slow loop, and that an image's detections do not depend on its batch."""

import math

import pytest
import torch

from dsl.models.assign import locate
from dsl.models.decode import Decoder
from dsl.models.fcos import FCOS
from dsl.models.losses import flatten
from dsl.models.resnet import ResNet
from dsl.types import DenseOutput, ImageBatch

STRIDES = (8, 16, 32, 64, 128)
SHAPES = [(6, 8), (3, 4), (2, 2), (1, 1), (1, 1)]


def random_output(images: int = 2, num_classes: int = 3) -> DenseOutput:
    generator = torch.Generator().manual_seed(3)

    def maps(channels: int, shift: float = 0.0) -> list[torch.Tensor]:
        return [torch.randn(images, channels, h, w, generator=generator) + shift for h, w in SHAPES]

    return DenseOutput(maps(num_classes, -2.5), [m.abs() for m in maps(4)], maps(1), STRIDES)


def iou(a: list[float], b: list[float]) -> float:
    wide = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    tall = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    both = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - wide * tall
    return wide * tall / both if both else 0.0


def slow(output: DenseOutput, image: int, size: tuple[int, int], decoder: Decoder) -> list[tuple]:
    places = locate(SHAPES, STRIDES, torch.device("cpu"))
    logits, reach = flatten(output.class_logits)[image], flatten(output.distances)[image]
    centerness = flatten(output.centerness)[image, :, 0]
    candidates = []
    for level in range(5):
        found = []
        for k in (places.levels == level).nonzero().flatten().tolist():
            for c in range(logits.shape[1]):
                p = 1 / (1 + math.exp(-logits[k, c].item()))
                if p <= decoder.min_class_score:
                    continue
                score = p / (1 + math.exp(-centerness[k].item()))
                x, y = places.points[k].tolist()
                l, t, r, b = (reach[k] * STRIDES[level]).tolist()  # noqa: E741
                corners = zip((x - l, y - t, x + r, y + b), (size[1], size[0]) * 2, strict=True)
                found.append((score, c, [min(max(0.0, v), top) for v, top in corners]))
        best = sorted(found, key=lambda f: -f[0])[: decoder.per_level]
        candidates += [f for f in best if f[2][2] > f[2][0] and f[2][3] > f[2][1]]
    kept: list[tuple] = []
    for score, c, box in sorted(candidates, key=lambda f: -f[0]):
        if all(c != other or iou(box, taken) <= decoder.nms_iou for _, other, taken in kept):
            kept.append((score, c, box))
    return kept[: decoder.max_detections]


@pytest.mark.parametrize(
    "decoder", [Decoder(), Decoder(per_level=5, max_detections=7), Decoder(min_class_score=0.3)]
)
def test_equals_the_slow_loop(decoder: Decoder) -> None:
    output, sizes = random_output(), [(48, 64), (41, 50)]
    found = decoder(output, torch.tensor(sizes))
    for image, size in enumerate(sizes):
        wanted = slow(output, image, size, decoder)
        assert len(wanted) > 3
        assert found[image].labels.tolist() == [c for _, c, _ in wanted]
        torch.testing.assert_close(found[image].scores, torch.tensor([s for s, _, _ in wanted]))
        torch.testing.assert_close(found[image].boxes, torch.tensor([b for _, _, b in wanted]))


def test_class_scores_are_scores_without_centerness() -> None:
    """With centerness of one value everywhere, they are the scores divided by it."""
    output, sizes = random_output(), torch.tensor([(48, 64), (41, 50)])
    level = [torch.full_like(m, 0.5) for m in output.centerness]
    output = DenseOutput(output.class_logits, output.distances, level, STRIDES)
    plain = Decoder()(output, sizes)
    for (found, of_class), alone in zip(Decoder().with_classes(output, sizes), plain, strict=True):
        assert torch.equal(found.boxes, alone.boxes)
        assert torch.equal(found.scores, alone.scores)
        assert of_class.min() > 0.05
        torch.testing.assert_close(of_class * torch.tensor(0.5).sigmoid(), found.scores)


@pytest.mark.parametrize("least", [0.0, 0.05, 0.1])
@pytest.mark.parametrize("decoder", [Decoder(), Decoder(per_level=5, max_detections=7)])
def test_objects_equal_a_slow_loop(decoder: Decoder, least: float) -> None:
    output, sizes = random_output(), [(48, 64), (41, 50)]
    places = locate(SHAPES, STRIDES, torch.device("cpu"))
    found = decoder.objects(output, torch.tensor(sizes), least=least)
    for image, (height, width) in enumerate(sizes):
        logits, reach = flatten(output.class_logits)[image], flatten(output.distances)[image]
        centerness = flatten(output.centerness)[image, :, 0]
        candidates: list[tuple[list[float], list[float]]] = []
        for level in range(5):
            here = []
            for k in (places.levels == level).nonzero().flatten().tolist():
                middle = 1 / (1 + math.exp(-centerness[k].item()))
                scores = [middle / (1 + math.exp(-v)) for v in logits[k].tolist()]
                x, y = places.points[k].tolist()
                left, top, right, bottom = (reach[k] * STRIDES[level]).tolist()
                box = [max(0, x - left), max(0, y - top), min(width, x + right),
                       min(height, y + bottom)]  # fmt: skip
                if max(scores) > least:
                    here.append((scores, box))
            best = sorted(here, key=lambda each: -max(each[0]))[: decoder.per_level]
            candidates += [(s, b) for s, b in best if b[2] > b[0] and b[3] > b[1]]
        kept: list[tuple[list[float], list[float]]] = []
        for scores, box in sorted(candidates, key=lambda each: -max(each[0])):
            if all(iou(box, other) <= decoder.nms_iou for _, other in kept):
                kept.append((scores, box))
        kept = kept[: decoder.max_detections]
        assert len(kept) > 1
        torch.testing.assert_close(found[image].scores, torch.tensor([s for s, _ in kept]))
        torch.testing.assert_close(found[image].boxes, torch.tensor([b for _, b in kept]))


def test_nothing_above_the_bar_is_no_detection() -> None:
    output = random_output()
    silent = DenseOutput(
        [m - 50 for m in output.class_logits], output.distances, output.centerness, STRIDES
    )
    [nothing, _] = Decoder().objects(silent, torch.tensor([[48, 64], [48, 64]]), least=0.05)
    assert nothing.scores.shape == (0, 3)
    found = Decoder()(silent, torch.tensor([[48, 64], [48, 64]]))
    assert [len(f) for f in found] == [0, 0]
    assert found[0].boxes.shape == (0, 4)


def test_detections_do_not_depend_on_batch_mates_of_the_same_canvas() -> None:
    """Tolerance: 1e-3 px and 1e-5 of score, from the order of additions alone. Images that pad to
    different canvases never share a batch in evaluation (see data.loader.EvalBatches)."""
    torch.manual_seed(0)
    detector = FCOS(ResNet("resnet18"), 3, channels=64, num_convs=2).eval()
    torch.nn.init.normal_(detector.head.class_logits.weight, std=0.3)
    torch.nn.init.normal_(detector.head.distances.weight, std=0.3)
    pixels = torch.randint(0, 256, (4, 3, 64, 96), dtype=torch.uint8)
    sizes = torch.tensor([[60, 90], [64, 96], [33, 70], [64, 65]])
    decoder = Decoder()
    with torch.no_grad():
        alone = [
            decoder(detector(ImageBatch(pixels[i : i + 1], sizes[i : i + 1])), sizes[i : i + 1])[0]
            for i in range(4)
        ]
        together = decoder(detector(ImageBatch(pixels, sizes)), sizes)
    for one, other in zip(alone, together, strict=True):
        assert len(one) == len(other) > 0
        torch.testing.assert_close(one.boxes, other.boxes, atol=1e-3, rtol=0)
        torch.testing.assert_close(one.scores, other.scores, atol=1e-5, rtol=0)
