"""FCOS: one stage, no anchors. Every location of every level says what and how far (METHOD 1).

The detector maps images to a `DenseOutput` and knows nothing of targets, losses or scores.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dsl.models.backbone import Backbone
from dsl.models.fpn import FPN, STRIDES
from dsl.types import DenseOutput, ImageBatch

CLASS_PRIOR = 0.01


def _tower(channels: int, num_convs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for _ in range(num_convs):
        conv = nn.Conv2d(channels, channels, 3, padding=1)
        layers += [conv, nn.GroupNorm(32, channels), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class Head(nn.Module):
    """Two towers shared over the levels: one for the class, one for distances and centerness."""

    def __init__(self, channels: int, num_classes: int, *, num_convs: int) -> None:
        super().__init__()
        self.class_tower = _tower(channels, num_convs)
        self.box_tower = _tower(channels, num_convs)
        self.class_logits = nn.Conv2d(channels, num_classes, 3, padding=1)
        self.distances = nn.Conv2d(channels, 4, 3, padding=1)
        self.centerness = nn.Conv2d(channels, 1, 3, padding=1)
        self.scales = nn.Parameter(torch.ones(len(STRIDES)))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, std=0.01)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        if self.class_logits.bias is not None:
            nn.init.constant_(self.class_logits.bias, -math.log((1 - CLASS_PRIOR) / CLASS_PRIOR))

    def forward(self, pyramid: list[Tensor]) -> DenseOutput:
        logits, distances, centerness = [], [], []
        for level, features in enumerate(pyramid):
            of_class, of_box = self.class_tower(features), self.box_tower(features)
            # bfloat16 keeps 8 bits: too few for scores and distances, so the output convs are fp32.
            with torch.autocast(features.device.type, enabled=False):
                of_class, of_box = of_class.float(), of_box.float()
                logits.append(self.class_logits(of_class))
                distances.append(F.relu(self.distances(of_box) * self.scales[level]))
                centerness.append(self.centerness(of_box))
        return DenseOutput(logits, distances, centerness, STRIDES)


class FCOS(nn.Module):
    """Backbone, pyramid and head."""

    pixel_mean: Tensor
    pixel_std: Tensor

    def __init__(
        self, backbone: Backbone, num_classes: int, *, channels: int = 256, num_convs: int = 4
    ) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.backbone = backbone
        self.fpn = FPN(backbone.out_channels, channels)
        self.head = Head(channels, num_classes, num_convs=num_convs)
        mean, std = torch.tensor(backbone.pixel_mean), torch.tensor(backbone.pixel_std)
        self.register_buffer("pixel_mean", 255 * mean.view(3, 1, 1), persistent=False)
        self.register_buffer("pixel_std", 255 * std.view(3, 1, 1), persistent=False)

    def normalise(self, batch: ImageBatch) -> Tensor:
        """Bytes to the backbone's range; the padding becomes 0, the mean colour."""
        images = (batch.images.float() - self.pixel_mean) / self.pixel_std  # (N, 3, H, W)
        height, width = images.shape[-2:]
        rows = torch.arange(height, device=images.device) < batch.sizes[:, :1]  # (N, H)
        columns = torch.arange(width, device=images.device) < batch.sizes[:, 1:]  # (N, W)
        valid = rows[:, None, :, None] & columns[:, None, None, :]  # (N, 1, H, W)
        return (images * valid).contiguous(memory_format=torch.channels_last)

    def dense(self, images: Tensor) -> DenseOutput:
        """The network proper, on normalised images (N, 3, H, W)."""
        output: DenseOutput = self.head(self.fpn(self.backbone(images)))
        return output

    def forward(self, batch: ImageBatch) -> DenseOutput:
        return self.dense(self.normalise(batch))
