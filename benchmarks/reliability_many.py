"""Real commands of two processes: one is killed, and the others end or torchrun goes on."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.reliability_cases import Case
from dsl.data.scenes import SceneOptions, write_scenes
from dsl.engine.checkpoint import load_checkpoint

PATIENCE = 60.0  # seconds from the death of one process to the end of all
START = 300.0
_SCENES = SceneOptions(size=64, max_side=30)
_SETTINGS = [
    "views.short_sides=[64]", "views.test_short_side=64", "views.max_side=64", "optim.batch=4",
    "run.workers=1", "run.device=cpu", "run.precision=fp32", "teaching.metanet=off",
    "model.backbone=resnet10t_half", "run.save_every=2",
]  # fmt: skip


def run() -> list[Case]:
    """Each with data and a run of its own."""
    cases = []
    for title, job in (
        ("rank 1 of 2 killed: all end within a minute, in one line", killed(1)),
        ("rank 0 of 2 killed: all end within a minute", killed(0)),
        ("rank killed under torchrun --max-restarts 1: the run finishes", restarted),
    ):
        with tempfile.TemporaryDirectory() as place:
            lost = job(Path(place))
        cases.append(Case(title, 1, int(not lost), lost or "nothing"))
    return cases


def _arguments(folder: Path, steps: int) -> list[str]:
    scenes = folder / "s"
    write_scenes(scenes, _SCENES, train=30, val=6, test=1, labeled=12)
    return [
        "dsl", "train", "--preset", "tiny", "--labeled", f"{scenes}/labeled.json", "--unlabeled",
        f"{scenes}/unlabeled.json", "--val", f"{scenes}/val.json", "--out", f"{folder}/run",
        "--devices", "2", "--steps", str(steps), *(f"--set={each}" for each in _SETTINGS),
    ]  # fmt: skip


def _start(command: list[str], folder: Path) -> "subprocess.Popen[bytes]":
    """Errors go to a file: nobody reads a pipe while the processes are waited for."""
    with (folder / "errors.txt").open("wb") as errors:
        return subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=errors,
            env=os.environ | {"OMP_NUM_THREADS": "1"}, start_new_session=True,
        )  # fmt: skip


def killed(rank: int) -> Callable[[Path], str]:
    """What was lost, in words; empty if nothing."""

    def job(folder: Path) -> str:
        process = _start([sys.executable, "-m", *_arguments(folder, 100_000)], folder)
        try:
            if not _trains(folder, process):
                return "it did not start"
            ranks = [process.pid, *_other_ranks(process.pid)]
            if len(ranks) < 2:
                return f"{len(ranks)} ranks were found"
            os.kill(ranks[rank], signal.SIGKILL)
            if not _ended(ranks):
                return f"still running after {PATIENCE:.0f} s"
            return "" if rank == 0 else _complaint(folder, process.wait())
        finally:
            _end_session(process)

    return job


def _complaint(folder: Path, code: int) -> str:
    errors = (folder / "errors.txt").read_text()
    lines = [line for line in errors.splitlines() if line.startswith("dsl: error:")]
    if "Traceback" in errors or len(lines) != 1:
        return f"{len(lines)} lines of error, expected one"
    return "" if code else "exit code 0"


def restarted(folder: Path) -> str:
    """What was lost, in words; empty if nothing."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [sys.executable, *torchrun, "--max-restarts=1", "-m", *_arguments(folder, 60)]
    process = _start(command, folder)
    try:
        if not _trains(folder, process):
            return "it did not start"
        os.kill(_other_ranks(process.pid)[-1], signal.SIGKILL)
        code = process.wait(timeout=START)
        saved = load_checkpoint(folder / "run" / "last.pt").training or {}
        if code or saved.get("step") != 60:
            said = (folder / "errors.txt").read_text().splitlines()
            ours = [line for line in said if "rror:" in line]
            return f"exit code {code} at step {saved.get('step')}: {ours[-3:]}"
        return "" if _logged(folder).count(10) == 1 else "it began anew"
    except subprocess.TimeoutExpired:
        return f"still running after {START:.0f} s"
    finally:
        _end_session(process)


def _trains(folder: Path, process: "subprocess.Popen[bytes]") -> bool:
    """Wait for the first logged step, and a little longer."""
    end = time.monotonic() + START
    while time.monotonic() < end and process.poll() is None:
        if _logged(folder):
            time.sleep(1)
            return True
        time.sleep(0.5)
    return False


def _logged(folder: Path) -> list[int]:
    """The steps whose losses were written down: every tenth."""
    log = folder / "run" / "log.jsonl"
    records = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return [record["step"] for record in records if record["kind"] == "train"]


def _other_ranks(pid: int) -> list[int]:
    """Children that run the command themselves; loader workers are forks of these."""
    found = []
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for child in map(int, children):
        own = Path(f"/proc/{child}/environ").read_bytes()
        parent = Path(f"/proc/{pid}/environ").read_bytes()
        if own != parent and b"LOCAL_RANK=" in own:
            found.append(child)
    return found


def _ended(ranks: list[int]) -> bool:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if not any(_is_alive(pid) for pid in ranks):
            return True
        time.sleep(0.5)
    return False


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _end_session(process: "subprocess.Popen[bytes]") -> None:
    """Whatever of this command is left. torchrun's processes have sessions of their own, and only
    torchrun ends them, so it is asked first."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=45)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
