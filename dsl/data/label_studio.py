"""Open Label Studio's JSON export (a list of tasks) as an index.

A submitted annotation is a person's word: all its boxes count. Before anybody has looked, the file
that `dsl label` wrote holds predictions only: these then count, the uncertain ones as ignored.
"""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import torch

from dsl.data.columns import BoxColumns, annotate
from dsl.data.index import Index, Names
from dsl.data.locate import endings, locate
from dsl.data.values import MAX_COORDINATE, name_problem
from dsl.data.xml_tree import parse_xml
from dsl.errors import UserError, show
from dsl.files import GIGABYTE, check_file
from dsl.image import Size, read_size

CONFIG = "label_config.xml"  # the labeling interface, which lists the classes
UNCERTAIN = "uncertain"  # the note on a region that dsl label writes
_UPLOADED = re.compile(r"[0-9a-f]{8}-(.+)")  # the tool puts this before the name of an upload

Record = dict[str, object]


@dataclass(frozen=True)
class _Region:
    name: str  # of its class
    corners: tuple[float, float, float, float]  # x, y, width, height in percent
    rotation: float  # degrees, clockwise, about the top left corner
    uncertain: bool

    def box(self, size: Size) -> tuple[float, float, float, float]:
        """xyxy in pixels: the box around the rectangle, which may be turned."""
        height, width = size
        x, y, wide, tall = (
            value / 100 * side
            for value, side in zip(self.corners, (width, height, width, height), strict=True)
        )
        angle = math.radians(self.rotation)
        along, across = math.cos(angle), math.sin(angle)
        xs = [x, x + wide * along, x - tall * across, x + wide * along - tall * across]
        ys = [y, y + wide * across, y + tall * along, y + wide * across + tall * along]
        return min(xs), min(ys), max(xs), max(ys)


@dataclass(frozen=True)
class _Answer:
    """What one person, or one model, says about an image."""

    regions: tuple[_Region, ...]
    num_other: int  # polygons, brushes, boxes without a class


@dataclass(frozen=True)
class _Task:
    names: tuple[str, ...]  # that its image may have, best first
    size: Size  # 0 where not told
    answer: _Answer | None  # of a person
    guess: _Answer | None  # of a model


def read_label_studio(path: Path) -> Index:
    """The annotated tasks; if none is annotated, all of them with their predictions."""
    path = Path(path)
    tasks = [_Reader(path, number).task(task) for number, task in enumerate(_load(path))]
    reviewed = [task for task in tasks if task.answer is not None]
    notes: tuple[str, ...] = ()
    if 0 < len(reviewed) < len(tasks):
        left_out = len(tasks) - len(reviewed)
        notes = (f"{path}: {left_out:,} of {len(tasks):,} tasks are not annotated; left out",)
    chosen = reviewed or tasks
    answers = [task.answer if reviewed else task.guess for task in chosen]
    other = sum(answer.num_other for answer in answers if answer is not None)
    if other:
        notes += (f"{path}: {other:,} regions are no rectangles with a class; left out",)
    return _indexed(path, chosen, answers, notes=notes)


def is_label_studio(path: Path) -> bool:
    """Whether the file's top is a list, as here and in no other format of ours."""
    if not path.is_file():  # a pipe would wait for ever; whoever reads it says so
        return False
    try:
        with path.open("rb") as file:
            start = file.read(256).removeprefix(b"\xef\xbb\xbf").lstrip()
    except OSError:
        return False
    return start.startswith(b"[")


def _indexed(
    path: Path, tasks: Sequence[_Task], answers: Sequence[_Answer | None], *, notes: tuple[str, ...]
) -> Index:
    root, names = locate(path, [task.names for task in tasks], in_images=False)
    classes, declared = _classes(path, answers)
    labels = {name: label for label, name in enumerate(classes)}
    sizes, boxes, owners = [], BoxColumns(), []
    for image, (task, answer) in enumerate(zip(tasks, answers, strict=True)):
        size = task.size
        if answer is not None and answer.regions and not all(size):
            size = read_size(root / names[image])
        sizes.append(size)
        for region in () if answer is None else answer.regions:
            label = labels[region.name]
            boxes.append(image, region.box(size), label=label, ignored=region.uncertain)
            owners.append(f"a box of {names[image]}")
    column = torch.tensor(sizes, dtype=torch.int32)
    labeled = any(answer is not None for answer in answers)
    found = annotate(boxes.rows(), column, source=path, describe=owners.__getitem__)
    return Index(
        source=path,
        root=root,
        names=Names.of(names),
        ids=torch.arange(1, len(names) + 1),
        sizes=column,
        annotations=found.annotations if labeled else None,
        classes=classes,
        category_ids=tuple(range(1, len(classes) + 1)),
        classes_declared=declared,
        notes=notes + found.notes,
    )


def _classes(path: Path, answers: Sequence[_Answer | None]) -> tuple[tuple[str, ...], bool]:
    """As the labeling interface beside the file lists them; else those of the boxes, sorted."""
    used = {region.name for answer in answers if answer is not None for region in answer.regions}
    config = path.parent / CONFIG
    if not config.is_file():
        return tuple(sorted(used)), False
    listed = [label.get("value", "") for label in parse_xml(config).iter("Label")]
    declared = [name for name in dict.fromkeys(listed) if name]
    # The project may have got classes since the file was written.
    return (*declared, *sorted(used.difference(declared))), True


def _load(path: Path) -> list[object]:
    try:
        check_file(path, limit=GIGABYTE)
        tasks = json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not readable as JSON: {error}") from error
    if not isinstance(tasks, list) or not tasks:
        raise UserError(f"{path}: must be a list of Label Studio tasks, and hold at least one")
    return tasks


@dataclass(frozen=True)
class _Reader:
    """Reads one task, and names it in errors."""

    path: Path
    number: int

    def task(self, record: object) -> _Task:
        data = record.get("data") if isinstance(record, dict) else None
        if not isinstance(record, dict) or not isinstance(data, dict):
            raise self._error("is no Label Studio task with 'data'; export as JSON, not JSON-MIN")
        answers = [
            answer
            for answer in self._records(record, "annotations")
            if not answer.get("was_cancelled")
        ]
        guesses = self._records(record, "predictions")
        results = [item for each in (*answers, *guesses) for item in self._records(each, "result")]
        return _Task(
            names=self._names(data),
            size=_size(results, data),
            answer=self._answer(answers[-1], reviewed=True) if answers else None,
            guess=self._answer(guesses[-1], reviewed=False) if guesses else None,
        )

    def _records(self, record: Record, key: str) -> list[Record]:
        found = record.get(key) or []
        if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
            raise self._error(f"{key!r} is {show(found)}; it must be a list of objects")
        return found

    def _names(self, data: Record) -> tuple[str, ...]:
        url = data.get("image")
        if not isinstance(url, str) or not url:
            raise self._error(f"'data.image' is {show(url)}; it must name the image")
        options = endings(_path_in(url))
        uploaded = _UPLOADED.fullmatch(options[-1])
        names = [*options, *([uploaded[1]] if uploaded else [])]
        usable = tuple(name for name in names if not name_problem(name))
        if not usable or ".." in options[0].split("/"):
            raise self._error(f"'data.image' is {show(url)}, which leaves the image folder")
        return usable

    def _answer(self, record: Record, *, reviewed: bool) -> _Answer:
        results = self._records(record, "result")
        regions = [self._region(item, reviewed=reviewed) for item in results]
        kept = tuple(region for region in regions if region is not None)
        return _Answer(kept, len(regions) - len(kept))

    def _region(self, item: Record, *, reviewed: bool) -> _Region | None:
        """None for anything but a rectangle with a class."""
        value = item.get("value")
        if item.get("type") != "rectanglelabels" or not isinstance(value, dict):
            return None
        names = value.get("rectanglelabels")
        if not names:
            return None
        if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
            raise self._error(f"'rectanglelabels' is {show(names)}; a box has one class")
        corners = tuple(self._percent(value, key) for key in ("x", "y", "width", "height"))
        rotation = self._percent({"rotation": 0, **value}, "rotation")
        uncertain = not reviewed and _is_marked(item)
        return _Region(
            names[0], (corners[0], corners[1], corners[2], corners[3]), rotation, uncertain
        )

    def _percent(self, value: Record, key: str) -> float:
        number = value.get(key)
        if type(number) in (int, float) and abs(number) <= MAX_COORDINATE:  # type: ignore[arg-type]
            return float(number)  # type: ignore[arg-type]
        raise self._error(f"{key!r} of a box is {show(number)}; it must be a number")

    def _error(self, problem: str) -> UserError:
        return UserError(f"{self.path}: task [{self.number}]: {problem}")


def _path_in(url: str) -> str:
    """The path that a task's address means."""
    if "://" not in url and not url.startswith("/data/"):
        return url  # a plain name, which may hold '?' or '%'
    parts = urlsplit(url)
    local = parse_qs(parts.query, errors="surrogateescape").get("d")
    return local[0] if local else unquote(parts.path, errors="surrogateescape")


def _size(results: Sequence[Record], data: Record) -> Size:
    """Height and width as a region or the task says; 0 if none does."""
    told = [(item.get("original_height"), item.get("original_width")) for item in results]
    for height, width in [*told, (data.get("height"), data.get("width"))]:
        if type(height) is int and type(width) is int and 0 < min(height, width) <= MAX_COORDINATE:
            return height, width
    return 0, 0


def _is_marked(item: Record) -> bool:
    meta = item.get("meta")
    text = meta.get("text") if isinstance(meta, dict) else None
    return isinstance(text, list) and UNCERTAIN in text
