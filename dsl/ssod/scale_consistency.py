"""Scale consistency: an image at half size says on level v what it says at full size on level
v + 1 (DSL, L_scale; METHOD 6).

Sees maps only. Returns a sum and a count: the division follows once all ranks are added up.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from dsl.types import DenseOutput, ImageBatch

Space = Literal["logits", "scores"]


def halve_images(batch: ImageBatch) -> ImageBatch:
    """The images at half their size; an odd last row or column is left out."""
    pixels = F.avg_pool2d(batch.images.float(), 2)
    sizes = (batch.sizes // 2).clamp(min=1)
    return ImageBatch(pixels.round().to(torch.uint8), sizes)


def scale_consistency(
    half: DenseOutput, full: DenseOutput, *, space: Space
) -> tuple[Tensor, Tensor]:
    """Sum over v of |p_v[half] - p_{v+1}[full]|^2, and its number of elements."""
    total = half.class_logits[0].new_zeros(())
    count = 0
    for small, large in zip(half.class_logits[:-1], full.class_logits[1:], strict=True):
        if small.shape != large.shape:
            raise ValueError(f"levels do not match: {tuple(small.shape)}, {tuple(large.shape)}")
        small, large = small.float(), large.float()
        if space == "scores":
            small, large = small.sigmoid(), large.sigmoid()
        total = total + (small - large).square().sum()
        count += small.numel()
    return total, total.new_tensor(float(count))
