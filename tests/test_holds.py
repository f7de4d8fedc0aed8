"""Runs that die and come back: kills, preemption, full disks. `make reliability` tries more."""

import errno
import os
import subprocess
from pathlib import Path

import pytest
import torch

from benchmarks.reliability_kills import survive_full_disk, survive_kills, survive_preemption
from benchmarks.reliability_many import restarted
from dsl.engine.checkpoint import Checkpoint, load_checkpoint, save_checkpoint


def test_kills(tmp_path: Path) -> None:
    case = survive_kills(tmp_path, kills=3)
    assert case.survived == 3, case.lost


def test_preemption(tmp_path: Path) -> None:
    case = survive_preemption(tmp_path, tries=1)
    assert case.survived == 1, case.lost


def test_torchrun_brings_a_killed_process_back(tmp_path: Path) -> None:
    assert restarted(tmp_path) == ""


def test_a_disk_that_fills_up_during_a_run(tmp_path: Path) -> None:
    assert survive_full_disk(tmp_path, tries=1).survived == 1


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        small = Checkpoint({}, (), {"w": torch.ones(3)})
        save_checkpoint(disk / "c.pt", small)
        with pytest.raises(OSError, match="No space") as error:
            save_checkpoint(disk / "c.pt", Checkpoint({}, (), {"w": torch.ones(10**6)}))
        assert error.value.errno == errno.ENOSPC
        assert torch.equal(load_checkpoint(disk / "c.pt").weights["w"], torch.ones(3))
        assert os.listdir(disk) == ["c.pt"]
    finally:
        subprocess.run(["umount", str(disk)], check=True)
