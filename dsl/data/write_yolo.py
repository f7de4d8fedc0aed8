"""Write a set as YOLO: data.yaml, images/ and labels/ with one text file per image.

Boxes are fractions of the image as it is shown, so its size is read from its header. YOLO has no
mark for a box to be ignored: such boxes are left out, and counted.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import torch
import yaml
from torch import Tensor

from dsl.data.files import is_image
from dsl.data.write_folder import Request, Written, distinct_stems, names_below_images, renamed_note
from dsl.errors import UserError, show
from dsl.image import Size, read_size
from dsl.types import Annotations

ENTRY = "data.yaml"


def write_yolo(request: Request) -> Written:
    """Every image has a label file, also an empty one; train and val are the same images."""
    index, found = request.index, request.index.annotations
    if found is None:
        raise UserError(
            f"{index.source}: holds images but no labels; YOLO cannot tell unlabeled from empty"
        )
    if not index.classes:
        raise UserError(f"{index.source}: has no classes; YOLO needs at least one")
    old, names = _names(request)
    lost = _Lost()
    for position, name in enumerate(names):
        size = read_size(index.path(position))
        text, missing = _lines(found, position, size=size, told=index.size(position))
        lost += missing
        if text is None:
            continue
        request.place(position, f"images/{name}")
        file = request.folder / _label_file(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="ascii")
    if lost.images == len(names):
        raise UserError(f"{index.source}: no image is of the size that the annotations say")
    # Both keys: the folder is one set, and the user says with --labeled or --val what it is for.
    content = {"train": "images", "val": "images", "names": dict(enumerate(index.classes))}
    described = yaml.safe_dump(content, allow_unicode=True, sort_keys=False)
    (request.folder / ENTRY).write_text(described, encoding="utf-8")
    return Written(ENTRY, renamed_note(old, names) + lost.notes(), lost.images, lost.boxes)


@dataclass(frozen=True)
class _Lost:
    """What YOLO could not hold."""

    ignored: int = 0  # boxes
    empty: int = 0  # boxes
    images: int = 0  # of another size than annotated
    on_those: int = 0  # boxes

    def __add__(self, other: "_Lost") -> "_Lost":
        return _Lost(
            self.ignored + other.ignored,
            self.empty + other.empty,
            self.images + other.images,
            self.on_those + other.on_those,
        )

    @property
    def boxes(self) -> int:
        return self.ignored + self.empty + self.on_those

    def notes(self) -> tuple[str, ...]:
        said = (
            (self.ignored, "boxes are crowd, difficult or uncertain; YOLO cannot mark them"),
            (self.empty, "boxes have no area inside their image"),
            (self.images, "images are not of the size that the annotations say"),
        )
        return tuple(f"{count:,} {what}: left out" for count, what in said if count)


def _names(request: Request) -> tuple[list[str], list[str]]:
    """The names below images/ as they were, and as they must be."""
    names = names_below_images(request.index)
    for name in names:
        if not is_image(name) or any(part.startswith(".") for part in name.split("/")):
            raise UserError(
                f"{request.index.source}: {show(name)} is hidden or lacks the ending of an image;"
                " a YOLO set would not see it, rename the file"
            )
    return names, distinct_stems(names)


def _label_file(name: str) -> Path:
    """labels/ beside the last folder named images: the rule by which readers look."""
    before, _, behind = f"/images/{name}".rpartition("/images/")
    return Path(f"{before}/labels/{behind}".lstrip("/")).with_suffix(".txt")


def _lines(
    found: Annotations, position: int, *, size: Size, told: Size | None
) -> tuple[str | None, _Lost]:
    """The label file of an image, None if it cannot have one, and what is not in it."""
    rows = slice(int(found.offsets[position]), int(found.offsets[position + 1]))
    if told is not None and told != size:
        return None, _Lost(images=1, on_those=rows.stop - rows.start)
    keep = ~found.ignored[rows]
    extent = torch.tensor([size[1], size[0]] * 2, dtype=torch.float64)
    boxes = found.boxes[rows][keep].clamp(min=torch.zeros(4), max=extent) / extent  # (M, 4)
    inside = (boxes[:, 2:] > boxes[:, :2]).all(dim=1)
    lost = _Lost(ignored=int((~keep).sum()), empty=int((~inside).sum()))
    return _text(boxes[inside], found.labels[rows][keep][inside]), lost


def _text(boxes: Tensor, labels: Tensor) -> str:
    centers, sides = (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]
    values = torch.cat([centers, sides], dim=1).tolist()
    return "".join(
        f"{label} {' '.join(f'{value:.{_DIGITS}f}' for value in row)}\n"
        for label, row in zip(labels.tolist(), values, strict=True)
    )


# A box comes back to 1e-3 pixels in images of a million pixels a side.
_DIGITS = math.ceil(math.log10(1e6 / 1e-3)) + 1
