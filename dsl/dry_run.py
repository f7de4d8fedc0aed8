"""A rehearsal of a training in seconds: the paths, the model and method of the settings, one step
of each phase and one evaluation, on a few small images. Nothing is written.

It must not train better or otherwise than `training.py`: it only makes the same run small.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from dsl.compose import build_batches, length_of
from dsl.config import Config
from dsl.data.index import Index
from dsl.doctor.case import Case
from dsl.doctor.checks import warn_before_training
from dsl.engine.train import Step
from dsl.report.tables import percent
from dsl.rundata import RunData, open_run_data
from dsl.training import Training

SHORT_SIDE = 32  # pixels; the least that all levels of the pyramid can look at
LOOKED_AT = 200  # images of each set that are opened, evenly spaced
KEPT = 4  # images of each set that the rehearsal uses

NOT_CHECKED = (
    "not checked: memory and speed at the real image size and batch, pretrained weights (taken as "
    f"absent), reduced precision, several devices, images beyond {LOOKED_AT} of each set, "
    "checkpoints and logs"
)


@dataclass(frozen=True)
class Rehearsal:
    """What a dry run did."""

    data: RunData  # all of it
    steps: tuple[Step, ...]  # one of each phase
    metrics: Mapping[str, Any]  # of the few validation images
    num_parameters: int
    run_steps: int | None  # of the real run; None where it goes by time
    seconds: float


def rehearse(config: Config, console: Console, *, init: Path | None = None) -> Rehearsal:
    """Run the settings through in small; errors are those of the real run."""
    began = time.monotonic()
    data = open_run_data(config.data, seed=config.run.seed, console=console, sample=LOOKED_AT)
    # The doctor sees the data and settings of the real run, not the few images of this one.
    case = Case(config, data.labeled, val=data.val, unlabeled=data.unlabeled)
    warn_before_training(case, console)
    ranks = config.run.devices * config.run.nodes
    build_batches(config, data.labeled, data.unlabeled, rank=0, ranks=ranks)
    images = max(len(data.labeled), len(data.unlabeled or ()))
    few = RunData(_few(data.labeled), _few(data.val), data.unlabeled and _few(data.unlabeled))
    training = Training(_small(config), Path(), console, init=init, rehearsed_on=few)
    steps, evaluation = training.rehearse()
    return Rehearsal(
        data, tuple(steps), evaluation.metrics,
        sum(weight.numel() for weight in training.method.student.parameters()),
        length_of(config, images).steps, time.monotonic() - began,
    )  # fmt: skip


def table_of(rehearsal: Rehearsal, config: Config) -> Table:
    """The rehearsal in a few rows."""
    table = Table("dry run", "", title=f"{config.recipe or 'settings'}: all parts run")
    data = rehearsal.data
    for role, index in (
        ("labeled", data.labeled),
        ("unlabeled", data.unlabeled),
        ("val", data.val),
    ):
        if index is not None:
            table.add_row(role, f"{len(index):,} images ({index.source})")
    table.add_row("classes", f"{len(data.labeled.classes)}")
    model, millions = config.model, rehearsal.num_parameters / 1e6
    table.add_row("model", f"{model.backbone}, {millions:.1f} million parameters")
    table.add_row("method", config.method)
    for step in rehearsal.steps:
        table.add_row(f"step, {step.phase}", f"loss {step.losses['loss']:.3f}")
    ap, count = percent(rehearsal.metrics["ap"]), min(KEPT, len(data.val))
    table.add_row("evaluation", f"{count} images, AP {ap} (the detector is untrained)")
    length = "by time" if rehearsal.run_steps is None else f"{rehearsal.run_steps:,} steps"
    table.add_row("the run itself", f"{length} of {config.optim.batch} labeled images")
    table.add_row("took", f"{rehearsal.seconds:.1f} s")
    return table


def _few(index: Index) -> Index:
    """Evenly spaced images: the first ones of a file may all be alike."""
    step = max(1, len(index) // KEPT)
    return index.select(index.ids.new_tensor(range(0, len(index), step)[:KEPT]))


def _small(config: Config) -> Config:
    """The same model and method; small images, two of them a step, one step of each phase."""
    views, teaching, optim, run = config.views, config.teaching, config.optim, config.run
    teaching = teaching.model_copy(
        update={
            "burn_in": 0.5, "teacher_size": "test", "metanet_weights": "none", "metanet_crop": 32,
        }
    )  # fmt: skip
    return config.model_copy(
        update={
            "views": views.model_copy(
                update={
                    "short_sides": (SHORT_SIDE,), "test_short_side": SHORT_SIDE,
                    "max_side": 2 * SHORT_SIDE,
                }
            ),
            "teaching": teaching,
            "optim": optim.model_copy(update={"batch": 2, "accumulate": 1}),
            "run": run.model_copy(
                update={
                    "steps": 2 if config.method != "supervised" else 1, "epochs": None,
                    "seconds": None, "devices": 1, "nodes": 1, "workers": 0, "precision": "fp32",
                }
            ),
        }
    )  # fmt: skip
