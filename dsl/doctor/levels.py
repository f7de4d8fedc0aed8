"""Which pyramid levels answer for a box: the rule of `models/assign.py` for all boxes at once.

The rule is separable: a location's reach is the larger of its reaches along x and y. So it is
enough to know, of each axis, the least reach and the largest one that the level still allows.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dsl.models.assign import Assigner

Floats = NDArray[np.float64]


def levels_reached(boxes: Floats, assigner: Assigner, strides: Sequence[int]) -> NDArray[np.bool_]:
    """(M, V): level v has a location that may answer for box m (M, 4), if no other box wins it."""
    bounds = [0.0, *assigner.size_ranges, np.inf]
    reached = []
    for level, stride in enumerate(strides):
        radius = assigner.center_radius * stride if assigner.center_radius else np.inf
        low, high = bounds[level], bounds[level + 1]
        x = _reaches(boxes[:, 0], boxes[:, 2], stride=stride, radius=radius, high=high)
        y = _reaches(boxes[:, 1], boxes[:, 3], stride=stride, radius=radius, high=high)
        least = np.maximum(x[0], y[0])  # infinite: no location at all
        fits = np.isfinite(least) & (least <= high)
        reached.append(fits & (np.maximum(x[1], y[1]) > low))
    return np.stack(reached, axis=1)


def _reaches(
    start: Floats, end: Floats, *, stride: int, radius: float, high: float
) -> tuple[Floats, Floats]:
    """Of the locations on one axis inside the box and near its centre: the least reach (infinite
    where there is no location), and the largest one up to `high`."""
    center, half = (start + end) / 2, (end - start) / 2
    limit = np.minimum(half, radius)  # a location lies nearer to the centre than this
    nearest = (np.floor(center / stride) + 0.5) * stride
    least = np.abs(nearest - center)
    allowed = np.minimum(high - half, 2 * limit)  # finite, and beyond `limit`: that one decides
    right = np.minimum(
        np.ceil((center + limit) / stride - 0.5) - 1, np.floor((center + allowed) / stride - 0.5)
    )
    left = np.maximum(
        np.floor((center - limit) / stride - 0.5) + 1, np.ceil((center - allowed) / stride - 0.5)
    )
    far_right, far_left = (right + 0.5) * stride - center, center - (left + 0.5) * stride
    farthest = np.maximum(far_right, far_left)
    # A farthest location on the wrong side of the centre is none: the nearest one decides.
    largest = np.where(farthest >= 0, half + farthest, -np.inf)
    return np.where(least < limit, half + least, np.inf), largest
