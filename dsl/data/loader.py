"""Streams of batches: training (endless, resumable, the same on any number of ranks) and test.

Item number `step` is a whole batch, made from nothing but the seed and the step. So a sampler is a
range, workers hold no state, and resuming is starting the range elsewhere.
"""

import signal
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, Self, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from dsl.data.index import Index
from dsl.data.views import LabeledViews, Pair, Sample, Weak, read_resized, truths_of
from dsl.errors import UserError
from dsl.image import fitted_size, read_size
from dsl.randomness import generator, shuffled
from dsl.types import Batch, ImageBatch, LabeledBatch, UnlabeledBatch

MULTIPLE = 32  # of the canvas: all strides of the backbone divide it
MAX_SUBSTITUTES = 20
WORKER_GRACE = 15  # seconds that a loader worker stays after SIGTERM: for a step and its save

Item = TypeVar("Item")
Shown = TypeVar("Shown", covariant=True)


class Views(Protocol[Shown]):
    """Makes what is shown of one image, with numbers from the given generator."""

    def __call__(self, index: Index, position: int, random: np.random.Generator) -> Shown: ...

    def at(self, short_side: int) -> Self:
        """The same views, all of this size."""


def collate_images(images: Sequence[Tensor]) -> ImageBatch:
    """Pad (3, H, W) images at the right and bottom to one canvas."""
    sizes = torch.tensor([image.shape[-2:] for image in images])  # (N, 2)
    height, width = (-(-int(side) // MULTIPLE) * MULTIPLE for side in sizes.amax(dim=0))
    canvas = torch.zeros(len(images), 3, height, width, dtype=torch.uint8)
    for place, image in zip(canvas, images, strict=True):
        place[:, : image.shape[1], : image.shape[2]] = image
    return ImageBatch(canvas, sizes)


def collate_samples(samples: Sequence[Sample]) -> LabeledBatch:
    """Images on one canvas with their targets."""
    images = collate_images([sample.image for sample in samples])
    return LabeledBatch(images, tuple(sample.targets for sample in samples))


def collate_pairs(pairs: Sequence[Pair]) -> UnlabeledBatch:
    """Both views on their canvases."""
    weak, strong = [p.weak for p in pairs], [p.strong for p in pairs]
    moves = tuple(p.moves for p in pairs)
    return UnlabeledBatch(collate_images(weak), collate_images(strong), moves, truths_of(pairs))


@dataclass(frozen=True)
class Drawn(Generic[Shown]):
    """What a stream shows at one position."""

    shown: Shown
    name: str  # of its image
    unreadable: tuple[str, ...]  # messages about the images that it stands in for


@dataclass(frozen=True)
class Stream(Generic[Shown]):
    """An endless shuffled stream over an index; position p is the same on every machine."""

    index: Index
    views: Views[Shown]
    seed: int
    name: str

    def __call__(self, position: int) -> Drawn[Shown]:
        """What is shown at this position; an unreadable file is replaced by the next draw."""
        unreadable: list[str] = []
        for attempt in range(MAX_SUBSTITUTES):
            # Substitutes come from far along the stream, where no rank of this run will be.
            draw = position + (attempt << 40)
            image = shuffled(draw, len(self.index), seed=self.seed, stream=self.name)
            try:
                random = generator(self.seed, self.name, draw)
                shown = self.views(self.index, image, random)
                return Drawn(shown, self.index.names[image], tuple(unreadable))
            except UserError as error:
                unreadable.append(str(error))
        raise UserError(f"{MAX_SUBSTITUTES} images in a row cannot be read: {unreadable[-1]}")

    def at(self, short_side: int) -> "Stream[Shown]":
        """The same images in views of this size."""
        return replace(self, views=self.views.at(short_side))


class TrainingBatches(Dataset[Batch]):
    """Item `step` is this rank's batch of that step. Ranks stride over the positions."""

    def __init__(
        self, labeled: Stream[Sample], unlabeled: Stream[Pair] | None = None, *, batch: int,
        rank: int = 0, ranks: int = 1, shared_sizes: Sequence[int] = (), parts: int = 1,
    ) -> None:  # fmt: skip
        """`batch` counts the labeled images of all ranks together; of the unlabeled ones there
        are as many. `shared_sizes`: short sides of which every step of so many `parts` draws one
        for all its images; none: each image draws its own."""
        self.labeled, self.unlabeled = labeled, unlabeled
        self.batch, self.rank, self.ranks = batch, rank, ranks
        self.shared_sizes, self.parts = tuple(shared_sizes), parts

    def __getitem__(self, step: int) -> Batch:
        positions = range(step * self.batch + self.rank, (step + 1) * self.batch, self.ranks)
        labeled, unlabeled = self.labeled, self.unlabeled
        if self.shared_sizes:
            side = int(
                generator(labeled.seed, "size", step // self.parts).choice(self.shared_sizes)
            )
            labeled, unlabeled = labeled.at(side), unlabeled and unlabeled.at(side)
        samples = [labeled(position) for position in positions]
        pairs = [unlabeled(position) for position in positions] if unlabeled else []
        return Batch(
            collate_samples([drawn.shown for drawn in samples]),
            collate_pairs([drawn.shown for drawn in pairs]) if pairs else None,
            unreadable=tuple(m for drawn in (*samples, *pairs) for m in drawn.unreadable),
            names=tuple(drawn.name for drawn in (*samples, *pairs)),
        )


@dataclass(frozen=True)
class EvalBatch:
    """Images as the detector is tested on them, with their positions and their files' sizes."""

    positions: tuple[int, ...]
    images: ImageBatch
    original_sizes: Tensor  # (N, 2) height and width of the files


class EvalBatches(Dataset[EvalBatch]):
    """Images grouped by canvas: an image's detections cannot depend on its batch mates.

    GroupNorm sees the padding, so only images that pad to the same canvas share a batch.
    """

    def __init__(
        self, index: Index, *, short_side: int, max_side: int, batch: int,
        rank: int = 0, ranks: int = 1,
    ) -> None:  # fmt: skip
        self.index, self.short_side, self.max_side = index, short_side, max_side
        groups: dict[tuple[int, int], list[int]] = {}
        for position in range(len(index)):
            groups.setdefault(self._canvas(position), []).append(position)
        batches = [
            group[start : start + batch]
            for _, group in sorted(groups.items())
            for start in range(0, len(group), batch)
        ]
        self.batches = batches[rank::ranks]

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, number: int) -> EvalBatch:
        positions = self.batches[number]
        read = [
            read_resized(self.index, p, short_side=self.short_side, max_side=self.max_side)
            for p in positions
        ]
        images = collate_images([image for image, _ in read])
        originals = torch.tensor([resize.source for _, resize in read])
        return EvalBatch(tuple(positions), images, originals)

    def _canvas(self, position: int) -> tuple[int, int]:
        size = self.index.size(position) or read_size(self.index.path(position))
        height, width = fitted_size(*size, short_side=self.short_side, max_side=self.max_side)
        return -(-height // MULTIPLE), -(-width // MULTIPLE)


class LabeledBatches(Dataset[LabeledBatch]):
    """Every labeled image once, shuffled, as the detector is tested on it, with its boxes."""

    def __init__(self, index: Index, *, short_side: int, max_side: int, batch: int) -> None:
        self.index, self.batch = index, batch
        self.views = LabeledViews(Weak((short_side,), max_side, flip=False))

    def __len__(self) -> int:
        return -(-len(self.index) // self.batch)

    def __getitem__(self, number: int) -> LabeledBatch:
        first = number * self.batch
        count = len(self.index)
        places = range(first, min(first + self.batch, count))
        positions = [shuffled(place, count, seed=0, stream="labeled once") for place in places]
        unused = generator(0, "no draws", 0)  # one size and no flip: there is nothing to draw
        return collate_samples([self.views(self.index, p, unused) for p in positions])


def _start_worker(worker: int) -> None:
    torch.set_num_threads(1)  # two processes with two threads each would fight for two cores
    # Ctrl-C reaches the whole process group, and so does the end of a preempted machine; the main
    # process decides when the workers end. But it may also be itself that says SIGTERM, and waits.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(WORKER_GRACE))


class _Careful(Dataset[Item | UserError]):
    """Hands a user's error over as a value: torch would wrap a worker's traceback around it."""

    def __init__(self, dataset: Dataset[Item]) -> None:
        self.dataset = dataset

    def __getitem__(self, item: int) -> Item | UserError:
        try:
            return self.dataset[item]
        except UserError as error:
            return error


def _whole(item: object) -> object:
    return item  # items are batches already


def load(dataset: Dataset[Item], items: range, *, workers: int) -> Generator[Item]:
    """The items in order, made by worker processes ahead of time."""
    loader = DataLoader(
        _Careful(dataset),
        batch_size=None,
        sampler=items,
        num_workers=workers,
        collate_fn=_whole,
        worker_init_fn=_start_worker,
    )
    for item in loader:
        if isinstance(item, UserError):
            raise item
        yield item
