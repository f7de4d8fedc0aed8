"""Reads the gallery of a run: its images, and the teacher's boxes on them step by step.

Where the objects of an image are known, every learned box is right or wrong, and every object found
or missed; the same rule as in ssod/telemetry.py (IoU at least .5 and the same class). No torch.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsl.errors import UserError

MATCH_IOU = 0.5
SHOWN = ("foreground", "ignored", "rejected")
Corners = tuple[float, float, float, float]


@dataclass(frozen=True)
class TrueBox:
    """An object of an image, or a target of the student."""

    box: Corners
    name: str
    ignored: bool


@dataclass(frozen=True)
class StrongPicture:
    """What the student sees."""

    file: Path
    width: int
    height: int
    shuffled: bool
    targets: tuple[TrueBox, ...]


@dataclass(frozen=True)
class GalleryImage:
    """One image, without boxes. `file` is None in folders that kept no pictures."""

    name: str
    width: int
    height: int
    file: Path | None = None
    truth: tuple[TrueBox, ...] | None = None
    strong: StrongPicture | None = None


@dataclass(frozen=True)
class Box:
    """A box of the teacher; `right` is None where nobody knows, or where it is not learned."""

    box: Corners
    score: float
    name: str
    part: str
    right: bool | None


@dataclass(frozen=True)
class Labels:
    """The teacher's boxes on one image at one time."""

    boxes: tuple[Box, ...]
    missed: tuple[int, ...]  # places in the image's truth

    @property
    def mistakes(self) -> float:
        """Learned errors count by their score, on top of one; missed objects count half."""
        wrong = sum(1 + box.score for box in self.boxes if box.right is False)
        return wrong + 0.5 * len(self.missed)

    @property
    def uncertainty(self) -> float:
        """How many boxes the teacher could not decide on, the doubted ones first."""
        parts = [box.part for box in self.boxes]
        return parts.count("ignored") + 1.5 * parts.count("rejected")


@dataclass(frozen=True)
class GalleryStep:
    """All images at one time, in the order of the run's images."""

    step: int
    labels: tuple[Labels, ...]


def read_gallery(folder: Path) -> tuple[tuple[GalleryImage, ...], tuple[GalleryStep, ...]]:
    """Images and steps; empty where the run has none."""
    try:
        return _gallery(folder)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{folder}: views/ or pseudo_labels/ is damaged ({error!r}); move them away to go on"
        ) from error


def _gallery(folder: Path) -> tuple[tuple[GalleryImage, ...], tuple[GalleryStep, ...]]:
    found = sorted((folder / "pseudo_labels").glob("step_*.json"))
    steps = {
        int(path.stem.removeprefix("step_")): records
        for path in found
        if path.stem.removeprefix("step_").isdigit() and (records := _records(path))
    }
    images = {image.name: image for image in _images(folder / "views")}
    for records in steps.values():
        for record in records:
            name = str(record.get("image"))
            images.setdefault(name, GalleryImage(name, *_size(record)))
    ordered = tuple(images.values())
    return ordered, tuple(_step(ordered, number, steps[number]) for number in sorted(steps))


def _step(
    images: Sequence[GalleryImage], number: int, records: Sequence[Mapping[str, Any]]
) -> GalleryStep:
    by_name = {str(record.get("image")): record for record in records}
    return GalleryStep(number, tuple(_labels(i, by_name.get(i.name, {})) for i in images))


def _labels(image: GalleryImage, record: Mapping[str, Any]) -> Labels:
    found = [label for label in record.get("labels", ()) if label.get("part") in SHOWN]
    if image.truth is None:
        return Labels(tuple(_box(label, None) for label in found), ())
    learned = [label for label in found if label["part"] == "foreground"]
    objects = [each for each in image.truth if not each.ignored]
    right = {id(label) for label in learned if any(_match(label, o) for o in objects)}
    missed = tuple(
        place
        for place, each in enumerate(image.truth)
        if not each.ignored and not any(_match(label, each) for label in learned)
    )
    boxes = (
        _box(label, id(label) in right if label["part"] == "foreground" else None)
        for label in found
    )
    return Labels(tuple(boxes), missed)


def _match(label: Mapping[str, Any], true: TrueBox) -> bool:
    return label["class"] == true.name and overlap(_corners(label), true.box) >= MATCH_IOU


def overlap(one: Corners, other: Corners) -> float:
    """Intersection over union of two xyxy boxes."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    if width <= 0 or height <= 0:
        return 0.0
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return width * height / (sum(areas) - width * height)


def _box(label: Mapping[str, Any], right: bool | None) -> Box:
    name, part = str(label["class"]), str(label["part"])
    return Box(_corners(label), float(label["score"]), name, part, right)


def _corners(record: Mapping[str, Any]) -> Corners:
    x1, y1, x2, y2 = (float(value) for value in record["box"])
    return x1, y1, x2, y2


def _size(record: Mapping[str, Any]) -> tuple[int, int]:
    return int(record.get("width") or 1), int(record.get("height") or 1)


def _images(folder: Path) -> list[GalleryImage]:
    return [
        GalleryImage(
            str(record["image"]), *_size(record), folder / Path(record["file"]).name,
            _true_boxes(record["truth"]) if "truth" in record else None,
            _strong(folder, record["strong"]) if "strong" in record else None,
        )
        for record in _records(folder / "views.json")
    ]  # fmt: skip


def _strong(folder: Path, record: Mapping[str, Any]) -> StrongPicture:
    # Only the name: a run folder from elsewhere must not make us read other files.
    file = folder / Path(record["file"]).name
    return StrongPicture(
        file, *_size(record), bool(record["shuffled"]), _true_boxes(record["targets"])
    )


def _true_boxes(records: Sequence[Mapping[str, Any]]) -> tuple[TrueBox, ...]:
    return tuple(TrueBox(_corners(r), str(r["class"]), bool(r["ignored"])) for r in records)


def _records(path: Path) -> list[dict[str, Any]]:
    """The list in this file; empty where it is missing or being written."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return []
    return [each for each in content if isinstance(each, dict)] if isinstance(content, list) else []
