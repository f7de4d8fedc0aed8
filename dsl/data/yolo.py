"""Open a YOLO data set (one text file of normalised boxes per image) as an index.

The boxes are fractions of the image, so the headers of labeled images are read here; no other
format needs that. An image without a label file is one without objects.
"""

import os
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import yaml

from dsl.data.columns import BoxColumns, NameColumn, annotate, to_tensor
from dsl.data.files import find_images
from dsl.data.folder import list_images
from dsl.data.index import Index
from dsl.data.tolerance import account, is_too_many
from dsl.data.values import class_name_problem
from dsl.errors import UserError, show
from dsl.files import GIGABYTE, MEGABYTE, check_file
from dsl.image import read_size

SPLITS = ("train", "val", "test")
_TOLERANCE = 0.01  # of the image: rounding and small overhang are normal
_MAX_YAML = 16 * MEGABYTE
_MAX_LABELS = GIGABYTE // 16  # of one image
_MAX_CLASSES = 100_000  # a larger number in a label file is a slip

_LEAVES = "leaves the data set; name its folder with the key 'path'"

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class _Layout:
    """Where the images are, and the class names by their number in the label files."""

    source: Path
    root: Path
    images: tuple[str, ...]  # below the root, or absolute
    names: dict[int, str] | None  # None: unknown, any number is a class


@dataclass(frozen=True)
class _Label:
    number: int  # of the class, as written
    box: Box  # xyxy, fractions of the image


def read_yolo(path: Path, split: str | None = None) -> Index:
    """A data.yaml, or a folder with one, or a folder with images/ and labels/, or with classes.txt.

    `split` is the part of the set to read: train (also if not given), val or test.
    """
    path = Path(path)
    if split is not None and split not in SPLITS:
        raise UserError(f"{path}: split {show(split)} must be one of {', '.join(SPLITS)}")
    described = find_yaml(path) if path.is_dir() else path
    layout = _from_folder(path, split) if described is None else _from_yaml(described, split)
    return _read(layout)


def find_yaml(folder: Path) -> Path | None:
    """The file in the folder that describes a YOLO set; None if there is none."""
    found = [
        file
        for file in sorted(folder.iterdir())
        if file.suffix.lower() in (".yaml", ".yml") and "names" in _load_yaml(file)
    ]
    if len(found) > 1:
        raise UserError(f"{folder}: several YOLO sets ({_listed(found)}); name one of the files")
    return found[0] if found else None


def _listed(files: Iterable[Path]) -> str:
    return ", ".join(file.name for file in files)


def _load_yaml(path: Path) -> dict[object, object]:
    try:
        check_file(path, limit=_MAX_YAML)
        content = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    except UserError:
        raise
    except (
        Exception
    ) as error:  # on a tag that its value does not fit, PyYAML raises nearly anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{path}: not readable as YAML: {reason}") from error
    return content if isinstance(content, dict) else {}


def _from_yaml(path: Path, split: str | None) -> _Layout:
    content = _load_yaml(path)
    names = _class_names(path, content)
    key = split or "train"
    entries = content.get(key)
    if isinstance(entries, str):
        entries = [entries]
    if not isinstance(entries, list) or not all(isinstance(e, str) for e in entries) or not entries:
        present = [known for known in SPLITS if content.get(known)]
        raise UserError(
            f"{path}: key {key!r} is {show(content.get(key))}; it must name a folder or a list of"
            f" images (the file has {', '.join(present) or 'no split'})"
        )
    root = _root(path, content.get("path", ""))
    images: dict[str, None] = {}  # an ordered set
    for entry in entries:
        images.update(dict.fromkeys(_images_of(path, entry, root=root)))
    return _Layout(path, root, tuple(images), names)


def _class_names(path: Path, content: dict[object, object]) -> dict[int, str]:
    names = content.get("names")
    if isinstance(names, list):
        names = dict(enumerate(names))
    if not isinstance(names, dict) or not names:
        raise UserError(f"{path}: key 'names' is {show(names)}; it must list the classes")
    result: dict[int, str] = {}
    for number, name in names.items():
        if type(number) is not int or not 0 <= number < _MAX_CLASSES:
            raise UserError(f"{path}: key 'names': {show(number)} is no number of a class")
        if type(name) not in (str, int):
            raise UserError(f"{path}: key 'names': class {number} is {show(name)}; write it in ''")
        if problem := class_name_problem(str(name)):
            raise UserError(f"{path}: key 'names': class {number}: {problem}")
        if str(name) in result.values():
            raise UserError(f"{path}: key 'names': {show(name)} occurs twice; merge or rename")
        result[number] = str(name)
    if type(count := content.get("nc", len(result))) is not int or count != len(result):
        raise UserError(f"{path}: key 'nc' is {show(count)}, but 'names' has {len(result)} classes")
    return dict(sorted(result.items()))


def _root(path: Path, named: object) -> Path:
    if not isinstance(named, str):
        raise UserError(f"{path}: key 'path' is {show(named)}; it must name a folder")
    root = path.parent / named
    # A set that was moved still names its old place; the file then lies in the new one.
    return root if os.path.isdir(root) else path.parent


def _images_of(path: Path, entry: str, *, root: Path) -> Iterator[str]:
    """The images of one entry: a folder, or a text file that lists them."""
    # Roboflow writes ../train/images and means train/images.
    places = [root / entry, root / entry.removeprefix("../"), path.parent / entry]
    bases = (root, path.absolute().parent.parent)
    place = next((p for p in places if os.path.exists(p) and _is_below(bases, p)), None)
    if place is None:
        looked = ", ".join(dict.fromkeys(str(place) for place in places))
        if any(map(os.path.exists, places)):
            raise UserError(f"{path}: {show(entry)} {_LEAVES}")
        raise UserError(f"{path}: {show(entry)} does not exist; looked at {looked}")
    if place.is_dir():
        names = [place / name for name in sorted(find_images(place))]
    else:
        lines = list(list_images(place))
        base = place.parent
        if lines and not os.path.exists(base / lines[0]) and os.path.exists(root / lines[0]):
            base = root
        names = [base / line for line in lines]
        if away := next((n for n in names if not _is_below(bases, n)), None):
            raise UserError(f"{place}: {show(str(away))} {_LEAVES}")
    if not names:
        raise UserError(f"{path}: {place} holds no images")
    for name in names:
        yield _below(root, name)


def _is_below(bases: Iterable[Path], place: Path) -> bool:
    """Whether the place, by its name, lies in one of these folders. Links are the user's own: no
    annotation file can make one."""
    inside = os.path.abspath(place)
    return any(os.path.commonpath([inside, base]) == base for base in map(os.path.abspath, bases))


def _below(root: Path, image: Path) -> str:
    """The image's name from the root if it is below it, else its absolute path."""
    absolute, start = os.path.abspath(image), os.path.abspath(root)
    inside = absolute.startswith(start + os.sep)
    return absolute[len(start) + 1 :] if inside else absolute


def _from_folder(folder: Path, split: str | None) -> _Layout:
    start = folder / "images" if (folder / "images").is_dir() else folder
    part = start / (split or "train")
    names = sorted(find_images(part if part.is_dir() else start))
    if not names:
        raise UserError(f"{start}: the folder holds no images")
    prefix = part if part.is_dir() else start
    images = tuple(_below(folder, prefix / name) for name in names)
    return _Layout(folder, folder, images, _classes_txt(folder))


def _classes_txt(folder: Path) -> dict[int, str] | None:
    for file in (folder / "classes.txt", folder / "labels" / "classes.txt"):
        if file.is_file():
            lines = [line.strip() for line in _lines(file)]
            return _class_names(file, {"names": [line for line in lines if line]})
    return None


@dataclass(frozen=True)
class _Gathered:
    """Columns over the images that can be read."""

    names: NameColumn = field(default_factory=NameColumn)
    sizes: "array[int]" = field(default_factory=lambda: array("i"))
    boxes: BoxColumns = field(default_factory=BoxColumns)

    def append(self, name: str, labels: list[_Label], *, size: tuple[int, int]) -> None:
        height, width = size
        for label in labels:
            left, top, right, bottom = label.box
            pixels = left * width, top * height, right * width, bottom * height
            self.boxes.append(len(self.names), pixels, label=label.number)
        self.names.append(name)
        self.sizes.extend(size)


def _read(layout: _Layout) -> Index:
    gathered = _Gathered()
    unreadable: list[str] = []
    num_labeled = 0
    for name in layout.images:
        image = layout.root / name
        labels = _read_labels(layout, image)
        num_labeled += labels is not None
        try:
            size = read_size(image) if labels else (0, 0)
        except UserError as error:
            unreadable.append(str(error))
        else:
            gathered.append(name, labels or [], size=size)
    if not num_labeled:
        looked = " or ".join(str(file) for file in _label_files(layout.root / layout.images[0]))
        raise UserError(f"{layout.source}: no image has a label file; looked for {looked}")
    notes = _account(layout, unreadable)
    return _indexed(layout, gathered, notes=notes)


def _account(layout: _Layout, unreadable: list[str]) -> tuple[str, ...]:
    count, total = len(unreadable), len(layout.images)
    if not count:
        return ()
    what = "images cannot be used"
    text = f"{layout.source}: {account(count, total, what=what, examples=unreadable)}"
    if is_too_many(count, total) or count == total:
        raise UserError(f"{text}; name the right folder or mend the files")
    return (f"{text}; dropped",)


def _indexed(layout: _Layout, gathered: _Gathered, *, notes: tuple[str, ...]) -> Index:
    rows = gathered.boxes.rows()
    names = gathered.names.names()
    sizes = to_tensor(gathered.sizes, np.int32).view(-1, 2)
    classes = layout.names
    if classes is None:
        classes = {number: str(number) for number in range(int(rows.labels.max(initial=-1)) + 1)}
    rows.labels[:] = np.searchsorted(np.asarray(list(classes), np.int64), rows.labels)

    def describe(row: int) -> str:
        return f"a box of {names[int(rows.images[row])]}"

    annotated = annotate(rows, sizes, source=layout.source, describe=describe)
    return Index(
        source=layout.source,
        root=layout.root,
        names=names,
        ids=torch.arange(1, len(names) + 1),
        sizes=sizes,
        annotations=annotated.annotations,
        classes=tuple(classes.values()),
        category_ids=tuple(classes),
        notes=notes + annotated.notes,
    )


def _label_files(image: Path) -> list[Path]:
    """Where the labels of an image may be: in labels/ beside images/, or beside the image."""
    beside = Path(os.path.abspath(image)).with_suffix(".txt")
    before, found, behind = str(beside).rpartition("/images/")
    return [Path(f"{before}/labels/{behind}"), beside] if found else [beside]


def _read_labels(layout: _Layout, image: Path) -> list[_Label] | None:
    """The labels of an image; None if it has no label file."""
    for file in _label_files(image):
        try:
            lines = _lines(file)
        except FileNotFoundError:
            continue
        labels = []
        for number, line in enumerate(lines, start=1):
            if line.strip():
                labels.append(_parse(line, layout.names, place=f"{file}: line {number}"))
        return labels
    return None


def _lines(file: Path) -> list[str]:
    try:
        check_file(file, limit=_MAX_LABELS)
        return file.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        raise
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: cannot be read as text: {error}") from error


def _parse(line: str, names: dict[int, str] | None, *, place: str) -> _Label:
    """'class cx cy w h' or 'class x y x y x y ...', a polygon, whose bounding box is taken."""
    words = line.split()
    if len(words) != 5 and (len(words) < 7 or len(words) % 2 == 0):
        raise UserError(f"{place}: {show(line)} is neither 'class cx cy w h' nor a polygon")
    number = int(words[0]) if words[0].isdecimal() and len(words[0]) < 7 else -1
    if not (0 <= number < _MAX_CLASSES if names is None else number in names):
        known = "a whole number" if names is None else f"one of the {len(names)} in 'names'"
        raise UserError(f"{place}: class {show(words[0])} is not {known}")
    try:
        values = [float(word) for word in words[1:]]
    except ValueError:
        raise UserError(f"{place}: {show(line)} holds something that is no number") from None
    if not all(-_TOLERANCE <= value <= 1 + _TOLERANCE for value in values):  # NaN fails it too
        raise UserError(f"{place}: {show(line)} must be fractions of the image, from 0 to 1")
    if len(values) > 4:
        across, down = values[0::2], values[1::2]
        return _Label(number, (min(across), min(down), max(across), max(down)))
    x, y, width, height = values
    if width < 0 or height < 0:
        raise UserError(f"{place}: {show(line)} has a negative width or height")
    return _Label(number, (x - width / 2, y - height / 2, x + width / 2, y + height / 2))
