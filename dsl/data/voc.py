"""Open Pascal VOC annotations, one XML file per image, as an index.

VOC counts pixels from 1 and both corners belong to the box, so xyxy half-open is (xmin - 1,
ymin - 1, xmax, ymax). Many converted sets count from 0; their boxes come out one pixel larger at
the left and top. It never opens an image.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NoReturn
from xml.etree import ElementTree

import torch

from dsl.data.columns import BoxColumns, NameColumn, annotate
from dsl.data.files import is_image
from dsl.data.index import Index
from dsl.data.values import MAX_COORDINATE, coordinate, name_problem
from dsl.data.xml_tree import parse_xml
from dsl.errors import UserError, show
from dsl.files import MEGABYTE, check_file

_MAX_PAGE = 64 * MEGABYTE  # of one image; a page of 1,000 objects has about 0.3
_MAX_SPLIT = 512 * MEGABYTE
_CORNERS = ("xmin", "ymin", "xmax", "ymax")

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class _Object:
    name: str
    box: Box
    difficult: bool


@dataclass(frozen=True)
class _Page:
    """What one XML file says."""

    path: Path
    filename: str | None
    size: tuple[int, int]  # height, width; 0 where not told
    objects: tuple[_Object, ...]


def read_voc(path: Path, classes: Sequence[str] | None = None) -> Index:
    """A folder of XML files, a VOC root (with Annotations/), or a split ImageSets/Main/NAME.txt.

    Classes are the sorted names of the set unless given; a name that is not among the given ones is
    an error. `difficult` objects are ignored ones.
    """
    path, declared = Path(path), classes is not None
    folder, files = _xml_files(path)
    folder = Path(os.path.abspath(folder))  # '.' has no name and no parent
    pages = [_read_page(file) for file in files]
    declared = classes is not None
    if classes is None:
        classes = sorted({found.name for page in pages for found in page.objects})
    labels = {name: label for label, name in enumerate(classes)}
    sizes = torch.tensor([page.size for page in pages], dtype=torch.int32)
    boxes, owners = BoxColumns(), []
    for image, page in enumerate(pages):
        for number, found in enumerate(page.objects):
            if found.name not in labels:
                _refuse(page.path, number, f"class {show(found.name)} is not in {list(labels)}")
            label = labels[found.name]
            boxes.append(image, found.box, label=label, ignored=found.difficult)
            owners.append(f"{page.path.name} object[{number}]")
    annotated = annotate(boxes.rows(), sizes, source=path, describe=owners.__getitem__)
    return Index(
        source=path,
        root=folder.parent,
        names=_image_names(pages, folder).names(),
        ids=torch.arange(1, len(pages) + 1),
        sizes=sizes,
        annotations=annotated.annotations,
        classes=tuple(classes),
        category_ids=tuple(range(1, len(classes) + 1)),
        classes_declared=declared,
        notes=annotated.notes,
    )


def _xml_files(path: Path) -> tuple[Path, list[Path]]:
    """The folder of the XML files, and those of them that belong to the set."""
    if path.is_file():
        folder = _annotations_of(path)
        return folder, [folder / f"{name}.xml" for name in _split_lines(path)]
    folder = path / "Annotations" if (path / "Annotations").is_dir() else path
    try:
        files = sorted(folder / name for name in os.listdir(folder) if _is_xml(name))
    except OSError as error:
        raise UserError(f"{folder}: cannot be listed: {error.strerror}") from error
    if not files:
        raise UserError(f"{folder}: the folder holds no XML files")
    return folder, files


def _is_xml(name: str) -> bool:
    return name.lower().endswith(".xml") and not name.startswith(".")


def _annotations_of(split: Path) -> Path:
    for parent in split.absolute().parents:
        if (parent / "Annotations").is_dir():
            return parent / "Annotations"
    raise UserError(f"{split}: no folder Annotations/ above this split file")


def _split_lines(path: Path) -> Iterator[str]:
    """The ids of a split; a flag (1, 0, -1) behind them says of one class only, and is passed."""
    seen: set[str] = set()
    try:
        check_file(path, limit=_MAX_SPLIT)
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as text: {error}") from error
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words:
            continue
        name = words[0]
        if words[1:] not in ([], ["1"], ["0"], ["-1"]):
            raise UserError(f"{path}: line {number}: {show(line)} is not an image id and a flag")
        if problem := name_problem(name):
            raise UserError(f"{path}: line {number}: {problem}")
        if name in seen:
            raise UserError(f"{path}: line {number}: {show(name)} occurs twice")
        seen.add(name)
        yield name
    if not seen:
        raise UserError(f"{path}: the split is empty")


def _read_page(path: Path) -> _Page:
    try:
        top = parse_xml(path, limit=_MAX_PAGE)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file, but the split names it") from None
    if top.tag != "annotation":
        raise UserError(f"{path}: the top element is <{top.tag}>; it must be <annotation>")
    filename = (top.findtext("filename") or "").strip() or None
    if filename and (problem := name_problem(filename)):
        raise UserError(f"{path}: <filename> {problem}")
    size = _side(path, top, name="height"), _side(path, top, name="width")
    objects = tuple(_read_object(path, n, found=o) for n, o in enumerate(top.findall("object")))
    return _Page(path, filename, size, objects)


def _side(path: Path, top: ElementTree.Element, *, name: str) -> int:
    """Height or width; 0 if the file does not tell."""
    text = top.findtext(f"size/{name}") or "0"
    value = coordinate(text)
    if value is None or value < 0 or not value.is_integer():
        raise UserError(f"{path}: <{name}> is {show(text)}; it must be a number of pixels")
    return int(value)


def _read_object(path: Path, number: int, *, found: ElementTree.Element) -> _Object:
    name = (found.findtext("name") or "").strip()
    if not name:
        _refuse(path, number, "<name> is absent or empty; the object needs a class")
    flag = (found.findtext("difficult") or "0").strip()
    if flag not in ("0", "1"):
        _refuse(path, number, f"<difficult> is {show(flag)}; it must be 0 or 1")
    corners = []
    for corner in _CORNERS:
        text = found.findtext(f"bndbox/{corner}")
        value = None if text is None else coordinate(text)
        if value is None:
            state = "is absent" if text is None else f"is {show(text)}"
            problem = f"a finite number up to {MAX_COORDINATE:.0f}"
            _refuse(path, number, f"<bndbox><{corner}> {state}; it must be {problem}")
        corners.append(value)
    return _Object(name, _half_open(*corners), flag == "1")


def _half_open(left: float, top: float, right: float, bottom: float) -> Box:
    if right <= left or bottom <= top:  # empty by the file's own numbers, though VOC means 1 pixel
        return left, top, left, top
    return left - 1, top - 1, right, bottom


def _refuse(path: Path, number: int, problem: str) -> NoReturn:
    raise UserError(f"{path}: object[{number}]: {problem}")


def _image_names(pages: list[_Page], folder: Path) -> NameColumn:
    """Where each page's image is, relative to the parent of the folder of XML files."""
    usual = ("JPEGImages", "images", folder.name)
    within = (f"{folder.name}/JPEGImages", f"{folder.name}/images")
    shelves = [_Shelf.of(folder.parent, name) for name in usual + within]
    owners: dict[str, Path] = {}
    column = NameColumn()
    for page in pages:
        name = _find(page, shelves)
        if name in owners:
            raise UserError(f"{page.path}: its image {show(name)} is also that of {owners[name]}")
        owners[name] = page.path
        column.append(name)
    return column


@dataclass(frozen=True)
class _Shelf:
    """A folder of images, listed once: a look-up per image on a network disk would be slow."""

    prefix: str
    names: frozenset[str]
    by_stem: dict[str, str]

    @staticmethod
    def of(root: Path, prefix: str) -> "_Shelf":
        folder = root / prefix
        names = sorted(filter(is_image, os.listdir(folder))) if folder.is_dir() else []
        return _Shelf(prefix, frozenset(names), {PurePosixPath(name).stem: name for name in names})


def _find(page: _Page, shelves: list[_Shelf]) -> str:
    """The image by its name, else by that name's stem, else by the XML file's own stem."""
    filename = page.filename or f"{page.path.stem}.jpg"
    for shelf in shelves:
        if filename in shelf.names:
            return f"{shelf.prefix}/{filename}"
    for stem in (PurePosixPath(filename).stem, page.path.stem):
        for shelf in shelves:
            if stem in shelf.by_stem:
                return f"{shelf.prefix}/{shelf.by_stem[stem]}"
    filled = next((shelf for shelf in shelves if shelf.names), shelves[0])
    return f"{filled.prefix}/{filename}"  # absent, or in a folder below; reading it will tell
