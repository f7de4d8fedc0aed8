"""One record becomes what the detector is shown: weak or strong views, with their boxes.

The file is read once. All numbers are drawn from the generator that the caller hands in.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from dsl.data.augment import Strong
from dsl.data.index import Index
from dsl.geometry import (
    Affine,
    Flip,
    PatchShuffle,
    Resize,
    VerticalFlip,
    clip,
    move_image,
    move_targets,
)  # fmt: skip
from dsl.image import ReadImage, fitted_size, read_image
from dsl.types import Operation, Targets


@dataclass(frozen=True)
class Sample:
    """One image as shown to the network, and what it holds."""

    image: Tensor  # (3, H, W) uint8
    targets: Targets


@dataclass(frozen=True)
class Pair:
    """One unlabeled image: the teacher's view, the student's, and the geometry between them."""

    weak: Tensor  # (3, H, W) uint8
    strong: Tensor  # (3, H', W') uint8
    moves: tuple[Operation, ...]
    truth: Targets | None  # in weak pixels, where the set happens to have labels


@dataclass(frozen=True)
class Weak:
    """Resize to a drawn short side, and flip."""

    short_sides: tuple[int, ...]
    max_side: int
    flip: bool
    flip_vertical: bool = False

    def draw(self, read: ReadImage, random: np.random.Generator) -> tuple[Resize, list[Operation]]:
        """The resize from the file's pixels, and what follows it."""
        resize = _resize(read, int(random.choice(self.short_sides)), self.max_side)
        height, width = resize.target
        moves: list[Operation] = []
        if self.flip and random.random() < 0.5:
            moves.append(Flip(width))
        if self.flip_vertical and random.random() < 0.5:
            moves.append(VerticalFlip(height))
        return resize, moves


@dataclass(frozen=True)
class Shuffle:
    """Patch shuffle (DSL, Algorithm 1): `rounds` (J) exchanges, drawn with this probability."""

    rounds: int
    probability: float = 1.0

    def draw(self, size: tuple[int, int], random: np.random.Generator) -> list[Operation]:
        if self.rounds == 0 or random.random() >= self.probability:
            return []
        height, width = size
        shuffle = PatchShuffle(height, width, 0, 0)
        for _ in range(self.rounds):
            horizontal, share = random.random() < 0.5, random.random()
            right = int(share * width) if horizontal else 0
            down = 0 if horizontal else int(share * height)
            shuffle = shuffle.then(PatchShuffle(height, width, right, down))
        return [shuffle]


@dataclass(frozen=True)
class Tilt:
    """A drawn affine step about the image's centre, with this probability."""

    probability: float
    degrees: float = 10.0
    shear: float = 0.1
    shift: float = 0.1  # of the sides

    def draw(self, size: tuple[int, int], random: np.random.Generator) -> list[Operation]:
        if random.random() >= self.probability:
            return []
        height, width = size
        angle = np.deg2rad(random.uniform(-self.degrees, self.degrees))
        slant = random.uniform(-self.shear, self.shear)
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        linear = turn @ np.array([[1.0, slant], [0.0, 1.0]])
        center = np.array([width / 2, height / 2])
        shift = random.uniform(-self.shift, self.shift, 2) * (width, height)
        offset = center + shift - linear @ center
        (a, b), (d, e) = linear.tolist()
        return [Affine(height, width, (a, b, float(offset[0]), d, e, float(offset[1])))]


@dataclass(frozen=True)
class LabeledViews:
    """Training views of labeled images: weak, or strong on top."""

    weak: Weak
    strong: Strong | None = None
    shuffle: Shuffle | None = None

    def at(self, short_side: int) -> "LabeledViews":
        """The same views, all of this size."""
        return replace(self, weak=replace(self.weak, short_sides=(short_side,)))

    def __call__(self, index: Index, position: int, random: np.random.Generator) -> Sample:
        read = read_record(index, position, short_side=max(self.weak.short_sides))
        resize, moves = self.weak.draw(read, random)
        if self.shuffle is not None:
            moves += self.shuffle.draw(resize.target, random)
        image = move_image(_shown(read, resize), moves)
        if self.strong is not None:
            image = self.strong(image, random)
        known = Targets.empty() if index.annotations is None else index.annotations[position]
        targets = clip(move_targets(known, [resize, *moves]), *image.shape[-2:])
        return Sample(image, targets)


@dataclass(frozen=True)
class UnlabeledViews:
    """Weak and strong views of unlabeled images; each draws its own size and flip."""

    weak: Weak  # of the teacher's view
    sizes: Weak  # of the student's view
    strong: Strong
    shuffle: Shuffle
    tilt: Tilt | None = None

    def at(self, short_side: int) -> "UnlabeledViews":
        """The same views, the student's all of this size."""
        return replace(self, sizes=replace(self.sizes, short_sides=(short_side,)))

    def __call__(self, index: Index, position: int, random: np.random.Generator) -> Pair:
        largest = max(*self.weak.short_sides, *self.sizes.short_sides)
        read = read_record(index, position, short_side=largest)
        to_weak, weak_moves = self.weak.draw(read, random)
        to_strong, strong_moves = self.sizes.draw(read, random)
        if self.tilt is not None:
            strong_moves += self.tilt.draw(to_strong.target, random)
        strong_moves += self.shuffle.draw(to_strong.target, random)
        strong = self.strong(move_image(_shown(read, to_strong), strong_moves), random)
        weak = move_image(_shown(read, to_weak), weak_moves)
        # Flips undo themselves in any order; the resize leads from one view's size to the other's.
        between = (*weak_moves, Resize(to_weak.target, to_strong.target), *strong_moves)
        truth = None
        if index.annotations is not None:
            truth = move_targets(index.annotations[position], [to_weak, *weak_moves])
        return Pair(weak, strong, between, truth)


def read_resized(
    index: Index, position: int, *, short_side: int, max_side: int
) -> tuple[Tensor, Resize]:
    """The image at the detector's input size, and the resize from the file's pixels to it."""
    read = read_record(index, position, short_side=short_side)
    resize = _resize(read, short_side, max_side)
    return _shown(read, resize), resize


def read_record(index: Index, position: int, *, short_side: int) -> ReadImage:
    """The file's pixels; a JPEG perhaps decoded smaller, but never below this short side."""
    return read_image(
        index.path(position), expected_size=index.size(position), draft_short_side=short_side
    )


def _resize(read: ReadImage, short_side: int, max_side: int) -> Resize:
    # A JPEG may have been decoded at a reduced scale: the recorded resize starts at the full one.
    size = (read.height, read.width)
    return Resize(size, fitted_size(*size, short_side=short_side, max_side=max_side))


def _shown(read: ReadImage, resize: Resize) -> Tensor:
    image: Tensor = torch.from_numpy(read.pixels).permute(2, 0, 1)
    return resize.image(image)


def truths_of(pairs: Sequence[Pair]) -> tuple[Targets, ...] | None:
    """The labels of all images, or None where there are none."""
    known = tuple(pair.truth for pair in pairs if pair.truth is not None)
    return known if len(known) == len(pairs) else None
