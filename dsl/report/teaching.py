"""What the teacher teaches, to look at: pictures of its pseudo-labels, and the same as JSON."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dsl.report.draw import FOREGROUND, IGNORED, caption, draw_boxes
from dsl.ssod.pseudo_labels import PseudoLabels

COLUMNS = 4
TILE = 384  # pixels, the longer side of one picture on the sheet


@dataclass(frozen=True)
class Taught:
    """One unlabeled image and what the teacher makes of it, in the pixels of the picture."""

    name: str
    pixels: NDArray[np.uint8]  # (H, W, 3)
    labels: PseudoLabels


def write_teaching(
    folder: Path, step: int, taught: Sequence[Taught], classes: Sequence[str]
) -> None:
    """FOLDER/step_000500.jpg and .json; foreground is green, ignored is amber."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures = [_draw(each, classes) for each in taught]
    _sheet(pictures).save(folder / f"step_{step:06d}.jpg", quality=88)
    records = [_record(each, classes) for each in taught]
    (folder / f"step_{step:06d}.json").write_text(json.dumps(records) + "\n")


def _parts(labels: PseudoLabels) -> list[str]:
    """What became of each detection."""
    return [
        "rejected" if rejected else "ignored" if ignored else "foreground" if kept else "background"
        for kept, ignored, rejected in zip(
            labels.foreground.tolist(), labels.ignored.tolist(), labels.rejected.tolist(),
            strict=True,
        )
    ]  # fmt: skip


def _draw(taught: Taught, classes: Sequence[str]) -> Image.Image:
    found, parts = taught.labels.detections, _parts(taught.labels)
    shown = [number for number, part in enumerate(parts) if part != "background"]
    names = [classes[label] for label in found.labels.tolist()]
    scores = found.scores.tolist()
    return draw_boxes(
        taught.pixels,
        found.boxes.numpy()[shown],
        [caption(names[i], scores[i]) for i in shown],
        colors=[FOREGROUND if parts[i] == "foreground" else IGNORED for i in shown],
    )


def _sheet(pictures: Sequence[Image.Image]) -> Image.Image:
    """All pictures on one page."""
    rows = -(-len(pictures) // COLUMNS)
    sheet = Image.new("RGB", (min(COLUMNS, len(pictures)) * TILE, rows * TILE), "white")
    for number, picture in enumerate(pictures):
        small = picture.copy()
        small.thumbnail((TILE, TILE))
        sheet.paste(small, (number % COLUMNS * TILE, number // COLUMNS * TILE))
    return sheet


def _record(taught: Taught, classes: Sequence[str]) -> dict[str, Any]:
    found = taught.labels.detections
    height, width = taught.pixels.shape[:2]
    return {
        "image": taught.name,
        "width": width,
        "height": height,
        "labels": [
            {
                "box": [round(value, 2) for value in box],
                "score": round(score, 4),
                "class": classes[label],
                "part": part,
            }
            for box, score, label, part in zip(
                found.boxes.tolist(), found.scores.tolist(), found.labels.tolist(),
                _parts(taught.labels), strict=True,
            )
        ],
    }  # fmt: skip
