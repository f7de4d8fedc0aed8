"""Runs that die and come back: kills, preemption, full disks. `make reliability` tries more."""

import errno
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.reliability_kills import survive_full_disk, survive_kills, survive_preemption
from benchmarks.reliability_many import restarted
from benchmarks.reliability_soak import Sample, judge
from dsl.engine.checkpoint import Checkpoint, load_checkpoint, save_checkpoint


def test_kills(tmp_path: Path) -> None:
    case = survive_kills(tmp_path, kills=3)
    assert case.survived == 3, case.lost


def test_preemption(tmp_path: Path) -> None:
    case = survive_preemption(tmp_path, tries=1)
    assert case.survived == 1, case.lost


def test_torchrun_brings_a_killed_process_back(tmp_path: Path) -> None:
    assert restarted(tmp_path) == ""


def test_a_soak_tells_growth_from_a_moment() -> None:
    steady = Sample(main=1000, workers=500, files=30, threads=10)
    samples = [steady] * 400
    assert [case.survived for case in judge(samples)] == [1, 1, 1, 1]
    samples[350] = replace(steady, main=2000, files=40, threads=12)  # in an evaluation
    assert [case.survived for case in judge(samples)] == [1, 1, 1, 1]
    growing = [
        replace(
            steady,
            main=1000 + n // 3,
            workers=500 + n // 3,
            files=30 + n // 100,
            threads=10 + n // 100,
        )
        for n in range(400)
    ]
    assert [case.survived for case in judge(growing)] == [0, 0, 0, 0]
    assert judge(samples[:3])[0].survived == 0


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
