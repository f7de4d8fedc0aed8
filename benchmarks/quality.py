"""How good is it: digit scenes with 10 % and 100 % of 1,000 images labeled, on the test split.

All arms share backbone, augmentation of the labeled images and number of optimizer steps; the
averaged weights of the last step are measured, nothing is selected by score. Seeds vary the fold
and the initialisation. A finished cell (arm x seed) is kept in benchmarks/results/quality, keyed by
its settings and by the code that trains, so a stopped run goes on; delete a file to train it anew.
"""

import hashlib
import json
import shutil
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

import dsl
from benchmarks.bars import Bar, finish, parser
from dsl.config import load_config
from dsl.data.scenes import SceneOptions, write_scenes

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "quality"
WORK = ROOT / "runs" / "quality"
RECIPE = "digits"
# What changes a trained weight; the rest of the package may change without retraining.
TRAINING_CODE = (
    "geometry.py", "image.py", "randomness.py", "types.py", "data/augment.py", "data/views.py",
    "data/loader.py", "data/scenes.py", "models", "ssod", "methods", "engine/optim.py",
    "engine/train.py", "recipes/digits.toml", "recipes/tiny.toml",
)  # fmt: skip


@dataclass(frozen=True)
class Arm:
    """One column of the comparison."""

    name: str
    percent: int
    bar: float  # the least mean AP; without it the comparison says nothing


ARMS = (Arm("supervised", 100, 85.0), Arm("supervised", 10, 32.0))


def code_hash() -> str:
    digest = hashlib.sha256()
    for name in TRAINING_CODE:
        path = ROOT / "dsl" / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def scenes() -> Path:
    """The data set, drawn once."""
    folder = WORK / "scenes"
    if not folder.exists():
        write_scenes(folder, SceneOptions(), train=1000, val=200, test=500)
    return folder


def fold(folder: Path, percent: int, seed: int) -> Path:
    """A COCO file with that share of the training images, drawn by the seed."""
    content = json.loads((folder / "train.json").read_text())
    if percent == 100:
        return folder / "train.json"

    def turn(image: dict[str, Any]) -> bytes:
        return hashlib.blake2b(f"{seed}/{image['file_name']}".encode()).digest()

    chosen = sorted(content["images"], key=turn)[: len(content["images"]) * percent // 100]
    ids = {image["id"] for image in chosen}
    content["images"] = [image for image in content["images"] if image["id"] in ids]
    content["annotations"] = [a for a in content["annotations"] if a["image_id"] in ids]
    path = folder / f"train.{seed}@{percent}.json"
    path.write_text(json.dumps(content))
    return path


def cell(arm: Arm, seed: int, *, steps: int | None, console: Console) -> dict[str, Any]:
    """The result of one cell: from its file, or trained now."""
    settings: dict[str, Any] = {"run.seed": seed}
    if steps is not None:
        settings["run.steps"] = steps
    config = load_config(RECIPE, settings).model_dump(mode="json")
    key = hashlib.sha256(json.dumps([config, arm.percent, code_hash()]).encode()).hexdigest()[:16]
    file = RESULTS / f"{arm.name}-{arm.percent}-seed{seed}.json"
    if file.exists():
        kept: dict[str, Any] = json.loads(file.read_text())
        if kept["key"] == key:
            return kept
    folder, run = scenes(), WORK / file.stem
    shutil.rmtree(run, ignore_errors=True)
    console.print(f"{arm.name} {arm.percent} %, seed {seed}")
    outcome = dsl.train(
        fold(folder, arm.percent, seed), out=run, val=folder / "val.json", recipe=RECIPE,
        settings=settings, console=console,
    )  # fmt: skip
    metrics = dsl.evaluate(run / "last.pt", folder / "test.json", store=False)
    result = {
        "key": key, "arm": arm.name, "percent": arm.percent, "seed": seed,
        "steps": outcome.position.step, "seconds": round(outcome.position.seconds, 1),
        "test_ap": 100 * metrics["ap"], "test_ap50": 100 * metrics["ap50"],
        "val_ap": 100 * (outcome.metrics or {})["ap"],
    }  # fmt: skip
    RESULTS.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(result, indent=2) + "\n")
    return result


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--steps", type=int, default=None, help="other than the recipe's: a trial")
    arguments = options.parse_args()
    console = Console(highlight=False, width=110)
    bars, cells = [], []
    for arm in ARMS:
        row = [
            cell(arm, seed, steps=arguments.steps, console=console)
            for seed in range(arguments.seeds)
        ]
        cells += row
        mean = statistics.mean(result["test_ap"] for result in row)
        slowest = max(result["seconds"] for result in row) / 60
        name = f"{arm.name} {arm.percent} %, mean of {len(row)}"
        bars.append(Bar(f"{name}: test AP", mean, arm.bar))
        bars.append(Bar(f"{name}: longest training", slowest, 8, at_least=False, unit=" min"))
    finish("quality", bars, json_file=arguments.json, details={"cells": cells})


if __name__ == "__main__":
    main()
