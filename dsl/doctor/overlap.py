"""Images that stand in two sets: by their path, and by what is in the file.

An equal file name in another folder proves nothing (many sets number their images from 0 in every
split), so there the content decides. Pixels are never decoded: a copy that was saved anew at
another quality is not found.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dsl.doctor.case import Case
from dsl.doctor.contents import ABSENT, MAX_STAT, Files, digests, spaced
from dsl.doctor.finding import Finding, listed

MAX_HASHED = 1000  # files of a set that are read for one comparison

# What it means, and what to do, where images of the first set also stand in the second.
MEANINGS = {
    ("val", "labeled"): (
        "VALIDATION IMAGES ARE TRAINED ON: the figures will be too good",
        "take these images out of one of the two sets",
    ),
    ("val", "unlabeled"): (
        "validation images are trained on, without their labels: the figures may be too good",
        "take these images out of the unlabeled set",
    ),
    ("labeled", "unlabeled"): (
        "the teacher knows them by heart, and its confidence in them sets the thresholds",
        "take the labeled images out of the unlabeled set",
    ),
}


@dataclass(frozen=True)
class Common:
    """What two sets share: positions in the first one."""

    by_path: tuple[int, ...]
    by_content: tuple[int, ...]
    compared: int  # file sizes that both sets have and that were looked into ...
    sizes: int  # ... of so many


def check_overlap(case: Case) -> Iterator[Finding]:
    """Every pair of sets."""
    name, files = "overlap", {role: Files(index) for role, index in case.sets.items()}
    for (first, second), (meaning, fix) in MEANINGS.items():
        if second not in files:
            continue
        common = compare(files[first], files[second])
        total, limits = len(files[first].paths), _limits(common, files[first], files[second])
        shared = [*common.by_path, *common.by_content]
        if not shared:
            told = f"no {first} image also stands in {second}{limits}"
            yield Finding("ok", name, told)
            continue
        how = f"{len(common.by_path):,} by path, {len(common.by_content):,} by content"
        names = [os.fsdecode(os.path.basename(files[first].paths[p])) for p in shared[:4]]
        more = listed(names + [""] * (len(shared) - len(names)), 3)
        told = f"{len(shared):,} of {total:,} {first} images also stand in {second} ({how}: {more})"
        yield Finding("warning", name, f"{told}; {meaning}{limits}", fix)


def compare(first: Files, second: Files) -> Common:
    """Which images of the first set the second one has too."""
    known = set(second.paths)
    by_path = [position for position, path in enumerate(first.paths) if path in known]
    of_first = first.sizes.copy()
    of_first[by_path] = ABSENT  # found already
    both = np.intersect1d(of_first[of_first > 0], second.sizes[second.sizes > 0])
    mine, theirs = np.isin(of_first, both), np.isin(second.sizes, both)
    chosen = _chosen(first, second, mine=mine, theirs=theirs, sizes=both)
    mine &= np.isin(of_first, chosen)
    theirs &= np.isin(second.sizes, chosen)
    wanted = [second.paths[p] for p in np.flatnonzero(theirs)]
    own = [first.paths[p] for p in np.flatnonzero(mine)]
    found = digests([*own, *wanted])
    contents = {(int(second.sizes[p]), found.get(second.paths[p])) for p in np.flatnonzero(theirs)}
    by_content = [
        int(p)
        for p in np.flatnonzero(mine)
        if first.paths[p] in found and (int(of_first[p]), found[first.paths[p]]) in contents
    ]
    return Common(tuple(by_path), tuple(by_content), len(chosen), len(both))


def _chosen(
    first: Files, second: Files, *, mine: np.ndarray, theirs: np.ndarray, sizes: np.ndarray
) -> np.ndarray:
    """The file sizes to look into: first those of files with the same name in both sets, then
    evenly spaced ones, as many as may be read."""
    files = max(int(mine.sum()), int(theirs.sum()))
    if files <= MAX_HASHED:
        return sizes
    most = max(1, len(sizes) * MAX_HASHED // files)

    def named(files: Files, where: np.ndarray) -> set[tuple[int, bytes]]:
        positions = np.flatnonzero(where)
        return {(int(files.sizes[p]), os.path.basename(files.paths[p])) for p in positions}

    same = sorted({size for size, _ in named(first, mine) & named(second, theirs)})
    rest = np.setdiff1d(sizes, same)
    likely = np.asarray(same, np.int64)[spaced(len(same), most)]
    return np.concatenate([likely, rest[spaced(len(rest), max(0, most - len(same)))]])


def _limits(common: Common, first: Files, second: Files) -> str:
    """What was left out, said plainly."""
    told = []
    if common.compared < common.sizes:
        told.append(f"content compared for {common.compared:,} of {common.sizes:,} file sizes")
    if max(len(first.paths), len(second.paths)) > MAX_STAT:
        told.append(f"sizes of {MAX_STAT:,} files of a set looked up")
    elif (first.sizes == ABSENT).all() or (second.sizes == ABSENT).all():
        told.append("by path only: the files are absent")
    return f" ({'; '.join(told)})" if told else ""
