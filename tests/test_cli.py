"""The command line as a user meets it: whole commands, and every kind of bad input.

Bad input is one line on stderr, exit code 2, no traceback, and no run folder.
"""

import copy
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from dsl import cli
from dsl.cli.train import seconds_of
from dsl.errors import UserError

Coco = Callable[..., Path]
QUICK = [
    "--preset", "tiny", "--steps", "2", "--device", "cpu", "--set", "optim.batch=2",
    "--set", "views.short_sides=[64]", "--set", "views.test_short_side=64",
    "--set", "run.workers=0", "--set", "run.precision=fp32",
]  # fmt: skip


class Result:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def dsl(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Result]:
    def call(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["dsl", *(str(a) for a in arguments)])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        captured = capsys.readouterr()
        return Result(int(exit_.value.code or 0), captured.out, captured.err)

    return call


def refused(result: Result, *mentions: str) -> None:
    """One clear line, exit code 2."""
    assert result.code == 2, result.out + result.err
    lines = result.err.strip().splitlines()
    assert len(lines) == 1, result.err
    assert lines[0].startswith("dsl: error: ")
    assert "Traceback" not in result.err
    for mention in mentions:
        assert mention in lines[0], lines[0]


# What works


def test_train_eval_predict_and_load(
    dsl: Callable[..., Result], coco: Coco, tmp_path: Path
) -> None:
    data, run = coco(count=20), tmp_path / "run"
    trained = dsl("train", "--labeled", data, "--out", run, *QUICK)
    assert trained.code == 0, trained.err
    assert "2 of the labeled images are held out" in trained.out
    measured = dsl("eval", run / "best.pt", data, "--voc", "--json", tmp_path / "m.json")
    assert measured.code == 0, measured.err
    for word in ("AP50", "AP small", "AR 100", "square", "11 points"):
        assert word in measured.out
    metrics = json.loads((tmp_path / "m.json").read_text())
    assert set(metrics) >= {"ap", "ap50", "per_class", "thresholds", "voc"}
    assert torch.load(run / "best.pt", weights_only=True)["thresholds"] == metrics["thresholds"]
    images = tmp_path / "data" / "images"
    found = dsl("predict", run / "best.pt", images, "--out", tmp_path / "p", "--threshold", "0")
    assert found.code == 0, found.err
    content = json.loads((tmp_path / "p" / "detections.json").read_text())
    assert len(content["images"]) == 20
    assert {c["name"] for c in content["categories"]} == {"square", "bar"}
    drawn = list((tmp_path / "p" / "images").iterdir())
    assert len(drawn) == 20
    assert all(Image.open(file).size[0] >= 96 for file in drawn)
    again = dsl("predict", run / "best.pt", images, "--out", tmp_path / "p")
    refused(again, "exists already")


def test_globs_name_images_too(dsl: Callable[..., Result], coco: Coco, tmp_path: Path) -> None:
    dsl("train", "--labeled", coco(count=20), "--out", tmp_path / "run", *QUICK)
    glob = tmp_path / "data" / "images" / "*_00*.png"
    dsl("predict", tmp_path / "run" / "best.pt", glob, "--out", tmp_path / "p", "--threshold", 0)
    content = json.loads((tmp_path / "p" / "detections.json").read_text())
    assert len(content["images"]) == 9


def test_scenes_are_written_and_trained_on(dsl: Callable[..., Result], tmp_path: Path) -> None:
    made = dsl("data", "scenes", tmp_path / "s", "--train", 6, "--val", 2, "--test", 2)
    assert made.code == 0, made.err
    trained = dsl(
        "train", "--labeled", tmp_path / "s" / "train.json", "--val", tmp_path / "s" / "val.json",
        "--out", tmp_path / "run", "--no-flip", *QUICK,
    )  # fmt: skip
    assert trained.code == 0, trained.err
    assert json.loads((tmp_path / "run" / "config.json").read_text())["views"]["flip"] is False


def test_resume_finishes_a_finished_run_without_harm(
    dsl: Callable[..., Result], coco: Coco, tmp_path: Path
) -> None:
    dsl("train", "--labeled", coco(count=20), "--out", tmp_path / "run", *QUICK)
    again = dsl("train", "--resume", tmp_path / "run")
    assert again.code == 0, again.err
    refused(dsl("train", "--resume", tmp_path / "run", "--labeled", "x"), "--labeled")


@pytest.mark.parametrize("command", [[], ["train"], ["eval"], ["predict"], ["data", "scenes"]])
def test_help_teaches(dsl: Callable[..., Result], command: list[str]) -> None:
    shown = dsl(*command, "--help")
    assert shown.code == 0
    assert "dsl" in shown.out
    if command:
        assert f"dsl {' '.join(command)} " in shown.out  # an example


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("30m", 1800), ("2h", 7200), ("1h30m", 5400)]
)
def test_times_are_understood(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "0", "2d", "-5m", "h"])
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="--time"):
        seconds_of(text)


# What does not

Change = Callable[[dict[str, Any]], object]


BAD_JSON: dict[str, Change | str] = {
    "cut in the middle": "cut",
    "not JSON": "hello",
    "a list at the top": "[1, 2]",
    "an empty object": "{}",
    "no bbox": lambda d: d["annotations"][0].pop("bbox"),
    "bbox a string": lambda d: d["annotations"][0].update(bbox="1,2,3,4"),
    "bbox of three": lambda d: d["annotations"][0].update(bbox=[1, 2, 3]),
    "bbox NaN": lambda d: d["annotations"][0].update(bbox=[1, 2, float("nan"), 4]),
    "bbox infinite": lambda d: d["annotations"][0].update(bbox=[1, 2, float("inf"), 4]),
    "bbox absurd": lambda d: d["annotations"][0].update(bbox=[1, 2, 1e12, 4]),
    "bbox negative": lambda d: d["annotations"][0].update(bbox=[1, 2, -3, 4]),
    "unknown category": lambda d: d["annotations"][0].update(category_id=77),
    "unknown image": lambda d: d["annotations"][0].update(image_id=7777),
    "two images with one id": lambda d: d["images"].append(copy.copy(d["images"][0])),
    "two categories with one id": lambda d: d["categories"].append({"id": 1, "name": "other"}),
    "every image absent": lambda d: [
        i.update(file_name="no" + i["file_name"]) for i in d["images"]
    ],
    "a path out of the root": lambda d: d["images"][0].update(file_name="../../../etc/passwd"),
    "an absolute path": lambda d: d["images"][0].update(file_name="/etc/passwd"),
    "many absent images": lambda d: [
        i.update(file_name="no" + i["file_name"]) for i in d["images"][:4]
    ],
    "many zero-size boxes": lambda d: [a["bbox"].__setitem__(2, 0) for a in d["annotations"][:4]],
}


@pytest.mark.parametrize("fault", BAD_JSON)
@pytest.mark.parametrize("role", ["--labeled", "--val"])
def test_bad_annotation_files_are_refused(
    dsl: Callable[..., Result], coco: Coco, tmp_path: Path, fault: str, role: str
) -> None:
    good, bad = coco(count=20), coco(count=20, name="bad")
    change, text = BAD_JSON[fault], bad.read_text()
    if change == "cut":
        bad.write_text(text[: len(text) // 2])
    elif isinstance(change, str):
        bad.write_text(change)
    else:
        content = json.loads(text)
        change(content)
        bad.write_text(json.dumps(content))
    paths = {"--labeled": good, "--val": good, role: bad}
    arguments = [part for pair in paths.items() for part in pair]
    result = dsl("train", *arguments, "--out", tmp_path / "run", *QUICK)
    refused(result, "bad.json" if "absent" not in fault else "bad")
    assert not (tmp_path / "run").exists()


def test_a_few_bad_boxes_and_images_are_dropped_and_named(
    dsl: Callable[..., Result], coco: Coco, tmp_path: Path
) -> None:
    data = coco(count=20)
    content = json.loads(data.read_text())
    content["annotations"][0]["bbox"][2] = 0
    data.write_text(json.dumps(content))
    (tmp_path / "data" / "images" / "train_003.png").unlink()
    (tmp_path / "data" / "images" / "train_005.png").write_bytes(b"broken")
    result = dsl("train", "--labeled", data, "--out", tmp_path / "run", *QUICK)
    assert result.code == 0, result.err
    assert "18 images" in result.out
    text = " ".join(result.out.split())
    for word in ("train_003.png", "train_005.png", "no area"):
        assert word in text


@pytest.mark.parametrize(
    ("make", "mention"),
    [
        (lambda p: p / "nowhere.json", "nowhere.json"),
        (lambda p: (p / "empty").mkdir() or p / "empty", "empty"),
        (lambda p: p / "data" / "images", "no labels"),
    ],
)
def test_missing_empty_and_unlabeled_paths(
    dsl: Callable[..., Result], coco: Coco, tmp_path: Path, make: Callable, mention: str
) -> None:
    coco(count=5)
    result = dsl("train", "--labeled", make(tmp_path), "--out", tmp_path / "run", *QUICK)
    refused(result, mention)
    assert not (tmp_path / "run").exists()


def test_classes_that_differ_are_refused_and_reordered_ones_are_not(
    dsl: Callable[..., Result], coco: Coco, tmp_path: Path
) -> None:
    data = coco(count=10)
    other = coco(count=10, name="other", classes=("square", "disc"))
    refused(
        dsl("train", "--labeled", data, "--val", other, "--out", tmp_path / "run", *QUICK), "disc"
    )
    content = json.loads(coco(count=10, name="swapped").read_text())
    content["categories"] = [{"id": 1, "name": "bar"}, {"id": 2, "name": "square"}]
    swapped = tmp_path / "data" / "swapped.json"
    swapped.write_text(json.dumps(content))
    result = dsl("train", "--labeled", data, "--val", swapped, "--out", tmp_path / "run", *QUICK)
    assert result.code == 0, result.err


@pytest.mark.parametrize(
    ("arguments", "mentions"),
    [
        (["--stepz", "3"], ["--stepz", "--steps"]),
        (["--set", "optim.lrr=1"], ["optim.lrr", "optim.lr"]),
        (["--set", "optim.lr=-1"], ["optim.lr"]),
        (["--preset", "smal"], ["smal", "small"]),
        (["--steps", "many"], ["--steps"]),
        (["--steps", "0"], ["steps"]),
        (["--time", "soon"], ["--time", "soon"]),
        (["--set", "model.backbone=resnet19"], ["resnet19"]),
        (["--set", "model.weights=/no/such.pth"], ["/no/such.pth"]),
        (["--init", "/no/such.pt"], ["/no/such.pt"]),
        (["--device", "tpu9"], ["tpu9"]),
        (["--device", "mps"], ["mps"]),
    ],
)
def test_wrong_options_are_refused(
    dsl: Callable[..., Result],
    coco: Coco,
    tmp_path: Path,
    arguments: list[str],
    mentions: list[str],
) -> None:
    data = coco(count=10)
    base = ["train", "--labeled", data, "--out", tmp_path / "run"]
    quick = [] if "--preset" in arguments else QUICK
    refused(dsl(*base, *quick, *arguments), *mentions)
    assert not (tmp_path / "run").exists()


def test_a_weight_file_that_is_none_or_of_another_model_is_refused(
    dsl: Callable[..., Result], coco: Coco, tmp_path: Path
) -> None:
    data = coco(count=10)
    (tmp_path / "junk.pth").write_bytes(b"junk")
    torch.save({"fc.weight": torch.ones(2)}, tmp_path / "other.pth")
    for name in ("junk.pth", "other.pth"):
        result = dsl(
            "train", "--labeled", data, "--out", tmp_path / "run", *QUICK,
            "--set", f"model.weights={tmp_path / name}",
        )  # fmt: skip
        refused(result, name)


@pytest.mark.parametrize("command", ["eval", "predict", "train"])
def test_corrupt_and_foreign_checkpoints_are_refused(
    dsl: Callable[..., Result], coco: Coco, tmp_path: Path, command: str
) -> None:
    data = coco(count=5)
    torch.save({"weights": torch.ones(2)}, tmp_path / "foreign.pt")
    (tmp_path / "corrupt.pt").write_bytes(b"PK\x03\x04 and then nothing")
    for name in ("foreign.pt", "corrupt.pt", "absent.pt"):
        path = tmp_path / name
        rest = {
            "eval": [path, data],
            "predict": [path, tmp_path / "data"],
            "train": ["--resume", path],
        }
        refused(dsl(command, *rest[command]), name)


def test_predicting_nothing_is_refused(
    dsl: Callable[..., Result], coco: Coco, tmp_path: Path
) -> None:
    dsl("train", "--labeled", coco(count=10), "--out", tmp_path / "run", *QUICK)
    best = tmp_path / "run" / "best.pt"
    refused(dsl("predict", best, tmp_path / "none.jpg"), "none.jpg")
    (tmp_path / "void").mkdir()
    refused(dsl("predict", best, tmp_path / "void"), "void")
    (tmp_path / "void" / "x.jpg").write_bytes(b"junk")
    refused(dsl("predict", best, tmp_path / "void"), "x.jpg")


def test_a_full_disk_or_forbidden_place_is_one_line(
    dsl: Callable[..., Result], coco: Coco, tmp_path: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("a file, not a folder")
    refused(
        dsl("train", "--labeled", coco(count=10), "--out", blocked / "run", *QUICK), str(blocked)
    )


def test_sigterm_saves_and_the_exit_code_says_resume_me(
    dsl: Callable[..., Result], coco: Coco, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dsl.engine import train as engine

    original = engine._step

    def told_to_go(*arguments: Any, **options: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return original(*arguments, **options)

    monkeypatch.setattr(engine, "_step", told_to_go)
    result = dsl("train", "--labeled", coco(count=8), "--out", tmp_path / "run", *QUICK)
    assert result.code == 75, result.err
    assert f"stopped at step 1 and saved; go on with: dsl train --resume {tmp_path}" in result.out
    assert "exit code 75" in result.out
    assert "75" in dsl("train", "--help").out
    monkeypatch.setattr(engine, "_step", original)
    assert dsl("train", "--resume", tmp_path / "run").code == 0
