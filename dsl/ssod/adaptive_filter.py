"""Split scored pseudo-labels into foreground, ignored and background (DSL, Eq. 4-6).

score >= tau2[k]: foreground; background (tau1) < score < tau2[k]: ignored; the rest: background.
A policy sees scores and labels only: never boxes, images or losses. It watches what the teacher
says over a sliding window of images, and what it has seen is part of its state.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

UNSEEN = 0.3  # tau2 of a class that the window does not hold


class Partition(NamedTuple):
    """Disjoint masks over M instances; an instance in neither is background."""

    foreground: Tensor  # (M,) bool
    ignored: Tensor  # (M,) bool


class Policy(nn.Module):
    """Base of all policies: thresholds that are given, or that follow the window."""

    def __init__(self, num_classes: int, *, background: float) -> None:
        """`background` (tau1): at or below it a score means nothing."""
        super().__init__()
        self.num_classes, self.background = num_classes, background

    def thresholds(self) -> Tensor:
        """tau2 of each class, (C,)."""
        raise NotImplementedError

    def split(self, scores: Tensor, labels: Tensor) -> Partition:
        foreground = scores >= self.thresholds().to(scores)[labels]
        return Partition(foreground, (scores > self.background) & ~foreground)

    def rows(self, scores: Tensor, labels: Tensor) -> Tensor:
        """(2, C): what one image adds to the window: sums of scores, and counts, of foreground."""
        kept = self.split(scores, labels).foreground
        row = scores.new_zeros(2, self.num_classes)
        row[0].index_add_(0, labels[kept], scores[kept])
        row[1].index_add_(0, labels[kept], torch.ones_like(scores[kept]))
        return row

    def observe(self, rows: Tensor) -> None:
        """Take in the rows (N, 2, C) of the images of all ranks; nothing to do when fixed."""


class FixedThreshold(Policy):
    """One tau2 for all classes and all times."""

    def __init__(self, num_classes: int, *, background: float, foreground: float) -> None:
        super().__init__(num_classes, background=background)
        self.foreground = foreground

    def thresholds(self) -> Tensor:
        return torch.full((self.num_classes,), self.foreground)


class SingleThreshold(FixedThreshold):
    """One threshold and no ignore band: what is not foreground is background."""

    def __init__(self, num_classes: int, *, foreground: float) -> None:
        super().__init__(num_classes, background=foreground, foreground=foreground)


@dataclass(frozen=True)
class Curve:
    """tau2[k] = clip(factor * r_k ** power, low, high)."""

    factor: float = 0.35
    power: float = 0.7
    low: float = 0.25
    high: float = 0.35
    unseen: float = UNSEEN  # tau2 of a class that the window does not hold, between low and high
    per_class_mean: bool = True  # r_k divides by the mean count of a class; False: by all boxes


CURVES = {
    "paper": Curve(),
    "literal": Curve(per_class_mean=False),  # the equation as printed: every class lands on `low`
    "code": Curve(factor=0.3, power=0.05, low=0.3, high=0.35),
}


class AdaptiveThreshold(Policy):
    """tau2 by how much the teacher says of each class (Eq. 6).

    r_k = S_k / (N / K): S_k the sum of the scores of class-k foreground in the window, N the count
    of all foreground, K the number of classes that have any.
    """

    sums: Tensor
    counts: Tensor
    cursor: Tensor

    def __init__(
        self, num_classes: int, *, background: float, curve: Curve, window: int = 1000
    ) -> None:
        """`window`: images that the estimate looks back on."""
        super().__init__(num_classes, background=background)
        self.curve = curve
        self.register_buffer("sums", torch.zeros(window, num_classes))
        self.register_buffer("counts", torch.zeros(window, num_classes))
        self.register_buffer("cursor", torch.zeros((), dtype=torch.int64))

    def thresholds(self) -> Tensor:
        curve, counts = self.curve, self.counts.sum(dim=0)  # (C,)
        present = counts > 0
        divisor = counts.sum()
        if curve.per_class_mean:
            divisor = divisor / present.sum().clamp(min=1)
        share = self.sums.sum(dim=0) / divisor.clamp(min=1e-12)  # (C,)
        threshold = (curve.factor * share**curve.power).clamp(curve.low, curve.high)
        return torch.where(present, threshold, min(max(curve.unseen, curve.low), curve.high))

    def observe(self, rows: Tensor) -> None:
        window = len(self.sums)
        rows = rows[-window:].to(self.sums)
        places = (self.cursor + torch.arange(len(rows), device=self.sums.device)) % window
        self.sums[places], self.counts[places] = rows[:, 0], rows[:, 1]
        self.cursor.copy_((self.cursor + len(rows)) % window)
