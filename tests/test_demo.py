"""The demo, in small: both trainings, the table, the pictures."""

from pathlib import Path

import pytest
from rich.console import Console

from dsl import demo


def test_the_demo_trains_both_and_compares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "IMAGES", 24)
    monkeypatch.setattr(demo, "VAL", 4)
    monkeypatch.setattr(demo, "TEST", 12)
    console = Console(record=True, width=120, quiet=False, file=(tmp_path / "log").open("w"))
    demo.run_demo(tmp_path / "demo", labeled=10, steps=5, seed=0, console=console)
    said = console.export_text()
    assert "gained" in said
    assert "10 labeled images and 14 unlabeled ones" in said
    assert (tmp_path / "demo" / "dsl" / "pseudo_labels" / "step_000005.jpg").exists()
    assert list((tmp_path / "demo" / "pictures" / "images").iterdir())
    assert "supervised" in (tmp_path / "demo" / "report.html").read_text()
