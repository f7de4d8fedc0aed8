"""The image files: are they there, can they be read, and do their sizes suit the settings?

Images are sampled. It never looks at boxes.
"""

from collections.abc import Iterator

import numpy as np

from dsl.data.check import find_problems
from dsl.data.index import Index
from dsl.data.tolerance import account, is_too_many
from dsl.doctor.case import Case
from dsl.doctor.contents import spaced
from dsl.doctor.finding import Finding
from dsl.doctor.levels import Floats
from dsl.errors import UserError
from dsl.image import read_size

SAMPLE = 200  # images of a set that are opened
MAX_ENLARGED = 2.0
MAX_GAP = 4.0  # between the short sides of labeled and unlabeled images
MAX_SPREAD = 10.0  # between small and large images of one set (5 and 95 %)
MAX_SQUEEZED = 0.1  # share of images that max_side cuts to less than half of the short side


def check_files(case: Case) -> Iterator[Finding]:
    """A sample of every set is opened."""
    name = "images"
    for role, index in case.sets.items():
        count = min(len(index), SAMPLE)
        bad = find_problems(index, sample=SAMPLE)
        if not bad:
            yield Finding("ok", name, f"{role}: {count} of {len(index):,} images opened, all good")
            continue
        absent = not any(index.path(position).exists() for position in bad)
        what = f"images are absent below {index.root}" if absent else "images cannot be used"
        told = account(len(bad), count, what=what, examples=list(bad.values()))
        if is_too_many(len(bad), count) or len(bad) == count:
            fix = "name the right folder, or mend the files: training refuses so many"
            yield Finding("error", name, f"{role}: {told}", fix)
        else:
            fix = "mend or remove them; training leaves them out"
            yield Finding("warning", name, f"{role}: {told}", fix)


def check_sizes(case: Case) -> Iterator[Finding]:
    """Sizes and aspects against the input of the detector and among each other."""
    name, views = "image sizes", case.config.views
    short, found = min(views.short_sides), {r: sizes_of(i) for r, i in case.sets.items()}
    medians = {}
    for role, sizes in found.items():
        if not len(sizes):
            yield Finding("ok", name, f"{role}: sizes unknown")
            continue
        medians[role] = float(np.median(sizes.min(axis=1)))
        if role != "val":
            yield from _of_set(role, sizes, short_side=short, max_side=views.max_side)
    if {"labeled", "unlabeled"} <= medians.keys():
        gap = medians["labeled"] / medians["unlabeled"]
        if max(gap, 1 / gap) > MAX_GAP:
            told = (
                f"short sides of {medians['labeled']:.0f} px (labeled) against"
                f" {medians['unlabeled']:.0f} px (unlabeled): one of them is much sharper"
            )
            fix = "bring both to a similar resolution"
            yield Finding("warning", name, told, fix)


def _of_set(role: str, sizes: Floats, *, short_side: int, max_side: int) -> Iterator[Finding]:
    name, shorts, longs = "image sizes", sizes.min(axis=1), sizes.max(axis=1)
    median = float(np.median(shorts))
    small, large = np.percentile(shorts, [5, 95])
    squeezed = float(np.mean(max_side / longs * shorts < short_side / 2))
    quiet = True
    if short_side / median > MAX_ENLARGED:
        told = f"{role}: short sides of {median:.0f} px are enlarged to {short_side} px"
        fix = "choose a smaller preset, or lower views.short_sides and views.test_short_side"
        yield Finding("warning", name, f"{told}: time without detail", fix)
        quiet = False
    if squeezed > MAX_SQUEEZED:
        told = f"{role}: {squeezed:.0%} of the images are so long that views.max_side = {max_side}"
        fix = "raise views.max_side, or cut these images into tiles"
        yield Finding("warning", name, f"{told} halves their short side or worse", fix)
        quiet = False
    if large / small > MAX_SPREAD:
        told = f"{role}: short sides from {small:.0f} to {large:.0f} px (5 to 95 %)"
        fix = "train on images of similar size, or cut the large ones into tiles"
        yield Finding("warning", name, f"{told}: equal objects differ {large / small:.0f}x", fix)
        quiet = False
    if quiet:
        aspects = np.percentile(longs / shorts, [5, 95])
        told = f"{role}: short sides {small:.0f} to {large:.0f} px, long / short {aspects[0]:.2f}"
        yield Finding("ok", name, f"{told} to {aspects[1]:.2f} (5 to 95 %); input {short_side} px")


def sizes_of(index: Index) -> Floats:
    """(n, 2) heights and widths as the file states them, else of a sample of the images."""
    known = index.sizes.numpy()
    known = known[(known > 0).all(axis=1)]
    if len(known):
        return known.astype(np.float64)
    read = []
    for position in spaced(len(index), SAMPLE).tolist():
        try:
            read.append(read_size(index.path(position)))
        except UserError:  # that it cannot be read is another check's finding
            continue
    return np.asarray(read, np.float64).reshape(-1, 2)
