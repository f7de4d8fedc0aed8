"""Classes and labels: do the files speak of the same classes, and are there labels to learn from?

It sees names and counts, never boxes or pixels.
"""

import difflib
from collections.abc import Iterator

import torch

from dsl.data.index import Index
from dsl.doctor.case import Case
from dsl.doctor.finding import Finding, listed
from dsl.rundata import annotations_of

MIN_LABELS = 10  # of a class: with fewer, a detector learns the images by heart
MAX_EMPTY = 0.5  # share of labeled images without a box


def check_classes(case: Case) -> Iterator[Finding]:
    """Names must agree; the order may differ, because names decide."""
    name, wanted, quiet = "classes", case.labeled.classes, True
    for role, index in case.sets.items():
        if role == "labeled" or index.classes == wanted or index.annotations is None:
            continue
        unknown = [c for c in index.classes if c not in wanted]
        missing = [c for c in wanted if c not in index.classes]
        quiet = False
        if unknown or (missing and index.classes_declared):
            told = f"{role}: classes differ from those of labeled: {_pairs(unknown, missing)}"
            yield Finding("error", name, told, _same_names(role))
        elif index.classes_declared:
            told = f"{role}: same classes as labeled, in another order"
            if role == "unlabeled":
                told += "; the teacher would be measured against the wrong ones"
            yield Finding("warning", name, told, "write all files with one order of classes")
    for first, second in _lookalikes(wanted):
        quiet = False
        told = f"labeled: {first!r} and {second!r} are two classes"
        yield Finding("warning", name, told, "if they mean the same, rename one of them")
    if quiet:
        yield Finding("ok", name, f"{len(wanted)} classes, alike in all labeled files")


def _pairs(unknown: list[str], missing: list[str]) -> str:
    """What is unknown, with the missing name that it may stand for, and what else is missing."""
    told = []
    for name in unknown:
        folded = {other.strip().lower(): other for other in missing}
        near = difflib.get_close_matches(name.strip().lower(), folded, n=1)
        told.append(f"{name!r} (for {folded[near[0]]!r}?)" if near else f"{name!r}")
    parts = [f"unknown {listed(told)}"] if told else []
    if missing:
        parts.append(f"without {listed([repr(name) for name in missing])}")
    return ", ".join(parts)


def _same_names(role: str) -> str:
    if role == "unlabeled":
        return "declare the same names, or remove the labels from the unlabeled file"
    return "both files must declare the same names"


def _lookalikes(classes: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    seen: dict[str, str] = {}
    for name in classes:
        plain = "".join(name.lower().split()).replace("_", "").replace("-", "")
        if plain in seen:
            yield seen[plain], name
        seen.setdefault(plain, name)


def check_labels(case: Case) -> Iterator[Finding]:
    """Every class needs labels to be learned, and some to be measured."""
    name, labeled = "labels", case.labeled
    counts = _counts(labeled)
    if not sum(counts):
        yield Finding("error", name, "labeled: no box at all", "label some objects first")
        return
    few = [f"{c} ({n})" for c, n in zip(labeled.classes, counts, strict=True) if n < MIN_LABELS]
    if few:
        told = f"labeled: fewer than {MIN_LABELS} boxes of {len(few)} classes: {listed(few)}"
        yield Finding("warning", name, told, "label more of them, or leave these classes out")
    empty = float((annotations_of(labeled).offsets.diff() == 0).double().mean())
    if empty > MAX_EMPTY:
        told = f"labeled: {empty:.0%} of the images have no box; the detector learns: nothing here"
        yield Finding(
            "warning", name, told, "leave out images that are not annotated yet, or use --unlabeled"
        )
    if not few and empty <= MAX_EMPTY:
        told = f"{sum(counts):,} boxes in {len(labeled):,} images; {min(counts):,} of the rarest"
        yield Finding("ok", name, f"{told} class (at least {MIN_LABELS})")


def check_measurable(case: Case) -> Iterator[Finding]:
    """Validation needs boxes of every class."""
    name, val = "validation", case.val
    counts = dict(zip(val.classes, _counts(val), strict=True))
    # A class that the file does not declare, but should, is an error of its names.
    unnamed = 1 if val.classes_declared else 0
    never = [c for c in case.labeled.classes if not counts.get(c, unnamed)]
    if not sum(counts.values()):
        told = "val: no box at all; no figure can be measured, and no best weights chosen"
        yield Finding("error", name, told, "name a labeled set with --val")
    elif never:
        told = f"val: no box of {len(never)} classes: {listed(never)}; they are not measured"
        yield Finding("warning", name, told, "add images that show them to the validation set")
    else:
        told = f"{sum(counts.values()):,} boxes in {len(val):,} images, of every class"
        yield Finding("ok", name, told)


def check_unlabeled(case: Case) -> Iterator[Finding]:
    """Whether unlabeled images are used, and what becomes of labels in them."""
    name, unlabeled = "unlabeled", case.unlabeled
    if unlabeled is None:
        if case.teaches:
            told = "the method dsl learns from unlabeled images, and there are none"
            fix = "name them with --unlabeled PATH, or choose --method supervised"
            yield Finding("error", name, told, fix)
    elif not case.teaches:
        told = f"{len(unlabeled):,} images are not used by the supervised method"
        yield Finding("warning", name, told, "choose --method dsl, or leave --unlabeled out")
    elif unlabeled.annotations is not None:
        told = f"{len(unlabeled):,} images with labels; they measure the teacher, and train nothing"
        yield Finding("ok", name, told)
    else:
        yield Finding("ok", name, f"{len(unlabeled):,} images without labels")


def _counts(index: Index) -> list[int]:
    """Boxes of each class; ignored ones teach nothing."""
    truth = annotations_of(index)
    counts: list[int] = torch.bincount(
        truth.labels[~truth.ignored], minlength=len(index.classes)
    ).tolist()
    return counts
