"""Columns that a reader fills row by row, and the steps from boxes as read to annotations.

Arrays instead of lists of objects: a million rows stay a few megabytes. It knows no file format.
"""

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsl.data.index import Names
from dsl.data.tolerance import NAMED, account, is_too_many
from dsl.errors import UserError
from dsl.types import Annotations

_Scalar = TypeVar("_Scalar", bound=np.generic)


class NameColumn:
    """Strings, appended one by one."""

    def __init__(self) -> None:
        self._text = bytearray()
        self._offsets = array("q", [0])

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def append(self, name: str) -> None:
        self._text += name.encode("utf-8", "surrogateescape")
        self._offsets.append(len(self._text))

    def first(self, count: int) -> list[str]:
        ends = self._offsets[: count + 1]
        encoded = (self._text[a:b] for a, b in pairwise(ends))
        return [part.decode("utf-8", "surrogateescape") for part in encoded]

    def names(self) -> Names:
        return Names(to_tensor(self._text, np.uint8), to_tensor(self._offsets, np.int64))


class BoxColumns:
    """Boxes of many images, appended one by one in any order of images."""

    def __init__(self) -> None:
        self._images, self._labels = array("q"), array("q")
        self._boxes, self._areas = array("d"), array("d")
        self._ignored = bytearray()

    def __len__(self) -> int:
        return len(self._images)

    def append(
        self,
        image: int,
        box: tuple[float, float, float, float] | list[float],
        *,
        label: int,
        ignored: bool = False,
        area: float = float("nan"),
    ) -> None:
        self._images.append(image)
        self._boxes.extend(box)
        self._labels.append(label)
        self._ignored.append(ignored)
        self._areas.append(area)

    def rows(self) -> "BoxRows":
        return BoxRows(
            to_array(self._images, np.int64),
            to_array(self._boxes, np.float64).reshape(-1, 4),
            to_array(self._labels, np.int64),
            to_array(self._ignored, np.bool_),
            to_array(self._areas, np.float64),
        )


@dataclass(frozen=True)
class BoxRows:
    """Boxes as a file gives them; B rows in the order of the file."""

    images: NDArray[np.int64]  # (B,) position of the image
    boxes: NDArray[np.float64]  # (B, 4) xyxy
    labels: NDArray[np.int64]  # (B,)
    ignored: NDArray[np.bool_]  # (B,)
    areas: NDArray[np.float64]  # (B,) NaN where the file gives none


@dataclass(frozen=True)
class Annotated:
    """Annotations, and what was dropped on the way."""

    annotations: Annotations
    notes: tuple[str, ...]


def annotate(
    rows: BoxRows, sizes: Tensor, *, source: Path, describe: Callable[[int], str]
) -> Annotated:
    """Clip boxes to their images, drop the empty ones, and sort the rows by image.

    `sizes` (N, 2) are heights and widths, 0 where unknown; `describe` names a row for a message. A
    few empty boxes are slips of the annotator; many mean that the file is not what it seems.
    """
    boxes = _clipped(rows.boxes, sizes.numpy()[rows.images])
    extent = boxes[:, 2:] - boxes[:, :2]  # (B, 2)
    keep = (extent > 0).all(axis=1)
    notes = _account(np.flatnonzero(~keep), len(boxes), source=source, describe=describe)
    areas = np.where(np.isnan(rows.areas), extent.prod(axis=1), rows.areas)
    chosen = np.flatnonzero(keep)
    chosen = chosen[np.argsort(rows.images[chosen], kind="stable")]
    counts = np.bincount(rows.images[chosen], minlength=len(sizes))
    annotations = Annotations(
        torch.from_numpy(np.concatenate([[0], counts.cumsum()]).astype(np.int64)),
        torch.from_numpy(boxes[chosen]),
        torch.from_numpy(rows.labels[chosen]),
        torch.from_numpy(rows.ignored[chosen]),
        torch.from_numpy(areas[chosen]),
    )
    return Annotated(annotations, notes)


def to_array(
    buffer: "array[int] | array[float] | bytearray", dtype: type[_Scalar]
) -> NDArray[_Scalar]:
    """The column itself, not a copy; it cannot grow afterwards."""
    return np.frombuffer(buffer, dtype) if len(buffer) else np.zeros(0, dtype)


def to_tensor(buffer: "array[int] | bytearray", dtype: type[np.generic]) -> Tensor:
    """The column itself as a tensor."""
    return torch.from_numpy(to_array(buffer, dtype))


def _clipped(boxes: NDArray[np.float64], sizes: NDArray[np.int32]) -> NDArray[np.float64]:
    limits = np.where(sizes > 0, sizes.astype(np.float64), np.inf)  # (B, 2) height, width
    return np.clip(boxes, 0.0, limits[:, [1, 0, 1, 0]])


def _account(
    dropped: NDArray[np.intp], total: int, *, source: Path, describe: Callable[[int], str]
) -> tuple[str, ...]:
    if not len(dropped):
        return ()
    examples = [describe(int(row)) for row in dropped[:NAMED]]
    what = "boxes have no area inside their image"
    text = f"{source}: {account(len(dropped), total, what=what, examples=examples)}"
    if is_too_many(len(dropped), total):
        raise UserError(f"{text}; check the order of the coordinates and the image sizes")
    return (f"{text}; dropped",)
