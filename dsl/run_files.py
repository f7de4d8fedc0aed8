"""The small files of a run folder: which machine trained, and the final figures."""

import json
import platform
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import timm
import torch
import torchvision
from lightning_fabric import Fabric

import dsl
from dsl.engine.observers import Evaluation
from dsl.engine.train import Position
from dsl.engine.watch import Verdict


def write_results(
    folder: Path, position: Position, latest: Evaluation, *, best: float,
    verdict: Verdict | None, skipped: int,
) -> None:  # fmt: skip
    """FOLDER/results.json; `verdict` None: nothing was compared with the burn-in."""
    content = {
        "step": position.step,
        "seconds": round(position.seconds, 1),
        "val": latest.metrics,
        "val_student": latest.student,
        "best_val_ap": best,
        "burn_in_val_ap": verdict.burn_in if verdict else None,
        "gained_val_ap": verdict.best - verdict.burn_in if verdict else None,
        "skipped_steps": skipped,
    }
    write_json(folder / "results.json", content)


def environment(fabric: Fabric, precision: str) -> dict[str, Any]:
    """Versions and machine, for the record."""
    return {
        "dsl": dsl.__version__,
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "timm": timm.__version__,
        "lightning_fabric": metadata.version("lightning-fabric"),
        "platform": platform.platform(),
        "device": str(fabric.device),
        "processes": fabric.world_size,
        "threads": torch.get_num_threads(),
        "precision": precision,
        "command": sys.argv,
    }


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
