"""Pascal VOC's average precision: the 11-point one of VOC 2007 and the area of VOC 2010 onwards.

VOC's boxes are inclusive pixels with width xmax - xmin + 1. Ours are half-open, so that the reader
of VOC files has done the "+ 1" and x2 - x1 is that same width: the overlap here has no "+ 1" left.
Difficult boxes are `ignored`. It knows no COCO.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dsl.metrics.matching import Verdicts, match
from dsl.metrics.missing import nan_to_none
from dsl.types import Annotations, Detections


class VocClass(NamedTuple):
    """One class's average precision; NaN where the class has no ground truth."""

    name: str
    ap: float
    ap_11_point: float


@dataclass(frozen=True)
class VocMetrics:
    """Means over the classes that have ground truth, in 0..1; NaN if there is no such class."""

    iou: float  # the overlap that makes a detection true: 0.5 gives AP50
    ap: float  # area under the curve
    ap_11_point: float
    per_class: tuple[VocClass, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; None stands for NaN."""
        rows = [nan_to_none(row._asdict()) for row in self.per_class]
        return nan_to_none({**asdict(self), "per_class": rows})


def evaluate_voc(
    truth: Annotations,
    detections: Sequence[Detections],
    classes: Sequence[str],
    *,
    iou: float = 0.5,
) -> VocMetrics:
    """VOC's metrics; detections[i] answers image i of the ground truth."""
    verdicts = match(truth, detections, num_classes=len(classes), iou=iou)
    per_class = tuple(
        VocClass(name, *_average_precisions(of_class))
        for name, of_class in zip(classes, verdicts, strict=True)
    )
    return VocMetrics(
        iou=iou,
        ap=_mean_of_present([row.ap for row in per_class]),
        ap_11_point=_mean_of_present([row.ap_11_point for row in per_class]),
        per_class=per_class,
    )


def _average_precisions(verdicts: Verdicts) -> tuple[float, float]:
    """(area, 11-point) of one class."""
    if verdicts.num_truth == 0:
        return float("nan"), float("nan")
    found = verdicts.is_true[~verdicts.is_neutral].cumsum()  # (D,) true ones so far
    precision = found / np.arange(1, len(found) + 1)
    # The best precision at this recall or beyond; behind the last detection it is 0.
    envelope = np.append(np.maximum.accumulate(precision[::-1])[::-1], 0.0)
    return (
        _area(found, envelope, num_truth=verdicts.num_truth),
        _eleven_points(found, envelope, num_truth=verdicts.num_truth),
    )


def _area(found: NDArray[np.int64], envelope: NDArray[np.float64], *, num_truth: int) -> float:
    steps = np.diff(found, prepend=0)  # recall rises by 1 / num_truth at each true detection
    return float((steps * envelope[:-1]).sum() / num_truth)


def _eleven_points(
    found: NDArray[np.int64], envelope: NDArray[np.float64], *, num_truth: int
) -> float:
    # recall >= point / 10 in whole numbers: in floats a recall of 3 / 10 misses the point 3 * 0.1.
    first = np.searchsorted(10 * found, np.arange(11) * num_truth)
    return float(envelope[first].mean())


def _mean_of_present(values: list[float]) -> float:
    present = [value for value in values if not np.isnan(value)]
    return float(np.mean(present)) if present else float("nan")
