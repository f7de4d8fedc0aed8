"""Write a set in a named format into a new folder.

The one list of writers: a new format is one writer file and one line here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dsl.data.index import Index
from dsl.data.tolerance import NAMED, account, is_too_many
from dsl.data.write_coco import write_coco
from dsl.data.write_cvat import write_cvat
from dsl.data.write_folder import Progress, Request, Written, new_folder
from dsl.data.write_label_studio import write_label_studio
from dsl.data.write_voc import write_voc
from dsl.data.write_yolo import write_yolo
from dsl.errors import UserError

Writer = Callable[[Request], Written]

DATA_FORMATS: Mapping[str, Writer] = {"coco": write_coco, "voc": write_voc, "yolo": write_yolo}
TOOL_FORMATS: Mapping[str, Writer] = {
    **DATA_FORMATS, "label-studio": write_label_studio, "cvat": write_cvat,
}  # fmt: skip


@dataclass(frozen=True)
class WrittenSet:
    """A set on disk."""

    path: Path  # what to give to --labeled
    num_images: int
    num_boxes: int
    notes: tuple[str, ...]


def writer_of(name: str, formats: Mapping[str, Writer]) -> Writer:
    if name not in formats:
        raise UserError(f"--to {name!r}: must be one of {', '.join(formats)}")
    return formats[name]


def write_set(
    index: Index, out: Path, *, writer: Writer, link: bool = False, scores: Tensor | None = None,
    beside: Mapping[str, str] | None = None, progress: Progress | None = None,
) -> WrittenSet:  # fmt: skip
    """Write the set, and small text files `beside` it, into the folder `out`, which must be new."""
    if scores is None:
        index = without_absent(index)
    with new_folder(out) as folder:
        written = writer(Request(index, folder, link=link, scores=scores, progress=progress))
        for name, text in (beside or {}).items():
            (folder / name).write_text(text, encoding="utf-8", errors="surrogateescape")
    boxes = 0 if index.annotations is None else len(index.annotations.boxes)
    return WrittenSet(
        out / written.entry, len(index) - written.lost_images, boxes - written.lost_boxes,
        index.notes + written.notes,
    )  # fmt: skip


def without_absent(index: Index) -> Index:
    """The set without images that are not there; many of them mean a wrong folder."""
    here = [index.path(position).is_file() for position in range(len(index))]
    absent = [str(index.path(position)) for position, found in enumerate(here) if not found]
    if not absent:
        return index
    counted = account(len(absent), len(index), what="images are absent", examples=absent[:NAMED])
    if is_too_many(len(absent), len(index)) or len(absent) == len(index):
        raise UserError(f"{index.source}: {counted}; name the right folder or mend the file")
    return index.select(
        torch.tensor(here).nonzero().flatten(), f"{index.source}: {counted}; left out"
    )
