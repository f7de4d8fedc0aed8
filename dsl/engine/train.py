"""The training loop, readable from top to bottom.

It knows a method by its contract alone. Evaluation, checkpoints, logs and progress bars reach it as
observers, called after every step with what just happened.
"""

import signal
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import cast

import torch
from lightning_fabric import Fabric
from lightning_fabric.wrappers import _FabricModule, _FabricOptimizer
from torch import Tensor

from dsl.engine.optim import Schedule, set_learning_rate
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
    stopping: bool  # the user asked to stop: save now

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
    accumulate: int = 1
    clip_norm: float | None = None


def fit(
    fabric: Fabric,
    method: _FabricModule,
    optimizer: _FabricOptimizer,
    *,
    settings: Settings,
    batches: Callable[[int], Generator[Batch]],
    observers: Sequence[Observer],
    start: Position = BEGINNING,
) -> Position:
    """Train from `start` to the end; returns where it ended.

    `batches(step)` streams this rank's batches from that step on, `accumulate` of them per step;
    it is called again when the method enters a new phase.
    """
    began, position = time.monotonic() - start.seconds, start
    stream: Generator[Batch] | None = None
    # Fabric's wrapper would hook every layer whenever another of its methods is called.
    owner = cast(Method, method.module)
    method.train()
    with StopOnSignal() as signals:
        while not (done := settings.length.progress(position.step, position.seconds)) >= 1:
            factor = settings.schedule(done, position.step)
            set_learning_rate(optimizer.optimizer, factor)
            if owner.advance(done) or stream is None:
                if stream is not None:
                    stream.close()  # its loader workers end with it
                stream = batches(position.step)
            # Dropout and its kin follow the step, not the history: a resumed run draws the same.
            torch.manual_seed(key_of(settings.seed, f"step/{fabric.global_rank}", position.step))
            losses, grad_norm, parts = _step(fabric, method, optimizer, stream, settings=settings)
            owner.after_step(position.step + 1)
            seconds, stopping = _agree(fabric, time.monotonic() - began, signals.received)
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
                stopping=stopping,
            )
            for observer in observers:
                observer(told)
            method.train()
            if stopping:
                break
    return position


def _step(
    fabric: Fabric, method: _FabricModule, optimizer: _FabricOptimizer, stream: Iterator[Batch],
    *, settings: Settings,
) -> tuple[dict[str, float], float, list[Batch]]:  # fmt: skip
    """One optimizer step over `accumulate` batches: mean losses, gradient norm, the batches."""
    parts = [next(stream) for _ in range(settings.accumulate)]
    means: Losses = {}
    for number, part in enumerate(parts, start=1):
        waiting = number < len(parts) and fabric.world_size > 1
        with fabric.no_backward_sync(method, enabled=waiting):
            losses: Losses = method(part.to(fabric.device))
            fabric.backward(losses["loss"] / len(parts))
        for name, value in losses.items():
            means[name] = means.get(name, 0) + value.detach() / len(parts)
    limit = settings.clip_norm or float("inf")
    norm = fabric.clip_gradients(method, optimizer, max_norm=limit, error_if_nonfinite=False)
    optimizer.step()
    optimizer.zero_grad()
    names = sorted(means)
    values = torch.stack(
        [means[name].float() for name in names] + [cast(Tensor, norm).float()]
    ).tolist()
    return dict(zip(names, values, strict=False)), values[-1], parts


def _agree(fabric: Fabric, seconds: float, stopping: bool) -> tuple[float, bool]:
    """All ranks go by rank 0's clock, and stop together when any of them was told to."""
    if fabric.world_size == 1:
        return seconds, stopping
    clock = torch.tensor([seconds if fabric.is_global_zero else 0.0, float(stopping)])
    total = fabric.all_reduce(clock.to(fabric.device), reduce_op="sum")
    return float(total[0]), bool(total[1] > 0)


class StopOnSignal:
    """The first Ctrl-C asks the loop to finish its step and save; the second one interrupts."""

    def __init__(self) -> None:
        self.received = False

    def __enter__(self) -> "StopOnSignal":
        try:
            self._previous = signal.signal(signal.SIGINT, self._on_signal)
        except ValueError:  # not in the main thread: whoever owns the signals decides
            self._previous = None
        return self

    def __exit__(self, *_: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.received:
            raise KeyboardInterrupt
        self.received = True
        print(
            "\nstopping after this step, and saving; Ctrl-C again to stop at once", file=sys.stderr
        )
