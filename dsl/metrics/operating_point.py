"""The score threshold of each class that gives the best F1: where to cut when predicting.

It knows no curve other than F1 and no box: who is true is decided in matching.py.
"""

from collections.abc import Sequence

import numpy as np

from dsl.metrics.matching import Verdicts, match
from dsl.types import Annotations, Detections


def best_f1_thresholds(
    truth: Annotations,
    detections: Sequence[Detections],
    num_classes: int,
    *,
    iou: float = 0.5,
    default: float = 0.3,
) -> list[float]:
    """One threshold per class; keep the detections that score at least that much.

    Of equally good thresholds it is the highest: the same F1 with fewer boxes to look at. A class
    in which nothing can be found (no ground truth, no detection, no true one) has the default.
    """
    verdicts = match(truth, detections, num_classes=num_classes, iou=iou)
    return [_best_f1_threshold(of_class, default=default) for of_class in verdicts]


def _best_f1_threshold(verdicts: Verdicts, *, default: float) -> float:
    if verdicts.num_truth == 0 or not verdicts.is_true.any():
        return default
    kept_true = verdicts.is_true.cumsum()  # (D,) when the cut is behind this detection
    kept = (~verdicts.is_neutral).cumsum()
    f1 = 2 * kept_true / (kept + verdicts.num_truth)  # 2 TP / (2 TP + FP + FN)
    f1[:-1][verdicts.scores[:-1] == verdicts.scores[1:]] = -1.0  # no cut separates equal scores
    best = int(f1.argmax())  # the first, so the highest, of equal ones
    # Halfway to the next lower score, so that noise in a score's last digits flips nothing. Below
    # the last score the next is 0, the end of the scale.
    below = np.append(verdicts.scores[1:], 0.0)
    return float((verdicts.scores[best] + below[best]) / 2)
