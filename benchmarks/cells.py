"""Trained cells of a comparison: data set x arm x seed, each trained once and kept.

A finished cell is a JSON file in benchmarks/results/quality, keyed by its settings and by the code
that trains, so that a stopped run goes on; delete a file to train it anew.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

import dsl
from dsl.config import load_config, own_settings

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "quality"
WORK = ROOT / "runs" / "quality"
# What changes a trained weight; the rest of the package may change without retraining. Recipes are
# in the key as the settings that they come to.
TRAINING_CODE = (
    "geometry.py", "image.py", "randomness.py", "types.py", "data/augment.py", "data/views.py",
    "data/loader.py", "data/scenes.py", "models", "ssod", "methods", "engine/optim.py",
    "engine/train.py",
)  # fmt: skip


@dataclass(frozen=True)
class Dataset:
    """Files of a comparison; `train` is split into labeled and unlabeled, `test` is reported on."""

    name: str
    recipe: str
    folder: Callable[[], Path]
    val: str
    test: str


@dataclass(frozen=True)
class Arm:
    """One row: a method on a share of the labels. `row`: an ablation recipe whose own settings are
    laid over the data set's recipe."""

    name: str
    method: str = "dsl"
    percent: int = 10
    row: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


def code_hash() -> str:
    digest = hashlib.sha256()
    for name in TRAINING_CODE:
        path = ROOT / "dsl" / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def split(folder: Path, percent: int, seed: int) -> tuple[Path, Path | None]:
    """COCO files of the labeled share, drawn by the seed, and of the rest."""
    if percent == 100:
        return folder / "train.json", None
    content = json.loads((folder / "train.json").read_text())

    def turn(image: Mapping[str, Any]) -> bytes:
        return hashlib.blake2b(f"{seed}/{image['file_name']}".encode()).digest()

    ordered = sorted(content["images"], key=turn)
    cut = max(1, len(ordered) * percent // 100)
    files, beside = [], WORK / "splits" / folder.name
    beside.mkdir(parents=True, exist_ok=True)
    if not (beside / "images").exists():
        (beside / "images").symlink_to((folder / "images").resolve())
    for part, images in (("", ordered[:cut]), ("-unlabeled", ordered[cut:])):
        ids = {image["id"] for image in images}
        kept = {
            **content,
            "images": [image for image in content["images"] if image["id"] in ids],
            "annotations": [a for a in content["annotations"] if a["image_id"] in ids],
        }
        path = beside / f"train.{seed}@{percent}{part}.json"
        path.write_text(json.dumps(kept))
        files.append(path)
    return files[0], files[1]


def settings_of(arm: Arm, seed: int, steps: int | None) -> dict[str, Any]:
    # Evaluated at the end only: nothing is selected or watched, and the time is for training.
    settings: dict[str, Any] = {
        "run.seed": seed, "method": arm.method, "run.eval_every": 1_000_000, "run.watch": False,
    }  # fmt: skip
    if steps is not None:
        settings["run.steps"] = steps
    if arm.row is not None:
        settings |= own_settings(arm.row)
    return settings | dict(arm.settings)


def cell(
    dataset: Dataset, arm: Arm, seed: int, *, steps: int | None, console: Console
) -> dict[str, Any]:
    """The result of one cell: from its file, or trained now."""
    settings = settings_of(arm, seed, steps)
    config = load_config(dataset.recipe, settings).model_dump(mode="json")
    key = hashlib.sha256(json.dumps([config, code_hash()]).encode()).hexdigest()[:16]
    file = RESULTS / f"{dataset.name}-{arm.name}-{arm.percent}-seed{seed}.json"
    if file.exists():
        kept: dict[str, Any] = json.loads(file.read_text())
        if kept["key"] == key:
            return kept
    folder, run = dataset.folder(), WORK / file.stem
    shutil.rmtree(run, ignore_errors=True)
    console.print(f"{dataset.name}: {arm.name}, {arm.percent} % labeled, seed {seed}")
    labeled, unlabeled = split(folder, arm.percent, seed)
    outcome = dsl.train(
        labeled, unlabeled=unlabeled if arm.method == "dsl" else None, out=run,
        val=folder / dataset.val, recipe=dataset.recipe, settings=settings, console=console,
    )  # fmt: skip
    tested = dsl.evaluate(run / "last.pt", folder / dataset.test, store=False)
    result = {
        "key": key, "data": dataset.name, "arm": arm.name, "percent": arm.percent, "seed": seed,
        "steps": outcome.position.step, "seconds": round(outcome.position.seconds, 1),
        "test_ap": 100 * tested["ap"], "test_ap50": 100 * tested["ap50"],
        "val_ap": 100 * (outcome.metrics or {})["ap"], "teaching": _taught(run),
    }  # fmt: skip
    RESULTS.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(result, indent=2) + "\n")
    return result


def _taught(run: Path) -> dict[str, Any] | None:
    """What was taught last: counts of pseudo-labels and how right they were."""
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    figures = [line for line in lines if line["kind"] == "teaching"]
    names = ("foreground", "ignored", "rejected", "precision", "precision_any_class", "recall")
    return {name: figures[-1].get(name) for name in names} if figures else None
