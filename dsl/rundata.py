"""The data sets of a run: opened, checked and in one class order, before anything is created."""

from dataclasses import dataclass, replace
from hashlib import blake2b

from rich.console import Console

from dsl.config import DataConfig
from dsl.data.check import check_images
from dsl.data.classes import align_classes
from dsl.data.formats import open_dataset
from dsl.data.index import Index
from dsl.data.splits import hold_out
from dsl.engine.progress import CountBar
from dsl.errors import UserError
from dsl.types import Annotations

HELD_OUT = 0.1
UNLABELED_SAMPLE = 2000  # images of an unlabeled set that are opened before training


@dataclass(frozen=True)
class RunData:
    """What a run trains and validates on."""

    labeled: Index
    val: Index
    unlabeled: Index | None

    def fingerprint(self) -> str:
        """Changes when images or boxes do: a resumed run must see the same data."""
        digest = blake2b("/".join(self.labeled.classes).encode(), digest_size=8)
        for index in (self.labeled, self.val, self.unlabeled):
            if index is not None:
                digest.update(index.names.text.numpy().tobytes())
                if index.annotations is not None:
                    digest.update(index.annotations.boxes.numpy().tobytes())
                    digest.update(index.annotations.labels.numpy().tobytes())
                    digest.update(index.annotations.ignored.numpy().tobytes())
        return digest.hexdigest()


def open_run_data(
    paths: DataConfig, *, seed: int, console: Console, sample: int | None = None
) -> RunData:
    """Open and check everything that the user named; says what was found and decided.

    `sample`: look at so many images of each set, not at all labeled and validation images.
    """
    if not paths.labeled:
        raise UserError("--labeled: name the labeled data (COCO JSON, VOC folder or YOLO yaml)")
    labeled = open_labeled(
        paths.labeled, role="labeled", split="train", console=console, sample=sample
    )
    if paths.val is None:
        labeled, val = hold_out(labeled, HELD_OUT, seed=seed)
        console.print(f"val: none given, so {len(val)} of the labeled images are held out for it")
    else:
        val = open_labeled(paths.val, role="val", split="val", console=console, sample=sample)
        val = align_classes(val, labeled.classes, owner=str(labeled.source))
    unlabeled = None
    if paths.unlabeled is not None:
        unlabeled = open_dataset(paths.unlabeled, split="train")
        unlabeled = _measurable(unlabeled, labeled)
        unlabeled = _check(unlabeled, "unlabeled", console, sample=sample or UNLABELED_SAMPLE)
    return RunData(labeled, val, unlabeled)


def open_labeled(
    path: str, *, role: str, split: str, console: Console, sample: int | None = None
) -> Index:
    """A labeled set with every image looked at, or `sample` of them."""
    index = open_dataset(path, split=split)
    annotations_of(index)
    if not index.classes:
        raise UserError(f"{index.source}: declares no classes")
    return _check(index, role, console, sample=sample)


def _measurable(unlabeled: Index, labeled: Index) -> Index:
    """Labels of the unlabeled set measure the teacher, so they must mean the same classes; those
    of other classes are left behind."""
    if unlabeled.annotations is None or unlabeled.classes == labeled.classes:
        return unlabeled
    if set(unlabeled.classes) <= set(labeled.classes):
        known = replace(unlabeled, classes_declared=False)  # it may lack some
        return align_classes(known, labeled.classes, owner=str(labeled.source))
    note = f"{unlabeled.source}: its labels are of other classes, so they measure nothing"
    return replace(
        unlabeled, annotations=None, classes=(), category_ids=(), notes=(*unlabeled.notes, note)
    )


def annotations_of(index: Index) -> Annotations:
    """The labels of a set that must have some."""
    if index.annotations is None:
        raise UserError(
            f"{index.source}: holds images but no labels; "
            "give a COCO JSON, a VOC folder or a YOLO yaml (plain folders serve as --unlabeled)"
        )
    return index.annotations


def _check(index: Index, role: str, console: Console, *, sample: int | None = None) -> Index:
    with CountBar(console, f"checking {role} images", min(len(index), sample or len(index))) as bar:
        index = check_images(index, sample=sample, progress=bar)
    boxes = "" if index.annotations is None else f", {len(index.annotations.boxes)} boxes"
    classes = "" if index.annotations is None else f", {len(index.classes)} classes"
    console.print(f"{role}: {len(index)} images{boxes}{classes} ({index.source})")
    for note in index.notes:
        console.print(f"{role}: {note}")
    return index
