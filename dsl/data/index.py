"""The neutral record of a data set: columns, not objects.

A million images are a few tensors, so opening is fast and loader workers share one copy. It knows
nothing of file formats (the readers fill it) and never opens an image.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dsl.types import Annotations, ragged_rows


@dataclass(frozen=True)
class Names:
    """Many strings in two tensors."""

    text: Tensor  # (bytes,) uint8
    offsets: Tensor  # (N + 1,) int64

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, position: int) -> str:
        start, end = int(self.offsets[position]), int(self.offsets[position + 1])
        return self.text[start:end].numpy().tobytes().decode("utf-8", "surrogateescape")

    def select(self, positions: Tensor) -> "Names":
        rows, offsets = ragged_rows(self.offsets, positions)
        return Names(self.text[rows], offsets)

    @staticmethod
    def of(strings: Iterable[str]) -> "Names":
        blob, lengths = bytearray(), [0]
        for string in strings:
            encoded = string.encode("utf-8", "surrogateescape")
            blob += encoded
            lengths.append(len(encoded))
        text = torch.from_numpy(np.frombuffer(bytes(blob), np.uint8).copy())
        return Names(text, torch.from_numpy(np.cumsum(np.asarray(lengths, np.int64))))


@dataclass(frozen=True)
class Index:
    """N images, where they are, and what they hold if that is known."""

    source: Path  # what the user named
    root: Path  # where the names start
    names: Names
    ids: Tensor  # (N,) int64: the file's own image ids
    sizes: Tensor  # (N, 2) int32: height, width as the file says; 0 where it does not
    annotations: Annotations | None  # None: unlabeled
    classes: tuple[str, ...]
    category_ids: tuple[int, ...]  # the file's own id of each class
    classes_declared: bool = True  # False: gathered from the boxes (VOC), so some may be missing
    notes: tuple[str, ...] = ()  # what opening dropped or decided, one line each

    def __post_init__(self) -> None:
        if not len(self.names) == len(self.ids) == len(self.sizes):
            raise ValueError("names, ids and sizes differ in length")
        if self.annotations is not None and len(self.annotations) != len(self.names):
            raise ValueError("annotations and names differ in length")
        if len(self.classes) != len(self.category_ids):
            raise ValueError("classes and category_ids differ in length")

    def __len__(self) -> int:
        return len(self.names)

    def path(self, position: int) -> Path:
        return self.root / self.names[position]

    def size(self, position: int) -> tuple[int, int] | None:
        """Height and width if the file told them."""
        height, width = self.sizes[position].tolist()
        return (height, width) if height and width else None

    def select(self, positions: Tensor, *notes: str) -> "Index":
        """These images in this order, with further notes on why."""
        return replace(
            self,
            names=self.names.select(positions),
            ids=self.ids[positions],
            sizes=self.sizes[positions],
            annotations=self.annotations and self.annotations.select(positions),
            notes=self.notes + notes,
        )
