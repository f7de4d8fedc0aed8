"""A vector for every box: crop it from the image and run a network on the crop (METHOD 4)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchvision.ops import roi_align

from dsl.models.backbone import Backbone, Pyramid
from dsl.models.timm_backbone import TimmClassifier
from dsl.types import ImageBatch

MARGIN = 0.1  # of a box's sides, on each side: a little of its surroundings
AT_ONCE = 128  # crops of one forward pass


class InstanceFeatures(nn.Module):
    """Of square crops what a classifier says, or the mean of a backbone's last feature map; no
    gradient."""

    pixel_mean: Tensor
    pixel_std: Tensor

    def __init__(self, backbone: Backbone | TimmClassifier, *, crop: int) -> None:
        """`crop`: side of the crops in pixels."""
        super().__init__()
        self.backbone, self.crop = backbone.requires_grad_(False), crop
        if isinstance(backbone, TimmClassifier):
            self.width: int = backbone.width
        else:
            self.width = backbone.out_channels[2]
        mean, std = torch.tensor(backbone.pixel_mean), torch.tensor(backbone.pixel_std)
        self.register_buffer("pixel_mean", 255 * mean.view(3, 1, 1), persistent=False)
        self.register_buffer("pixel_std", 255 * std.view(3, 1, 1), persistent=False)

    def train(self, mode: bool = True) -> "InstanceFeatures":
        super().train(False)  # its statistics are those that its proxies were made with
        return self

    @torch.no_grad()
    def forward(self, images: ImageBatch, boxes: Sequence[Tensor]) -> Tensor:  # (M, D)
        if not sum(len(b) for b in boxes):
            return self.pixel_mean.new_zeros(0, self.width)
        wide = [_enlarged(b) for b in boxes]
        pixels = (images.images.float() - self.pixel_mean) / self.pixel_std
        crops = roi_align(pixels, wide, self.crop, sampling_ratio=2, aligned=True)
        return torch.cat([self._vectors(part) for part in crops.split(AT_ONCE)])

    def _vectors(self, crops: Tensor) -> Tensor:
        seen: Tensor | Pyramid = self.backbone(crops)
        return seen.float() if isinstance(seen, Tensor) else seen[2].float().mean(dim=(2, 3))


def _enlarged(boxes: Tensor) -> Tensor:
    margin = (boxes[:, 2:] - boxes[:, :2]) * MARGIN
    return torch.cat([boxes[:, :2] - margin, boxes[:, 2:] + margin], dim=1).float()
