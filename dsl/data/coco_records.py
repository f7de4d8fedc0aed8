"""A labeled set as the records of a COCO file, one by one: from the file itself, with every field
that it has, or made from the index of another format.

It knows nothing of splits, and never opens an image.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsl.data.formats import open_dataset
from dsl.data.index import Index
from dsl.data.json_stream import Elements, stream_object
from dsl.errors import UserError
from dsl.types import Annotations

_BLOCK = 1 << 20  # bytes


@dataclass(frozen=True)
class Source:
    """A labeled set whose records can be read again and again."""

    index: Index
    annotations: Annotations
    file: Path | None  # of COCO; None: the records are made from the index
    root: Path  # where the names start
    names: tuple[str, ...]  # below the root, as COCO's `file_name` must be

    def tables(self) -> Iterator[tuple[str, object]]:
        """The keys of the COCO file with their values; arrays come as `Elements`."""
        if self.file is not None:
            yield from stream_object(self.file)
            return
        yield "images", Elements(self._images())
        yield "annotations", Elements(self._boxes())
        ids = zip(self.index.category_ids, self.index.classes, strict=True)
        yield "categories", Elements({"id": number, "name": name} for number, name in ids)

    def sha256(self) -> str:
        """Of the COCO file, or of the records where there is none."""
        digest = hashlib.sha256()
        if self.file is not None:
            with self.file.open("rb") as stream:
                while block := stream.read(_BLOCK):
                    digest.update(block)
            return digest.hexdigest()
        for key, value in self.tables():
            digest.update(key.encode())
            for record in value if isinstance(value, Elements) else [value]:
                digest.update(json.dumps(record).encode())
        return digest.hexdigest()

    def with_objects(self) -> NDArray[np.bool_]:
        """(N,): the images that have a box which is not a crowd, an empty one too."""
        found = np.zeros(len(self.index), np.bool_)
        if self.file is None:
            owners = np.repeat(np.arange(len(self.index)), self.annotations.offsets.diff().numpy())
            found[owners[~self.annotations.ignored.numpy()]] = True
            return found
        places = {number: place for place, number in enumerate(self.index.ids.tolist())}
        for key, value in stream_object(self.file, skip="segmentation"):
            if key == "annotations" and isinstance(value, Elements):
                records: Iterator[Any] = iter(value)
                for record in records:
                    if not record.get("iscrowd", 0):
                        found[places[record["image_id"]]] = True
        return found

    def _images(self) -> Iterator[dict[str, object]]:
        sizes = self.index.sizes.tolist()
        for place, number in enumerate(self.index.ids.tolist()):
            height, width = sizes[place]
            record = {"id": number, "file_name": self.names[place]}
            yield record | ({"width": width, "height": height} if height and width else {})

    def _boxes(self) -> Iterator[dict[str, object]]:
        """`iscrowd` is COCO's word for a box that is neither taught nor counted against anyone,
        as VOC's difficult ones are."""
        truth = self.annotations
        owners = self.index.ids.repeat_interleave(truth.offsets.diff()).tolist()
        rows = zip(
            owners, truth.boxes.tolist(), truth.labels.tolist(), truth.ignored.tolist(),
            truth.areas.tolist(), strict=True,
        )  # fmt: skip
        for number, (image, (x1, y1, x2, y2), label, ignored, area) in enumerate(rows, start=1):
            yield {
                "id": number, "image_id": image, "category_id": self.index.category_ids[label],
                "bbox": [x1, y1, x2 - x1, y2 - y1], "area": area, "iscrowd": int(ignored),
            }  # fmt: skip


def open_source(path: str | Path) -> Source:
    """The labeled set at this path, in any format that we read."""
    index = open_dataset(path, split="train")
    if index.annotations is None:
        raise UserError(f"{index.source}: holds images but no labels; there is nothing to divide")
    names = [index.names[place] for place in range(len(index))]
    if index.source.suffix.lower() == ".json":
        return Source(index, index.annotations, index.source, index.root, tuple(names))
    root, below = _rooted(index.root, names)
    return Source(index, index.annotations, None, root, tuple(below))


def _rooted(root: Path, names: list[str]) -> tuple[Path, list[str]]:
    """Names that are all below one folder: a YOLO set may list images of several places."""
    if not any(os.path.isabs(name) or name.startswith("..") for name in names):
        return root, names
    paths = [os.path.abspath(root / name) for name in names]
    try:
        common = Path(os.path.commonpath([os.path.dirname(path) for path in paths]))
    except ValueError as error:
        raise UserError(f"{root}: its images are on several drives; move them to one") from error
    return common, [Path(path).relative_to(common).as_posix() for path in paths]
