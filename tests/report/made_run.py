"""A run folder for tests, written by the same parts that write a real one, without a training."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dsl.engine.log import RunLog
from dsl.report.teaching import Taught, write_teaching
from dsl.report.views import Shown, StrongView, write_views
from dsl.ssod.pseudo_labels import PseudoLabels
from dsl.ssod.telemetry import Telemetry
from dsl.types import Detections, Targets

SIDE = 64
STEPS = (20, 40, 60)


def make_run(
    folder: Path, *, method: str = "dsl", seed: int = 0, ap: float = 0.5, labeled: int = 10,
    classes: tuple[str, ...] = ("cat", "dog"), truth: bool = True, image: str = "image",
    finished: bool = True,
) -> Path:  # fmt: skip
    """Three evaluations; at each the teacher is right about one more of its three boxes."""
    folder.mkdir(parents=True)
    settings: dict[str, Any] = {
        "recipe": "tiny", "method": method, "data": {"labeled": "few.json"},
        "teaching": {"background": 0.1, "half_view": True, "scale_weight": 1.0},
        "run": {"steps": STEPS[-1], "seconds": None, "epochs": None, "seed": seed},
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(settings))
    images = {"labeled": labeled, "unlabeled": 30, "val": 5}
    (folder / "environment.json").write_text(json.dumps({"images": images}))
    log = RunLog(folder)
    for place, step in enumerate(STEPS):
        losses = {"box": 1.0 / step, "loss": 2.0 / step, "seconds": float(step)}
        log.write("train", step, losses if place == 0 else losses | {"unlabeled": 0.1})
        if method == "dsl":
            _teach(folder, log, step, place, classes, truth=truth, image=image)
        figures = {"ap": ap * step / 60, "ap50": 0.9, "ap75": None, "per_class": [
            {"name": name, "ap": ap, "ap50": 0.9} for name in classes]}  # fmt: skip
        log.write("val", step, figures)
        log.write("val_student", step, figures | {"ap": ap * step / 70})
    log.close()
    if finished:
        (folder / "results.json").write_text(json.dumps({"step": STEPS[-1]}))
    return folder


def true_boxes() -> Targets:
    boxes = torch.tensor([[4.0, 4, 24, 24], [30, 4, 50, 24], [4, 34, 24, 54]])
    return Targets(boxes, torch.tensor([0, 1, 0]), torch.zeros(3, dtype=torch.bool))


def labels(place: int) -> PseudoLabels:
    """`place` boxes are learned and right, the others learned and elsewhere; one is ignored, one
    rejected."""
    boxes = true_boxes().boxes.clone()
    boxes[place:] = boxes[place:] + 9
    more = torch.tensor([[30.0, 30, 45, 60], [40, 40, 60, 60]])
    found = Detections(
        torch.cat([boxes, more]),
        torch.tensor([0.9, 0.8, 0.7, 0.6, 0.3]),
        torch.tensor([0, 1, 0, 0, 1]),
    )
    ignored = torch.tensor([False, False, False, True, True])
    rejected = torch.tensor([False, False, False, True, False])
    return PseudoLabels(found, ~ignored, ignored, rejected)


def _teach(
    folder: Path, log: RunLog, step: int, place: int, classes: tuple[str, ...], *, truth: bool,
    image: str,
) -> None:  # fmt: skip
    pixels = np.full((SIDE, SIDE, 3), 90, np.uint8)
    names = [f"{image}{number}.png" for number in range(3)]
    places = [place, place, 3]  # the last image has no mistakes
    if place == 0:
        strong = StrongView(pixels, true_boxes(), shuffled=True)
        known = true_boxes() if truth else None
        write_views(
            folder / "views", [Shown(name, pixels, known, strong) for name in names], classes
        )
    taught = [Taught(n, pixels, labels(p)) for n, p in zip(names, places, strict=True)]
    write_teaching(folder / "pseudo_labels", step, taught, classes)
    telemetry = Telemetry(len(classes), 5, torch.device("cpu"))
    telemetry.watch([t.labels for t in taught], [true_boxes()] * 3 if truth else None)
    log.write("teaching", step, telemetry.read(classes, torch.full((len(classes),), 0.4)))
