"""The quick depthwise convolution against the plain one in double precision."""

import copy

import pytest
import torch
from timm.layers import Conv2dSame
from torch import Tensor, nn

from dsl.compose import build_detector
from dsl.config import load_config
from dsl.engine.depthwise import QuickDepthwise, QuickDepthwiseSame, quicken_depthwise

CHANNELS = 24
KINDS = {
    "5x5": nn.Conv2d(CHANNELS, CHANNELS, 5, padding=2, groups=CHANNELS, bias=False),
    "5x5, step 2": nn.Conv2d(CHANNELS, CHANNELS, 5, 2, padding=2, groups=CHANNELS, bias=False),
    "3x3, step 2": nn.Conv2d(CHANNELS, CHANNELS, 3, 2, padding=1, groups=CHANNELS, bias=False),
    "5x5, step 2, same": Conv2dSame(CHANNELS, CHANNELS, 5, 2, groups=CHANNELS, bias=False),
    "3x3, step 2, same": Conv2dSame(CHANNELS, CHANNELS, 3, 2, groups=CHANNELS, bias=False),
}
PLAIN = {
    "dense": nn.Conv2d(CHANNELS, CHANNELS, 5, padding=2, bias=False),
    "with a bias": nn.Conv2d(CHANNELS, CHANNELS, 5, padding=2, groups=CHANNELS),
    "wider": nn.Conv2d(CHANNELS, 2 * CHANNELS, 5, padding=2, groups=CHANNELS, bias=False),
    "spread": nn.Conv2d(CHANNELS, CHANNELS, 5, dilation=2, groups=CHANNELS, bias=False),
    "quick already": nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, groups=CHANNELS, bias=False),
}


def quick_copy(conv: nn.Module) -> nn.Module:
    made = nn.Sequential(copy.deepcopy(conv))
    quicken_depthwise(made)
    return made[0]


def run(conv: nn.Module, image: Tensor) -> list[Tensor]:
    """Output, and gradients of the image and the weight."""
    image = image.detach().requires_grad_()
    output = conv(image)
    weights = torch.linspace(-9, 9, output.numel()).view_as(output).sin()
    weights = weights.to(torch.bfloat16).to(output.dtype)
    return [output, *torch.autograd.grad((output * weights).sum(), [image, conv.weight])]


@pytest.mark.parametrize("size", [(16, 24), (17, 24), (9, 13), (5, 6)])
@pytest.mark.parametrize("kind", KINDS)
def test_output_and_gradients_are_those_of_the_plain_convolution(
    kind: str, size: tuple[int, int]
) -> None:
    conv, quick = KINDS[kind], quick_copy(KINDS[kind])
    assert isinstance(quick, QuickDepthwise | QuickDepthwiseSame)
    image = torch.randn(2, CHANNELS, *size, generator=torch.Generator().manual_seed(1))
    image = image.to(torch.bfloat16).float()
    exact = copy.deepcopy(conv).double()
    exact.weight.data = exact.weight.data.to(torch.bfloat16).double()
    wanted = run(exact, image.double())
    with torch.autocast("cpu", torch.bfloat16):
        found = run(quick, image.contiguous(memory_format=torch.channels_last))
    assert found[2].dtype == torch.float32
    for ours, theirs in zip(found, wanted, strict=True):
        # bfloat16 has eight bits: sums of up to 25 products, rounded once.
        torch.testing.assert_close(
            ours.double(), theirs, rtol=0, atol=0.01 * float(theirs.detach().abs().max())
        )


@pytest.mark.parametrize("kind", KINDS)
def test_other_arithmetic_and_prediction_stay_with_the_plain_convolution(kind: str) -> None:
    conv, quick = KINDS[kind], quick_copy(KINDS[kind])
    image = torch.randn(1, CHANNELS, 16, 16)
    for ours, theirs in zip(run(quick, image), run(conv, image), strict=True):
        assert torch.equal(ours, theirs)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(quick(image), conv(image))


@pytest.mark.parametrize("kind", PLAIN)
def test_what_does_not_gain_is_left_alone(kind: str) -> None:
    assert type(quick_copy(PLAIN[kind])) is nn.Conv2d


def test_a_frozen_weight_gets_no_gradient_and_the_image_does() -> None:
    quick = quick_copy(KINDS["5x5, step 2"])
    quick.weight.requires_grad_(False)
    image = torch.randn(1, CHANNELS, 12, 12, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        quick(image).float().sum().backward()
    assert image.grad is not None
    assert image.grad.abs().sum() > 0
    assert quick.weight.grad is None


def test_the_default_detector_has_no_slow_depthwise_convolution_left() -> None:
    detector = build_detector(load_config("small"), 3)
    deep = [m for m in detector.modules() if isinstance(m, nn.Conv2d) and m.groups > 1]
    slow = [m for m in deep if m.kernel_size == (5, 5) or m.stride == (2, 2)]
    assert len(slow) == 11
    assert all(isinstance(m, QuickDepthwise | QuickDepthwiseSame) for m in slow)
