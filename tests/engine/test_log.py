"""The log: one JSON object a line, nothing that JSON cannot hold, appended when resumed."""

import json
import time
from pathlib import Path

import pytest

from dsl.engine.log import RunLog


def test_lines_are_json_and_a_resumed_run_goes_on(tmp_path: Path) -> None:
    for step in (1, 2):
        log = RunLog(tmp_path)
        log.write("train", step, {"loss": 1 / 3, "bad": float("nan"), "rows": [{"x": 2.0}]})
        log.close()
    first, second = (json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines())
    assert (first["step"], second["step"]) == (1, 2)
    assert first["loss"] == 0.333333
    assert first["bad"] is None
    assert first["rows"] == [{"x": 2.0}]
    assert abs(second["time"] - time.time()) < 60  # to the second, not to six digits


def test_what_was_written_after_the_last_save_is_written_anew(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    log.write("train", 1, {"loss": 1.0})
    size = log.size()
    log.write("train", 2, {"loss": 0.5})
    log.close()
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"kind": "tra')  # killed in the middle of a line
    resumed = RunLog(tmp_path, step=1, size=size)
    resumed.write("train", 2, {"loss": 0.25})
    resumed.close()
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [(line["step"], line["loss"]) for line in lines] == [(1, 1.0), (2, 0.25)]


def test_a_full_disk_does_not_end_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log.jsonl").symlink_to("/dev/full")  # every write fails: no space left
    log = RunLog(tmp_path)
    log.write("train", 1, {"loss": 1.0})
    log.write("train", 2, {"loss": 1.0})
    log.close()
    assert capsys.readouterr().err == "the log is incomplete: No space left on device\n"
