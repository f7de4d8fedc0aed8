"""Replayable geometry: each operation moves an image and its boxes alike.

An operation is a value that holds its drawn numbers, so that it can be recorded between two views
and applied again to boxes that are found later. It draws no random numbers itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from dsl.image import MEAN_COLOR, resize_image
from dsl.types import Operation, Targets

MIN_SHARE = 0.25  # of its box: a smaller piece shows too little of the object to be called one
MIN_PIECE = 4.0  # pixels, the shorter side


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


@dataclass(frozen=True)
class VerticalFlip:
    """Top and bottom exchanged."""

    height: int

    def image(self, image: Tensor) -> Tensor:
        return image.flip(-2)

    def targets(self, targets: Targets) -> Targets:
        x1, y1, x2, y2 = targets.boxes.unbind(-1)
        flipped = torch.stack([x1, self.height - y2, x2, self.height - y1], dim=-1)
        return replace(targets, boxes=flipped)


@dataclass(frozen=True)
class PatchShuffle:
    """The image cut in two and its parts exchanged, over and over (DSL, Algorithm 1).

    Exchanging two parts is a cyclic roll along one axis, so any number of rounds is one roll by
    (right, down) pixels. A box that wraps around becomes up to four; a piece that is small, by
    itself or against its box, becomes ignored: it is no object, and no background either.
    """

    height: int
    width: int
    right: int
    down: int

    def image(self, image: Tensor) -> Tensor:
        return image.roll((self.down, self.right), dims=(-2, -1))

    def targets(self, targets: Targets) -> Targets:
        x1, y1, x2, y2 = targets.boxes.unbind(-1)
        right, down = self.right % self.width, self.down % self.height
        columns = _wrapped(x1 + right, x2 + right, self.width)
        rows = _wrapped(y1 + down, y2 + down, self.height)
        pieces = [
            torch.stack([left, top, right, bottom], dim=-1)
            for top, bottom in rows
            for left, right in columns
        ]
        return _pieces(targets, torch.stack(pieces, dim=1))  # (M, 4, 4)

    def then(self, other: "PatchShuffle") -> "PatchShuffle":
        """This roll and another one after it."""
        right, down = self.right + other.right, self.down + other.down
        return replace(self, right=right % self.width, down=down % self.height)

    def inverse(self) -> "PatchShuffle":
        return replace(self, right=-self.right % self.width, down=-self.down % self.height)


def _wrapped(start: Tensor, end: Tensor, limit: int) -> list[tuple[Tensor, Tensor]]:
    """The interval inside the image, and what re-enters at its beginning (empty: no length).

    Both ends are moved alike, and none is rebuilt from a length: an edge that lies exactly on a
    location must stay there, or rounding decides whether the location is inside.
    """
    beyond = start >= limit
    start, end = (torch.where(beyond, side - limit, side) for side in (start, end))
    rest = (end - limit).clamp(min=0)
    return [(start, end.clamp(max=limit)), (torch.zeros_like(rest), rest)]


def _pieces(targets: Targets, pieces: Tensor) -> Targets:
    """Pieces (M, P, 4) of M boxes as targets; empty ones are left out, small ones ignored."""
    sides = pieces[..., 2:] - pieces[..., :2]  # (M, P, 2)
    whole = targets.boxes[:, 2:] - targets.boxes[:, :2]  # (M, 2)
    shares = sides.prod(-1) / whole.prod(-1)[:, None]  # (M, P)
    cut = shares < 1 - 1e-4  # a box in one piece stays as it is, however small
    small = cut & ((shares < MIN_SHARE) | (sides.amin(-1) < MIN_PIECE))
    present = (sides > 0).all(dim=-1)
    rows = present.nonzero()[:, 0]
    return replace(targets[rows], boxes=pieces[present]).put_aside(small[present])


@dataclass(frozen=True)
class Affine:
    """Turned, sheared, scaled and shifted; what comes from outside takes the mean colour.

    A box becomes the upright box around its moved corners, cut to the image; one that mostly
    left it becomes ignored.
    """

    height: int
    width: int
    matrix: tuple[float, float, float, float, float, float]  # x' = a x + b y + c; y' alike

    def image(self, image: Tensor) -> Tensor:
        back = torch.linalg.inv(torch.tensor([*self._rows(), (0.0, 0.0, 1.0)], dtype=torch.float64))
        pixels = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()).transform(
            (self.width, self.height), Image.Transform.AFFINE, back[:2].flatten().tolist(),
            Image.Resampling.BILINEAR, fillcolor=MEAN_COLOR,
        )  # fmt: skip
        return torch.from_numpy(np.array(pixels)).permute(2, 0, 1)

    def targets(self, targets: Targets) -> Targets:
        x1, y1, x2, y2 = targets.boxes.unbind(-1)
        x, y = torch.stack([x1, x2, x1, x2]), torch.stack([y1, y1, y2, y2])  # (4, M)
        (a, b, c), (d, e, f) = self._rows()
        across, along = a * x + b * y + c, d * x + e * y + f
        moved = torch.stack(
            [across.amin(0), along.amin(0), across.amax(0), along.amax(0)], dim=-1
        )  # (M, 4)
        limit = moved.new_tensor([self.width, self.height, self.width, self.height])
        inside = torch.minimum(moved.clamp(min=0), limit)
        shares = _areas(inside) / _areas(moved).clamp(min=1e-9)
        left = shares > 0
        return replace(targets, boxes=inside).put_aside(shares < MIN_SHARE)[left]

    def _rows(self) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
        return self.matrix[:3], self.matrix[3:]


def _areas(boxes: Tensor) -> Tensor:
    return (boxes[..., 2:] - boxes[..., :2]).clamp(min=0).prod(-1)


def halve(targets: Targets) -> Targets:
    """The targets of the image at half its size."""
    return replace(targets, boxes=targets.boxes / 2)


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
    return replace(targets, boxes=boxes)[inside]
