"""Cells that are trained apart end with the process that asked for them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

SCRIPT = """
import os, sys, time
from pathlib import Path
from rich.console import Console
from dsl.bench.jobs import train_apart

class Endless:
    folder = Path(sys.argv[1])
    def kept(self, dataset, arm, seed):
        return None
    def run_folder(self, dataset, arm, seed):
        return self.folder / "run"
    def cell(self, dataset, arm, seed, *, console):
        (self.folder / "started").write_text(str(os.getpid()))
        time.sleep(600)

if __name__ == "__main__":
    train_apart(Endless(), [("digits", "dsl", 0)], jobs=1, console=Console(quiet=True))
"""


def wait_for(condition: Callable[[], bool], *, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.1)
    return condition()


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_killed_comparison_leaves_no_training_behind(tmp_path: Path) -> None:
    script, started = tmp_path / "script.py", tmp_path / "started"
    script.write_text(SCRIPT)
    asking = subprocess.Popen([sys.executable, script, tmp_path])
    try:
        assert wait_for(lambda: started.is_file() and started.read_text() != "", seconds=120)
        training = int(started.read_text())
        assert is_alive(training)
    finally:
        asking.send_signal(signal.SIGKILL)
        asking.wait()
    assert wait_for(lambda: not is_alive(training), seconds=20)
