"""Trained cells of a comparison: data set x arm x seed, each trained once and kept.

A finished cell is a JSON file, keyed by its settings and by the code that trains; delete it to
train the cell anew. A stopped comparison goes on, in the middle of a cell too. All arms of a data
set share backbone, augmentation of the labeled images and optimizer steps; the averaged weights of
the last step are measured, nothing is selected by score.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from glob import escape
from pathlib import Path
from typing import Any

from rich.console import Console

from dsl import api
from dsl.config import load_config, own_settings
from dsl.data.split_pairs import write_split
from dsl.errors import UserError
from dsl.training import Outcome

PACKAGE = Path(__file__).parents[1]
# What changes a trained weight; the rest of the package may change without retraining. Recipes are
# in the key as the settings that they come to.
TRAINING_CODE = (
    "geometry.py", "image.py", "randomness.py", "types.py", "data/augment.py", "data/views.py",
    "data/loader.py", "data/scenes.py", "models", "methods/base.py", "methods/supervised.py",
    "engine/optim.py", "engine/train.py",
)  # fmt: skip
TEACHING_CODE = ("methods/dsl.py", "ssod")  # of no effect on the baselines
TAUGHT = ("foreground", "ignored", "rejected", "precision", "precision_any_class", "recall")


@dataclass(frozen=True)
class Dataset:
    """A folder with train.json, val.json and perhaps test.json, and the recipe for it."""

    name: str
    recipe: str
    folder: Path

    def __post_init__(self) -> None:
        for file in ("train.json", "val.json"):
            if not (self.folder / file).is_file():
                raise UserError(f"{self.folder}: no {file}; a data set to compare on needs one")

    @property
    def test(self) -> Path:
        """What is reported on. Nothing is selected on val.json, so it serves where there is no
        other, but tuning must then happen elsewhere."""
        file = self.folder / "test.json"
        return file if file.is_file() else self.folder / "val.json"


@dataclass(frozen=True)
class Arm:
    """One row: a method on a share of the labels. `row`: an ablation recipe whose own settings are
    laid over the data set's recipe."""

    name: str
    method: str = "dsl"
    percent: float = 10
    row: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    """What one training came to; AP in percent."""

    key: str
    data: str
    arm: str
    percent: float
    seed: int
    steps: int
    seconds: float
    test_ap: float
    test_ap50: float
    val_ap: float
    teaching: Mapping[str, float | None] | None  # counts of pseudo-labels, and how right they were

    def taught(self, name: str) -> float | None:
        return None if self.teaching is None else self.teaching.get(name)


@dataclass(frozen=True)
class Runner:
    """Trains what is not there yet."""

    results: Path  # one JSON file per finished cell
    work: Path  # run folders and splits; may be deleted
    steps: int | None = None  # other than the recipe's: a trial

    def kept(self, dataset: Dataset, arm: Arm, seed: int) -> Cell | None:
        """The result of a finished cell, if nothing that matters has changed since. Rows that come
        to the same settings share one training."""
        key = self._key(dataset, arm, seed)
        finished = f"{escape(dataset.name)}-*-{arm.percent:g}-seed{seed}.json"
        for file in sorted(self.results.glob(finished)):
            cell = Cell(**json.loads(file.read_text()))
            if (cell.key, cell.data) == (key, dataset.name):
                return replace(cell, arm=arm.name)
        return None

    def cell(self, dataset: Dataset, arm: Arm, seed: int, *, console: Console) -> Cell:
        """The result of one cell: from its file, or trained now."""
        kept = self.kept(dataset, arm, seed)
        if kept is not None:
            return kept
        key = self._key(dataset, arm, seed)  # of the code as it is now, not when the training ends
        console.print(f"{dataset.name}: {arm.name}, {arm.percent:g} % labeled, seed {seed}")
        outcome = self._train(dataset, arm, seed, key=key, console=console)
        if not outcome.finished:
            raise KeyboardInterrupt
        run = self.run_folder(dataset, arm, seed)
        tested = api.evaluate(run / "last.pt", dataset.test, store=False)
        cell = Cell(
            key=key, data=dataset.name, arm=arm.name,
            percent=arm.percent, seed=seed, steps=outcome.position.step,
            seconds=round(outcome.position.seconds, 1),
            test_ap=100 * (tested["ap"] or 0), test_ap50=100 * (tested["ap50"] or 0),
            val_ap=100 * ((outcome.metrics or {})["ap"] or 0), teaching=_taught(run),
        )  # fmt: skip
        file = self._file(dataset, arm, seed)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(cell), indent=2) + "\n")
        _begun(run).unlink()
        return cell

    def _train(
        self, dataset: Dataset, arm: Arm, seed: int, *, key: str, console: Console
    ) -> Outcome:
        """Trained anew, or gone on with where a stopped training of this key was last saved."""
        run = self.run_folder(dataset, arm, seed)
        begun = _begun(run)
        labeled, unlabeled = self._split(dataset, arm, seed)
        if (run / "last.pt").is_file() and begun.is_file() and begun.read_text() == key:
            return api.resume(run, console=console)
        shutil.rmtree(run, ignore_errors=True)
        begun.parent.mkdir(parents=True, exist_ok=True)
        begun.write_text(key)
        return api.train(
            labeled, unlabeled=unlabeled if arm.method == "dsl" else None, out=run,
            val=dataset.folder / "val.json", recipe=dataset.recipe,
            settings=self._settings(arm, seed), console=console,
        )  # fmt: skip

    def run_folder(self, dataset: Dataset, arm: Arm, seed: int) -> Path:
        return self.work / self._file(dataset, arm, seed).stem

    def _file(self, dataset: Dataset, arm: Arm, seed: int) -> Path:
        return self.results / f"{dataset.name}-{arm.name}-{arm.percent:g}-seed{seed}.json"

    def _key(self, dataset: Dataset, arm: Arm, seed: int) -> str:
        config = load_config(dataset.recipe, self._settings(arm, seed)).model_dump(mode="json")
        code = code_hash(*TRAINING_CODE, *TEACHING_CODE)
        if arm.method == "supervised":
            del config["teaching"]  # tuning it must not cost the baselines
            code = code_hash(*TRAINING_CODE)
        return hashlib.sha256(json.dumps([config, code]).encode()).hexdigest()[:16]

    def _settings(self, arm: Arm, seed: int) -> dict[str, Any]:
        # Evaluated at the end only: nothing is selected or watched, and the time is for training.
        settings: dict[str, Any] = {
            "run.seed": seed, "method": arm.method, "run.eval_every": 1_000_000,
            "run.watch": False,
        }  # fmt: skip
        if self.steps is not None:
            settings |= {"run.steps": self.steps, "run.epochs": None}
        if arm.row is not None:
            settings |= own_settings(arm.row)
        return settings | dict(arm.settings)

    def _split(self, dataset: Dataset, arm: Arm, seed: int) -> tuple[Path, Path | None]:
        """Drawn from the seed alone, so the same in every arm; a folder for each, so that cells can
        be trained at the same time."""
        if arm.percent == 100:
            return dataset.folder / "train.json", None
        out = self.work / "splits" / self._file(dataset, arm, seed).stem
        shutil.rmtree(out, ignore_errors=True)
        files = write_split(dataset.folder / "train.json", out, percent=arm.percent, seed=seed)
        return files.labeled, files.unlabeled


def _begun(run: Path) -> Path:
    """Holds the key of the training in this run folder, until its cell is written."""
    return run.with_name(f"{run.name}.key")


def code_hash(*names: str) -> str:
    """Of the files and folders of the package with these names."""
    digest = hashlib.sha256()
    for name in names:
        path = PACKAGE / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _taught(run: Path) -> dict[str, float | None] | None:
    """What was taught last."""
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    figures = [line for line in lines if line["kind"] == "teaching"]
    return {name: figures[-1].get(name) for name in TAUGHT} if figures else None
