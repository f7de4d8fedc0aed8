"""Decide for each detection whether it is true, false or neutral at one IoU, by VOC's rule.

A detection claims the box of its class and image that it overlaps most. The best-scored claimant
of a box is true, the others are false: it was found already. Claims on an ignored box are neutral.
Who claims what does not depend on the other detections, so a threshold on the scores removes
detections without changing the verdict on the rest: one pass serves all thresholds.

This module knows no curve and no threshold on scores. COCO's rule differs (a detection may fall
back to its second best box), therefore coco.py does not use it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from dsl.metrics.columns import DetectionColumns, detection_columns
from dsl.types import Annotations, Detections

NO_BOX = -1


@dataclass(frozen=True)
class Verdicts:
    """Detections of one class, best score first; a detection in neither mask is false."""

    scores: NDArray[np.float64]  # (D,)
    is_true: NDArray[np.bool_]  # (D,)
    is_neutral: NDArray[np.bool_]  # (D,)
    num_truth: int  # boxes to be found: the ignored ones are not among them


def match(
    truth: Annotations, detections: Sequence[Detections], *, num_classes: int, iou: float
) -> list[Verdicts]:
    """The verdicts of each class; a detection needs an overlap of at least `iou`."""
    columns = detection_columns(truth, detections, num_classes=num_classes)
    order = np.argsort(-columns.scores, kind="stable")
    claims = _claims(truth, columns, iou=iou)[order]  # (D,)
    scores, labels = columns.scores[order], columns.labels[order]

    has_claim = claims != NO_BOX
    is_neutral = np.zeros(len(claims), dtype=np.bool_)
    is_neutral[has_claim] = truth.ignored.numpy()[claims[has_claim]]
    is_first = np.zeros(len(claims), dtype=np.bool_)
    is_first[np.unique(claims, return_index=True)[1]] = True
    is_true = has_claim & is_first & ~is_neutral

    num_truth = torch.bincount(truth.labels[~truth.ignored], minlength=num_classes).tolist()
    of_class = [labels == label for label in range(num_classes)]
    return [
        Verdicts(scores[rows], is_true[rows], is_neutral[rows], num_truth[label])
        for label, rows in enumerate(of_class)
    ]


def _claims(truth: Annotations, columns: DetectionColumns, *, iou: float) -> NDArray[np.int64]:
    """The row of the annotated box that each detection claims, or NO_BOX, (D,)."""
    claims = np.full(len(columns), NO_BOX, dtype=np.int64)
    boxes, labels = truth.boxes.numpy(), truth.labels.numpy()
    starts = np.searchsorted(columns.images, np.arange(len(truth) + 1)).tolist()
    offsets = truth.offsets.tolist()
    for image in range(len(truth)):
        found = slice(starts[image], starts[image + 1])
        owned = slice(offsets[image], offsets[image + 1])
        if found.start == found.stop or owned.start == owned.stop:
            continue
        overlaps = _overlaps(columns.boxes[found], boxes[owned])
        overlaps[columns.labels[found, None] != labels[None, owned]] = 0.0
        box = overlaps.argmax(axis=1)  # the first of equal ones, as in VOC
        best = overlaps[np.arange(len(box)), box]
        claims[found] = np.where(best >= iou, box + owned.start, NO_BOX)
    return claims


def _overlaps(detected: NDArray[np.float64], annotated: NDArray[np.float64]) -> NDArray[np.float64]:
    """Intersection over union of all pairs, (D, B)."""
    # numpy, because torch shares even a tiny reduction among threads that wait for each other: on
    # busy cores a max over (100, 7) took 80 to 2000 us instead of 5.
    low = np.maximum(detected[:, None, :2], annotated[None, :, :2])
    high = np.minimum(detected[:, None, 2:], annotated[None, :, 2:])
    common: NDArray[np.float64] = (high - low).clip(min=0.0).prod(axis=2)
    union = _areas(detected)[:, None] + _areas(annotated)[None, :] - common
    overlaps = np.zeros_like(common)  # stays 0 where two boxes without area would give 0/0
    np.divide(common, union, out=overlaps, where=union > 0)
    return overlaps


def _areas(boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
