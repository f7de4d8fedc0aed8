"""Run folders in every state in which one can meet them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from made_run import STEPS, make_run

from dsl.errors import UserError
from dsl.report.run_folder import read_run


def test_a_whole_run_is_read(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run"))
    assert (run.name, run.method, run.step, run.finished) == ("run", "dsl", 60, True)
    assert run.classes == ("cat", "dog")
    assert [point.losses["loss"] for point in run.train] == pytest.approx([0.1, 0.05, 2 / 60], 1e-4)
    assert [v.step for v in run.validations] == list(STEPS)
    assert run.validations[-1].student is not None
    assert run.validations[-1].student.ap == pytest.approx(0.5 * 60 / 70, abs=1e-5)
    [_, _, last] = run.teaching
    assert last.tau2 == pytest.approx({"cat": 0.4, "dog": 0.4})
    assert last.counts["foreground"].overall == 3
    assert last.precision is not None
    assert last.precision.overall == pytest.approx(7 / 9, abs=1e-5)
    assert last.histogram is not None
    assert sum(last.histogram.true_positive) == 7


def test_the_gallery_is_judged_box_by_box(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run"))
    assert [step.step for step in run.gallery] == list(STEPS)
    first, last = run.gallery[0].labels[0], run.gallery[-1].labels[0]
    assert [box.right for box in first.boxes] == [False, False, False, None, None]
    assert [box.part for box in first.boxes[3:]] == ["rejected", "ignored"]
    assert first.missed == (0, 1, 2)
    assert [box.right for box in last.boxes[:3]] == [True, True, False]
    assert last.missed == (2,)
    assert run.gallery[-1].labels[2].mistakes == 0
    assert first.mistakes > last.mistakes > 0


def test_without_truth_nothing_is_right_or_wrong(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run", truth=False))
    assert {box.right for step in run.gallery for label in step.labels for box in label.boxes} == {
        None
    }
    assert run.teaching[-1].precision is None
    assert run.teaching[-1].histogram is None


def test_a_run_that_has_just_begun(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    run = read_run(tmp_path)
    assert (run.step, run.seconds, run.classes, run.finished) == (0, 0.0, (), False)
    (tmp_path / "log.jsonl").write_text("")
    assert read_run(tmp_path).train == ()


def test_a_half_written_line_and_foreign_lines_are_passed_over(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", method="supervised")
    with (folder / "log.jsonl").open("a") as log:
        log.write('[1]\n{"kind": "later", "step": 70}\n{"kind": "train", "step": 80, "lo')
    assert read_run(folder).step == 60


def test_a_resumed_run_counts_its_later_lines(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    with (folder / "log.jsonl").open("a") as log:
        log.write(json.dumps({"kind": "train", "step": 40, "loss": 7.0, "seconds": 1}) + "\n")
    run = read_run(folder)
    assert [point.step for point in run.train] == [20, 40]
    assert run.train[-1].losses["loss"] == 7.0


def test_messages_become_notes(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    with (folder / "log.jsonl").open("a") as log:
        log.write(json.dumps({"kind": "unreadable", "step": 5, "message": "a.jpg: cut"}) + "\n")
    [note] = read_run(folder).notes
    assert (note.step, note.kind, note.message) == (5, "unreadable", "a.jpg: cut")


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such run folder"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"config\.json"):
        read_run(tmp_path)


def test_damaged_pictures_are_one_line(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    (folder / "views" / "views.json").write_text('[{"image": 1}]')
    with pytest.raises(UserError, match="damaged"):
        read_run(folder)


def test_picture_names_cannot_leave_the_folder(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    index = folder / "views" / "views.json"
    records = json.loads(index.read_text())
    records[0]["file"] = records[0]["strong"]["file"] = "../../secret.jpg"
    index.write_text(json.dumps(records))
    image = read_run(folder).images[0]
    assert image.file == folder / "views" / "secret.jpg"
    assert image.strong is not None
    assert image.strong.file == folder / "views" / "secret.jpg"


def test_reading_rendering_and_watching_need_no_torch() -> None:
    script = "import sys, dsl.watch, dsl.report.html; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
