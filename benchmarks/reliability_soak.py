"""A long training, watched from outside: memory, open files and threads must not grow.

The tiny preset at 64 px with two loader workers; what counts is measured on the real command, by
what the kernel says of the process and its workers.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.reliability_cases import Case
from dsl.data.scenes import SceneOptions, write_scenes

GROWTH = 0.05
LIMIT = 1200.0  # seconds
_SCENES = SceneOptions(size=64, max_side=30)
_SETTINGS = [
    "views.short_sides=[64]", "views.test_short_side=64", "views.max_side=64", "optim.batch=4",
    "run.workers=2", "run.device=cpu", "run.precision=fp32", "teaching.metanet=detector",
]  # fmt: skip


@dataclass(frozen=True)
class Sample:
    """The process at one moment."""

    main: int  # resident bytes
    workers: int  # resident bytes of all loader workers
    files: int
    threads: int


def run(steps: int = 2000) -> list[Case]:
    """One training of so many steps."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_scenes(folder / "s", _SCENES, train=60, val=10, test=1, labeled=20)
        samples, code = _watch(_command(folder, steps))
    if code != 0:
        return [Case(f"soak of {steps} steps", 1, 0, f"the training ended with code {code}")]
    return judge(samples)


def judge(samples: Sequence[Sample]) -> list[Case]:
    """The last quarter against the second one: by then every phase and evaluation has been seen."""
    quarter = len(samples) // 4
    if quarter == 0:
        return [Case("soak", 1, 0, f"{len(samples)} samples are too few to judge")]
    early, late = samples[quarter : 2 * quarter], samples[-quarter:]
    cases = []
    # Medians: an evaluation that a sample happens to fall into has a loader and its threads.
    for name in ("main", "workers"):
        before, after = (statistics.median(_column(part, name)) for part in (early, late))
        growth = after / max(before, 1) - 1
        title = f"soak: memory of {name} grows less than {GROWTH:.0%}"
        cases.append(Case(title, 1, int(growth < GROWTH), f"{growth:+.1%}"))
    for name in ("files", "threads"):
        before, after = (statistics.median(_column(part, name)) for part in (early, late))
        more = after - before
        cases.append(Case(f"soak: {name} do not grow", 1, int(more <= 0), f"{more:+g}"))
    return cases


def _column(samples: Sequence[Sample], name: str) -> list[int]:
    return [getattr(sample, name) for sample in samples]


def _command(folder: Path, steps: int) -> list[str]:
    scenes = folder / "s"
    return [
        sys.executable, "-m", "dsl", "train", "--preset", "tiny", "--labeled",
        f"{scenes}/labeled.json", "--unlabeled", f"{scenes}/unlabeled.json", "--val",
        f"{scenes}/val.json", "--out", f"{folder}/run", "--steps", str(steps), "--no-flip",
        *(f"--set={setting}" for setting in _SETTINGS),
    ]  # fmt: skip


def _watch(command: list[str]) -> tuple[list[Sample], int]:
    samples: list[Sample] = []
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    end = time.monotonic() + LIMIT
    while process.poll() is None and time.monotonic() < end:
        time.sleep(0.5)
        found = _sample(process.pid)
        if found is not None and found.workers:
            samples.append(found)
    if process.poll() is None:
        process.kill()
    return samples, process.wait()


def _sample(pid: int) -> Sample | None:
    """None where the process is just ending."""
    home = Path("/proc") / str(pid)
    try:
        children = (home / "task" / str(pid) / "children").read_text().split()
        workers = sum(_resident(int(child)) for child in children)
        files = len(os.listdir(home / "fd"))
        return Sample(_resident(pid), workers, files, len(os.listdir(home / "task")))
    except OSError:
        return None


def _resident(pid: int) -> int:
    pages = (Path("/proc") / str(pid) / "statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
