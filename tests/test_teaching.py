"""Semi-supervised runs from end to end: phases, resuming, telemetry, and no leak of labels."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import dsl
import dsl.training
from dsl.compose import build_batches
from dsl.config import load_config
from dsl.data.formats import open_dataset
from dsl.data.views import UnlabeledViews, read_record
from dsl.engine.checkpoint import load_checkpoint
from dsl.errors import UserError
from dsl.geometry import VerticalFlip
from dsl.randomness import generator
from dsl.report.run_folder import read_run

Coco = Callable[..., Path]

SETTINGS: dict[str, Any] = {
    "run.steps": 8, "run.eval_every": 4, "run.save_every": 1, "run.workers": 0, "optim.batch": 4,
    "run.precision": "fp32", "model.backbone": "resnet10t_half", "model.aggregation": "concat",
    "views.short_sides": [48, 64], "views.test_short_side": 64, "views.max_side": 120,
    "teaching.burn_in": 0.25, "teaching.metanet": "detector", "teaching.metanet_crop": 32,
    "teaching.window": 10, "teaching.background": 0.001, "teaching.thresholds": "fixed",
    "teaching.foreground": 0.012,
}  # fmt: skip


def data(coco: Coco) -> tuple[Path, Path]:
    """A labeled set, and an unlabeled one that happens to have labels."""
    return coco(count=8, name="labeled"), coco(count=12, name="unlabeled", seed=1)


def run(
    labeled: Path, unlabeled: Path, out: Path, *, console: Console | None = None, **settings: Any
) -> Any:
    changes = {key.replace("__", "."): value for key, value in settings.items()}
    return dsl.train(
        labeled, unlabeled=unlabeled, val=labeled, out=out, recipe="tiny",
        settings=SETTINGS | changes, console=console or Console(quiet=True),
    )  # fmt: skip


def lines(folder: Path, kind: str) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [record for record in records if record["kind"] == kind]


@pytest.mark.parametrize(
    ("teacher_size", "weak", "proxies"),
    [("test", {64}, 64), ("drawn", {48, 64}, 64), (96, {96}, 96)],
)
def test_the_teacher_looks_at_its_own_size(
    coco: Coco, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    teacher_size: str | int, weak: set[int], proxies: int,
) -> None:  # fmt: skip
    labeled, unlabeled = data(coco)  # 64 x 96 pixels
    config = load_config("tiny", SETTINGS | {"teaching.teacher_size": teacher_size})
    sets = open_dataset(labeled), open_dataset(unlabeled)
    batches = build_batches(config, *sets, rank=0, ranks=1)
    pairs = [pair for step in range(4) if (pair := batches[step].unlabeled) is not None]
    assert {int(short) for pair in pairs for short in pair.weak.sizes.min(dim=1).values} == weak
    assert {int(s) for pair in pairs for s in pair.strong.sizes.min(dim=1).values} == {48, 64}
    sizes: set[int] = set()

    def seen(method: Any, batches: Any, **options: Any) -> None:
        sizes.update(int(short) for short in batches[0].images.sizes.min(dim=1).values)
        learn(method, batches, **options)

    learn = dsl.training.learn_proxies
    monkeypatch.setattr(dsl.training, "learn_proxies", seen)
    run(labeled, unlabeled, tmp_path / "run", teaching__teacher_size=teacher_size)
    assert sizes == {proxies}


@pytest.mark.parametrize("teacher_size", ["test", "drawn"])
@pytest.mark.parametrize("upset", [False, True])
def test_all_views_are_turned_upside_down_where_asked_for(
    coco: Coco, upset: bool, teacher_size: str
) -> None:
    labeled, unlabeled = data(coco)
    settings = {"views.flip_vertical": upset, "teaching.teacher_size": teacher_size}
    sets = open_dataset(labeled), open_dataset(unlabeled)
    batches = build_batches(load_config("tiny", SETTINGS | settings), *sets, rank=0, ranks=1)
    assert batches.unlabeled is not None
    views = batches.unlabeled.views
    assert isinstance(views, UnlabeledViews)
    read = read_record(sets[1], 0, short_side=64)
    for view in (batches.labeled.views.weak, views.weak, views.sizes):
        drawn = [view.draw(read, generator(0, "t", position))[1] for position in range(20)]
        turned = [any(isinstance(move, VerticalFlip) for move in moves) for moves in drawn]
        assert any(turned) == upset
        assert not all(turned)


def state_of(folder: Path) -> dict[str, Any]:
    training = load_checkpoint(folder / "last.pt").training
    assert training is not None
    state: dict[str, Any] = training["method"]
    return state


def assert_same_state(one: Path, other: Path) -> None:
    left, right = state_of(one), state_of(other)
    assert left.keys() == right.keys()
    differing = [name for name in left if not torch.equal(left[name], right[name])]
    assert not differing


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (
            {"teaching__foreground": 0.9},
            "no detection reached its class's bar (0.90 to 0.90); more --steps make a surer "
            "teacher, or lower the bars: --set teaching.thresholds=fixed --set "
            "teaching.foreground=0.45",
        ),
        (
            {"teaching__metanet_bar": 1.0},
            "MetaNet doubts every pseudo-label; --set teaching.metanet=off",
        ),
        ({"teaching__metanet": "off"}, None),
    ],
)
def test_a_run_that_teaches_nothing_says_why(
    coco: Coco, tmp_path: Path, settings: dict[str, Any], reason: str | None
) -> None:
    console = Console(record=True, width=200, file=StringIO())
    run(*data(coco), tmp_path / "run", console=console, **settings)
    said = [record["message"] for record in lines(tmp_path / "run", "notice")]
    start = "nothing was taught on the last 24 unlabeled images: "
    told = [message.removeprefix(start) for message in said if message.startswith(start)]
    assert told == ([] if reason is None else [reason])
    ending = " ".join(console.export_text().split())
    assert ("the unlabeled images taught nothing: val AP" in ending) is (reason is not None)
    assert "a val set of 8 images makes this mostly chance" in ending


def test_damaged_pictures_cost_no_results(
    coco: Coco, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(folder: Path) -> None:
        raise UserError(f"{folder}: views/ is damaged")

    monkeypatch.setattr("dsl.training.read_run", damaged)
    console = Console(record=True, width=200, file=StringIO())
    run(*data(coco), tmp_path / "run", console=console)
    assert (tmp_path / "run" / "results.json").is_file()
    ending = console.export_text()
    assert "the unlabeled images" in ending
    assert "taught nothing" not in ending


def test_burn_in_then_teaching_in_one_run(coco: Coco, tmp_path: Path) -> None:
    outcome = run(*data(coco), tmp_path / "run")
    assert outcome.finished
    train = lines(tmp_path / "run", "train")
    assert "unlabeled" in train[-1]
    assert train[-1]["images"] == 8
    state = state_of(tmp_path / "run")
    assert bool(state["started"])
    assert bool(state["metanet.ready"])
    assert float(state["metanet.proxies"].abs().sum()) > 0
    [taught] = lines(tmp_path / "run", "teaching")
    assert taught["images"] == 6 * 4
    assert set(taught["tau2"]) == {"square", "bar"}
    assert sum(taught["levels"]) == pytest.approx(1, abs=1e-5) or taught["foreground"] == 0
    assert taught["foreground"] + taught["ignored"] > 0
    assert 0 <= taught["recall"] <= 1
    assert sorted(p.name for p in (tmp_path / "run" / "pseudo_labels").iterdir()) == [
        "step_000002.jpg", "step_000002.json", "step_000004.jpg", "step_000004.json",
        "step_000008.jpg", "step_000008.json",
    ]  # fmt: skip
    read = read_run(tmp_path / "run")
    assert len(read.images) == 12
    assert all(image.file is not None and image.file.is_file() for image in read.images)
    assert all(image.truth for image in read.images)
    assert sum(image.strong is not None for image in read.images) == 6
    assert [step.step for step in read.gallery] == [2, 4, 8]
    assert (read.num_labeled, read.finished) == (8, True)
    assert "step_000008" not in (tmp_path / "run" / "report.html").read_text()  # one file, no links


@pytest.mark.parametrize("stop_at", [1, 2, 5])
def test_a_resumed_run_equals_an_uninterrupted_one_in_either_phase(
    coco: Coco, tmp_path: Path, stop_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dsl.engine import train as engine

    sets = data(coco)
    adaptive = {"teaching__thresholds": "paper"}
    run(*sets, tmp_path / "whole", **adaptive)
    original, done = engine._step, 0

    def stopping(*arguments: Any, **options: Any) -> Any:
        nonlocal done
        done += 1
        if done == stop_at:
            os.kill(os.getpid(), signal.SIGINT)
        return original(*arguments, **options)

    monkeypatch.setattr(engine, "_step", stopping)
    assert not run(*sets, tmp_path / "parts", **adaptive).finished
    monkeypatch.undo()
    assert dsl.resume(tmp_path / "parts").finished
    assert_same_state(tmp_path / "whole", tmp_path / "parts")


def test_labels_of_the_unlabeled_set_reach_no_weight(coco: Coco, tmp_path: Path) -> None:
    labeled, unlabeled = data(coco)
    run(labeled, unlabeled, tmp_path / "with")
    content = json.loads(unlabeled.read_text())
    bare = unlabeled.with_name("bare.json")
    del content["annotations"]
    bare.write_text(json.dumps(content))
    run(labeled, bare, tmp_path / "without")
    assert_same_state(tmp_path / "with", tmp_path / "without")
    assert "recall" in lines(tmp_path / "with", "teaching")[0]
    assert "recall" not in lines(tmp_path / "without", "teaching")[0]


def test_the_unlabeled_images_matter(coco: Coco, tmp_path: Path) -> None:
    """The counterpart of the test above: other images do change the weights."""
    labeled, unlabeled = data(coco)
    run(labeled, unlabeled, tmp_path / "one")
    run(labeled, coco(count=12, name="others", seed=2), tmp_path / "two")
    with pytest.raises(AssertionError):
        assert_same_state(tmp_path / "one", tmp_path / "two")


def test_a_plain_folder_serves_as_unlabeled(coco: Coco, tmp_path: Path) -> None:
    labeled, unlabeled = data(coco)
    assert run(labeled, unlabeled.parent / "images", tmp_path / "run").finished


def test_dsl_without_unlabeled_images_is_refused(coco: Coco, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--unlabeled"):
        dsl.train(coco(count=8), out=tmp_path / "run", method="dsl", recipe="tiny")
    assert not (tmp_path / "run").exists()


def test_time_based_runs_burn_in_too(coco: Coco, tmp_path: Path) -> None:
    labeled, unlabeled = data(coco)
    outcome = run(
        labeled, unlabeled, tmp_path / "run", run__steps=None, run__seconds=6, run__save_every=100,
        run__eval_every=None,
    )  # fmt: skip
    assert outcome.finished
    assert bool(state_of(tmp_path / "run")["started"])


def test_two_processes_teach_together(coco: Coco, tmp_path: Path) -> None:
    labeled, unlabeled = data(coco)
    settings = [
        f"--set={key}={json.dumps(value)}"
        for key, value in {**SETTINGS, "teaching.thresholds": "paper"}.items()
    ]
    command = [
        sys.executable, "-m", "dsl", "train", "--labeled", str(labeled), "--val", str(labeled),
        "--unlabeled", str(unlabeled), "--out", str(tmp_path / "run"), "--preset", "tiny",
        "--devices", "2", "--device", "cpu", *settings,
    ]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MASTER_PORT": "29519"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(state_of(tmp_path / "run")["policy.cursor"]) == 6 * 4 % 10  # of all ranks
    [taught] = lines(tmp_path / "run", "teaching")
    assert taught["images"] == 6 * 4
