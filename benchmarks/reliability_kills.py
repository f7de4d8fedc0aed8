"""Trainings that are killed, told to go, or run out of disk: each comes back from its last save.

Rows of `make reliability`. Trainings run in forked processes, which start at once; they are real
ones, with loader workers, and are killed by real signals.
"""

import ctypes
import json
import multiprocessing
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import dsl
from benchmarks.reliability_cases import Case
from dsl.cli.train import RESUME_ME
from dsl.engine import train as engine
from dsl.engine.checkpoint import load_checkpoint

FORK = multiprocessing.get_context("fork")
GRACE = 10.0  # seconds that SIGTERM leaves for the step and its save
SETTINGS: dict[str, Any] = {
    "run.save_every": 1, "run.workers": 1, "run.precision": "fp32",
    "run.device": "cpu", "optim.batch": 2, "model.backbone": "resnet10t_half",
    "views.short_sides": [64], "views.test_short_side": 64, "views.max_side": 96,
    "teaching.burn_in": 0.25, "teaching.metanet": "detector", "teaching.metanet_crop": 32,
    "teaching.window": 10,
}  # fmt: skip


def write_squares(folder: Path, *, count: int = 8) -> Path:
    """A COCO set of bright squares on noise."""
    noise = np.random.default_rng(0)
    (folder / "images").mkdir(parents=True)
    images, annotations = [], []
    for number in range(1, count + 1):
        pixels = noise.integers(0, 60, (64, 96, 3), dtype=np.uint8)
        top, left = int(noise.integers(0, 40)), int(noise.integers(0, 70))
        pixels[top : top + 20, left : left + 20] = 220
        Image.fromarray(pixels).save(folder / "images" / f"{number}.png")
        images.append({"id": number, "file_name": f"{number}.png", "width": 96, "height": 64})
        annotations.append({
            "id": number, "image_id": number, "category_id": 1, "bbox": [left, top, 20, 20],
            "area": 400, "iscrowd": 0,
        })  # fmt: skip
    content = {"images": images, "annotations": annotations}
    path = folder / "squares.json"
    path.write_text(json.dumps(content | {"categories": [{"id": 1, "name": "square"}]}))
    return path


class Training:
    """One run folder, started or resumed in a new process each time."""

    def __init__(self, data: Path, out: Path, settings: dict[str, Any] = SETTINGS) -> None:
        self.data, self.out, self.settings = data, out, settings
        self.steps_done = FORK.Value(ctypes.c_int64, 0)

    def start(self, *, before: Callable[[], None] | None = None) -> BaseProcess:
        """Goes on where there is something to go on from. `before`: in the new process, first."""
        self.steps_done.value = self.saved_step() if (self.out / "last.pt").exists() else 0
        process = FORK.Process(target=self._train, args=(before,))
        process.start()
        return process

    def finish(self, *, before: Callable[[], None] | None = None) -> int | None:
        """Start, and let it go to its end; the exit code."""
        process = self.start(before=before)
        process.join()
        return process.exitcode

    def wait(self, process: BaseProcess, *, steps: int, seconds: float) -> None:
        """Until so many more steps are done, or the time is over."""
        wanted, until = self.steps_done.value + steps, time.monotonic() + seconds
        while process.is_alive() and time.monotonic() < until and self.steps_done.value < wanted:
            time.sleep(0.005)

    def saved_step(self) -> int:
        """Reads last.pt as a resume would: raises where it is damaged."""
        return int((load_checkpoint(self.out / "last.pt").training or {})["step"])

    def _train(self, before: Callable[[], None] | None) -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        torch.set_num_threads(1)
        if before is not None:
            before()
        original = engine._agree

        def counted(*arguments: Any) -> Any:  # called when the weights of a step are final
            result = original(*arguments)
            self.steps_done.value += 1
            return result

        engine._agree = counted
        if (self.out / "last.pt").exists():
            outcome = dsl.resume(self.out)
        else:
            outcome = dsl.train(
                self.data, unlabeled=self.data.parent / "images", val=self.data, out=self.out,
                recipe="tiny", settings=self.settings,
            )  # fmt: skip
        sys.exit(RESUME_ME if outcome.preempted else 0 if outcome.finished else 1)


def survive_kills(folder: Path, *, kills: int, seed: int = 0) -> Case:
    """SIGKILL while a run starts, while it saves, and a few steps later; then it is let go to its
    end, which must equal that of a run that was left alone."""
    data, chance = write_squares(folder / "data"), random.Random(seed)
    settings = SETTINGS | {"run.steps": 3 * kills + 4}
    training = Training(data, folder / "killed", settings)
    survived, most_lost = 0, 0
    for number in range(kills):
        process = training.start()
        if number % 3 == 1:
            _wait_for_a_save(training.out, process)
        else:
            steps = number % 3  # 0: anywhere between its start and its first step
            training.wait(process, steps=steps or 1, seconds=600 if steps else chance.random())
            time.sleep(0.3 * chance.random())
        process.kill()
        process.join()
        done = training.steps_done.value
        if not (training.out / "last.pt").exists():  # killed before there was anything to lose
            survived += int(done == 0)
            continue
        behind = done - training.saved_step()
        most_lost = max(most_lost, behind)
        survived += int(0 <= behind <= 1)
    whole = Training(data, folder / "whole", settings)
    ends = [training.finish(), whole.finish()]
    equal = ends == [0, 0] and _equal(training.out, whole.out)
    lost = f"at most {most_lost} step each, end {'equal' if equal else 'NOT EQUAL'} to a whole run"
    return Case("SIGKILL, also while saving", kills, survived if equal else 0, lost)


def survive_preemption(folder: Path, *, tries: int, seed: int = 1) -> Case:
    """SIGTERM to the whole process group: exit code 75 in time, and nothing lost."""
    data, chance = write_squares(folder / "data"), random.Random(seed)
    training = Training(data, folder / "run", SETTINGS | {"run.steps": 100_000})
    survived, slowest = 0, 0.0
    for _ in range(tries):
        process = training.start(before=os.setpgrp)
        training.wait(process, steps=1, seconds=600)
        time.sleep(chance.uniform(0, 0.5))
        told = time.monotonic()
        os.killpg(process.pid or 0, signal.SIGTERM)
        process.join()
        slowest = max(slowest, time.monotonic() - told)
        in_time = time.monotonic() - told < GRACE
        saved = training.saved_step() == training.steps_done.value
        survived += int(process.exitcode == RESUME_ME and saved and in_time)
    return Case("SIGTERM", tries, survived, f"no step; at most {slowest:.1f} s until the end")


def survive_full_disk(folder: Path, *, tries: int) -> Case:
    """Files stop growing below the size of a checkpoint, in the middle of a run."""
    data = write_squares(folder / "data")
    survived = 0
    for number in range(tries):
        training = Training(data, folder / f"run{number}", SETTINGS | {"run.steps": 4})
        code = training.finish(before=_stop_after_two_saves)
        whole = not any(path.name.endswith(".partial") for path in training.out.iterdir())
        kept = code == 1 and training.saved_step() == 1 and whole
        survived += int(kept and training.finish() == 0)
    return Case("disk full while saving", tries, survived, "no saved step")


def _stop_after_two_saves() -> None:
    from dsl.engine import observers

    original, saves = observers.save_checkpoint, 0

    def saving(*arguments: Any) -> None:
        nonlocal saves
        saves += 1
        if saves == 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        original(*arguments)

    observers.save_checkpoint = saving


def _wait_for_a_save(out: Path, process: BaseProcess) -> None:
    while process.is_alive():
        if out.exists() and any(name.endswith(".partial") for name in os.listdir(out)):
            return
        time.sleep(0.001)


def _equal(one: Path, other: Path) -> bool:
    states = [(load_checkpoint(p / "last.pt").training or {})["method"] for p in (one, other)]
    return all(torch.equal(states[0][name], states[1][name]) for name in states[1])


def run() -> list[Case]:
    """All rows of this file."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        return [
            survive_kills(folder / "kills", kills=20),
            survive_preemption(folder / "preemption", tries=5),
            survive_full_disk(folder / "disk", tries=3),
        ]


if __name__ == "__main__":
    for case in run():
        print(f"{case.case}: {case.survived} of {case.tries}; lost: {case.lost}")
