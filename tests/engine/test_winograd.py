"""The quick convolution against the plain one in double precision."""

import copy
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from dsl.compose import build_detector, build_method
from dsl.config import load_config
from dsl.data.loader import collate_samples
from dsl.data.views import Sample
from dsl.engine.winograd import (
    MIN_CHANNELS,
    MIN_TILES,
    MIN_TILES_FORWARD,
    MIN_TILES_WIDE,
    WIDE,
    QuickConv2d,
    quicken,
    share_maps,
)
from dsl.models.decode import Decoder
from dsl.models.exported import ExportedDetector, suppress_by_torchvision
from dsl.models.fcos import FCOS
from dsl.models.resnet import ResNet
from dsl.types import Batch, Targets

ENOUGH = 40  # side of an image that has enough tiles


def make(channels: int = MIN_CHANNELS, out: int = MIN_CHANNELS, *, bias: bool = True) -> nn.Conv2d:
    torch.manual_seed(0)
    return nn.Conv2d(channels, out, 3, padding=1, bias=bias)


def quick_copy(conv: nn.Conv2d) -> nn.Module:
    made = nn.Sequential(copy.deepcopy(conv))
    quicken(made)
    return made[0]


def ways_taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the plain convolution is asked for, from now on."""
    plain, taken = nn.Conv2d.forward, []

    def forward(self: nn.Conv2d, image: Tensor) -> Tensor:
        taken.append("plain")
        return plain(self, image)

    monkeypatch.setattr(nn.Conv2d, "forward", forward)
    return taken


def run(conv: nn.Module, image: Tensor) -> list[Tensor]:
    """Output, and gradients of the image, the weight and perhaps the bias."""
    image = image.detach().requires_grad_()
    output = conv(image)
    weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output).sin()
    sought = [image, *conv.parameters()]
    return [output, *torch.autograd.grad((output * weights).sum(), sought)]


def assert_alike(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> None:
    for a, b in zip(found, wanted, strict=True):
        assert a.shape == b.shape
        assert (a.double() - b).abs().max() < 3e-5 * b.abs().max()


@pytest.mark.parametrize("size", [(40, 40), (41, 40), (42, 43), (39, 47), (4, 400)])
@pytest.mark.parametrize("bias", [True, False])
def test_equals_plain_convolution_and_its_gradients(
    size: tuple[int, int], bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    conv = make(bias=bias)
    image = torch.randn(2, MIN_CHANNELS, *size, generator=torch.Generator().manual_seed(1))
    wanted = run(copy.deepcopy(conv).double(), image.double())
    taken = ways_taken(monkeypatch)
    assert_alike(run(quick_copy(conv), image), wanted)
    assert not taken


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_any_layout_and_more_channels_out_than_in(layout: torch.memory_format) -> None:
    conv = make(MIN_CHANNELS, MIN_CHANNELS + 5)
    image = torch.randn(1, MIN_CHANNELS, ENOUGH, ENOUGH).to(memory_format=layout)
    found = run(quick_copy(conv), image)
    assert_alike(found, run(copy.deepcopy(conv).double(), image.double()))
    assert found[0].is_contiguous(memory_format=torch.channels_last)


class Twice(nn.Module):
    """A step that shows two images to one convolution, and fails where it is told to."""

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv, self.fails = conv, False

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        outputs = self.conv(image), self.conv(image.flip(3))
        if self.fails:
            raise RuntimeError("out of memory")
        return outputs


def kept_maps(step: Callable[[], object], channels: int = MIN_CHANNELS) -> list[int]:
    """Where the weights on tiles lie that a backward pass of the step would use."""
    kept: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        step()
    shape = (channels, 36, channels)
    return [tensor.data_ptr() for tensor in kept if tensor.shape == shape]


def test_views_of_a_step_share_the_weight_on_tiles() -> None:
    step = Twice(quick_copy(make()))
    image = torch.randn(1, MIN_CHANNELS, ENOUGH, ENOUGH)
    apart = kept_maps(lambda: step(image))
    assert len(apart) == len(set(apart)) == 2
    wanted = [output.detach() for output in step(image)]
    share_maps(step)
    together = kept_maps(lambda: step(image))
    assert len(together) == 2
    assert len(set(together)) == 1
    assert all(torch.equal(a, b) for a, b in zip(step(image), wanted, strict=True))


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("learns", [False, True])
def test_the_next_step_sees_what_the_optimizer_changed(fails: bool, learns: bool) -> None:
    """Fused optimizers change weights without raising their version."""
    step = Twice(quick_copy(make()))
    share_maps(step)
    image = torch.randn(1, MIN_CHANNELS, ENOUGH, ENOUGH)
    optimizer = torch.optim.AdamW(step.parameters(), lr=0.1, fused=True)
    step.fails = fails
    with pytest.raises(RuntimeError) if fails else nullcontext():
        step(image)
    for parameter in step.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    step.fails = False
    with torch.set_grad_enabled(learns):
        plain = nn.functional.conv2d(
            image.double(), *[p.double() for p in step.parameters()], padding=1
        )
        assert_alike([step(image)[0]], [plain])


def test_frozen_weights_and_an_image_without_gradient() -> None:
    conv = quick_copy(make()).requires_grad_(False)
    image = torch.randn(1, MIN_CHANNELS, ENOUGH, ENOUGH, requires_grad=True)
    conv(image).sum().backward()
    assert image.grad is not None
    free = quick_copy(make())
    free(image.detach()).sum().backward()
    assert all(p.grad is not None for p in free.parameters())


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(96, 96, 1),
        nn.Conv2d(96, 96, 3, padding=1, stride=2),
        nn.Conv2d(96, 96, 3),
        nn.Conv2d(96, 96, 3, padding=2, dilation=2),
        nn.Conv2d(96, 96, 3, padding=1, groups=96),
        nn.Conv2d(96, 96, 3, padding=1, padding_mode="reflect"),
        nn.Conv2d(96, MIN_CHANNELS - 1, 3, padding=1),
        nn.Conv2d(MIN_CHANNELS - 1, 96, 3, padding=1),
    ],
)
def test_other_convolutions_stay(conv: nn.Conv2d) -> None:
    assert type(quick_copy(conv)) is nn.Conv2d


@pytest.mark.parametrize(
    ("learns", "channels", "enough"),
    [
        (True, WIDE - 1, MIN_TILES),
        (True, WIDE, MIN_TILES_WIDE),
        (False, MIN_CHANNELS, MIN_TILES_FORWARD),
        (False, WIDE, MIN_TILES_FORWARD),
    ],
)
def test_small_maps_take_the_plain_way(
    learns: bool, channels: int, enough: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    conv, taken = quick_copy(make(channels, channels)), ways_taken(monkeypatch)
    with torch.set_grad_enabled(learns):
        conv(torch.randn(1, channels, 4, 4 * enough))
        assert not taken
        conv(torch.randn(1, channels, 4, 4 * enough - 4))
        assert taken


def test_low_precision_takes_the_plain_way(monkeypatch: pytest.MonkeyPatch) -> None:
    conv, taken = quick_copy(make()), ways_taken(monkeypatch)
    image = torch.randn(1, MIN_CHANNELS, ENOUGH, ENOUGH)
    with torch.autocast("cpu", torch.bfloat16):
        assert conv(image).dtype == torch.bfloat16
    conv.bfloat16()(image.bfloat16())
    assert len(taken) == 2


def test_detector_keeps_its_names_and_its_outputs() -> None:
    torch.manual_seed(0)
    plain = FCOS(ResNet("resnet18"), 3, channels=96, num_convs=2).eval()
    quick = copy.deepcopy(plain)
    quicken(quick)
    assert any(isinstance(m, QuickConv2d) for m in quick.head.modules())
    assert any(isinstance(m, QuickConv2d) for m in quick.backbone.modules())
    assert list(quick.state_dict()) == list(plain.state_dict())
    image = torch.randn(2, 3, 256, 320)
    with torch.no_grad():
        wanted, found = plain.dense(image), quick.dense(image)
    for name in ("class_logits", "distances", "centerness"):
        for a, b in zip(getattr(found, name), getattr(wanted, name), strict=True):
            assert (a - b).abs().max() < 1e-4 * b.abs().max()


def test_built_methods_share_over_the_levels() -> None:
    config = load_config("small", {"model.weights": "none", "method": "supervised"})
    method = build_method(config, build_detector(config, 3)).train()
    pixels = torch.randint(0, 255, (3, 320, 320), dtype=torch.uint8)
    none = Targets(torch.zeros(0, 4), torch.zeros(0, dtype=torch.long), torch.zeros(0).bool())
    batch = Batch(collate_samples([Sample(pixels, none)] * 4), None)  # enough tiles on two levels
    channels = config.model.channels
    kept = kept_maps(lambda: method(batch), channels)
    assert len(kept) > len(set(kept)) >= 2 * config.model.num_convs


def test_built_detectors_are_quick_and_exported_ones_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    detector = build_detector(load_config("small", {"model.weights": "none"}), 3).eval()
    quick = [m for m in detector.modules() if isinstance(m, QuickConv2d)]
    assert quick
    exported = ExportedDetector(detector, Decoder(), suppress_by_torchvision)
    inputs = (torch.randint(0, 255, (2, 3, 320, 320), dtype=torch.uint8), torch.full((2, 2), 320))
    taken = ways_taken(monkeypatch)
    program = torch.jit.trace(exported, inputs, check_trace=False)  # type: ignore[no-untyped-call]
    assert len(taken) >= len(quick)
    assert "_Winograd" not in str(program.inlined_graph)
