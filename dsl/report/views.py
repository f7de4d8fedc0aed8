"""RUN/views: the images that the gallery shows, and what the student gets to see of them.

Written once, when teaching begins: a picture of each gallery image without any drawing, its objects
where they are known, and for a few of them the student's strong view with the targets that the
teacher's boxes became there. The gallery's boxes themselves change with time (report/teaching.py).
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dsl.types import Targets

INDEX = "views.json"
QUALITY = 88


@dataclass(frozen=True)
class StrongView:
    """One image as the student sees it, with its targets in the pixels of that view."""

    pixels: NDArray[np.uint8]  # (H, W, 3)
    targets: Targets
    shuffled: bool  # the patches were exchanged


@dataclass(frozen=True)
class Shown:
    """One unlabeled image of the gallery, at the size that the teacher sees."""

    name: str
    pixels: NDArray[np.uint8]  # (H, W, 3)
    truth: Targets | None  # in these pixels, where the set happens to have labels
    strong: StrongView | None  # of the first few images only


def write_views(folder: Path, shown: Sequence[Shown], classes: Sequence[str]) -> None:
    """FOLDER/views.json and its JPEGs; the index comes last, so it never names a missing file."""
    folder.mkdir(parents=True, exist_ok=True)
    records = [_write(folder, number, each, classes) for number, each in enumerate(shown)]
    temporary = folder / f"{INDEX}.part"
    temporary.write_text(json.dumps(records) + "\n")
    os.replace(temporary, folder / INDEX)


def _write(folder: Path, number: int, shown: Shown, classes: Sequence[str]) -> dict[str, Any]:
    file = f"image_{number:02d}.jpg"
    record = {"image": shown.name, **_save(folder / file, shown.pixels)}
    if shown.truth is not None:
        record["truth"] = _boxes(shown.truth, classes)
    if shown.strong is not None:
        strong = shown.strong
        record["strong"] = {
            **_save(folder / f"strong_{number:02d}.jpg", strong.pixels),
            "shuffled": strong.shuffled,
            "targets": _boxes(strong.targets, classes),
        }
    return record


def _save(path: Path, pixels: NDArray[np.uint8]) -> dict[str, Any]:
    Image.fromarray(pixels).save(path, quality=QUALITY)
    return {"file": path.name, "width": pixels.shape[1], "height": pixels.shape[0]}


def _boxes(targets: Targets, classes: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {"box": [round(value, 2) for value in box], "class": classes[label], "ignored": ignored}
        for box, label, ignored in zip(
            targets.boxes.tolist(), targets.labels.tolist(), targets.ignored.tolist(), strict=True
        )
    ]
