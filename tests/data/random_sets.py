"""Random sets with awkward names, and what two sets have in common whatever their format."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dsl.data.index import Index, Names
from dsl.types import Annotations

NAMES = [
    "a.png", "a.jpg", "sub/a.png", "sub/deep/a b.jpg", "Größe/ü 1.png", "images/a.png", "犬.png",
    "x.y.z.jpg", "sub/b%20c?.png", "empty.png", "A.png",
]  # fmt: skip
CLASSES = ("zebra", "a b", "犬", "10", "yes", "<&>", "unused")


def random_set(folder: Path, seed: int, *, ignored: float = 0.3, fractions: bool = True) -> Index:
    """Images of different sizes and colours, so that each can be told from its pixels."""
    random = np.random.default_rng(seed)
    names = [NAMES[i] for i in random.permutation(len(NAMES))]
    sizes = random.integers(20, 200, (len(names), 2))
    boxes, labels, counts = [], [], [0]
    for name, (height, width) in zip(names, sizes.tolist(), strict=True):
        color = tuple(random.integers(0, 256, 3).tolist())
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (width, height), color).save(folder / name)
        count = 0 if name == "empty.png" else int(random.integers(0, 6))
        counts.append(count)
        for _ in range(count):
            x, y = random.uniform(0, width - 6), random.uniform(0, height - 6)
            box = [x, y, random.uniform(x + 2, width), random.uniform(y + 2, height)]
            boxes.append(box if fractions else [int(x), int(y), int(x) + 5, int(y) + 3])
            labels.append(int(random.integers(len(CLASSES) - 1)))
    column = torch.tensor(boxes, dtype=torch.float64).reshape(-1, 4)
    return Index(
        source=folder / "made", root=folder, names=Names.of(names),
        ids=torch.from_numpy(random.permutation(1000)[: len(names)] + 1),
        sizes=torch.from_numpy(sizes.astype(np.int32)),
        annotations=Annotations(
            torch.tensor(counts).cumsum(0), column, torch.tensor(labels, dtype=torch.int64),
            torch.from_numpy(random.random(len(boxes)) < ignored),
            torch.from_numpy(random.uniform(1, 9, len(boxes))),
        ),
        classes=CLASSES, category_ids=(2, 3, 5, 7, 11, 13, 17),
    )  # fmt: skip


def contents(index: Index, *, keep_ignored: bool = True) -> dict[bytes, list[tuple]]:
    """Image bytes -> its boxes by class name: names and orders may differ between formats."""
    found = index.annotations
    assert found is not None
    result = {}
    for position in range(len(index)):
        rows = slice(int(found.offsets[position]), int(found.offsets[position + 1]))
        boxes = [
            (index.classes[label], ignored, *(round(value, 3) + 0.0 for value in box))
            for label, ignored, box in zip(
                found.labels[rows].tolist(), found.ignored[rows].tolist(),
                found.boxes[rows].tolist(), strict=True,
            )
            if keep_ignored or not ignored
        ]  # fmt: skip
        result[index.path(position).read_bytes()] = sorted(boxes)
    return result


def same(left: dict[bytes, list[tuple]], right: dict[bytes, list[tuple]]) -> None:
    assert left.keys() == right.keys()
    for image, boxes in left.items():
        assert [box[:2] for box in boxes] == [box[:2] for box in right[image]]
        for one, other in zip(boxes, right[image], strict=True):
            assert one[2:] == pytest.approx(other[2:], abs=2e-3)
