"""`dsl bench` from plan to pages, with real (very short) trainings."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dsl.bench import cells as cells_module
from dsl.bench.cells import Arm, Dataset
from dsl.bench.run import digit_scenes, plan_of, run_bench
from dsl.data import scenes
from dsl.errors import UserError

QUIET = Console(quiet=True)
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def test_a_finished_cell_is_never_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(
        tmp_path, data=["digits"], methods=["supervised", "dsl"], percents=[50], seeds=5,
        quick=True,
    )  # fmt: skip
    assert plan.seeds == 1
    rows = run_bench(tmp_path, plan, console=QUIET, command="dsl bench x")
    assert [(row.arm, row.percent, len(row.cells)) for row in rows] == [
        ("supervised", 50, 1), ("dsl", 50, 1),
    ]  # fmt: skip
    assert {path.name for path in tmp_path.glob("results.*")} == {
        "results.json", "results.md", "results.png",
    }  # fmt: skip
    assert len(json.loads((tmp_path / "results.json").read_text())) == 2

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("trained a finished cell")

    monkeypatch.setattr(cells_module.api, "train", refuse)
    again = run_bench(tmp_path, plan, console=QUIET, command="dsl bench x")
    assert again == rows
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- bench digits -->\n<!-- end -->\n<!-- bench digits more -->\n<!-- end -->\n"
    )
    run_bench(tmp_path, plan, console=QUIET, command="dsl bench y", into=f"{page}#more")
    first, second = page.read_text().split("<!-- bench digits more -->")
    assert "dsl bench y" not in first
    assert "dsl bench y" in second
    monkeypatch.setattr(cells_module, "code_hash", lambda *_: "other code")
    with pytest.raises(AssertionError, match="trained a finished cell"):
        run_bench(tmp_path, plan, console=QUIET, command="dsl bench x")


def test_rows_of_the_same_settings_share_one_training(tmp_path: Path) -> None:
    dataset = Dataset("digits-more", "digits", digit_scenes(tmp_path, quick=True))
    runner = cells_module.Runner(tmp_path / "cells", tmp_path / "work", 2)
    [trained, other] = [
        Arm(name, percent=50, settings={"teaching.unlabeled_weight": weight})
        for name, weight in (("trained", 2), ("other", 1))
    ]
    cell = runner.cell(dataset, trained, 0, console=QUIET)
    twin = Arm("twin", percent=50, settings={"teaching.unlabeled_weight": 2})
    kept = runner.kept(dataset, twin, 0)
    assert kept is not None
    assert (kept.arm, kept.test_ap, kept.key) == ("twin", cell.test_ap, cell.key)
    assert runner.kept(dataset, other, 0) is None
    assert runner.kept(dataset, twin, 1) is None
    assert runner.kept(dataset, Arm("twin", percent=25, settings=twin.settings), 0) is None
    elsewhere = Dataset("digits", "digits", dataset.folder)
    assert runner.kept(elsewhere, twin, 0) is None


ONE_CELL = """
import sys
from pathlib import Path
import torch
from rich.console import Console
from dsl.bench.cells import Arm, Dataset, Runner

torch.set_num_threads(1)  # as in the tests: sums are rounded alike
scenes, folder, steps = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
arm = Arm("dsl", percent=50, settings={"run.save_every": 1})
dataset = Dataset("digits", "digits", scenes)
Runner(folder / "cells", folder / "work", steps).cell(dataset, arm, 0, console=Console(quiet=True))
"""


def test_a_killed_cell_goes_on_and_a_deleted_one_is_trained_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = 8
    scenes = digit_scenes(tmp_path, quick=True)
    script, killed, whole = tmp_path / "cell.py", tmp_path / "killed", tmp_path / "whole"
    script.write_text(ONE_CELL)
    training = subprocess.Popen([sys.executable, script, scenes, killed, str(steps)])
    try:
        end = time.monotonic() + 120
        while not list(killed.glob("work/digits-*/last.pt")) and time.monotonic() < end:
            time.sleep(0.05)
    finally:
        training.kill()
        training.wait()
    assert not list(killed.glob("cells/*"))
    subprocess.run([sys.executable, script, scenes, whole, str(steps)], check=True)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("trained anew")

    monkeypatch.setattr(cells_module.api, "train", refuse)
    arm = Arm("dsl", percent=50, settings={"run.save_every": 1})
    dataset = Dataset("digits", "digits", scenes)
    cell = cells_module.Runner(killed / "cells", killed / "work", steps).cell(
        dataset, arm, 0, console=QUIET
    )
    [file] = whole.glob("cells/*")
    uninterrupted = cells_module.Cell(**json.loads(file.read_text()))
    assert replace(cell, seconds=0) == replace(uninterrupted, seconds=0)
    [file] = killed.glob("cells/*")
    file.unlink()
    with pytest.raises(AssertionError, match="trained anew"):
        cells_module.Runner(killed / "cells", killed / "work", steps).cell(
            dataset, arm, 0, console=QUIET
        )


def test_a_cell_is_kept_for_the_code_that_it_was_begun_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(
        tmp_path, data=["digits"], methods=["supervised"], percents=[50], seeds=1, quick=True
    )
    train = cells_module.api.train

    def edited_meanwhile(*arguments: Any, **options: Any) -> Any:
        outcome = train(*arguments, **options)
        monkeypatch.setattr(cells_module, "code_hash", lambda *_: "edited meanwhile")
        return outcome

    monkeypatch.setattr(cells_module.api, "train", edited_meanwhile)
    run_bench(tmp_path, plan, console=QUIET, command="x")
    runner = cells_module.Runner(tmp_path / "cells", tmp_path / "work", plan.steps)
    assert runner.kept(plan.datasets[0], plan.arms[0], 0) is None


def test_only_what_is_taught_depends_on_the_code_that_teaches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert all((cells_module.PACKAGE / n).exists() for n in cells_module.TEACHING_CODE)
    assert all((cells_module.PACKAGE / n).exists() for n in cells_module.TRAINING_CODE)
    plan = plan_of(
        tmp_path, data=["digits"], methods=["supervised", "dsl"], percents=[50], seeds=1, quick=True
    )  # fmt: skip
    runner = cells_module.Runner(tmp_path / "cells", tmp_path / "work", plan.steps)

    def keys() -> list[str]:
        return [runner._key(plan.datasets[0], arm, 0) for arm in plan.arms]

    supervised, taught = keys()
    monkeypatch.setattr(cells_module, "TEACHING_CODE", ("methods/dsl.py",))
    assert keys()[0] == supervised
    assert keys()[1] != taught


def test_scenes_are_drawn_anew_when_the_code_that_draws_them_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = digit_scenes(tmp_path, quick=True)
    assert digit_scenes(tmp_path, quick=True) == first
    changed = tmp_path / "scenes.py"
    changed.write_text("# draws something else")
    monkeypatch.setattr(scenes, "__file__", str(changed))
    second = digit_scenes(tmp_path, quick=True)
    assert second != first
    assert (second / "train.json").is_file()


def test_a_plan_leaves_out_what_has_nothing_unlabeled(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path, data=["digits"], methods=["supervised", "dsl", "single-1"],
        percents=[10, 100], seeds=2, quick=True,
    )  # fmt: skip
    assert [(arm.name, arm.percent) for arm in plan.arms] == [
        ("supervised", 10), ("supervised", 100), ("dsl", 10), ("single-1", 10),
    ]  # fmt: skip
    assert plan.arms[-1] == Arm("single-1", "dsl", 10, "ablations/single-1")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"methods": ["dls"]}, "--method dls"),
        ({"percents": [0]}, "--percent 0"),
        ({"percents": [101]}, "--percent 101"),
        ({"seeds": 0}, "--seeds 0"),
        ({"methods": ["dsl"], "percents": [100]}, "nothing unlabeled"),
        ({"data": ["nowhere"]}, r"no train\.json"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    options = {"data": ["digits"], "methods": ["dsl"], "percents": [10], "seeds": 1, "quick": True}
    with pytest.raises(UserError, match=message):
        plan_of(tmp_path, **(options | change))  # type: ignore[arg-type]


def test_val_is_reported_on_where_there_is_no_test(tmp_path: Path) -> None:
    for name in ("train.json", "val.json"):
        (tmp_path / name).write_text("{}")
    assert Dataset("x", "small", tmp_path).test == tmp_path / "val.json"
    (tmp_path / "test.json").write_text("{}")
    assert Dataset("x", "small", tmp_path).test == tmp_path / "test.json"


@pytest.mark.skipif(CORES < 2, reason="two cells at once need two cores")
def test_cells_trained_at_once_are_the_ones_trained_in_turn(tmp_path: Path) -> None:
    plans = [
        plan_of(tmp_path / name, data=["digits"], methods=["supervised", "dsl"], percents=[50],
                seeds=1, quick=True)
        for name in ("turn", "once")
    ]  # fmt: skip
    in_turn = run_bench(tmp_path / "turn", plans[0], console=QUIET, command="x")
    at_once = run_bench(tmp_path / "once", plans[1], console=QUIET, command="x", jobs=2)
    assert [row.arm for row in at_once] == [row.arm for row in in_turn]
    for mine, other in zip(at_once, in_turn, strict=True):
        assert mine.cells[0].key == other.cells[0].key
        # One thread against two: the order of sums differs, and 20 steps let it grow.
        assert mine.mean == pytest.approx(other.mean, abs=2)
    logs = sorted(path.name for path in (tmp_path / "once" / "work").glob("*.log"))
    assert logs == ["digits-dsl-50-seed0.log", "digits-supervised-50-seed0.log"]


def test_more_jobs_than_cores_are_refused(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path, data=["digits"], methods=["dsl"], percents=[50], seeds=1, quick=True
    )  # fmt: skip
    with pytest.raises(UserError, match="--jobs 1000"):
        run_bench(tmp_path, plan, console=QUIET, command="x", jobs=1000)
