"""Write a set as Pascal VOC: Annotations/NAME.xml and JPEGImages/NAME.

VOC counts pixels from 1 and both corners belong to the box: half-open xyxy becomes (left + 1,
top + 1, right, bottom). Fractions are written as they are. VOC has no list of classes, so neither
their order nor a class without a box is held, and no box of one pixel or less (see voc.py).
"""

from pathlib import PurePosixPath
from xml.etree import ElementTree

from dsl.data.index import Index
from dsl.data.write_folder import Request, Written, distinct_stems, relative_names, renamed_note
from dsl.data.xml_tree import NOT_IN_XML
from dsl.errors import UserError
from dsl.image import Size
from dsl.types import Annotations


def write_voc(request: Request) -> Written:
    """All images in one folder, one XML file each; ignored boxes are `difficult`."""
    index, found = request.index, request.index.annotations
    if found is None:
        raise UserError(
            f"{index.source}: holds images but no labels; VOC cannot tell unlabeled from empty"
        )
    _check_classes(index)
    old = relative_names(index)
    names = _flat(old)
    (request.folder / "Annotations").mkdir()
    too_thin = 0
    for position, name in enumerate(names):
        request.place(position, f"JPEGImages/{name}")
        page, left_out = _page(
            index, name, size=request.size(position), rows=_rows(found, position)
        )
        too_thin += left_out
        ElementTree.indent(page)
        file = request.folder / "Annotations" / f"{PurePosixPath(name).stem}.xml"
        file.write_bytes(ElementTree.tostring(page, encoding="utf-8") + b"\n")
    notes = renamed_note((PurePosixPath(name).name for name in old), names) + _class_note(index)
    if too_thin:
        notes += (f"{too_thin:,} boxes are one pixel wide or high, or less; VOC cannot hold them",)
    return Written("", notes, lost_boxes=too_thin)


def _rows(found: Annotations, position: int) -> slice:
    return slice(int(found.offsets[position]), int(found.offsets[position + 1]))


def _page(index: Index, name: str, *, size: Size, rows: slice) -> tuple[ElementTree.Element, int]:
    """The page of one image, and how many of its boxes it could not hold."""
    found = index.annotations
    page = ElementTree.Element("annotation")
    _child(page, "folder", "JPEGImages")
    _child(page, "filename", name)
    extent = ElementTree.SubElement(page, "size")
    for key, value in (("width", size[1]), ("height", size[0]), ("depth", 3)):
        _child(extent, key, str(value))
    if found is None:
        return page, 0
    left_out = 0
    for box, label, ignored in zip(
        found.boxes[rows].tolist(), found.labels[rows].tolist(), found.ignored[rows].tolist(),
        strict=True,
    ):  # fmt: skip
        corners = (box[0] + 1, box[1] + 1, box[2], box[3])
        if corners[2] <= corners[0] or corners[3] <= corners[1]:
            left_out += 1
            continue
        entry = ElementTree.SubElement(page, "object")
        _child(entry, "name", index.classes[label])
        _child(entry, "difficult", str(int(ignored)))
        bounds = ElementTree.SubElement(entry, "bndbox")
        for key, value in zip(("xmin", "ymin", "xmax", "ymax"), corners, strict=True):
            _child(bounds, key, _number(value))
    return page, left_out


def _child(parent: ElementTree.Element, tag: str, text: str) -> None:
    ElementTree.SubElement(parent, tag).text = text


def _number(value: float) -> str:
    value = round(value, 9)
    return str(int(value)) if value.is_integer() else repr(value)


def _flat(names: list[str]) -> list[str]:
    """Names for one folder: the last part, or all parts joined where two last parts are alike."""
    bases = [PurePosixPath(name).name for name in names]
    stems = {PurePosixPath(base).stem.casefold() for base in bases}
    flat = bases if len(stems) == len(bases) else [name.replace("/", "_") for name in names]
    # Readers strip blanks and skip hidden files.
    plain = (NOT_IN_XML.sub("_", name).strip().lstrip(".") for name in flat)
    return distinct_stems(name or "image" for name in plain)


def _check_classes(index: Index) -> None:
    for name in index.classes:
        if name != name.strip() or NOT_IN_XML.search(name):
            raise UserError(
                f"{index.source}: class {name!r} has blanks at its ends or control characters;"
                " VOC cannot hold it, rename the class"
            )


def _class_note(index: Index) -> tuple[str, ...]:
    found = index.annotations
    used = set() if found is None else set(found.labels.tolist())
    kept = sorted(index.classes[label] for label in used)
    if tuple(kept) == index.classes:
        return ()
    return (
        "VOC has no list of classes: they come back sorted by name, without those that have no box",
    )
