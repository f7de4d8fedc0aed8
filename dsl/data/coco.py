"""Open a COCO annotation file (images, annotations, categories) as an index.

The file is streamed into columns: opening a million images costs seconds and some hundred
megabytes. It never opens an image, and looks at the disk only to guess where the images are.
"""

import os
import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dsl.data.columns import BoxColumns, BoxRows, NameColumn, annotate, to_tensor
from dsl.data.index import Index, Names
from dsl.data.json_stream import Elements, stream_object
from dsl.data.manifest import stated_root
from dsl.data.values import MAX_COORDINATE, class_name_problem, name_problem
from dsl.errors import UserError, show

_PROBED = 5  # that many images are looked for when guessing the image folder
_NUMERIC = frozenset((int, float))  # exact types: a bool is not a number
_NOT_GIVEN = float("nan")
_SPLIT = re.compile(r"\.\d+@\d+(\.\d+)?(-unlabel(ed)?)?$")  # instances_train2017.1@10-unlabeled

Record = dict[str, object]


def read_coco(path: Path, root: Path | None = None) -> Index:
    """The images of the file, labeled if it has `annotations`.

    `root` is where the image names start; without it, the usual places near the file are tried.
    """
    path = Path(path)
    if root is not None and not root.is_dir():
        raise UserError(f"{path}: image folder {root} does not exist")
    images, boxes, categories = _read_tables(path)
    names = images.names.names()
    index = Index(
        source=path,
        root=root or _guess_root(path, images.names.first(_PROBED)),
        names=names,
        ids=to_tensor(images.ids, np.int64),
        sizes=to_tensor(images.sizes, np.int32).view(-1, 2),
        annotations=None,
        classes=tuple(name for _, name in categories),
        category_ids=tuple(number for number, _ in categories),
    )
    _check_distinct(path, index.ids, names)
    return index if boxes is None else _labeled(index, boxes)


def _labeled(index: Index, boxes: BoxColumns) -> Index:
    rows = _resolved(index, boxes.rows())

    def describe(row: int) -> str:
        return f"annotations[{row}] in {index.names[int(rows.images[row])]}"

    found = annotate(rows, index.sizes, source=index.source, describe=describe)
    return replace(index, annotations=found.annotations, notes=found.notes)


@dataclass(frozen=True)
class _Images:
    names: NameColumn
    ids: "array[int]"
    sizes: "array[int]"  # height, width, height, width, ...


@dataclass(frozen=True)
class _Table:
    """One of the file's arrays: yields its records, and names the culprit in errors."""

    path: Path
    key: str

    def records(self, value: object) -> Iterator[tuple[int, Record]]:
        if not isinstance(value, Elements):
            raise UserError(f"{self.path}: key {self.key!r} is {show(value)}; it must be an array")
        for position, record in enumerate(value):
            if type(record) is not dict:
                raise self.error(position, {}, f"is {show(record)}; it must be an object")
            yield position, record

    def error(self, position: int, record: Record, problem: str) -> UserError:
        name = f" (id {show(record['id'])})" if "id" in record else ""
        return UserError(f"{self.path}: {self.key}[{position}]{name}: {problem}")

    def integer(self, position: int, record: Record, *, key: str) -> int:
        value = record.get(key)
        if type(value) is int and -(2**63) <= value < 2**63:
            return value
        raise self._field_error(position, record, key=key, wanted="a whole number")

    def text(self, position: int, record: Record, *, key: str) -> str:
        value = record.get(key)
        if type(value) is str:
            return value
        raise self._field_error(position, record, key=key, wanted="a text")

    def _field_error(self, position: int, record: Record, *, key: str, wanted: str) -> UserError:
        found = f"is {show(record[key])}" if key in record else "is absent"
        return self.error(position, record, f"{key!r} {found}; it must be {wanted}")


def _read_tables(path: Path) -> tuple[_Images, BoxColumns | None, list[tuple[int, str]]]:
    images: _Images | None = None
    boxes: BoxColumns | None = None
    categories: list[tuple[int, str]] | None = None
    for key, value in stream_object(path, skip="segmentation"):
        if key == "images":
            images = _read_images(_Table(path, key), value)
        elif key == "annotations":
            boxes = _read_boxes(_Table(path, key), value)
        elif key == "categories":
            categories = _read_categories(_Table(path, key), value)
    if images is None or not len(images.names):
        state = "absent" if images is None else "empty"
        raise UserError(f"{path}: key 'images' is {state}; it must list the images")
    if boxes is not None and not categories:
        state = "absent" if categories is None else "empty"
        raise UserError(f"{path}: key 'categories' is {state}; annotations need the class names")
    return images, boxes, categories or []


def _read_images(table: _Table, value: object) -> _Images:
    images = _Images(NameColumn(), array("q"), array("i"))
    for position, record in table.records(value):
        name = table.text(position, record, key="file_name")
        if problem := name_problem(name):
            raise table.error(position, record, f"'file_name' {problem}")
        images.names.append(name)
        images.ids.append(table.integer(position, record, key="id"))
        images.sizes.append(_side(table, position, record, key="height"))
        images.sizes.append(_side(table, position, record, key="width"))
    return images


def _side(table: _Table, position: int, record: Record, *, key: str) -> int:
    """Height or width; 0 if the file does not tell."""
    value = record.get(key)
    if type(value) is float and value.is_integer():  # some tools write 640.0
        value = int(value)
    if value is None or (type(value) is int and 0 <= value <= MAX_COORDINATE):
        return value or 0
    raise table.error(position, record, f"{key!r} is {show(value)}; it must be a number of pixels")


def _read_boxes(table: _Table, value: object) -> BoxColumns:
    """Boxes as the file has them: x, y, width, height, and its own ids for image and label."""
    boxes = BoxColumns()
    for position, record in table.records(value):
        box = record.get("bbox")
        if type(box) is not list or len(box) != 4 or not _NUMERIC.issuperset(map(type, box)):
            found = f"is {show(box)}" if "bbox" in record else "is absent"
            raise table.error(position, record, f"'bbox' {found}; it must be [x, y, width, height]")
        try:
            boxes.append(
                table.integer(position, record, key="image_id"),
                box,
                label=table.integer(position, record, key="category_id"),
                ignored=_is_crowd(table, position, record),
                area=_area(table, position, record),
            )
        except OverflowError:  # an integer beyond any float; other slips are found at the end
            problem = f"'bbox' is {show(box)}: these cannot be pixels"
            raise table.error(position, record, problem) from None
    return boxes


def _is_crowd(table: _Table, position: int, record: Record) -> bool:
    flag = record.get("iscrowd", 0)
    if type(flag) in (int, bool) and flag in (0, 1):  # a flag, so true and false are as good
        return bool(flag)
    raise table.error(position, record, f"'iscrowd' is {show(flag)}; it must be 0 or 1")


def _area(table: _Table, position: int, record: Record) -> float:
    area = record.get("area", _NOT_GIVEN)
    if area is _NOT_GIVEN:
        return _NOT_GIVEN
    if (type(area) is float or type(area) is int) and 0 <= area <= MAX_COORDINATE**2:
        return area
    raise table.error(position, record, f"'area' is {show(area)}; it must be a number of pixels")


def _read_categories(table: _Table, value: object) -> list[tuple[int, str]]:
    """Ids and names, ordered by id."""
    names: dict[int, str] = {}
    for position, record in table.records(value):
        number = table.integer(position, record, key="id")
        name = table.text(position, record, key="name")
        if problem := class_name_problem(name):
            raise table.error(position, record, f"'name' {problem}")
        if number in names:
            raise table.error(
                position, record, f"id {number} is also that of {show(names[number])}"
            )
        if name in names.values():
            raise table.error(position, record, f"name {show(name)} occurs twice; merge or rename")
        names[number] = name
    return sorted(names.items())


def _check_distinct(path: Path, ids: Tensor, names: Names) -> None:
    order = np.argsort(ids.numpy(), kind="stable")
    same = np.flatnonzero(np.diff(ids.numpy()[order]) == 0)
    if len(same):
        first, second = (int(order[same[0] + step]) for step in (0, 1))
        raise UserError(
            f"{path}: images[{first}] ({show(names[first])}) and images[{second}]"
            f" ({show(names[second])}) have one id, {int(ids[first])}; ids must differ"
        )


def _resolved(index: Index, rows: BoxRows) -> BoxRows:
    """xywh -> xyxy, and positions instead of the file's ids."""
    _check_boxes(index.source, rows.boxes)
    images = _positions(rows.images, index.ids.numpy(), path=index.source, key="image_id")
    category_ids = np.asarray(index.category_ids, np.int64)
    labels = _positions(rows.labels, category_ids, path=index.source, key="category_id")
    corners = np.concatenate([rows.boxes[:, :2], rows.boxes[:, :2] + rows.boxes[:, 2:]], axis=1)
    return replace(rows, images=images, labels=labels, boxes=corners)


def _check_boxes(path: Path, boxes: NDArray[np.float64]) -> None:
    sane = (np.abs(boxes) <= MAX_COORDINATE).all(axis=1)  # NaN is not
    for problem, bad in (
        ("these cannot be pixels", ~sane),
        ("a negative width or height; write [x, y, width, height]", (boxes[:, 2:] < 0).any(axis=1)),
    ):
        if bad.any():
            row = int(bad.argmax())
            raise UserError(
                f"{path}: annotations[{row}]: 'bbox' is {boxes[row].tolist()}: {problem}"
            )


def _positions(
    wanted: NDArray[np.int64], ids: NDArray[np.int64], *, path: Path, key: str
) -> NDArray[np.int64]:
    """Where each wanted id stands in `ids`."""
    order = np.argsort(ids, kind="stable")
    slots = np.searchsorted(ids[order], wanted).clip(max=len(ids) - 1)
    positions: NDArray[np.int64] = order[slots]
    absent = np.flatnonzero(ids[positions] != wanted)
    if len(absent):
        table = "images" if key == "image_id" else "categories"
        raise UserError(
            f"{path}: annotations[{absent[0]}]: {key!r} is {wanted[absent[0]]}, which no entry of"
            f" {table!r} has; add it there or remove the annotation"
        )
    return positions


def _guess_root(path: Path, names: list[str]) -> Path:
    """The first of the usual places that holds one of these images; else the file's own folder."""
    folder, stem = path.absolute().parent, _SPLIT.sub("", path.stem)
    parts = ["", "images", stem, stem.rpartition("_")[2]]  # instances_train2017 -> train2017
    # Splits lie one folder deeper than the file that they are made of: annotations/semi_supervised.
    bases = [folder, folder.parent, folder / "images", folder.parent / "images"]
    bases += [folder.parent.parent] if stem != path.stem else []
    stated = stated_root(path)
    places = [base / part for base in bases for part in parts]
    for place in places if stated is None else [stated, *places]:
        if any(os.path.isfile(place / name) for name in names):
            return place
    return folder
