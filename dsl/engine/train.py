"""The training loop, readable from top to bottom.

It knows a method by its contract alone. Evaluation, checkpoints, logs and progress bars reach it as
observers, called after every step with what just happened.
"""

import signal
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol, cast

import torch
from lightning_fabric import Fabric
from lightning_fabric.wrappers import _FabricModule, _FabricOptimizer
from torch import Tensor

from dsl.engine.divergence import Fault, Guard
from dsl.engine.optim import Schedule, set_learning_rate
from dsl.engine.shortage import is_out_of_memory
from dsl.errors import UserError
from dsl.methods.base import Losses, Method
from dsl.randomness import key_of
from dsl.types import Batch


@dataclass(frozen=True)
class Length:
    """How long to train: a number of steps, or a time."""

    steps: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.seconds is None):
            raise ValueError("give either steps or seconds")

    def progress(self, step: int, seconds: float) -> float:
        """The share of the run that is done."""
        if self.steps is not None:
            return step / self.steps
        return min(1.0, seconds / (self.seconds or 1))


@dataclass(frozen=True)
class Position:
    """Where a run stands; saved in checkpoints."""

    step: int = 0
    seconds: float = 0.0  # spent so far, over all sessions


BEGINNING = Position()


@dataclass(frozen=True)
class Step:
    """What observers are told after each step."""

    position: Position
    phase: str
    progress: float  # 1.0 after the last step
    losses: dict[str, float]
    lr: float
    grad_norm: float
    num_images: int  # over all ranks
    unreadable: tuple[str, ...]
    stopping: bool  # someone asked to stop: save now
    fault: Fault | None = None  # the step was not finite, and was not taken

    @property
    def last(self) -> bool:
        return self.stopping or self.progress >= 1


Observer = Callable[[Step], None]


@dataclass(frozen=True)
class Settings:
    """How to train, apart from what."""

    schedule: Schedule
    length: Length
    seed: int
    clip_norm: float | None = None


class Source(Protocol):
    """Where the batches come from."""

    def enter(self, position: Position) -> None:
        """Called when the method enters a new phase."""

    def stream(self, step: int) -> Generator[Sequence[Batch]]:
        """This rank's batches from that step on: the parts of one step at a time. Loader workers
        start with the first one, and end when it is closed."""

    def shrink(self) -> None:
        """Cut every step of later streams into more parts, because the memory does not suffice."""


@dataclass(frozen=True)
class Ending:
    """Where a training ended, and the signal that ended it early."""

    position: Position
    signal: int | None


def fit(
    fabric: Fabric,
    method: _FabricModule,
    optimizer: _FabricOptimizer,
    *,
    settings: Settings,
    source: Source,
    guard: Guard,
    observers: Sequence[Observer],
    start: Position = BEGINNING,
) -> Ending:
    """Train from `start` to the end, or until a signal says stop."""
    began, position, stop = time.monotonic() - start.seconds, start, 0
    # Fabric's wrapper would hook every layer whenever another of its methods is called.
    owner = cast(Method, method.module)
    with StopOnSignal() as signals, closing(_Feed(source, start.step)) as feed:
        while not stop and (done := settings.length.progress(position.step, position.seconds)) < 1:
            factor = settings.schedule(done, position.step)
            set_learning_rate(optimizer.optimizer, factor)
            if owner.advance(done):
                source.enter(position)
                feed.restart(position.step)
            method.train()
            parts = feed.next()
            # Dropout and its kin follow the step, not the history: a resumed run draws the same.
            torch.manual_seed(key_of(settings.seed, f"step/{fabric.global_rank}", position.step))
            taken = _step(fabric, method, optimizer, parts, guard=guard, clip=settings.clip_norm)
            if taken is None:  # out of memory: the same step again, in smaller parts
                source.shrink()
                feed.restart(position.step)
                continue
            losses, grad_norm, fault = taken
            if fault is None:
                owner.after_step(position.step + 1)
            seconds, stop = _agree(fabric, time.monotonic() - began, signals.received)
            position = Position(position.step + 1, seconds)
            told = Step(
                position,
                owner.phase,
                progress=settings.length.progress(position.step, position.seconds),
                losses=losses,
                lr=optimizer.param_groups[0]["lr"],
                grad_norm=grad_norm,
                num_images=sum(part.num_images for part in parts) * fabric.world_size,
                unreadable=tuple(name for part in parts for name in part.unreadable),
                stopping=stop > 0,
                fault=fault,
            )
            for observer in observers:
                observer(told)
    return Ending(position, stop or None)


class _Feed:
    """The source's present stream. It is closed whatever ends the loop: a process that exits waits
    for its loader workers."""

    def __init__(self, source: Source, step: int) -> None:
        self._source, self._stream = source, source.stream(step)

    def next(self) -> Sequence[Batch]:
        return next(self._stream)

    def restart(self, step: int) -> None:
        self.close()
        self._stream = self._source.stream(step)

    def close(self) -> None:
        self._stream.close()


def _step(
    fabric: Fabric, method: _FabricModule, optimizer: _FabricOptimizer, parts: Sequence[Batch],
    *, guard: Guard, clip: float | None,
) -> tuple[dict[str, float], float, Fault | None] | None:  # fmt: skip
    """One optimizer step: mean losses, gradient norm, and why it was not taken, if it was not.
    None when the memory did not suffice."""
    guard.remember()
    means = _gradients(fabric, method, parts)
    if means is None:
        guard.undo()
        optimizer.zero_grad()
        torch.cuda.empty_cache()
        return None
    limit = clip or float("inf")
    norm = fabric.clip_gradients(method, optimizer, max_norm=limit, error_if_nonfinite=False)
    names = sorted(means)
    # One reading for all figures: each one would wait for the device.
    values = torch.stack(
        [means[name].float() for name in names] + [cast(Tensor, norm).float()]
    ).tolist()
    losses = dict(zip(names, values, strict=False))
    fault = guard.check(losses, values[-1], parts)
    if fault is None:
        optimizer.step()
    optimizer.zero_grad()
    return losses, values[-1], fault


def _gradients(fabric: Fabric, method: _FabricModule, parts: Sequence[Batch]) -> Losses | None:
    """Mean losses over the parts, and their gradients; None when the memory did not suffice."""
    means: Losses = {}
    try:
        for number, part in enumerate(parts, start=1):
            waiting = number < len(parts) and fabric.world_size > 1
            with fabric.no_backward_sync(method, enabled=waiting):
                losses: Losses = method(part.to(fabric.device))
                fabric.backward(losses["loss"] / len(parts))
            for name, value in losses.items():
                means[name] = means.get(name, 0) + value.detach() / len(parts)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        if fabric.world_size > 1:  # the others are already waiting for this one's gradients
            raise UserError(
                f"out of memory on process {fabric.global_rank}: "
                "start again with smaller parts (--set optim.accumulate=2), and --init to keep "
                "what was learned"
            ) from error
        return None
    return means


def _agree(fabric: Fabric, seconds: float, received: int) -> tuple[float, int]:
    """All ranks go by rank 0's clock, and stop together when any of them got a signal."""
    if fabric.world_size == 1:
        return seconds, received
    clock = torch.tensor([seconds if fabric.is_global_zero else 0.0, float(received)])
    agreed = fabric.all_reduce(clock.to(fabric.device), reduce_op="max")
    return float(agreed[0]), int(agreed[1])


class StopOnSignal:
    """Ctrl-C, or the SIGTERM of a machine that is taken away, asks the loop to finish its step and
    save; a second Ctrl-C interrupts."""

    def __init__(self) -> None:
        self.received = 0  # the signal's number
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopOnSignal":
        for number in (signal.SIGINT, signal.SIGTERM):
            # Not in the main thread: whoever owns the signals decides.
            with suppress(ValueError):
                self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.received and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = max(self.received, number)
        again = "; Ctrl-C again to stop at once" if number == signal.SIGINT else ""
        print(f"\nstopping after this step, and saving{again}", file=sys.stderr)
