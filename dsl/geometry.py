"""Replayable geometry: each operation moves an image and its boxes alike.

An operation is a value that holds its drawn numbers, so that it can be recorded between two views
and applied again to boxes that are found later. It draws no random numbers itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from dsl.image import resize_image
from dsl.types import Targets


class Operation(Protocol):
    """One step of geometry."""

    def image(self, image: Tensor) -> Tensor:
        """(3, H, W) uint8 -> (3, H', W') uint8."""

    def targets(self, targets: Targets) -> Targets:
        """The same step on boxes, in pixels."""


@dataclass(frozen=True)
class Resize:
    """To another size; heights and widths in pixels."""

    source: tuple[int, int]
    target: tuple[int, int]

    def image(self, image: Tensor) -> Tensor:
        if image.shape[-2:] == self.target:
            return image
        pixels = resize_image(image.permute(1, 2, 0).numpy(), *self.target)
        return torch.from_numpy(pixels).permute(2, 0, 1)

    def targets(self, targets: Targets) -> Targets:
        (height, width), (new_height, new_width) = self.source, self.target
        factor = targets.boxes.new_tensor([new_width / width, new_height / height]).repeat(2)
        return replace(targets, boxes=targets.boxes * factor)


@dataclass(frozen=True)
class Flip:
    """Left and right exchanged."""

    width: int

    def image(self, image: Tensor) -> Tensor:
        return image.flip(-1)

    def targets(self, targets: Targets) -> Targets:
        x1, y1, x2, y2 = targets.boxes.unbind(-1)
        flipped = torch.stack([self.width - x2, y1, self.width - x1, y2], dim=-1)
        return replace(targets, boxes=flipped)


def move_image(image: Tensor, operations: Sequence[Operation]) -> Tensor:
    """The image after all operations, in order."""
    for operation in operations:
        image = operation.image(image)
    return image


def move_targets(targets: Targets, operations: Sequence[Operation]) -> Targets:
    """The targets after all operations, in order."""
    for operation in operations:
        targets = operation.targets(targets)
    return targets


def clip(targets: Targets, height: int, width: int) -> Targets:
    """Boxes cut to the image; those that fall outside of it altogether are left out."""
    limit = targets.boxes.new_tensor([width, height, width, height])
    boxes = torch.minimum(targets.boxes.clamp(min=0), limit)
    inside = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
    return Targets(boxes[inside], targets.labels[inside], targets.ignored[inside])


def fitted_size(height: int, width: int, *, short_side: int, max_side: int) -> tuple[int, int]:
    """The size with this short side, unless the long one would exceed `max_side`; aspect kept."""
    scale = min(short_side / min(height, width), max_side / max(height, width))
    return max(1, round(height * scale)), max(1, round(width * scale))
