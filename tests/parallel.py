"""Several training processes on one machine, as torchrun would start them, with a hard time limit.

A fork server imports torch once; each process is then a fork of it and begins within a second.
"""

import multiprocessing
import os
import socket
import time
from collections.abc import Callable
from typing import Any

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["dsl", "timm"])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_ranks(job: Callable[..., None], *arguments: Any, ranks: int, seconds: float = 300) -> None:
    """Call `job(*arguments)` in so many processes; one that fails or hangs fails the test."""
    port = free_port()
    processes = [
        _SERVER.Process(target=_as_rank, args=(rank, ranks, port, job, arguments))
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    end = time.monotonic() + seconds
    for process in processes:
        process.join(max(0.0, end - time.monotonic()))
    hanging = [rank for rank, process in enumerate(processes) if process.is_alive()]
    for process in processes:
        process.kill()
    assert not hanging, f"ranks {hanging} still ran after {seconds} s"
    codes = [process.exitcode for process in processes]
    assert codes == [0] * ranks, f"exit codes {codes}"


def _as_rank(
    rank: int, ranks: int, port: int, job: Callable[..., None], arguments: tuple[Any, ...]
) -> None:
    if ranks > 1:
        os.environ |= {
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks),
            "RANK": str(rank), "LOCAL_RANK": str(rank),
        }  # fmt: skip
    job(*arguments)
