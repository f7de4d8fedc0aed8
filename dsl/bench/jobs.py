"""Several cells at once, each in a process of its own with its own share of the cores.

Two trainings of one thread each get more done than one of two threads, which wait for each other
after every small convolution (docs/decisions.md). A cell's figures are the same either way, but for
the rounding of sums.
"""

import multiprocessing
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing.queues import SimpleQueue

import torch
from rich.console import Console

from dsl.bench.cells import Arm, Cell, Dataset, Runner
from dsl.errors import UserError

Wanted = tuple[Dataset, Arm, int]  # and the seed


def train_apart(runner: Runner, wanted: Sequence[Wanted], *, jobs: int, console: Console) -> None:
    """Train what is missing, `jobs` cells at a time; afterwards `runner.cell` finds them all.

    The output of each goes to a file beside its run folder.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    most = len(cores) or os.cpu_count() or 1
    if not 1 <= jobs <= most:
        raise UserError(f"--jobs {jobs}: expected 1 to {most}, the number of cores")
    context = multiprocessing.get_context("spawn")
    shares = context.SimpleQueue()
    for job in range(jobs):
        shares.put(cores[job::jobs])
    pool = ProcessPoolExecutor(
        jobs, mp_context=context, initializer=_take_share, initargs=(shares, most // jobs)
    )
    missing = [each for each in wanted if runner.kept(*each) is None]
    try:
        futures = [pool.submit(_train, runner, *each) for each in missing]
        for future in as_completed(futures):
            cell = future.result()
            console.print(
                f"{cell.data}: {cell.arm}, {cell.percent:g} % labeled, seed {cell.seed}: "
                f"AP {cell.test_ap:.1f}, {cell.seconds / 60:.1f} min"
            )
    finally:
        pool.shutdown(cancel_futures=True)


def _take_share(shares: "SimpleQueue[list[int]]", threads: int) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    mine = shares.get()
    if mine:
        os.sched_setaffinity(0, mine)
    torch.set_num_threads(threads)


def _end_with_parent() -> None:
    """Who is killed cannot stop its jobs: each would train on for hours, unseen, and write over
    what a second try writes."""
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)


def _train(runner: Runner, dataset: Dataset, arm: Arm, seed: int) -> Cell:
    run = runner.run_folder(dataset, arm, seed)
    log = run.with_name(f"{run.name}.log")  # a share of 2.5 % has a dot in its name
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as file:
        return runner.cell(dataset, arm, seed, console=Console(file=file, width=100))
