"""Reads a run folder, finished or not, into values. No torch, and no word about how it will look.

A training may be writing while this reads: a half-written last line, a missing file and a run that
has not got anywhere yet are all normal. A resumed run repeats steps; its later lines count.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsl.errors import UserError
from dsl.report.gallery_steps import GalleryImage, GalleryStep, read_gallery

BINS = ("scores_tp", "scores_misplaced", "scores_bg")


@dataclass(frozen=True)
class TrainPoint:
    """Mean losses of the steps up to this one."""

    step: int
    seconds: float
    losses: Mapping[str, float]


@dataclass(frozen=True)
class Figures:
    """Of one set of weights on the validation set; None where nothing could be measured."""

    ap: float | None
    ap50: float | None
    ap75: float | None
    per_class: Mapping[str, float | None]


@dataclass(frozen=True)
class Validation:
    """One evaluation: of the averaged weights (the teacher) and of the trained ones."""

    step: int
    teacher: Figures
    student: Figures | None


@dataclass(frozen=True)
class Histogram:
    """Detections by score, as the ground truth judges them (the paper's Figure 3)."""

    true_positive: tuple[int, ...]  # TP+
    misplaced: tuple[int, ...]  # TP-
    background: tuple[int, ...]  # BG


@dataclass(frozen=True)
class Share:
    """A ratio over all classes, and of each."""

    overall: float | None
    per_class: Mapping[str, float | None]


@dataclass(frozen=True)
class Teaching:
    """What was taught in the steps up to this one; counts are boxes per unlabeled image."""

    step: int
    tau2: Mapping[str, float]
    counts: Mapping[str, Share]  # foreground, ignored, rejected
    precision: Share | None  # these three where the unlabeled set has ground truth
    recall: Share | None
    histogram: Histogram | None


@dataclass(frozen=True)
class Note:
    """Something that the run said about itself."""

    step: int
    kind: str
    message: str


@dataclass(frozen=True)
class Run:
    """All that a report shows of one training."""

    folder: Path
    settings: Mapping[str, Any]
    environment: Mapping[str, Any]
    train: tuple[TrainPoint, ...]
    validations: tuple[Validation, ...]
    teaching: tuple[Teaching, ...]
    notes: tuple[Note, ...]
    images: tuple[GalleryImage, ...]
    gallery: tuple[GalleryStep, ...]
    finished: bool

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def method(self) -> str:
        return str(self.settings.get("method", "supervised"))

    @property
    def seed(self) -> int:
        return int(self.setting("run", "seed") or 0)

    @property
    def step(self) -> int:
        """How far it got."""
        steps = [point.step for point in self.train] + [each.step for each in self.validations]
        return max(steps, default=0)

    @property
    def seconds(self) -> float:
        return self.train[-1].seconds if self.train else 0.0

    @property
    def classes(self) -> tuple[str, ...]:
        if self.validations:
            return tuple(self.validations[-1].teacher.per_class)
        return tuple(self.teaching[-1].tau2) if self.teaching else ()

    @property
    def num_labeled(self) -> int | None:
        """None in folders of versions that did not write it down."""
        counted = _mapping(self.environment.get("images")).get("labeled")
        return counted if isinstance(counted, int) else None

    def setting(self, part: str, name: str) -> Any:
        return _mapping(self.settings.get(part)).get(name)


def read_run(folder: Path) -> Run:
    """The run as far as it is written."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such run folder; name the --out folder of a training")
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder}: holds no config.json, so it is no run of dsl train")
    log = _Log(folder / "log.jsonl")
    images, gallery = read_gallery(folder)
    return Run(
        folder=folder,
        settings=_read_object(folder / "config.json"),
        environment=_read_object(folder / "environment.json"),
        train=tuple(_train_point(line) for line in log.of("train")),
        validations=tuple(_validations(log)),
        teaching=tuple(_teaching(line) for line in log.of("teaching")),
        notes=tuple(log.notes),
        images=images,
        gallery=gallery,
        finished=(folder / "results.json").is_file(),
    )


class _Log:
    """log.jsonl by kind, in the order of steps."""

    def __init__(self, path: Path) -> None:
        self._lines: dict[str, list[dict[str, Any]]] = {}
        self.notes: list[Note] = []
        for line in _lines(path):
            kind, message = str(line["kind"]), line.get("message")
            if isinstance(message, str):
                self.notes.append(Note(line["step"], kind, message))
                continue
            kept = self._lines.setdefault(kind, [])
            while kept and kept[-1]["step"] >= line["step"]:  # the run was resumed further back
                kept.pop()
            kept.append(line)

    def of(self, kind: str) -> Sequence[dict[str, Any]]:
        return self._lines.get(kind, ())


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        text = path.read_bytes().decode("utf-8", "replace")
    except FileNotFoundError:
        return
    for line in text.split("\n"):
        try:
            record = json.loads(line)
        except ValueError:  # being written right now, or cut by a crash
            continue
        if isinstance(record, dict) and "kind" in record and isinstance(record.get("step"), int):
            yield record


def _train_point(line: Mapping[str, Any]) -> TrainPoint:
    aside = {"kind", "step", "time", "seconds", "images", "lr", "grad_norm"}
    losses = {
        name: float(value)
        for name, value in line.items()
        if name not in aside and "/" not in name and isinstance(value, int | float)
    }
    return TrainPoint(line["step"], float(line.get("seconds") or 0), losses)


def _validations(log: _Log) -> Iterator[Validation]:
    students = {line["step"]: line for line in log.of("val_student")}
    for line in log.of("val"):
        student = students.get(line["step"])
        yield Validation(line["step"], _figures(line), _figures(student) if student else None)


def _figures(line: Mapping[str, Any]) -> Figures:
    listed = line.get("per_class")
    rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    return Figures(
        _number(line.get("ap")), _number(line.get("ap50")), _number(line.get("ap75")),
        {str(row.get("name")): _number(row.get("ap")) for row in rows},
    )  # fmt: skip


def _teaching(line: Mapping[str, Any]) -> Teaching:
    bins = [line.get(name) for name in BINS]
    known = all(isinstance(each, list) for each in bins)
    return Teaching(
        step=line["step"],
        tau2={name: _number(value) or 0.0 for name, value in _mapping(line.get("tau2")).items()},
        counts={part: _share(line, part) for part in ("foreground", "ignored", "rejected")},
        precision=_share(line, "precision") if "precision" in line else None,
        recall=_share(line, "recall") if "recall" in line else None,
        histogram=Histogram(*(tuple(each or ()) for each in bins)) if known else None,
    )


def _share(line: Mapping[str, Any], name: str) -> Share:
    of_each = _mapping(line.get(f"{name}_per_class"))
    return Share(_number(line.get(name)), {key: _number(v) for key, v in of_each.items()})


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _read_object(path: Path) -> Mapping[str, Any]:
    try:
        return _mapping(json.loads(path.read_text()))
    except (OSError, ValueError):  # not there yet, or being written
        return {}
