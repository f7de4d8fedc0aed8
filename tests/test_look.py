"""`dsl report` and `dsl watch` as a user meets them."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "report"))  # what the tests of the report share

from made_run import make_run

from dsl import cli

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def dsl(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dsl", *(str(a) for a in arguments)])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        captured = capsys.readouterr()
        return int(exit_.value.code or 0), captured.out, captured.err

    return call


def test_one_run_has_its_own_page_and_it_is_written_anew(dsl: Call, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    for _ in range(2):
        code, out, _ = dsl("report", folder)
        assert code == 0
        assert "report.html" in out
    assert (folder / "report.html").read_text().startswith("<!doctype html>")


def test_several_runs_need_a_file_that_is_new(dsl: Call, tmp_path: Path) -> None:
    runs = [make_run(tmp_path / "a"), make_run(tmp_path / "b", method="supervised")]
    code, _, error = dsl("report", *runs)
    assert (code, "--out" in error) == (2, True)
    assert dsl("report", *runs, "--out", tmp_path / "both.html")[0] == 0
    code, _, error = dsl("report", *runs, "--out", tmp_path / "both.html")
    assert (code, "exists already" in error) == (2, True)


@pytest.mark.parametrize("command", ["report", "watch"])
def test_what_is_no_run_is_one_line(dsl: Call, tmp_path: Path, command: str) -> None:
    code, _, error = dsl(command, tmp_path)
    assert code == 2
    assert len(error.strip().splitlines()) == 1
    assert "config.json" in error
