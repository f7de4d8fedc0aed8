"""`dsl doctor` as a user meets it, and the doctor before a training."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

import dsl
from dsl import cli
from dsl.doctor.finding import Finding

Coco = Callable[..., Path]
Answer = tuple[int, str, str]
QUICK = ["--preset", "tiny", "--steps", "300", "--device", "cpu"]


@pytest.fixture
def doctor(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Answer]:
    def call(*arguments: object) -> Answer:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setattr(sys, "argv", ["dsl", "doctor", *(str(a) for a in arguments)])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        captured = capsys.readouterr()
        return int(exit_.value.code or 0), captured.out, captured.err

    return call


def test_warnings_are_shown_with_their_fix_and_errors_decide_the_exit_code(
    doctor: Callable[..., Answer], coco: Coco, tmp_path: Path
) -> None:
    labeled, report = coco(count=20), tmp_path / "report.json"
    arguments = ["--labeled", labeled, "--val", coco(name="val", seed=1), *QUICK]
    code, out, err = doctor(*arguments, "--set", "optim.batch=32", "--json", report)
    assert (code, err) == (0, "")
    assert "0 errors, 1 warnings" in out
    content = json.loads(report.read_text())
    [warning] = [f for f in content["findings"] if f["level"] == "warning"]
    assert warning["check"] == "batch"
    assert warning["fix"] == "--set optim.batch=20"
    assert content["counts"] == {"warning": 1, "error": 0}
    code, out, err = doctor(*arguments, "--json", report)
    assert code == 2
    assert "report.json" in err
    for image in (tmp_path / "data" / "images").iterdir():
        image.unlink()
    code, out, err = doctor(*arguments)
    assert (code, err) == (1, "")
    assert "2 errors" in out  # both sets are absent; the other checks went on
    assert "absent" in out


@pytest.mark.parametrize(
    ("arguments", "mention"),
    [(["--labeled", "nowhere.json"], "nowhere.json"), ([], "--labeled"),
     (["--labeled", "x.json", "--set", "optim.lrr=1"], "optim.lr")],
)  # fmt: skip
def test_bad_usage_is_one_line_and_2(
    doctor: Callable[..., Answer], arguments: list[str], mention: str
) -> None:
    code, _, err = doctor(*arguments)
    assert code == 2
    assert mention in err
    assert len(err.strip().splitlines()) == 1


def test_help_teaches(doctor: Callable[..., Answer]) -> None:
    code, out, _ = doctor("--help")
    assert code == 0
    assert "dsl doctor --labeled" in out


def test_a_training_warns_of_leaks_and_goes_on(
    coco: Coco, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    labeled = coco(count=20)
    settings = {
        "views.short_sides": [64], "views.test_short_side": 64, "optim.batch": 2, "run.steps": 1,
        "run.workers": 0, "run.precision": "fp32", "run.device": "cpu",
    }  # fmt: skip
    outcome = dsl.train(
        labeled, out=tmp_path / "run", val=labeled, recipe="tiny", settings=settings,
        console=Console(width=400),
    )  # fmt: skip
    assert outcome.finished
    shown = capsys.readouterr().out
    assert "warning: overlap: 20 of 20 val images also stand in labeled" in shown
    assert "warning: length: " in shown
    assert "mirror images" not in shown  # what is ok is not said


@pytest.mark.parametrize(("level", "fix"), [("grave", "x"), ("warning", ""), ("error", "")])
def test_a_finding_has_a_known_level_and_a_fix(level: str, fix: str) -> None:
    with pytest.raises(ValueError, match=r"level|fix"):
        Finding(level, "check", "message", fix)  # type: ignore[arg-type]
