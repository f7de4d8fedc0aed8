"""Progress bars: live on a terminal, a plain line now and then elsewhere."""

import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)  # fmt: skip

if TYPE_CHECKING:  # torch, which a bar over files must not need
    from dsl.engine.train import Length, Position, Step

Thing = TypeVar("Thing")

QUIET_SECONDS = 15.0  # between two lines where there is no terminal


class _Shown:
    """A bar that is on the screen while its `with` block lasts."""

    _bar: Progress

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()


class CountBar(_Shown):
    """A bar over things to do: call it with how many are done."""

    def __init__(self, console: Console, what: str, total: int) -> None:
        self._console, self._what, self._total = console, what, total
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
            TimeRemainingColumn(), console=console, transient=True,
            disable=not console.is_terminal,
        )  # fmt: skip
        self._task = self._bar.add_task(what, total=total)
        self._said = time.monotonic()

    def __call__(self, done: int) -> None:
        self._bar.update(self._task, completed=done)
        if not self._console.is_terminal and time.monotonic() - self._said > QUIET_SECONDS:
            self._said = time.monotonic()
            self._console.print(f"{self._what}: {done} of {self._total}")

    def over(self, things: Iterable[Thing]) -> Iterator[Thing]:
        """The same things, counted as they pass."""
        for done, thing in enumerate(things, start=1):
            yield thing
            self(done)


class TrainBar(_Shown):
    """Losses, images per second, learning rate and the time that is left."""

    def __init__(self, console: Console, length: "Length", *, start: "Position") -> None:
        self._console, self._length = console, length
        total = length.steps or length.seconds or 0
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=24),
            TextColumn("{task.fields[where]}"), TimeElapsedColumn(), TextColumn("left"),
            TimeRemainingColumn(), TextColumn("{task.fields[status]}"),
            console=console, disable=not console.is_terminal,
        )  # fmt: skip
        self._task: TaskID = self._bar.add_task(
            "train", total=total, completed=round(self._done(start)), where="", status="starting"
        )
        self._began = self._said = time.monotonic()
        self._images, self._steps = 0, 0

    def __call__(self, step: "Step") -> None:
        now = time.monotonic()
        self._images += step.num_images
        self._steps += 1
        speed = self._images / max(1e-9, now - self._began)
        where = f"step {step.position.step}"
        if self._length.steps is not None:
            where += f"/{self._length.steps}"
        losses = " ".join(f"{name} {value:.3f}" for name, value in step.losses.items())
        status = f"{losses} | {speed:.0f} img/s | lr {step.lr:.1e}"
        self._bar.update(
            self._task, completed=self._done(step.position), where=where, status=status,
            description=step.phase,
        )  # fmt: skip
        if step.fault is not None:
            self._console.print(f"{where} skipped: {step.fault}")
        quiet = not self._console.is_terminal
        if quiet and (now - self._said > QUIET_SECONDS or step.last):
            self._said = now
            left = self._left(step, now)
            self._console.print(f"{step.phase} {where}: {status} | {left} left")

    def _done(self, position: "Position") -> float:
        return position.step if self._length.steps is not None else position.seconds

    def _left(self, step: "Step", now: float) -> str:
        if self._length.seconds is not None:
            seconds = self._length.seconds - step.position.seconds
        else:
            per_step = (now - self._began) / self._steps
            seconds = per_step * ((self._length.steps or 0) - step.position.step)
        minutes, rest = divmod(max(0, round(seconds)), 60)
        return f"{minutes}:{rest:02d}"
