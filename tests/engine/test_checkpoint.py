"""Checkpoints: whole or not at all, and never executed."""

import os
import pickle
from pathlib import Path

import pytest
import torch

from dsl.engine.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from dsl.errors import UserError

GOOD = Checkpoint(
    settings={"model": {"backbone": "resnet18"}},
    classes=("cat", "dög"),
    weights={"a": torch.arange(6.0).view(2, 3)},
    thresholds=(0.25, 0.5),
    metrics={"ap": 0.5, "ap_small": None},
    training={"step": 7, "optimizer": {"state": {0: torch.ones(2)}}},
)


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "c.pt", GOOD)
    loaded = load_checkpoint(tmp_path / "c.pt")
    assert loaded.classes == GOOD.classes
    assert loaded.thresholds == GOOD.thresholds
    assert loaded.settings == GOOD.settings
    assert loaded.metrics == GOOD.metrics
    assert loaded.training["step"] == 7
    assert torch.equal(loaded.weights["a"], GOOD.weights["a"])
    assert [f.name for f in tmp_path.iterdir()] == ["c.pt"]


def test_a_failed_save_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path / "c.pt", GOOD)

    def full_disk(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="no space"):
        save_checkpoint(tmp_path / "c.pt", Checkpoint({}, (), {}))
    assert load_checkpoint(tmp_path / "c.pt").classes == GOOD.classes
    assert [f.name for f in tmp_path.iterdir()] == ["c.pt"]


def test_a_malicious_file_is_refused_and_not_executed(tmp_path: Path) -> None:
    marker = tmp_path / "executed"

    class Evil:
        def __reduce__(self) -> tuple:
            return Path.touch, (marker,)

    (tmp_path / "p.pt").write_bytes(pickle.dumps(Evil()))
    torch.save({"format": "dsl-checkpoint", "x": Evil()}, tmp_path / "t.pt")
    for name in ("p.pt", "t.pt"):
        with pytest.raises(UserError, match=name):
            load_checkpoint(tmp_path / name)
    assert not marker.exists()


@pytest.mark.parametrize("keep", [0, 10, 0.5, -1])
def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path, keep: float) -> None:
    path = tmp_path / "c.pt"
    save_checkpoint(path, GOOD)
    content = path.read_bytes()
    size = int(len(content) * keep) if isinstance(keep, float) else keep
    path.write_bytes(content[:size])
    with pytest.raises(UserError, match=r"c\.pt") as error:
        load_checkpoint(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "content",
    [
        {"state_dict": {"w": torch.ones(1)}}, [1, 2], torch.ones(3),
        {"format": "dsl-checkpoint", "version": 99}, {"format": "dsl-checkpoint", "version": 1},
    ],
)  # fmt: skip
def test_a_foreign_file_is_refused(tmp_path: Path, content: object) -> None:
    torch.save(content, tmp_path / "c.pt")
    with pytest.raises(UserError, match=r"c\.pt"):
        load_checkpoint(tmp_path / "c.pt")


def test_an_absent_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        load_checkpoint(tmp_path / "none.pt")
