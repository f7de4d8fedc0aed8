"""Two processes are one training: the same losses, counts and figures, and never a deadlock."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from parallel import run_ranks
from rich.console import Console

import dsl.methods.base
import dsl.methods.dsl
import dsl.training
from dsl.config import load_config
from dsl.engine.checkpoint import load_checkpoint
from dsl.engine.train import Step
from dsl.errors import UserError

Coco = Callable[..., Path]
SQUARE: dict[str, Any] = {
    "views.short_sides": [64], "views.test_short_side": 64, "views.max_side": 64,
    "model.backbone": "resnet10t_half", "optim.batch": 4, "run.steps": 20, "run.workers": 0,
    "run.precision": "fp32", "run.device": "cpu", "teaching.metanet": "detector",
    "teaching.window": 12, "teaching.burn_in": 0.3, "run.eval_every": 1000,
}  # fmt: skip


def training(folder: Path, data: dict[str, Path], **settings: Any) -> dsl.training.Training:
    paths = {f"data.{key}": str(path) for key, path in data.items()}
    config = load_config("tiny", {"method": "dsl", **SQUARE, **paths, **settings})
    return dsl.training.Training(config, folder, Console(quiet=True))


def sure(method: dsl.methods.base.Method) -> None:
    """An untrained detector says nothing; this one says a lot, of changing confidence."""
    with torch.no_grad():
        for network in (method.student, method.teacher):
            torch.nn.init.normal_(network.head.class_logits.weight, std=0.3)
            network.head.class_logits.bias.fill_(-1.5)


def train_recording(folder: Path, data: dict[str, Path], ranks: int) -> None:
    """Train in fp64 without live BatchNorm; write down every loss, count and threshold."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    torch.Tensor.float = torch.Tensor.double  # the package's "full precision", whatever it is
    run = training(folder / "run", data, **{"run.devices": ranks})
    run.method.student.backbone.freeze()
    torch.manual_seed(0)
    sure(run.method)
    run.method.double()
    steps: list[dict[str, Any]] = []
    reduced: list[list[float]] = []

    def reduce(value: torch.Tensor) -> torch.Tensor:
        total = original(value)
        reduced.append((total * ranks).flatten().tolist())
        return total

    original = dsl.methods.base.mean_over_ranks
    dsl.methods.base.mean_over_ranks = dsl.methods.dsl.mean_over_ranks = reduce

    def record(step: Step) -> None:
        thresholds = run.method.policy.thresholds().tolist()
        steps.append({"losses": step.losses, "thresholds": thresholds, "counts": list(reduced)})
        reduced.clear()

    fit = dsl.training.fit
    dsl.training.fit = lambda *args, observers, **options: fit(
        *args, observers=[*observers, record], **options
    )
    assert run.run().finished
    (folder / f"{run.fabric.global_rank}.json").write_text(json.dumps(steps))


def recorded(folder: Path, ranks: int) -> list[list[dict[str, Any]]]:
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


def without_boxes(path: Path, images: set[int]) -> Path:
    """These images of the set lose their boxes: some ranks then have none at all."""
    content = json.loads(path.read_text())
    content["annotations"] = [a for a in content["annotations"] if a["image_id"] not in images]
    path.write_text(json.dumps(content))
    return path


def test_two_processes_are_one_with_the_same_batch(coco: Coco, tmp_path: Path) -> None:
    """20 steps over the burn-in and the semi-supervised phase; odd numbers of images, and most
    labeled ones without boxes."""
    data = {
        "labeled": without_boxes(coco(count=15, size=(64, 64)), set(range(4, 14))),
        "unlabeled": coco(count=7, size=(64, 64), name="more", seed=3),
        "val": coco(count=3, size=(64, 64), name="val", seed=4),
    }
    for ranks in (1, 2):
        (tmp_path / str(ranks)).mkdir()
        run_ranks(train_recording, tmp_path / str(ranks), data, ranks, ranks=ranks)
    [one], both = recorded(tmp_path / "1", 1), recorded(tmp_path / "2", 2)
    assert len(one) == len(both[0]) == len(both[1]) == 20
    for alone, first, second in zip(one, *both, strict=True):
        for name, value in alone["losses"].items():
            mean = (first["losses"][name] + second["losses"][name]) / 2
            if name != "grad_norm":
                assert mean == pytest.approx(value, abs=1e-5, rel=1e-5), name
        for rank in (first, second):
            assert rank["thresholds"] == pytest.approx(alone["thresholds"], abs=1e-9)
            assert len(rank["counts"]) == len(alone["counts"])
            for found, wanted in zip(rank["counts"], alone["counts"], strict=True):
                assert found == pytest.approx(wanted, rel=1e-9)
    taught = [step["losses"]["fg/img"] for step in one if "fg/img" in step["losses"]]
    assert len(taught) == 14
    assert max(taught) > 0
    assert len({tuple(step["thresholds"]) for step in one}) > 3
