"""Whole runs on a tiny set: the folder, resuming, stopping, other starts, two processes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision

import dsl
import dsl.config
import dsl.training
from dsl.engine.checkpoint import load_checkpoint
from dsl.errors import UserError

Coco = Callable[..., Path]
TINY: dict[str, Any] = {
    "views.short_sides": [64], "views.test_short_side": 64, "views.max_side": 96,
    "optim.batch": 4, "run.steps": 6, "run.workers": 0, "run.precision": "fp32",
    "run.device": "cpu", "views.labeled": "strong",
}  # fmt: skip


def run(labeled: Path, out: Path, **settings: Any) -> dsl.training.Outcome:
    overrides = TINY | {key.replace("__", "."): value for key, value in settings.items()}
    return dsl.train(labeled, out=out, recipe="tiny", settings=overrides)


def lines(folder: Path, kind: str) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [record for record in records if record["kind"] == kind]


def equal_weights(one: Path, other: Path) -> bool:
    a, b = (load_checkpoint(p / "last.pt") for p in (one, other))
    assert a.training is not None
    assert b.training is not None
    first, second = a.training["method"], b.training["method"]
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def test_a_report_that_cannot_be_written_does_not_end_the_training(
    coco: Coco, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def fail(path: Path, _: object) -> None:
        tried.append(path.name)
        raise OSError("disk full")

    monkeypatch.setattr("dsl.training.write_report", fail)
    assert run(coco(count=20), tmp_path / "run").finished
    assert set(tried) == {"report.html"}


def test_a_run_folder_holds_everything(coco: Coco, tmp_path: Path) -> None:
    outcome = run(coco(count=20), tmp_path / "run", run__eval_every=3)
    folder = tmp_path / "run"
    assert outcome.finished
    names = {f.name for f in folder.iterdir()}
    assert names == {
        "config.json", "environment.json", "log.jsonl", "tensorboard", "last.pt", "best.pt",
        "results.json", "report.html",
    }  # fmt: skip
    config = json.loads((folder / "config.json").read_text())
    assert config["views"]["short_sides"] == [64]
    results = json.loads((folder / "results.json").read_text())
    assert results["step"] == 6
    assert results["val"]["ap"] == outcome.metrics["ap"]
    assert [r["step"] for r in lines(folder, "val")] == [3, 6]
    assert lines(folder, "train")[-1]["step"] == 6
    best = load_checkpoint(folder / "best.pt")
    assert best.training is None
    assert best.classes == ("square", "bar")
    assert len(best.thresholds or ()) == 2
    assert list((folder / "tensorboard").iterdir())


def test_it_learns(coco: Coco, tmp_path: Path) -> None:
    """Bright rectangles must be found after a minute; a broken target or decoder would not."""
    train, val = coco(count=40), coco(count=10, name="val", seed=9)
    settings = TINY | {"run.steps": 120, "optim.batch": 8, "views.labeled": "weak"}
    outcome = dsl.train(
        train,
        out=tmp_path / "run",
        val=val,
        recipe="tiny",
        settings=settings | {"views.flip": False},
    )
    assert outcome.metrics["ap50"] > 0.6
    model = dsl.load(tmp_path / "run" / "best.pt", device="cpu")
    image = sorted((tmp_path / "data" / "images").glob("val_*.png"))[0]
    [found] = model(image)
    truth = json.loads(val.read_text())
    boxes = [a["bbox"] for a in truth["annotations"] if a["image_id"] == 1]
    best = torchvision.ops.box_iou(
        found.boxes, torch.tensor([[x, y, x + w, y + h] for x, y, w, h in boxes], dtype=torch.float)
    )
    assert best.max(dim=0).values.min() > 0.5


def test_ctrl_c_in_a_terminal_saves_and_says_how_to_go_on(coco: Coco, tmp_path: Path) -> None:
    """The terminal signals the whole process group, loader workers too."""
    out = tmp_path / "run"
    settings = TINY | {"run.steps": 100000, "run.workers": 1}
    command = [sys.executable, "-m", "dsl", "train", "--preset", "tiny", "--labeled"]
    command += [str(coco(count=20)), "--out", str(out)]
    command += [f"--set={key}={json.dumps(value)}" for key, value in settings.items()]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    while not (out / "log.jsonl").exists() or not lines(out, "train"):
        time.sleep(0.2)
        assert process.poll() is None, process.communicate()
    os.killpg(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    assert "Traceback" not in stderr
    assert f"dsl train --resume {out}" in stdout
    checkpoint = load_checkpoint(out / "last.pt")
    assert checkpoint.training is not None
    assert checkpoint.training["step"] >= 10


def test_a_validation_set_without_objects_is_no_obstacle(coco: Coco, tmp_path: Path) -> None:
    val = coco(count=3, name="val")
    content = json.loads(val.read_text())
    val.write_text(json.dumps(content | {"annotations": []}))
    outcome = dsl.train(coco(count=10), out=tmp_path / "run", val=val, recipe="tiny", settings=TINY)
    assert outcome.finished
    assert (tmp_path / "run" / "best.pt").exists()


def test_best_survives_a_resume(coco: Coco, tmp_path: Path) -> None:
    run(coco(count=20), tmp_path / "run", run__eval_every=2)
    saved = load_checkpoint(tmp_path / "run" / "last.pt")
    best = max(record["ap"] for record in lines(tmp_path / "run", "val"))
    assert saved.training is not None
    assert saved.training["best"] == pytest.approx(best)
    assert saved.thresholds is not None


@pytest.mark.parametrize("stop_at", [2, 5])
def test_a_resumed_run_equals_an_uninterrupted_one(
    coco: Coco, tmp_path: Path, stop_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = coco(count=20)
    run(data, tmp_path / "whole", run__save_every=1)

    from dsl.engine import train as engine

    original = engine._step
    done = 0

    def stopping(*arguments: Any, **options: Any) -> Any:
        nonlocal done
        done += 1
        if done == stop_at:
            os.kill(os.getpid(), signal.SIGINT)  # as Ctrl-C does
        return original(*arguments, **options)

    monkeypatch.setattr(engine, "_step", stopping)
    stopped = run(data, tmp_path / "parts", run__save_every=1)
    assert not stopped.finished
    assert stopped.position.step == stop_at
    monkeypatch.undo()
    resumed = dsl.resume(tmp_path / "parts")
    assert resumed.finished
    assert equal_weights(tmp_path / "whole", tmp_path / "parts")
    # The loss of every step after the resume is that of the whole run.
    assert lines(tmp_path / "whole", "val")[-1]["ap"] == lines(tmp_path / "parts", "val")[-1]["ap"]


def test_seeds_differ_and_repeat(coco: Coco, tmp_path: Path) -> None:
    data = coco(count=20)
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        run(data, tmp_path / name, run__seed=seed, run__steps=2)
    assert equal_weights(tmp_path / "a", tmp_path / "b")
    assert not equal_weights(tmp_path / "a", tmp_path / "c")


def test_resume_refuses_changed_data_and_foreign_files(coco: Coco, tmp_path: Path) -> None:
    data = coco(count=20)
    run(data, tmp_path / "run", run__steps=2)
    with pytest.raises(UserError, match=r"use last\.pt"):
        dsl.resume(tmp_path / "run" / "best.pt")
    (tmp_path / "run" / "junk.pt").write_bytes(b"junk")
    with pytest.raises(UserError, match=r"junk\.pt"):
        dsl.resume(tmp_path / "run" / "junk.pt")
    coco(count=21)
    with pytest.raises(UserError, match="data sets changed"):
        dsl.resume(tmp_path / "run")


def test_an_existing_folder_is_not_overwritten(coco: Coco, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("precious")
    with pytest.raises(UserError, match="exists already"):
        run(coco(count=20), tmp_path / "run")
    assert [f.name for f in (tmp_path / "run").iterdir()] == ["mine.txt"]


def test_accumulation_gives_the_same_gradient_up_to_the_normaliser(
    coco: Coco, tmp_path: Path
) -> None:
    data = coco(count=20)
    for parts in (1, 2):
        run(data, tmp_path / str(parts), run__steps=1, optim__accumulate=parts)
    one, two = (lines(tmp_path / str(p), "train")[-1]["loss"] for p in (1, 2))
    assert one == pytest.approx(two, rel=0.2)
    with pytest.raises(UserError, match="multiple of 3"):
        run(data, tmp_path / "3", optim__accumulate=3)


def test_time_is_a_length_too(coco: Coco, tmp_path: Path) -> None:
    began = time.monotonic()
    outcome = run(coco(count=20), tmp_path / "run", run__seconds=3.0, run__steps=None)
    assert outcome.finished
    assert outcome.position.seconds >= 3
    assert outcome.position.step >= 1
    assert time.monotonic() - began < 60
    rates = [r["lr"] for r in lines(tmp_path / "run", "train")]
    assert rates[-1] < max(rates) or len(rates) == 1


def test_epochs_are_passes_over_the_set(coco: Coco, tmp_path: Path) -> None:
    outcome = run(coco(count=20), tmp_path / "run", run__epochs=1.0, run__steps=None)
    assert outcome.position.step == round(18 / 4)  # a tenth is held out


def test_init_starts_from_a_detector_with_other_classes(coco: Coco, tmp_path: Path) -> None:
    run(coco(count=20), tmp_path / "first", run__steps=2)
    other = coco(count=20, name="other", classes=("a", "b"))
    settings = TINY | {"run.steps": 1, "optim.lr": 1e-12, "optim.keep_rate": 0}
    dsl.train(
        other, out=tmp_path / "second", recipe="tiny", settings=settings,
        init=tmp_path / "first" / "best.pt",
    )  # fmt: skip
    first, second = (load_checkpoint(tmp_path / n / "best.pt").weights for n in ("first", "second"))
    torch.testing.assert_close(first["fpn.p6.weight"], second["fpn.p6.weight"])
    with pytest.raises(UserError, match="not of this architecture"):
        dsl.train(
            other, out=tmp_path / "third", recipe="tiny",
            settings=settings | {"model.backbone": "resnet34"},
            init=tmp_path / "first" / "best.pt",
        )  # fmt: skip


def test_two_processes_train_together(coco: Coco, tmp_path: Path) -> None:
    """Two processes draw what one would, and end with one checkpoint and one log."""
    data, out = coco(count=20), tmp_path / "run"
    settings = [f"--set={key}={json.dumps(value)}" for key, value in TINY.items()]
    command = [
        sys.executable, "-m", "dsl", "train", "--labeled", str(data), "--out", str(out),
        "--preset", "tiny", "--devices", "2", "--device", "cpu", *settings,
    ]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MASTER_PORT": "29517"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("done:") == 1
    assert json.loads((out / "environment.json").read_text())["processes"] == 2
    train = lines(out, "train")
    assert train[-1]["step"] == 6
    assert train[-1]["images"] == 4
    single = run(data, tmp_path / "single")
    one = lines(tmp_path / "single", "train")[0]
    assert single.finished
    # BatchNorm sees half the batch on each rank, so only the first losses can be close.
    assert train[0]["loss"] == pytest.approx(one["loss"], rel=0.1)


@pytest.mark.parametrize("recipe", dsl.config.shipped_recipes())
def test_every_recipe_builds_its_model_and_method(recipe: str) -> None:
    from dsl.compose import build_detector, build_method, build_optimizer_of, settings_of
    from dsl.config import load_config
    from dsl.engine.train import Length

    config = load_config(recipe, {"teaching.metanet_weights": "none"})  # some cannot be had offline
    method = build_method(config, build_detector(config, 5, restored=True))
    assert build_optimizer_of(config, method).param_groups
    assert settings_of(config, Length(steps=10)).schedule(0.0, 0) > 0


@pytest.mark.parametrize("weights", ["auto", "none"])
def test_a_pretrained_backbone_learns_at_its_own_rate(weights: str) -> None:
    """What aggregation adds to it is new, and learns like the head."""
    from dsl.compose import build_detector, build_method, build_optimizer_of
    from dsl.config import load_config

    config = load_config(
        "small",
        {"model.aggregation": "concat", "model.weights": weights, "optim.backbone_lr_factor": 0.25},
    )
    student = build_detector(config, 5, restored=True)
    groups = build_optimizer_of(config, build_method(config, student)).param_groups
    rates = {id(p): group["lr"] for group in groups for p in group["params"]}
    trained = {name: p for name, p in student.named_parameters() if p.requires_grad}
    assert len(rates) == len(trained)
    for name, parameter in trained.items():
        old = name.startswith("backbone.net.")
        assert old or name.startswith(("backbone.aggregation.", "fpn.", "head.")), name
        expected = config.optim.lr * (0.25 if old and weights == "auto" else 1)
        assert rates[id(parameter)] == pytest.approx(expected), name
