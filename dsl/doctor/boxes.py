"""Box sizes against the detector: on which level each class lands, and which boxes on none.

It sees boxes and the sizes that the files state, never pixels.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsl.data.index import Index
from dsl.doctor.case import Case
from dsl.doctor.contents import spaced
from dsl.doctor.finding import Finding, listed
from dsl.doctor.levels import Floats, levels_reached
from dsl.models.assign import Assigner
from dsl.models.fpn import STRIDES
from dsl.rundata import annotations_of

MAX_BOXES = 200_000  # evenly spaced ones beyond that: shares do not need them all
MAX_LOST = 1 / 3  # share of a class's boxes that no location answers for
MAX_LOST_OF_ALL = 0.5
MAX_COARSEST = 0.5  # share of boxes on the last level, where a cell is 128 px wide
_LEVELS = tuple(f"P{level}" for level in range(3, 3 + len(STRIDES)))


@dataclass(frozen=True)
class Boxes:
    """Boxes in the pixels of their files; B rows."""

    boxes: Floats  # (B, 4)
    labels: NDArray[np.int64]  # (B,)
    sizes: Floats  # (B, 2) height and width of their images

    def resized(self, short_side: int, max_side: int) -> Floats:
        """The boxes at the detector's input, by the rule of `geometry.fitted_size`."""
        short, long = self.sizes.min(axis=1), self.sizes.max(axis=1)
        scale = np.minimum(short_side / short, max_side / long)
        target = np.maximum(1, np.rint(self.sizes * scale[:, None]))
        resized: Floats = self.boxes * (target / self.sizes)[:, [1, 0, 1, 0]]
        return resized


def check_boxes(case: Case) -> Iterator[Finding]:
    """Levels and losses, at the sizes that training draws."""
    name, found = "box sizes", boxes_of(case.labeled)
    if not len(found.boxes):
        told = "no box whose image size is known; levels cannot be told"
        yield Finding("ok", name, told)
        return
    model, views = case.config.model, case.config.views
    assigner = Assigner(model.size_ranges, center_radius=model.center_radius)
    reached = [
        levels_reached(found.resized(side, views.max_side), assigner, STRIDES)
        for side in views.short_sides
    ]
    lost = 1 - np.mean([levels.any(axis=1) for levels in reached], axis=0)  # (B,)
    quiet = True
    for finding in _losses(case, found, lost):
        quiet = False
        yield finding
    middle = reached[len(reached) // 2]
    landed = np.where(middle.any(axis=1), middle.argmax(axis=1), -1)  # the finest level
    coarsest = float((landed == len(STRIDES) - 1).mean())
    if coarsest > MAX_COARSEST:
        told = f"{coarsest:.0%} of the boxes land on {_LEVELS[-1]}, the coarsest level"
        fix = f"raise model.size_ranges (now {listed([f'{r:g}' for r in model.size_ranges])})"
        yield Finding("warning", name, told, fix)
    elif quiet:
        told = _landing(case.labeled.classes, found.labels, landed)
        yield Finding("ok", name, told + _worst(case.labeled.classes, found.labels, lost))


def boxes_of(index: Index) -> Boxes:
    """The boxes that count and whose images have a known size, or a sample of them."""
    truth = annotations_of(index)
    owner = np.repeat(np.arange(len(index)), np.diff(truth.offsets.numpy()))
    sizes = index.sizes.numpy()[owner].astype(np.float64)
    rows = np.flatnonzero((sizes > 0).all(axis=1) & ~truth.ignored.numpy())
    rows = rows[spaced(len(rows), MAX_BOXES)]
    return Boxes(truth.boxes.numpy()[rows], truth.labels.numpy()[rows], sizes[rows])


def _losses(case: Case, found: Boxes, lost: Floats) -> Iterator[Finding]:
    name, views = "box sizes", case.config.views
    # Long thin ones may also fall between two levels: too long for the fine one, and no location
    # of the coarse one inside.
    fix = "raise views.short_sides and views.max_side, or cut images into tiles; else widen"
    fix += " model.size_ranges"
    overall = float(lost.mean())
    middle = found.resized(views.short_sides[len(views.short_sides) // 2], views.max_side)
    sides = (middle[:, 2:] - middle[:, :2]).min(axis=1)
    if overall > MAX_LOST_OF_ALL:
        told = f"no location of the detector answers for {overall:.0%} of the boxes"
        told += f" (median short side {np.median(sides):.1f} px at its input)"
        yield Finding("error", name, told, fix)
        return
    missed = []
    for label, class_name in enumerate(case.labeled.classes):
        own = found.labels == label
        if own.any() and lost[own].mean() > MAX_LOST:
            share, side = lost[own].mean(), np.median(sides[own])
            missed.append(f"{class_name} ({share:.0%}, median short side {side:.1f} px)")
    if missed:
        told = f"no location of the detector answers for boxes of {listed(missed)}"
        yield Finding("warning", name, told, fix)


def _landing(classes: tuple[str, ...], labels: NDArray[np.int64], landed: NDArray[np.int64]) -> str:
    shares = [f"{level} {np.mean(landed == n):.0%}" for n, level in enumerate(_LEVELS)]
    told = f"boxes land on {', '.join(shares)}; on none {np.mean(landed < 0):.1%}"
    usual = []
    for label, name in enumerate(classes):
        own = landed[(labels == label) & (landed >= 0)]
        if len(own):
            usual.append(f"{name} {_LEVELS[int(np.bincount(own).argmax())]}")
    return f"{told}; mostly: {listed(usual, 10)}"


def _worst(classes: tuple[str, ...], labels: NDArray[np.int64], lost: Floats) -> str:
    """The class that loses most, where that is worth a word."""
    shares = [lost[labels == n].mean() if (labels == n).any() else 0.0 for n in range(len(classes))]
    worst = int(np.argmax(shares))
    return (
        f"; on none most often: {classes[worst]} {shares[worst]:.0%}" if max(shares) > 0.1 else ""
    )
