"""What was found in image files, written for people and programs: drawn images and COCO JSON.

Arrays and files only: it must not know which kind of model found it, and imports no torch.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console

from dsl.engine.progress import CountBar
from dsl.errors import UserError
from dsl.image import Pixels, read_image
from dsl.report.draw import caption, class_color, draw_boxes


@dataclass(frozen=True)
class Found:
    """Objects in one image file, in its own pixels, best score first."""

    path: Path
    boxes: NDArray[np.float32]  # (M, 4)
    scores: NDArray[np.float32]  # (M,)
    labels: NDArray[np.int64]  # (M,)

    def __post_init__(self) -> None:
        count = len(self.boxes)
        shapes = self.boxes.shape, self.scores.shape, self.labels.shape
        if shapes != ((count, 4), (count,), (count,)):
            raise ValueError(f"expected (M, 4), (M,) and (M,), got {shapes}")

    def __len__(self) -> int:
        return len(self.boxes)


def refuse_existing(out: str | Path | None) -> None:
    """A folder with content is never written into."""
    if out is not None and Path(out).exists() and any(Path(out).iterdir()):
        raise UserError(f"--out: {out} exists already and is not empty; choose another name")


def write_predictions(
    out: Path, found: Sequence[Found], *, classes: Sequence[str], console: Console
) -> None:
    """`out`/images with the boxes drawn, and `out`/detections.json in COCO's format."""
    (out / "images").mkdir(parents=True)
    records: dict[str, list[Any]] = {"images": [], "annotations": [], "categories": []}
    for number, name in enumerate(classes, start=1):
        records["categories"].append({"id": number, "name": name})
    with CountBar(console, "drawing", len(found)) as bar:
        for number, of_image in enumerate(found, start=1):
            path, read = of_image.path, read_image(of_image.path)
            records["images"].append(
                {"id": number, "file_name": str(path), "width": read.width, "height": read.height}
            )
            for annotation in _annotations(of_image, number):
                annotation["id"] = len(records["annotations"]) + 1
                records["annotations"].append(annotation)
            drawn = _draw(read.pixels, of_image, classes)
            drawn.save(out / "images" / f"{number:06d}_{path.stem}.jpg")
            bar(number)
    (out / "detections.json").write_text(json.dumps(records) + "\n")


def _annotations(found: Found, image: int) -> list[dict[str, Any]]:
    rows = zip(found.boxes.tolist(), found.scores.tolist(), found.labels.tolist(), strict=True)
    made: list[dict[str, Any]] = []
    for box, score, label in rows:
        x1, y1, x2, y2 = (round(value, 2) for value in box)
        made.append({
            "image_id": image, "category_id": label + 1, "bbox": [x1, y1, x2 - x1, y2 - y1],
            "area": (x2 - x1) * (y2 - y1), "iscrowd": 0, "score": round(score, 4),
        })  # fmt: skip
    return made


def _draw(pixels: Pixels, found: Found, classes: Sequence[str]) -> Image.Image:
    labels = found.labels.tolist()
    names = [
        caption(classes[label], score)
        for label, score in zip(labels, found.scores.tolist(), strict=True)
    ]
    colors = [class_color(label) for label in labels]
    return draw_boxes(pixels, found.boxes, names, colors=colors)
