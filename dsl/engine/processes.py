"""Several processes, one training: start them, end them together, keep their state equal.

A process that dies must not leave the others waiting. One that waits for it in an exchange is told
by the backend and says so in one line; one that is busy elsewhere is ended by a watcher. It knows
processes only, nothing of methods and data.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.parallel import ParallelStrategy
from torch import distributed, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from dsl.errors import UserError

# The longest that a process waits for another: one of them may read a large set, evaluate or save.
# A death is noticed at once; this is for machines that stop answering.
PATIENCE = timedelta(minutes=10)
RESTARTS = "TORCHELASTIC_RESTART_COUNT"  # torchrun's count, for its processes
GRACE = 20.0  # seconds that the first process has to notice by itself that another one died

_LOST = ("closed by peer", "reset by peer", "broken pipe", "timed out", "timeout", "nccl", "gloo")


def launch(fabric: Fabric, *, nodes: int = 1) -> None:
    """Start the other processes of this machine, unless torchrun or a cluster did, and connect.

    Fabric's own watcher would kill this process without a word when another one dies.
    """
    if fabric.world_size > 1 and not _is_started(fabric):
        count = fabric.world_size // nodes
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", str(_free_port()))
        os.environ |= {"WORLD_SIZE": str(fabric.world_size), "LOCAL_RANK": "0"}
        siblings = [_start(rank) for rank in range(1, count)]
        threading.Thread(target=_watch, args=(siblings,), daemon=True).start()
    if is_restarted() and fabric.world_size > 1:
        _connect_anew(fabric)
    fabric.launch()


def _connect_anew(fabric: Fabric) -> None:
    """torchrun keeps its store over a restart, and in it the addresses of the processes that died:
    whoever finds one of those connects to nobody. So every restart has keys of its own."""
    store, rank, count = next(rendezvous("env://", timeout=PATIENCE))
    distributed.init_process_group(
        "nccl" if fabric.device.type == "cuda" else "gloo", rank=rank, world_size=count,
        store=PrefixStore(f"restart/{os.environ[RESTARTS]}", store), timeout=PATIENCE,
    )  # fmt: skip


def _is_started(fabric: Fabric) -> bool:
    strategy = fabric.strategy
    if not isinstance(strategy, ParallelStrategy) or strategy.cluster_environment is None:
        return True
    return strategy.cluster_environment.creates_processes_externally


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _start(rank: int) -> "subprocess.Popen[bytes]":
    """This very command once more, as another rank."""
    module = sys.modules["__main__"].__spec__
    script = [os.path.abspath(sys.argv[0])] if module is None else ["-m", module.name]
    environment = os.environ | {"LOCAL_RANK": str(rank)}
    return subprocess.Popen([sys.executable, *script, *sys.argv[1:]], env=environment)


def _watch(siblings: "Sequence[subprocess.Popen[bytes]]") -> None:
    """Ends this process and the others when one of them failed."""
    while any(process.poll() != 0 for process in siblings):
        for rank, process in enumerate(siblings, start=1):
            if code := process.poll():
                time.sleep(GRACE)
                _end(siblings, f"process {rank} {_cause(code)}")
        time.sleep(0.5)


def _end(siblings: "Sequence[subprocess.Popen[bytes]]", cause: str) -> NoReturn:
    print(f"dsl: error: {cause}; all others end with it", file=sys.stderr, flush=True)
    for process in siblings:
        process.kill()
    os._exit(1)  # the main thread may be waiting where no exception reaches it


def _cause(code: int) -> str:
    if code < 0:
        return f"was killed ({signal.Signals(-code).name})"
    return f"failed (exit code {code})"


@contextmanager
def peers_needed(folder: Path) -> Iterator[None]:
    """A lost process becomes one line; `folder` is the run that can be gone on with."""
    try:
        yield
    except RuntimeError as error:
        if not _is_parallel() or not any(sign in str(error).lower() for sign in _LOST):
            raise
        last = (folder / "last.pt").exists()
        fix = f"go on with: dsl train --resume {folder}" if last else "start again"
        raise UserError(
            f"process {distributed.get_rank()} lost another of the "
            f"{distributed.get_world_size()} processes; all end, {fix}"
        ) from error


def is_restarted() -> bool:
    """Whether torchrun started this process anew after a failure."""
    return int(os.environ.get(RESTARTS, "0")) > 0


@torch.no_grad()
def share_buffers(module: nn.Module) -> None:
    """Everyone takes over rank 0's buffers. Live BatchNorms saw other images on each rank, and an
    evaluation by all ranks must be one of the weights that rank 0 saves."""
    if _is_parallel():
        for buffer in module.buffers():
            distributed.broadcast(buffer, 0)


def _is_parallel() -> bool:
    return (
        distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    )
