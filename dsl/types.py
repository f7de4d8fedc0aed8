"""The value types that all modules speak; frozen, validated, and free of any behaviour.

Boxes are xyxy in absolute pixels, half-open. Letters: N images, M boxes, L locations, C classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


@dataclass(frozen=True)
class Targets:
    """What one image holds. An ignored box is neither foreground nor background: no loss at all,
    but for its class where that is certain to a degree."""

    boxes: Tensor  # (M, 4) float
    labels: Tensor  # (M,) int64
    ignored: Tensor  # (M,) bool
    certainty: Tensor | None = None  # (M,) float: the score to learn; None: 1, and 0 where ignored

    def __post_init__(self) -> None:
        count = len(self.boxes)
        _check(self.boxes.shape == (count, 4), f"boxes: expected (M, 4), got {self.boxes.shape}")
        _check(self.labels.shape == (count,), f"labels: expected ({count},)")
        _check(self.ignored.shape == (count,), f"ignored: expected ({count},)")
        _check(self.ignored.dtype == torch.bool, "ignored: expected bool")
        if self.certainty is not None:
            _check(self.certainty.shape == (count,), f"certainty: expected ({count},)")

    def __len__(self) -> int:
        return len(self.boxes)

    def __getitem__(self, rows: Tensor) -> "Targets":
        certainty = None if self.certainty is None else self.certainty[rows]
        return Targets(self.boxes[rows], self.labels[rows], self.ignored[rows], certainty)

    def put_aside(self, rows: Tensor) -> "Targets":
        """Those of a mask (M,) are ignored too, and nothing of them is learned."""
        certainty = None if self.certainty is None else self.certainty.masked_fill(rows, 0)
        return replace(self, ignored=self.ignored | rows, certainty=certainty)

    def to(self, device: torch.device) -> "Targets":
        certainty = None if self.certainty is None else self.certainty.to(device)
        return Targets(
            self.boxes.to(device), self.labels.to(device), self.ignored.to(device), certainty
        )

    @staticmethod
    def empty() -> "Targets":
        return Targets(
            torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.bool)
        )


@dataclass(frozen=True)
class Detections:
    """What a detector found in one image, best score first."""

    boxes: Tensor  # (M, 4) float
    scores: Tensor  # (M,) float
    labels: Tensor  # (M,) int64

    def __post_init__(self) -> None:
        count = len(self.boxes)
        _check(self.boxes.shape == (count, 4), f"boxes: expected (M, 4), got {self.boxes.shape}")
        _check(self.scores.shape == (count,), f"scores: expected ({count},)")
        _check(self.labels.shape == (count,), f"labels: expected ({count},)")

    def __len__(self) -> int:
        return len(self.boxes)

    def __getitem__(self, keep: Tensor) -> "Detections":
        return Detections(self.boxes[keep], self.scores[keep], self.labels[keep])

    def cpu(self) -> "Detections":
        return Detections(self.boxes.cpu(), self.scores.cpu(), self.labels.cpu())


@dataclass(frozen=True)
class Objects:
    """What a detector found in one image, each with its scores as every class."""

    boxes: Tensor  # (M, 4) float
    scores: Tensor  # (M, C) float

    def __post_init__(self) -> None:
        count = len(self.boxes)
        _check(self.boxes.shape == (count, 4), f"boxes: expected (M, 4), got {self.boxes.shape}")
        _check(
            self.scores.ndim == 2 and len(self.scores) == count, f"scores: expected ({count}, C)"
        )

    def __len__(self) -> int:
        return len(self.boxes)


def ragged_rows(offsets: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Of columns where item i owns the rows offsets[i]:offsets[i + 1], the rows of the chosen
    items one after another, and the offsets of the result."""
    starts, counts = offsets[chosen], offsets[chosen + 1] - offsets[chosen]
    ends = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    within = torch.arange(int(ends[-1])) - ends[:-1].repeat_interleave(counts)
    return starts.repeat_interleave(counts) + within, ends


@dataclass(frozen=True)
class Annotations:
    """Ground truth of N images as columns: image i owns the rows offsets[i]:offsets[i + 1].

    Columns are tensors, not numpy arrays, because torch hands tensors to loader workers through
    shared memory under every start method: no worker holds a copy.
    """

    offsets: Tensor  # (N + 1,) int64
    boxes: Tensor  # (B, 4) float64
    labels: Tensor  # (B,) int64
    ignored: Tensor  # (B,) bool: crowd (COCO) or difficult (VOC)
    areas: Tensor  # (B,) float64: the file's own area where it has one (COCO's is of the mask)

    def __post_init__(self) -> None:
        rows = len(self.boxes)
        _check(self.boxes.shape == (rows, 4), f"boxes: expected (B, 4), got {self.boxes.shape}")
        for name in ("labels", "ignored", "areas"):
            column: Tensor = getattr(self, name)
            _check(column.shape == (rows,), f"{name}: expected ({rows},), got {column.shape}")
        _check(int(self.offsets[-1]) == rows, "offsets do not end at the number of boxes")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, image: int) -> Targets:
        rows = slice(int(self.offsets[image]), int(self.offsets[image + 1]))
        return Targets(self.boxes[rows].float(), self.labels[rows], self.ignored[rows])

    def select(self, images: Tensor) -> "Annotations":
        """The annotations of these images, in this order."""
        rows, offsets = ragged_rows(self.offsets, images)
        return Annotations(
            offsets, self.boxes[rows], self.labels[rows], self.ignored[rows], self.areas[rows]
        )

    @staticmethod
    def none(num_images: int) -> "Annotations":
        """Annotations of images without any box."""
        return Annotations(
            torch.zeros(num_images + 1, dtype=torch.int64),
            torch.zeros(0, 4, dtype=torch.float64),
            torch.zeros(0, dtype=torch.int64),
            torch.zeros(0, dtype=torch.bool),
            torch.zeros(0, dtype=torch.float64),
        )


@dataclass(frozen=True)
class DenseOutput:
    """The detector's raw maps, one entry per pyramid level, finest first."""

    class_logits: Sequence[Tensor]  # (N, C, H_v, W_v) each
    distances: Sequence[Tensor]  # (N, 4, H_v, W_v) each: l, t, r, b in units of the stride, >= 0
    centerness: Sequence[Tensor]  # (N, 1, H_v, W_v) each, logits
    strides: tuple[int, ...]


@dataclass(frozen=True)
class ImageBatch:
    """Images of different sizes, padded at the right and bottom to one canvas."""

    images: Tensor  # (N, 3, H, W) uint8, RGB; H and W are multiples of 32
    sizes: Tensor  # (N, 2) int64: valid height and width of each

    def __post_init__(self) -> None:
        _check(self.images.ndim == 4 and self.images.shape[1] == 3, "images: expected (N, 3, H, W)")
        _check(self.sizes.shape == (self.images.shape[0], 2), "sizes: expected (N, 2)")

    def __len__(self) -> int:
        return len(self.images)

    def to(self, device: torch.device) -> "ImageBatch":
        return ImageBatch(self.images.to(device, non_blocking=True), self.sizes.to(device))


@dataclass(frozen=True)
class LabeledBatch:
    """Images with what they hold, in the pixels of the padded canvas."""

    images: ImageBatch
    targets: tuple[Targets, ...]

    def __post_init__(self) -> None:
        _check(len(self.images) == len(self.targets), "one Targets per image")

    def to(self, device: torch.device) -> "LabeledBatch":
        return LabeledBatch(self.images.to(device), tuple(t.to(device) for t in self.targets))


class Operation(Protocol):
    """One step of geometry, recorded with its drawn numbers (see geometry.py)."""

    def image(self, image: Tensor) -> Tensor:
        """(3, H, W) uint8 -> (3, H', W') uint8."""

    def targets(self, targets: Targets) -> Targets:
        """The same step on boxes, in pixels."""


@dataclass(frozen=True)
class UnlabeledBatch:
    """Two views of the same images, and the geometry from the weak one to the strong one."""

    weak: ImageBatch  # for the teacher
    strong: ImageBatch  # for the student
    moves: tuple[tuple[Operation, ...], ...]  # of each image, weak pixels -> strong pixels
    truth: tuple[Targets, ...] | None = None  # in weak pixels; measures the teacher, never trains

    def __post_init__(self) -> None:
        count = len(self.weak)
        _check(len(self.strong) == count, "one strong view per weak view")
        _check(len(self.moves) == count, "one geometry per image")
        _check(self.truth is None or len(self.truth) == count, "truth of all images or of none")

    def __len__(self) -> int:
        return len(self.weak)

    def to(self, device: torch.device) -> "UnlabeledBatch":
        truth = None if self.truth is None else tuple(t.to(device) for t in self.truth)
        return UnlabeledBatch(self.weak.to(device), self.strong.to(device), self.moves, truth)


@dataclass(frozen=True)
class Batch:
    """All that one optimizer step (or one part of an accumulated step) sees."""

    labeled: LabeledBatch
    unlabeled: UnlabeledBatch | None = None
    unreadable: tuple[str, ...] = ()  # files that another image had to stand in for
    names: tuple[str, ...] = ()  # of the images, labeled ones first; to say which went wrong

    @property
    def num_images(self) -> int:
        return len(self.labeled.targets) + (0 if self.unlabeled is None else len(self.unlabeled))

    def to(self, device: torch.device) -> "Batch":
        unlabeled = None if self.unlabeled is None else self.unlabeled.to(device)
        return Batch(self.labeled.to(device), unlabeled, self.unreadable, self.names)
