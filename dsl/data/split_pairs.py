"""Write splits as the field does: STEM.{seed}@{percent}.json, and the same with "-unlabeled".

Records are copied as they stand, in their order; the unlabeled file keeps its boxes, which may
measure a teacher and never train. It does not choose images: see splits.py and split_files.py.
"""

import hashlib
import json
import shutil
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dsl.data.coco_records import Source, open_source
from dsl.data.columns import to_array
from dsl.data.json_stream import Elements
from dsl.data.manifest import Manifest, PairRecord, PartRecord, place_from, write_manifest
from dsl.data.splits import draw_labeled, labeled_count
from dsl.errors import UserError

DRAWN = (
    "round(percent * images / 100) images, halves up: those whose blake2b(seed:file_name) is lowest"
)
STRATIFIED = f"one image of each class, then {DRAWN}"
_PENDING = 2048  # records between two writes

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Choice:
    """Which images are labeled in one split."""

    seed: int
    percent: float
    labeled: Tensor  # (N,) bool

    @property
    def name(self) -> str:
        return f"{self.seed}@{self.percent:g}"


@dataclass(frozen=True)
class SplitFiles:
    """The two files of one split."""

    labeled: Path
    unlabeled: Path


def write_split(
    source: str | Path, out: str | Path, *, percent: float, seed: int, stratified: bool = False
) -> SplitFiles:
    """Draw one split of a labeled set and write it into the new folder `out`."""
    opened = open_source(source)
    choices = draw_choices(opened, percents=[percent], seeds=[seed], stratified=stratified)
    [files] = write_splits(
        opened, Path(out), choices=choices, rule=STRATIFIED if stratified else DRAWN
    )
    return files


def draw_choices(
    source: Source, *, percents: Sequence[float], seeds: Sequence[int], stratified: bool
) -> list[Choice]:
    """Every seed with every percent."""
    truth = source.annotations if stratified else None
    counts = [(percent, labeled_count(percent, len(source.names))) for percent in percents]
    return [
        Choice(seed, percent, draw_labeled(source.names, count, seed=seed, annotations=truth))
        for seed in seeds
        for percent, count in counts
    ]


def write_splits(
    source: Source, out: Path, *, choices: Sequence[Choice], rule: str,
    progress: Progress | None = None,
) -> list[SplitFiles]:  # fmt: skip
    """Write all pairs in one pass over the source, and a manifest; `progress` is told how many
    images and boxes are done."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"--out: {out} exists already and is not empty; choose another name")
    names = [choice.name for choice in choices]
    if twice := {name for name in names if names.count(name) > 1}:
        raise UserError(f"--percent: {min(twice)} is asked for twice; name each percent once")
    out.mkdir(parents=True, exist_ok=True)
    stem = source.index.source.absolute()
    stem_name = stem.stem if stem.is_file() else stem.name
    try:
        pairs = [_Pair.of(out, f"{stem_name}.{choice.name}", choice) for choice in choices]
        columns = _copy(source, pairs, progress)
        write_manifest(out, _manifest(source, out, pairs=pairs, columns=columns, rule=rule))
    except BaseException:  # half a folder of splits would look like a whole one
        shutil.rmtree(out, ignore_errors=True)
        raise
    return [SplitFiles(pair.labeled.path, pair.unlabeled.path) for pair in pairs]


class _Part:
    """A COCO file in the making: records wait in `lines` until they are written together."""

    def __init__(self, path: Path) -> None:
        self.path, self.lines = path, list[bytes]()
        self._digest, self._started = hashlib.sha256(), False
        self._stream = path.open("xb")

    def write(self, content: bytes) -> None:
        self._digest.update(content)
        self._stream.write(content)

    def flush(self) -> None:
        """Write the waiting records of the current array."""
        if self.lines:
            self.write((b",\n" if self._started else b"\n") + b",\n".join(self.lines))
            self._started = True
            self.lines.clear()

    def end_array(self) -> None:
        self.flush()
        self.write(b"]")
        self._started = False

    def close(self) -> None:
        self._stream.close()

    def sha256(self) -> str:
        return self._digest.hexdigest()


@dataclass(frozen=True)
class _Pair:
    choice: Choice
    labeled: _Part
    unlabeled: _Part

    @staticmethod
    def of(out: Path, stem: str, choice: Choice) -> "_Pair":
        return _Pair(choice, _Part(out / f"{stem}.json"), _Part(out / f"{stem}-unlabeled.json"))


@dataclass(frozen=True)
class _Columns:
    """Of all annotations of the source: their image's place and their class's place."""

    images: NDArray[np.int64]
    labels: NDArray[np.int64]


def _copy(source: Source, pairs: Sequence[_Pair], progress: Progress | None) -> _Columns:
    """Every record into one file of each pair, everything else into all files."""
    parts = [part for pair in pairs for part in (pair.labeled, pair.unlabeled)]
    copier = _Copier(source, pairs, progress or (lambda done: None))
    with ExitStack() as stack:
        for part in parts:
            stack.callback(part.close)
        opening = b"{"
        for key, value in source.tables():
            mark = opening + json.dumps(key).encode() + b":"
            opening = b",\n"
            if key in ("images", "annotations"):
                _write_all(parts, mark + b"[")
                copier.array(value, owner="id" if key == "images" else "image_id")
            else:
                content = json.dumps(list(value) if isinstance(value, Elements) else value)
                _write_all(parts, mark + content.encode())
        _write_all(parts, b"}\n")
    return _Columns(to_array(copier.images, np.int64), to_array(copier.labels, np.int64))


class _Copier:
    """Sends the records of an array to their files, and notes images and classes of the boxes."""

    def __init__(self, source: Source, pairs: Sequence[_Pair], progress: Progress) -> None:
        self._places = {number: place for place, number in enumerate(source.index.ids.tolist())}
        self._classes = {number: label for label, number in enumerate(source.index.category_ids)}
        self._parts = [part for pair in pairs for part in (pair.labeled, pair.unlabeled)]
        self._routes, self._progress, self._done = _routes(pairs), progress, 0
        self.images, self.labels = array("q"), array("q")

    def array(self, value: object, *, owner: str) -> None:
        """`owner` is the field that names the image."""
        for record in _records(value):
            place = self._places[record[owner]]
            line = json.dumps(record, separators=(",", ":")).encode()
            for append in self._routes[place]:
                append(line)
            if owner == "image_id":
                self.images.append(place)
                self.labels.append(self._classes[record["category_id"]])
            self._done += 1
            if self._done % _PENDING == 0:
                for part in self._parts:
                    part.flush()
                self._progress(self._done)
        for part in self._parts:
            part.end_array()


def _records(value: object) -> Iterator[dict[str, Any]]:
    """Of a file that was opened before, so that every record is known to be in order."""
    if isinstance(value, Elements):
        for record in value:
            if isinstance(record, dict):
                yield record


def _write_all(parts: Sequence[_Part], content: bytes) -> None:
    for part in parts:
        part.write(content)


def _routes(pairs: Sequence[_Pair]) -> list[tuple[Callable[[bytes], None], ...]]:
    """For each image, where its lines go: one file of every pair."""
    known: dict[tuple[bool, ...], tuple[Callable[[bytes], None], ...]] = {}
    routes = []
    masks = [pair.choice.labeled.tolist() for pair in pairs]
    for flags in zip(*masks, strict=True):
        if flags not in known:
            chosen = [
                pair.labeled if flag else pair.unlabeled
                for pair, flag in zip(pairs, flags, strict=True)
            ]
            known[flags] = tuple(part.lines.append for part in chosen)
        routes.append(known[flags])
    return routes


def _manifest(
    source: Source, out: Path, *, pairs: Sequence[_Pair], columns: _Columns, rule: str
) -> Manifest:
    return Manifest(
        source=source.index.source.name,
        source_sha256=source.sha256(),
        source_images=len(source.names),
        source_boxes=len(columns.images),
        rule=rule,
        image_root=place_from(out, source.root),
        splits=tuple(
            PairRecord(
                pair.choice.seed, pair.choice.percent,
                _part_record(source, pair.labeled, pair.choice.labeled.numpy(), columns),
                _part_record(source, pair.unlabeled, ~pair.choice.labeled.numpy(), columns),
            )
            for pair in pairs
        ),
    )  # fmt: skip


def _part_record(
    source: Source, part: _Part, mask: NDArray[np.bool_], columns: _Columns
) -> PartRecord:
    inside, total = mask[columns.images], len(source.index.classes)
    owners, labels = columns.images[inside], columns.labels[inside]
    boxes = np.bincount(labels, minlength=total).tolist()
    pairs = np.unique(owners * total + labels)
    images = np.bincount(pairs % total, minlength=total).tolist()
    classes = {
        name: {"images": images[label], "boxes": boxes[label]}
        for label, name in enumerate(source.index.classes)
    }
    return PartRecord(part.path.name, part.sha256(), int(mask.sum()), len(labels), classes)
