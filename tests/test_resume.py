"""Exact resume: whatever kills a run, wherever, it ends as if nothing had happened."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import dsl
from dsl.engine import train as engine
from dsl.engine.checkpoint import load_checkpoint, save_checkpoint
from dsl.training import Training

Coco = Callable[..., Path]
SWITCH = 2  # steps of burn-in
SETTINGS: dict[str, Any] = {
    "run.steps": 7, "run.eval_every": 3, "run.save_every": 2, "run.workers": 0, "optim.batch": 2,
    "run.precision": "fp32", "model.backbone": "resnet10t_half", "views.short_sides": [48, 64],
    "views.test_short_side": 64, "views.max_side": 96, "teaching.burn_in": SWITCH / 7,
    "teaching.metanet": "detector", "teaching.metanet_crop": 32, "teaching.window": 10,
}  # fmt: skip


class Killed(BaseException):
    """Nothing in the program catches it, as nothing can catch SIGKILL."""


def train(coco: Coco, out: Path, **settings: Any) -> dsl.training.Outcome:
    labeled = coco(count=6, name="labeled")
    return dsl.train(
        labeled, unlabeled=coco(count=5, name="unlabeled", seed=1), val=labeled, out=out,
        recipe="tiny", settings=SETTINGS | settings,
    )  # fmt: skip


@contextmanager
def killed_in(owner: Any, name: str, *, call: int) -> Iterator[None]:
    """The process dies at the end of this call."""
    original, calls = getattr(owner, name), 0

    def dying(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        result = original(*arguments, **options)
        if calls == call:
            raise Killed
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, dying)
        with pytest.raises(Killed):
            yield


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Everything that a training state holds, by its path."""
    if isinstance(value, dict):
        return {k: v for key, part in value.items() for k, v in flat(part, f"{path}/{key}").items()}
    if isinstance(value, list):
        return flat(dict(enumerate(value)), path)
    return {path: value}


def assert_same_run(one: Path, other: Path) -> None:
    states = [flat(dict(load_checkpoint(p / "last.pt").training or {})) for p in (one, other)]
    assert states[0].keys() == states[1].keys()
    # Clocks differ, and with them the number of digits in the log.
    for name in states[0].keys() - {"/seconds", "/log"}:
        left, right = states[0][name], states[1][name]
        same = torch.equal(left, right) if isinstance(left, torch.Tensor) else left == right
        assert same, name
    weights = [load_checkpoint(p / "best.pt").weights for p in (one, other)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    results = [json.loads((p / "results.json").read_text()) for p in (one, other)]
    assert results[0] | {"seconds": 0} == results[1] | {"seconds": 0}


def lines(folder: Path) -> list[tuple[int, str]]:
    records = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [(record["step"], record["kind"]) for record in records]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing happened to."""
    from conftest import write_coco

    folder = tmp_path_factory.mktemp("whole")
    train(lambda **options: write_coco(folder / "data", **options), folder / "run")
    return folder / "run"


@pytest.mark.parametrize("step", [SWITCH, SWITCH + 1, 7])
def test_killed_at_any_step(coco: Coco, tmp_path: Path, whole: Path, step: int) -> None:
    """The step is done, but neither saved nor logged; saves are two steps apart."""
    out = tmp_path / "run"
    with killed_in(engine, "_step", call=step):
        train(coco, out)
    saved = load_checkpoint(out / "last.pt")
    assert saved.training is not None
    assert step - saved.training["step"] in (1, 2)
    workers = saved.settings["run"] | {"workers": 1}  # another number than before
    settings = saved.settings | {"run": workers}
    save_checkpoint(out / "last.pt", replace(saved, settings=settings))
    assert dsl.resume(out).finished
    assert_same_run(whole, out)
    kinds = {"val", "val_student", "val_burn_in"}
    assert [x for x in lines(out) if x[1] in kinds] == [x for x in lines(whole) if x[1] in kinds]


@pytest.mark.parametrize("call", [1, 4])
def test_killed_in_an_evaluation(coco: Coco, tmp_path: Path, whole: Path, call: int) -> None:
    """That of the burn-in, and the last one."""
    out = tmp_path / "run"
    with killed_in(Training, "_evaluate", call=call):
        train(coco, out)
    assert dsl.resume(out).finished
    assert_same_run(whole, out)


def test_killed_while_accumulating(coco: Coco, tmp_path: Path) -> None:
    train(coco, tmp_path / "whole", **{"optim.accumulate": 2})
    with killed_in(engine, "_gradients", call=4):
        train(coco, tmp_path / "run", **{"optim.accumulate": 2})
    assert dsl.resume(tmp_path / "run").finished
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_a_finished_run_that_is_resumed_changes_nothing(whole: Path) -> None:
    before = (whole / "results.json").read_text(), (whole / "log.jsonl").read_text()
    assert dsl.resume(whole).finished
    assert before == ((whole / "results.json").read_text(), (whole / "log.jsonl").read_text())


def test_a_start_that_was_killed_does_not_block_the_folder(coco: Coco, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".last.pt.abc.partial").write_bytes(b"half")
    train(coco, tmp_path / "run", **{"run.steps": 1})
    assert not list((tmp_path / "run").glob(".*"))


def test_the_burn_in_is_a_candidate_and_the_summary_is_in_the_results(whole: Path) -> None:
    results = json.loads((whole / "results.json").read_text())
    assert results["best_val_ap"] >= results["burn_in_val_ap"]
    assert results["gained_val_ap"] == results["best_val_ap"] - results["burn_in_val_ap"]
    assert results["skipped_steps"] == 0
    assert (SWITCH, "val_burn_in") in lines(whole)


def test_out_of_memory_is_a_setting_afterwards(
    coco: Coco, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dsl.methods.dsl import DSL

    original = DSL.forward

    def hungry(self: DSL, batch: Any) -> Any:
        if batch.num_images > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return original(self, batch)

    monkeypatch.setattr(DSL, "forward", hungry)
    small = {"run.steps": 3, "run.eval_every": 100}
    assert train(coco, tmp_path / "run", **small).finished
    assert load_checkpoint(tmp_path / "run" / "last.pt").settings["optim"]["accumulate"] == 2
    monkeypatch.undo()
    # From the burn-in on there are twice as many images in a step: it goes in two parts.
    taken = [json.loads(x) for x in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [x["images"] for x in taken if x["kind"] == "train"] == [4]
    dsl.resume(tmp_path / "run")


def test_a_huge_alpha_and_bad_losses_end_finite(
    coco: Coco, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alpha 50, and the scale loss is infinite in three steps in a row: alpha is halved."""
    from dsl.methods import dsl as module

    original, calls = module.scale_consistency, 0

    def bad(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        total, count = original(*arguments, **options)
        return total * (float("inf") if calls in (2, 3, 4) else 1), count

    monkeypatch.setattr(module, "scale_consistency", bad)
    assert train(coco, tmp_path / "run", **{"teaching.unlabeled_weight": 50.0}).finished
    training = load_checkpoint(tmp_path / "run" / "last.pt").training or {}
    state = training["method"]
    assert all(bool(tensor.isfinite().all()) for tensor in state.values())
    assert float(state["trust"]) == 0.5
    assert training["guard"]["skipped"] == 3
    log = (tmp_path / "run" / "log.jsonl").read_text().splitlines()
    skipped = [x for x in map(json.loads, log) if x["kind"] == "skipped"]
    assert [x["step"] for x in skipped] == [4, 5, 6]
    assert "scale" in skipped[0]["causes"]
    assert len(skipped[0]["images"]) == 4
    assert skipped[0]["images"][0].startswith("labeled_")
    assert skipped[2]["action"] == "halved the weight of the unlabeled images, to 25"


def test_without_objects_to_find_it_says_that_it_cannot_watch(
    coco: Coco, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from rich.console import Console

    labeled = coco(count=6, name="labeled")
    content = json.loads(labeled.read_text())
    empty = labeled.with_name("empty.json")
    empty.write_text(json.dumps(content | {"annotations": []}))
    dsl.train(
        labeled, unlabeled=labeled.parent / "images", val=empty, out=tmp_path / "run",
        recipe="tiny", settings=SETTINGS | {"run.steps": 1}, console=Console(width=200),
    )  # fmt: skip
    assert "cannot watch" in capsys.readouterr().out
    assert json.loads((tmp_path / "run" / "results.json").read_text())["burn_in_val_ap"] is None
