"""Two processes are one training: the same losses, counts and figures, and never a deadlock."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from parallel import run_ranks
from rich.console import Console

import dsl
import dsl.methods.base
import dsl.methods.dsl
import dsl.training
from dsl.compose import build_batches
from dsl.config import load_config
from dsl.data.formats import open_dataset
from dsl.engine import processes
from dsl.engine.checkpoint import load_checkpoint
from dsl.engine.train import Step
from dsl.errors import UserError

Coco = Callable[..., Path]
SQUARE: dict[str, Any] = {
    "views.short_sides": [64], "views.test_short_side": 64, "views.max_side": 64,
    "model.backbone": "resnet10t_half", "optim.batch": 4, "run.steps": 20, "run.workers": 0,
    "run.precision": "fp32", "run.device": "cpu", "teaching.metanet": "detector",
    "teaching.metanet_bar": 0.0, "teaching.window": 12, "teaching.burn_in": 0.3,
    "run.eval_every": 1000,
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
            network.head.class_logits.bias.fill_(0.5)


def watched_by(observer: Callable[[Step], None]) -> None:
    """From now on this process's trainings tell the observer of every step."""
    fit = dsl.training.fit
    dsl.training.fit = lambda *args, observers, **options: fit(
        *args, observers=[*observers, observer], **options
    )


def small_sets(coco: Coco, *, val: int = 3) -> dict[str, Path]:
    return {
        "labeled": coco(count=12, size=(64, 64)),
        "unlabeled": coco(count=5, size=(64, 64), name="more", seed=3),
        "val": coco(count=val, size=(64, 64), name="val", seed=4),
    }


def train_recording(folder: Path, data: dict[str, Path], ranks: int) -> None:
    """Train in fp64 without live BatchNorm; write down every loss, count and threshold."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    torch.Tensor.float = torch.Tensor.double  # the package's "full precision", whatever it is
    run = training(folder / "run", data, **{"run.devices": ranks, "optim.lr": 1e-4})
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

    watched_by(record)
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


def train_with_a_silent_teacher(folder: Path, data: dict[str, Path]) -> None:
    """The teacher of rank 1 finds nothing, that of rank 0 a lot."""
    torch.set_num_threads(1)
    run = training(folder / "run", data, **{"run.devices": 2, "run.steps": 10})
    torch.manual_seed(0)
    sure(run.method)
    rank = int(os.environ["RANK"])
    if rank == 1:
        run.method.decoder = replace(run.method.decoder, min_class_score=1 - 1e-9)
    steps: list[dict[str, float]] = []
    watched_by(lambda step: steps.append(step.losses))
    assert run.run().finished
    weights = [value.tolist() for value in run.method.student.head.parameters()]
    (folder / f"{rank}.json").write_text(json.dumps({"steps": steps, "weights": weights}))


def test_one_rank_without_pseudo_labels_neither_waits_nor_drifts(
    coco: Coco, tmp_path: Path
) -> None:
    data = small_sets(coco)
    run_ranks(train_with_a_silent_teacher, tmp_path, data, ranks=2)
    loud, silent = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    taught = [[s["fg/img"] for s in rank["steps"] if "fg/img" in s] for rank in (loud, silent)]
    assert len(taught[0]) == len(taught[1]) == 7
    assert min(taught[0]) > 0
    assert max(taught[1]) == 0
    assert loud["weights"] == silent["weights"]


def evaluate_together(folder: Path, data: dict[str, Path]) -> None:
    """Two steps with live BatchNorm, then what both ranks find."""
    torch.set_num_threads(1)
    run = training(folder / "run", data, **{"run.devices": 2, "run.steps": 2})
    torch.manual_seed(0)
    sure(run.method)
    assert run.run().finished
    found = run._detect(run.method.teacher)
    torch.save([d.boxes for d in found], folder / f"{run.fabric.global_rank}.pt")


def evaluate_alone(folder: Path, data: dict[str, Path]) -> None:
    """The weights that the two saved, in one process."""
    torch.set_num_threads(1)
    run = training(folder / "alone", data)
    saved = load_checkpoint(folder / "run" / "last.pt")
    assert saved.training is not None
    run.method.to(memory_format=torch.channels_last)
    run.method.load_state_dict(saved.training["method"])
    run.fabric.launch()
    torch.save([d.boxes for d in run._detect(run.method.teacher)], folder / "alone.pt")
    (folder / "alone.json").write_text(json.dumps(run._evaluate().metrics))


def test_an_evaluation_by_two_is_that_of_the_saved_weights_by_one(
    coco: Coco, tmp_path: Path
) -> None:
    """BatchNorms saw other images on each rank, and nine images are uneven parts."""
    data = small_sets(coco, val=9)
    run_ranks(evaluate_together, tmp_path, data, ranks=2)
    run_ranks(evaluate_alone, tmp_path, data, ranks=1)
    alone = torch.load(tmp_path / "alone.pt", weights_only=True)
    assert sum(len(boxes) for boxes in alone) > 9
    for rank in (0, 1):
        together = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert len(together) == 9
        assert all(torch.equal(a, b) for a, b in zip(together, alone, strict=True))
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["val"] == json.loads((tmp_path / "alone.json").read_text())


def train_until_someone_dies(folder: Path, data: dict[str, Path]) -> None:
    torch.set_num_threads(1)
    run = training(folder / "run", data, **{"run.devices": 2, "run.steps": 100000})
    if os.environ["LOCAL_RANK"] == "1":
        watched_by(die_at_three)
    try:
        run.run()
    except UserError as error:
        (folder / "message.txt").write_text(str(error))


def die_at_three(step: Step) -> None:
    if step.position.step == 3:
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_lost_process_ends_the_others_in_one_line(coco: Coco, tmp_path: Path) -> None:
    data = small_sets(coco)
    with pytest.raises(AssertionError, match=r"exit codes \[0, -9\]"):
        run_ranks(train_until_someone_dies, tmp_path, data, ranks=2)
    message = (tmp_path / "message.txt").read_text()
    assert message.startswith("process 0 lost another of the 2 processes")
    assert message.endswith(f"dsl train --resume {tmp_path}/run")
    assert "\n" not in message
    assert load_checkpoint(tmp_path / "run" / "last.pt").training is not None


def wait_for_a_dead_sibling() -> None:
    processes.GRACE = 0.1
    sibling = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
    threading.Thread(target=processes._watch, args=([sibling],), daemon=True).start()
    sibling.kill()
    time.sleep(100)


def test_a_process_that_is_busy_elsewhere_is_ended_too() -> None:
    began = time.monotonic()
    with pytest.raises(AssertionError, match=r"exit codes \[1\]"):
        run_ranks(wait_for_a_dead_sibling, ranks=1)
    assert time.monotonic() - began < 90


def test_parts_that_no_rank_can_have_are_refused(coco: Coco) -> None:
    index = open_dataset(coco(count=3))
    config = load_config("tiny", SQUARE)
    assert build_batches(config, index, None, rank=1, ranks=2).batch == 4
    for ranks in (3, 8):
        with pytest.raises(UserError, match=f"choose a multiple of {ranks}"):
            build_batches(config, index, None, rank=0, ranks=ranks)


def test_torchrun_goes_on_with_its_own_run_only(
    coco: Coco, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, out = coco(count=12, size=(64, 64)), tmp_path / "run"
    settings = {**SQUARE, "run.steps": 3, "run.save_every": 1}

    class LostError(Exception):
        pass

    def lose(step: Step) -> None:
        if step.position.step == 2:
            raise LostError

    fit = dsl.training.fit
    with monkeypatch.context() as patch:
        patch.setattr(
            dsl.training, "fit",
            lambda *args, observers, **options: fit(*args, observers=[*observers, lose], **options),
        )  # fmt: skip
        with pytest.raises(LostError):
            dsl.train(data, out=out, recipe="tiny", settings=settings)
    with pytest.raises(UserError, match="exists already"):
        dsl.train(data, out=out, recipe="tiny", settings=settings)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    with pytest.raises(UserError, match="exists already"):
        dsl.train(data, out=out, recipe="tiny", settings=settings | {"run.seed": 5})
    said = io.StringIO()
    outcome = dsl.train(data, out=out, recipe="tiny", settings=settings, console=Console(file=said))
    assert "resumed at step 2" in said.getvalue()  # it would finish, too, had it begun anew
    assert outcome.finished
    assert outcome.position.step == 3
