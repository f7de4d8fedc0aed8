"""L_scale against loops: level v of the half image answers to level v + 1 of the whole one."""

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from dsl.models.fcos import FCOS
from dsl.models.timm_backbone import TimmBackbone
from dsl.ssod.scale_consistency import Space, halve_images, scale_consistency
from dsl.types import DenseOutput, ImageBatch

STRIDES = (8, 16, 32, 64, 128)
# A canvas of 96 x 160: P3 is 12 x 20, and every stride from there on rounds up.
FULL = [(12, 20), (6, 10), (3, 5), (2, 3), (1, 2)]
HALF = [(6, 10), (3, 5), (2, 3), (1, 2), (1, 1)]


def output(shapes: Sequence[tuple[int, int]], seed: int, images: int = 2) -> DenseOutput:
    generator = torch.Generator().manual_seed(seed)

    def maps(channels: int) -> list[Tensor]:
        return [
            torch.randn(images, channels, h, w, generator=generator).requires_grad_()
            for h, w in shapes
        ]

    return DenseOutput(maps(3), maps(4), maps(1), STRIDES)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def slow_value(half: DenseOutput, full: DenseOutput, space: str) -> tuple[float, int]:
    total, count = 0.0, 0
    for v in range(1, 5):  # v = 1..4 as in the paper
        small, large = half.class_logits[v - 1].tolist(), full.class_logits[v].tolist()
        for small_image, large_image in zip(small, large, strict=True):
            for small_class, large_class in zip(small_image, large_image, strict=True):
                for small_row, large_row in zip(small_class, large_class, strict=True):
                    for a, b in zip(small_row, large_row, strict=True):
                        if space == "scores":
                            a, b = sigmoid(a), sigmoid(b)
                        total += (a - b) ** 2
                        count += 1
    return total, count


@pytest.mark.parametrize("space", ["logits", "scores"])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_sum_and_count_equal_a_loop(space: Space, seed: int) -> None:
    half, full = output(HALF, seed), output(FULL, seed + 10)
    total, count = scale_consistency(half, full, space=space)
    expected, elements = slow_value(half, full, space)
    assert total.item() == pytest.approx(expected, rel=1e-5)
    assert count.item() == elements == 2 * 3 * (60 + 15 + 6 + 2)
    assert not count.requires_grad


@pytest.mark.parametrize("space", ["logits", "scores"])
def test_gradients_reach_both_sides_as_in_the_loop(space: Space) -> None:
    half, full = output(HALF, 0), output(FULL, 1)
    total, _ = scale_consistency(half, full, space=space)
    total.backward()
    for v in range(1, 5):
        small = half.class_logits[v - 1].detach().clone().requires_grad_()
        large = full.class_logits[v].detach().clone().requires_grad_()
        slow = torch.zeros((), dtype=torch.float64)
        for a, b in zip(small.flatten(), large.flatten(), strict=True):
            if space == "scores":
                a, b = 1 / (1 + torch.exp(-a)), 1 / (1 + torch.exp(-b))
            slow = slow + (a - b) ** 2
        slow.backward()
        for found, wanted in (
            (half.class_logits[v - 1].grad, small.grad),
            (full.class_logits[v].grad, large.grad),
        ):
            assert wanted is not None
            assert (wanted != 0).all()
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)
    # Nothing answers to the finest level of the whole image, nor the coarsest of the half one.
    for unused in (half.class_logits[4], full.class_logits[0]):
        assert unused.grad is None or not unused.grad.any()
    for side in (half, full):
        for unused in (*side.distances, *side.centerness):
            assert unused.grad is None


@pytest.mark.parametrize("space", ["logits", "scores"])
def test_agreement_costs_nothing_and_a_shift_by_one_level_does(space: Space) -> None:
    half, full = output(HALF, 0), output(FULL, 1)
    same = DenseOutput(
        [full.class_logits[0], *half.class_logits[:4]], full.distances, full.centerness, STRIDES
    )
    assert scale_consistency(half, same, space=space)[0].item() == 0
    assert scale_consistency(half, full, space=space)[0].item() > 0


def test_levels_that_do_not_match_are_refused() -> None:
    full = output(FULL, 0)
    for wrong in (
        output(FULL, 1),  # not halved
        output([(6, 10), (3, 5), (1, 2), (1, 1), (1, 1)], 1),  # rounded down
        output(HALF, 1, images=1),  # would broadcast
        output(HALF[:4], 1),  # a level is missing
    ):
        with pytest.raises(ValueError, match=r".+"):
            scale_consistency(wrong, full, space="logits")


@pytest.mark.parametrize("canvas", [(96, 160), (64, 64), (32, 224)])
def test_level_sizes_of_a_real_detector_match(canvas: tuple[int, int]) -> None:
    """32 times an odd number: halves are no multiple of 32 any more."""
    torch.manual_seed(0)
    detector = FCOS(TimmBackbone("resnet10t_half"), 3, channels=64, num_convs=1).eval()
    height, width = canvas
    pixels = torch.randint(0, 256, (1, 3, height, width), dtype=torch.uint8)
    images = ImageBatch(pixels, torch.tensor([[height, width]]))
    full, half = detector(images), detector(halve_images(images))
    for v in range(1, 5):
        assert half.class_logits[v - 1].shape == full.class_logits[v].shape
    if canvas == (96, 160):
        assert [tuple(m.shape[-2:]) for m in full.class_logits] == FULL
    total, count = scale_consistency(half, full, space="logits")
    expected, elements = slow_value(half, full, "logits")
    assert total.item() == pytest.approx(expected, rel=1e-4)
    assert count.item() == elements
    total.backward()
    assert any(p.grad is not None and p.grad.any() for p in detector.backbone.parameters())


def test_half_images_are_means_of_four_pixels() -> None:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (2, 3, 32, 64), dtype=torch.uint8, generator=generator)
    half = halve_images(ImageBatch(pixels, torch.tensor([[32, 64], [21, 40]])))
    assert half.images.dtype == torch.uint8
    assert half.images.shape == (2, 3, 16, 32)
    assert half.sizes.tolist() == [[16, 32], [10, 20]]
    for i in range(2):
        for c in range(3):
            for y in range(16):
                for x in range(32):
                    four = pixels[i, c, 2 * y : 2 * y + 2, 2 * x : 2 * x + 2].float()
                    assert abs(float(half.images[i, c, y, x]) - float(four.mean())) <= 0.5


def test_halving_leaves_the_given_images_alone_and_sizes_above_zero() -> None:
    pixels = torch.full((1, 3, 32, 32), 255, dtype=torch.uint8)
    images = ImageBatch(pixels, torch.tensor([[1, 3]]))
    half = halve_images(images)
    assert half.sizes.tolist() == [[1, 1]]
    assert (half.images == 255).all()  # white stays white: no overflow
    assert images.sizes.tolist() == [[1, 3]]
    assert images.images.shape == (1, 3, 32, 32)
