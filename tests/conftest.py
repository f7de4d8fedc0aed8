"""Shared fixtures: a tiny set on disk."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

torch.set_num_threads(1)  # tests run in several processes


def write_coco(
    folder: Path, *, count: int = 12, size: tuple[int, int] = (64, 96), name: str = "train",
    classes: tuple[str, ...] = ("square", "bar"), seed: int = 0,
) -> Path:  # fmt: skip
    """Bright rectangles on dark noise: learnable, small, and with boxes that are exactly known."""
    random = np.random.default_rng(seed)
    height, width = size
    images, annotations = [], []
    (folder / "images").mkdir(parents=True, exist_ok=True)
    for number in range(1, count + 1):
        pixels = random.integers(0, 60, (height, width, 3), dtype=np.uint8)
        for _ in range(random.integers(1, 4)):
            kind = int(random.integers(len(classes)))
            tall, wide = (20, 20) if kind == 0 else (12, 30)
            top = int(random.integers(0, height - tall))
            left = int(random.integers(0, width - wide))
            pixels[top : top + tall, left : left + wide] = (220, 60 + 120 * kind, 90)
            annotations.append({
                "id": len(annotations) + 1, "image_id": number, "category_id": kind + 1,
                "bbox": [left, top, wide, tall], "area": wide * tall, "iscrowd": 0,
            })  # fmt: skip
        file = f"{name}_{number:03d}.png"
        Image.fromarray(pixels).save(folder / "images" / file)
        images.append({"id": number, "file_name": file, "width": width, "height": height})
    categories = [{"id": i, "name": n} for i, n in enumerate(classes, start=1)]
    path = folder / f"{name}.json"
    content = {"images": images, "annotations": annotations, "categories": categories}
    path.write_text(json.dumps(content))
    return path


@pytest.fixture
def coco(tmp_path: Path) -> Callable[..., Path]:
    """`coco(count=..., name=...)` writes a small COCO set below tmp_path and returns its JSON."""

    def make(**options: object) -> Path:
        return write_coco(tmp_path / "data", **options)  # type: ignore[arg-type]

    return make
