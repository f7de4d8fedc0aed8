"""One record becomes what the detector is shown: weak or strong view, with its boxes.

The file is read once. All numbers are drawn from the generator that the caller hands in.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dsl.data.augment import Strong
from dsl.data.index import Index
from dsl.geometry import Flip, Operation, Resize, clip, fitted_size, move_image, move_targets
from dsl.image import read_image
from dsl.types import Targets


@dataclass(frozen=True)
class Sample:
    """One image as shown to the network, and what it holds."""

    image: Tensor  # (3, H, W) uint8
    targets: Targets


@dataclass(frozen=True)
class LabeledViews:
    """Training views of labeled images: weak (resize and flip), or strong on top."""

    short_sides: tuple[int, ...]
    max_side: int
    flip: bool
    strong: Strong | None = None

    def __call__(self, index: Index, position: int, random: np.random.Generator) -> Sample:
        image, moves = self._weak(index, position, random)
        if self.strong is not None:
            image = self.strong(image, random)
        known = Targets.empty() if index.annotations is None else index.annotations[position]
        targets = clip(move_targets(known, moves), *image.shape[-2:])
        return Sample(image, targets)

    def _weak(
        self, index: Index, position: int, random: np.random.Generator
    ) -> tuple[Tensor, list[Operation]]:
        short_side = int(random.choice(self.short_sides))
        image, resize = read_resized(index, position, short_side=short_side, max_side=self.max_side)
        moves: list[Operation] = [resize]
        if self.flip and random.random() < 0.5:
            flip = Flip(image.shape[-1])
            image = move_image(image, [flip])
            moves.append(flip)
        return image, moves


def read_resized(
    index: Index, position: int, *, short_side: int, max_side: int
) -> tuple[Tensor, Resize]:
    """The image at the detector's input size, and the resize from the file's pixels to it."""
    read = read_image(
        index.path(position), expected_size=index.size(position), draft_short_side=short_side
    )
    target = fitted_size(read.height, read.width, short_side=short_side, max_side=max_side)
    # A JPEG may have been decoded at a reduced scale: the recorded resize starts at the full one.
    resize = Resize((read.height, read.width), target)
    image = torch.from_numpy(read.pixels).permute(2, 0, 1)
    return resize.image(image), resize
