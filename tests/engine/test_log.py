"""The log: one JSON object a line, nothing that JSON cannot hold, appended when resumed."""

import json
import time
from pathlib import Path

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
