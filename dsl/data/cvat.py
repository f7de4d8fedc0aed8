"""Open an XML file of "CVAT for images 1.1" as an index.

A box whose attribute `uncertain` is still set is an ignored one: CVAT does not say who has looked
at it, so the mark decides. It never opens an image.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn
from xml.etree import ElementTree

import torch

from dsl.data.columns import BoxColumns, annotate
from dsl.data.index import Index, Names
from dsl.data.locate import endings, locate
from dsl.data.values import MAX_COORDINATE, coordinate, name_problem
from dsl.data.xml_tree import parse_xml, top_tag
from dsl.errors import UserError, show

UNCERTAIN = "uncertain"  # the attribute that dsl label writes
_CORNERS = ("xtl", "ytl", "xbr", "ybr")
_BOX_TYPES = ("", "any", "rectangle", "bbox")  # of a label; others never name a box
_SHAPES = ("polygon", "polyline", "points", "ellipse", "cuboid", "mask", "skeleton")

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class _Object:
    name: str  # of its class
    box: Box
    uncertain: bool


@dataclass(frozen=True)
class _Image:
    name: str
    size: tuple[int, int]  # height, width; 0 where not told
    objects: tuple[_Object, ...]
    num_other: int  # shapes that are no boxes


def read_cvat(path: Path) -> Index:
    """The images of the file with their boxes; other shapes are left out, and counted."""
    path = Path(path)
    try:
        top = parse_xml(path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    if top.tag != "annotations":
        raise UserError(
            f"{path}: the top element is <{top.tag}>; CVAT writes <annotations>, and a VOC set is"
            " opened by its folder"
        )
    if top.find("track") is not None:
        raise UserError(f"{path}: holds tracks of a video; export as 'CVAT for images 1.1'")
    images = [_read_image(path, n, found=image) for n, image in enumerate(top.iter("image"))]
    if not images:
        raise UserError(f"{path}: holds no <image>")
    classes, declared = _classes(path, top, images)
    return _indexed(path, images, classes, declared=declared)


def is_cvat(path: Path) -> bool:
    return path.is_file() and top_tag(path) == "annotations"


def _indexed(
    path: Path, images: Sequence[_Image], classes: tuple[str, ...], *, declared: bool
) -> Index:
    labels = {name: label for label, name in enumerate(classes)}
    root, names = locate(path, [endings(image.name) for image in images], in_images=True)
    sizes = torch.tensor([image.size for image in images], dtype=torch.int32)
    boxes, owners = BoxColumns(), []
    for position, image in enumerate(images):
        for found in image.objects:
            label = labels[found.name]
            boxes.append(position, found.box, label=label, ignored=found.uncertain)
            owners.append(f"a box of {image.name}")
    annotated = annotate(boxes.rows(), sizes, source=path, describe=owners.__getitem__)
    return Index(
        source=path,
        root=root,
        names=Names.of(names),
        ids=torch.arange(1, len(names) + 1),
        sizes=sizes,
        annotations=annotated.annotations,
        classes=classes,
        category_ids=tuple(range(1, len(classes) + 1)),
        classes_declared=declared,
        notes=_notes(path, images) + annotated.notes,
    )


def _notes(path: Path, images: Sequence[_Image]) -> tuple[str, ...]:
    uncertain = sum(found.uncertain for image in images for found in image.objects)
    other = sum(image.num_other for image in images)
    said = (
        (uncertain, f"boxes are still marked {UNCERTAIN} and are ignored; clear the mark to use"),
        (other, "shapes are no boxes; left out"),
    )
    return tuple(f"{path}: {count:,} {what}" for count, what in said if count)


def _classes(
    path: Path, top: ElementTree.Element, images: Sequence[_Image]
) -> tuple[tuple[str, ...], bool]:
    """As the file lists its labels; else those of the boxes, sorted."""
    listed = [
        label.findtext("name") or ""
        for label in top.iterfind("meta//labels/label")
        if (label.findtext("type") or "").strip() in _BOX_TYPES and label.find("parent") is None
    ]
    used = {found.name: image.name for image in images for found in image.objects}
    if not any(listed):
        return tuple(sorted(used)), False
    classes = tuple(dict.fromkeys(name for name in listed if name))
    for name, image in used.items():
        if name not in classes:
            raise UserError(f"{path}: image {show(image)}: label {show(name)} is not in <labels>")
    return classes, True


def _read_image(path: Path, number: int, *, found: ElementTree.Element) -> _Image:
    name = found.get("name", "")
    place = f"image[{number}]"
    if problem := name_problem(name):
        _refuse(path, place, problem)
    size = tuple(_side(path, place, text=found.get(key, "0")) for key in ("height", "width"))
    objects = tuple(_read_box(path, f"{place} ({show(name)})", box=b) for b in found.iter("box"))
    other = sum(1 for child in found if child.tag in _SHAPES)
    return _Image(name, (size[0], size[1]), objects, other)


def _side(path: Path, place: str, *, text: str) -> int:
    value = coordinate(text)
    if value is None or value < 0 or not value.is_integer():
        _refuse(path, place, f"its size is {show(text)}; it must be a number of pixels")
    return int(value)


def _read_box(path: Path, place: str, *, box: ElementTree.Element) -> _Object:
    name = box.get("label", "")
    if not name.strip():
        _refuse(path, place, "a box has no label")
    values = []
    for key in (*_CORNERS, "rotation"):
        text = box.get(key, "0" if key == "rotation" else "")
        value = coordinate(text)
        if value is None:
            limit = f"a finite number up to {MAX_COORDINATE:.0f}"
            _refuse(path, place, f"{key} of a box is {show(text)}; it must be {limit}")
        values.append(value)
    left, top, right, bottom, rotation = values
    flags = [a.text or "" for a in box.iter("attribute") if a.get("name") == UNCERTAIN]
    uncertain = any(flag.strip().lower() in ("true", "1") for flag in flags)
    return _Object(name, _around((left, top, right, bottom), rotation), uncertain)


def _around(box: Box, rotation: float) -> Box:
    """The upright box around one that is turned about its centre, by degrees."""
    if not rotation:
        return box
    x, y = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
    wide, tall = (box[2] - box[0]) / 2, (box[3] - box[1]) / 2
    along, across = abs(math.cos(math.radians(rotation))), abs(math.sin(math.radians(rotation)))
    half_width, half_height = wide * along + tall * across, wide * across + tall * along
    return x - half_width, y - half_height, x + half_width, y + half_height


def _refuse(path: Path, place: str, problem: str) -> NoReturn:
    raise UserError(f"{path}: {place}: {problem}")
