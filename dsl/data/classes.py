"""One class order for all sets of a run: names decide, not positions (METHOD 9, point 8)."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from dsl.data.index import Index
from dsl.errors import UserError


def align_classes(index: Index, classes: Sequence[str], *, owner: str) -> Index:
    """The same set with its labels renumbered to `classes`, which `owner` declares."""
    wanted = tuple(classes)
    if index.classes == wanted:
        return index
    unknown = [name for name in index.classes if name not in wanted]
    missing = [name for name in wanted if name not in index.classes]
    if unknown or (missing and index.classes_declared):
        differing = ", ".join(repr(name) for name in [*unknown, *missing][:5])
        raise UserError(
            f"{index.source}: its classes differ from those of {owner} ({differing}); "
            "both files must declare the same names"
        )
    annotations, ids = index.annotations, dict(zip(index.classes, index.category_ids, strict=True))
    if annotations is not None:
        table = torch.tensor([wanted.index(name) for name in index.classes], dtype=torch.int64)
        annotations = replace(annotations, labels=table[annotations.labels])
    # A class that this set never shows has no id of its own in it.
    category_ids = tuple(ids.get(name, -1) for name in wanted)
    return replace(index, annotations=annotations, classes=wanted, category_ids=category_ids)


# Names of Pascal VOC for what COCO calls otherwise; the other fourteen are the same.
_VOC_TO_COCO = {
    "aeroplane": "airplane", "diningtable": "dining table", "motorbike": "motorcycle",
    "pottedplant": "potted plant", "sofa": "couch", "tvmonitor": "tv",
}  # fmt: skip


def common_name(name: str) -> str:
    """One name for what VOC and COCO call differently."""
    return _VOC_TO_COCO.get(name, name)
