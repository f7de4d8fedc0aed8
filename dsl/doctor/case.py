"""What the checks are given: the settings of a run and its data sets, opened.

Unlike a training it refuses no set for its images: what is wrong with them is a finding, and the
other checks go on.
"""

from dataclasses import dataclass

from dsl.compose import length_of
from dsl.config import Config
from dsl.data.formats import open_dataset
from dsl.data.index import Index
from dsl.data.splits import hold_out
from dsl.engine.train import Length
from dsl.errors import UserError
from dsl.rundata import HELD_OUT, annotations_of


@dataclass(frozen=True)
class Case:
    """Settings and sets; classes still stand as each file has them."""

    config: Config
    labeled: Index
    val: Index
    unlabeled: Index | None

    @property
    def sets(self) -> dict[str, Index]:
        named = {"labeled": self.labeled, "val": self.val}
        return named if self.unlabeled is None else {**named, "unlabeled": self.unlabeled}

    @property
    def length(self) -> Length:
        return length_of(self.config, max(len(self.labeled), len(self.unlabeled or ())))

    @property
    def teaches(self) -> bool:
        return self.config.method == "dsl"


def open_case(config: Config) -> Case:
    """Open what the settings name; without a validation set a tenth is held out, as in training."""
    paths = config.data
    if not paths.labeled:
        raise UserError("--labeled: name the labeled data (COCO JSON, VOC folder or YOLO yaml)")
    labeled = _open_labeled(paths.labeled, split="train")
    if paths.val is None:
        labeled, val = hold_out(labeled, HELD_OUT, seed=config.run.seed)
    else:
        val = _open_labeled(paths.val, split="val")
    unlabeled = None if paths.unlabeled is None else open_dataset(paths.unlabeled, split="train")
    return Case(config, labeled, val, unlabeled)


def _open_labeled(path: str, *, split: str) -> Index:
    index = open_dataset(path, split=split)
    annotations_of(index)
    if not index.classes:
        raise UserError(f"{index.source}: declares no classes")
    return index
