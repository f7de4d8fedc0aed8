"""Observers of the training loop: the log, the checkpoints and the evaluations."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from dsl.engine.checkpoint import Checkpoint, save_checkpoint
from dsl.engine.log import RunLog
from dsl.engine.train import Position, Step
from dsl.engine.watch import Watch
from dsl.errors import UserError

EVALUATIONS = 5  # of a run, unless told otherwise
SAVE_EVERY = 500  # steps, at the latest


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found out."""

    metrics: Mapping[str, Any]  # of the averaged weights; "ap" decides which ones are best
    student: Mapping[str, Any]  # of the trained weights
    thresholds: tuple[float, ...]

    @property
    def ap(self) -> float:
        """-1 where the validation set holds nothing to find."""
        value = self.metrics["ap"]
        return -1.0 if value is None else float(value)


class LossLog:
    """Writes the mean losses of every `every` steps."""

    def __init__(self, log: RunLog, *, every: int = 10) -> None:
        self._log, self._every = log, every
        self._sums: dict[str, float] = {}
        self._count = 0

    def __call__(self, step: Step) -> None:
        number = step.position.step
        for message in step.unreadable:
            self._log.write("unreadable", number, {"message": message})
        if step.fault is None:
            self._count += 1
            for name, value in {**step.losses, "grad_norm": step.grad_norm}.items():
                self._sums[name] = self._sums.get(name, 0.0) + value
        else:  # one value that is not finite would hide the mean of all
            self._log.write("skipped", number, asdict(step.fault))
        if not self._count or (number % self._every and not step.last):
            return
        means = {name: value / self._count for name, value in self._sums.items()}
        seconds = round(step.position.seconds, 2)
        values = {**means, "lr": step.lr, "images": step.num_images, "seconds": seconds}
        self._log.write("train", number, values)
        self._sums, self._count = {}, 0


class TeachingLog:
    """Writes what was taught in every `every` steps of the semi-supervised phase, and says so when
    that was nothing: such a run learns from its labels alone."""

    def __init__(
        self,
        log: RunLog | None,
        read: Callable[[], Mapping[str, Any] | None],
        *,
        say: Callable[[int, str], None],
        every: int = 50,
    ) -> None:
        """`read` gives the figures since it was last called, None where nothing is taught yet. It
        adds up the ranks, so all of them call it; `log` None: another one writes."""
        self._log, self._read, self._say, self._every = log, read, say, every
        self._silent = False

    def __call__(self, step: Step) -> None:
        if step.position.step % self._every and not step.last:
            return
        figures = self._read()
        if figures is None or self._log is None:
            return
        self._log.write("teaching", step.position.step, figures)
        silent = not figures["foreground"]
        if silent and not self._silent:
            self._say(step.position.step, _why_silent(figures))
        self._silent = silent


def _why_silent(figures: Mapping[str, Any]) -> str:
    start = f"nothing was taught on the last {figures['images']} unlabeled images: "
    if figures["rejected"]:
        return f"{start}MetaNet doubts every pseudo-label; --set teaching.metanet=off"
    bars = figures["tau2"].values()
    return (
        f"{start}no detection reached its class's bar ({min(bars):.2f} to {max(bars):.2f}); more "
        "--steps make a surer teacher, or lower the bars: --set teaching.thresholds=fixed --set "
        f"teaching.foreground={min(bars) / 2:.2g}"
    )


class Keeper:
    """Evaluates and saves: last.pt to go on from, best.pt to use."""

    def __init__(
        self,
        folder: Path | None,
        *,
        snapshot: Callable[[Position], Checkpoint],
        evaluate: Callable[[], Evaluation],
        report: Callable[[int, Evaluation, str], None],
        say: Callable[[int, str], None],
        watch: Watch | None = None,
        eval_every: int | None = None,
        save_every: int | None = None,
        resumed: Checkpoint | None = None,
    ) -> None:
        """`folder` None: another rank writes, this one only takes part in the evaluation.
        `snapshot` makes the full checkpoint, without figures; `report` is told the step, its
        evaluation and of what; `say` something that the user should know; `watch` None: nothing
        compares with the burn-in; `resumed`: where the run goes on."""
        self._folder, self._snapshot = folder, snapshot
        self._evaluate, self._report, self._say = evaluate, report, say
        self._watch = watch
        self._eval_every, self._save_every = eval_every, save_every or SAVE_EVERY
        saved = (resumed.training if resumed is not None else None) or {}
        self.best = float(saved.get("best", -1.0))
        self.latest = None if resumed is None else _evaluation_of(resumed)
        self._progress = float(saved.get("progress", 0.0))
        self._pending = bool(saved.get("pending", False))  # an evaluation that is due
        if watch is not None and saved.get("burn_in") is not None:
            watch.burn_in = float(saved["burn_in"])

    def __call__(self, step: Step) -> None:
        number, finished = step.position.step, step.progress >= 1
        self._pending = self._is_due(step) or finished
        if self._pending or step.stopping or number % self._save_every == 0:
            # Before the evaluation: that may take long, or fail, or wait for the next session.
            self.save(step.position, must=step.last)
        if self._pending and (finished or not step.stopping):
            self._look(step.position, must=finished)

    def catch_up(self, position: Position) -> None:
        """The evaluation that the run was about to make when it ended."""
        if self._pending:
            self._look(position, must=True)

    def end_of_burn_in(self, position: Position) -> None:
        """The model that has seen labels alone is a candidate, and what others are compared to."""
        if self._watch is None:
            return
        self.latest = self._evaluate()
        self._watch.burn_in = self.latest.ap
        self._report(position.step, self.latest, "burn_in")
        self._keep_if_best(position, must=False)

    def save(self, position: Position, *, must: bool) -> None:
        """Write last.pt, with the latest figures. `must`: there will be no later one."""
        if self._folder is not None:
            self._write("last.pt", self._checkpoint(position), position, must=must)

    def _look(self, position: Position, *, must: bool) -> None:
        self.latest, self._pending = self._evaluate(), False
        self._report(position.step, self.latest, "")
        if self._watch is not None and (done := self._watch.look(self.latest.ap)):
            self._say(position.step, done)
        # First the best one: a run that dies in between evaluates again.
        self._keep_if_best(position, must=must)
        self.save(position, must=must)

    def _keep_if_best(self, position: Position, *, must: bool) -> None:
        if self.latest is None:
            return
        if self._folder is None:
            self.best = max(self.best, self.latest.ap)
        elif self.latest.ap > self.best or not (self._folder / "best.pt").exists():
            checkpoint = replace(self._checkpoint(position), training=None)
            if self._write("best.pt", checkpoint, position, must=must):
                self.best = self.latest.ap

    def _checkpoint(self, position: Position) -> Checkpoint:
        checkpoint, latest = self._snapshot(position), self.latest
        training = {
            **(checkpoint.training or {}),
            "best": self.best,
            "progress": self._progress,
            "pending": self._pending,
            "burn_in": None if self._watch is None else self._watch.burn_in,
        }
        if latest is None:
            return replace(checkpoint, training=training)
        training["student"] = json.dumps(latest.student)
        return replace(
            checkpoint, training=training, metrics=latest.metrics, thresholds=latest.thresholds
        )

    def _write(self, name: str, checkpoint: Checkpoint, position: Position, *, must: bool) -> bool:
        """Whether it was written. What stood there before stays where it was not."""
        path = cast(Path, self._folder) / name
        if not all(bool(tensor.isfinite().all()) for tensor in checkpoint.weights.values()):
            problem = f"{path}: not saved, the weights are not finite"
        else:
            try:
                save_checkpoint(path, checkpoint)
                return True
            except OSError as error:
                problem = f"{path}: could not be saved ({error.strerror or error})"
        kept = "; the one from before is still there" if path.exists() else ""
        if must:
            raise UserError(f"{problem}{kept}; go on with: dsl train --resume {path.parent}")
        self._say(position.step, f"{problem}{kept}; training goes on")
        return False

    def _is_due(self, step: Step) -> bool:
        before, self._progress = self._progress, step.progress
        if self._eval_every is not None:
            return step.position.step % self._eval_every == 0
        # By progress, so that a run of so many hours is evaluated as often as one of steps.
        return int(EVALUATIONS * step.progress) > int(EVALUATIONS * before)


def _evaluation_of(checkpoint: Checkpoint) -> Evaluation | None:
    if checkpoint.metrics is None or checkpoint.thresholds is None:
        return None
    student = (checkpoint.training or {}).get("student", "{}")
    return Evaluation(checkpoint.metrics, json.loads(student), checkpoint.thresholds)
