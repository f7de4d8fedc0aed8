"""Several sets of unlabeled images as one list of paths, which --unlabeled reads.

A list, because unlabeled sets of one run may come in any format and from any folder. Labels choose
images here and are left behind.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from dsl.data.classes import common_name
from dsl.data.formats import open_dataset
from dsl.data.index import Index
from dsl.errors import UserError

_HEAD = 1 << 16  # bytes that are compared where two images have one name and one size


@dataclass(frozen=True)
class Joined:
    """What one source gave to the list."""

    source: Path
    images: int
    taken: int
    other_classes: int  # left out: they show none of the wanted classes
    excluded: int  # left out: they stand in a set that must stay unseen, or in the list already


def join_images(
    sources: Sequence[Path], out: Path, *, classes_of: Path | None = None,
    without: Sequence[Path] = (),
) -> list[Joined]:  # fmt: skip
    """Write the list `out` (.txt).

    `classes_of`: of labeled sources, take the images that show a class of this set, by name;
    unlabeled ones are taken whole. `without`: sets whose images are left out.
    """
    if out.suffix.lower() != ".txt":
        raise UserError(f"--out: {out} must end in .txt: it is a list of image paths")
    if out.exists():
        raise UserError(f"--out: {out} exists already; choose another name")
    if "ImageSets" in out.absolute().parts:
        raise UserError(f"--out: {out}: below ImageSets/ it would be read as a VOC split")
    wanted = None if classes_of is None else _names_of(classes_of)
    kept_apart = _by_name([open_dataset(path, split="val") for path in without])
    lines: dict[str, None] = {}
    joined = [
        _add(open_dataset(path, split="train"), lines, wanted=wanted, kept_apart=kept_apart)
        for path in sources
    ]
    if not lines:
        raise UserError("join: no image is left for the list; look at --classes-of and --without")
    out.parent.mkdir(parents=True, exist_ok=True)
    here = os.path.abspath(out.parent)
    text = "".join(f"{Path(os.path.relpath(path, here)).as_posix()}\n" for path in lines)
    out.write_bytes(text.encode("utf-8", "surrogateescape"))
    return joined


def _add(
    index: Index, lines: dict[str, None], *, wanted: frozenset[str] | None,
    kept_apart: dict[str, list[Path]],
) -> Joined:  # fmt: skip
    shown = _showing(index, wanted)
    taken = 0
    for place in shown:
        path = os.path.abspath(index.path(place))
        twins = kept_apart.get(os.path.basename(path), [])
        if path in lines or any(_same(Path(path), twin) for twin in twins):
            continue
        lines[path] = None
        taken += 1
    others = len(index) - len(shown)
    return Joined(index.source, len(index), taken, others, len(shown) - taken)


def _showing(index: Index, wanted: frozenset[str] | None) -> list[int]:
    """The images that show one of the wanted classes; all where nothing is asked or known."""
    truth = index.annotations
    if wanted is None or truth is None:
        return list(range(len(index)))
    mine = torch.tensor([common_name(name) in wanted for name in index.classes], dtype=torch.bool)
    if not mine.any():
        raise UserError(f"{index.source}: has none of the wanted classes ({_some(wanted)})")
    owners = np.repeat(np.arange(len(index)), truth.offsets.diff().numpy())
    found: list[int] = np.unique(owners[mine[truth.labels].numpy()]).tolist()
    return found


def _names_of(path: Path) -> frozenset[str]:
    index = open_dataset(path, split="train")
    if not index.classes:
        raise UserError(f"--classes-of: {path} has no classes; name a labeled set")
    return frozenset(common_name(name) for name in index.classes)


def _some(names: frozenset[str]) -> str:
    return ", ".join(sorted(names)[:5])


def _by_name(sets: Sequence[Index]) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for index in sets:
        for place in range(len(index)):
            path = index.path(place)
            found.setdefault(path.name, []).append(path)
    return found


def _same(one: Path, other: Path) -> bool:
    """Images of one name: also of one content, as far as their files can be looked at."""
    try:
        if one.stat().st_size != other.stat().st_size:
            return False
        with one.open("rb") as first, other.open("rb") as second:
            return first.read(_HEAD) == second.read(_HEAD)
    except OSError:  # a set that must stay unseen may be known by its annotation file alone
        return True
