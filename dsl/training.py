"""One training run, from settings to a folder that holds everything about it.

RUN/config.json       the settings, all of them
RUN/environment.json  versions and machine
RUN/log.jsonl         losses and evaluations, one JSON object a line; RUN/tensorboard/ likewise
RUN/last.pt           to go on from
RUN/best.pt           to use: the averaged weights with the best validation AP
RUN/pseudo_labels/    what the teacher makes of a few unlabeled images, at every evaluation
RUN/views/            those images, and what the student sees of some of them
RUN/report.html       all of it to look at, written anew at every evaluation
RUN/results.json      the final figures
"""

import os
import signal
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, cast

import torch
from lightning_fabric.wrappers import _FabricOptimizer
from rich.console import Console
from torch import distributed

from dsl.compose import (
    build_batches,
    build_detector,
    build_fabric,
    build_method,
    build_optimizer_of,
    length_of,
    settings_of,
    teachers_sides,
)  # fmt: skip
from dsl.config import Config
from dsl.data.loader import EvalBatches, LabeledBatches, TrainingBatches, load
from dsl.data.views import UnlabeledViews
from dsl.doctor.case import Case
from dsl.doctor.checks import warn_before_training
from dsl.engine.checkpoint import Checkpoint, load_checkpoint, remove_partial, save_checkpoint
from dsl.engine.divergence import Guard
from dsl.engine.log import RunLog
from dsl.engine.memory import keep_freed_memory
from dsl.engine.observers import Evaluation, Keeper, LossLog, TeachingLog
from dsl.engine.processes import launch, peers_needed, share_buffers
from dsl.engine.progress import TrainBar
from dsl.engine.train import Ending, Observer, Position, Step, fit
from dsl.engine.watch import Watch
from dsl.errors import UserError
from dsl.gallery import Gallery
from dsl.inference import Detector
from dsl.methods.dsl import DSL
from dsl.metrics import best_f1_thresholds, evaluate_coco
from dsl.models.build import load_initial
from dsl.models.decode import Decoder
from dsl.models.fcos import FCOS
from dsl.models.weights import load_tensors
from dsl.proxies import learn_proxies
from dsl.report.html import write_report
from dsl.report.run_folder import read_run
from dsl.report.tables import percent
from dsl.run_files import environment, write_json, write_results
from dsl.rundata import RunData, annotations_of, open_run_data
from dsl.types import Batch, Detections

EVAL_BATCH = 8


@dataclass(frozen=True)
class Outcome:
    """What a training ended with."""

    folder: Path
    position: Position
    finished: bool  # False: stopped by the user or the machine, can be resumed
    metrics: Mapping[str, Any] | None  # of the final averaged weights on the validation set
    preempted: bool = False  # stopped by SIGTERM


class Training:
    """A run in the making: everything is opened and built before its folder is created."""

    def __init__(
        self, config: Config, folder: Path, console: Console, *,
        init: Path | None = None, checkpoint: Checkpoint | None = None,
        rehearsed_on: RunData | None = None,
    ) -> None:  # fmt: skip
        """`init`: a detector to start from. `checkpoint`: where to go on. `rehearsed_on`: open
        nothing and take pretrained weights as absent, this is a dry run on these data."""
        self.fabric, precision, note = build_fabric(config)
        # What "auto" came to is kept, so that a resumed run and the finished detector use the same.
        run = config.run.model_copy(update={"precision": precision})
        config = config.model_copy(update={"run": run})
        self.config, self.folder, self.precision = config, folder, precision
        main = self.fabric.global_rank == 0 and os.environ.get("LOCAL_RANK", "0") == "0"
        self.console = console if main else Console(quiet=True)
        if note:
            self.console.print(note)
        self.data = rehearsed_on or open_run_data(
            config.data, seed=config.run.seed, console=self.console
        )
        self.checkpoint, self._rehearsed = checkpoint, rehearsed_on is not None
        self._check_fingerprint()
        self._check_method()
        if checkpoint is None and not self._rehearsed:
            data = self.data
            case = Case(config, data.labeled, val=data.val, unlabeled=data.unlabeled)
            warn_before_training(case, self.console)
        torch.manual_seed(config.run.seed)
        detector = build_detector(
            config,
            len(self.data.labeled.classes),
            restored=any(start is not None for start in (checkpoint, init, rehearsed_on)),
        )
        if init is not None:
            self._initialise(detector, init)
        self.method = build_method(config, detector)
        self.length = length_of(config, max(len(self.data.labeled), len(self.data.unlabeled or ())))
        self._training_batches()  # refuses settings that do not fit, before anything is created

    def run(self) -> Outcome:
        """Launch the processes, train, and write down the results."""
        with peers_needed(self.folder):
            launch(self.fabric, nodes=self.config.run.nodes)
            return self._run()

    def _run(self) -> Outcome:
        keep_freed_memory()
        main = self.fabric.is_global_zero
        start, saved = Position(), self.checkpoint.training if self.checkpoint else None
        optimizer = build_optimizer_of(self.config, self.method)
        self.method.to(memory_format=torch.channels_last)
        method, optimizer = self.fabric.setup(self.method, optimizer)
        if saved is not None:
            start = self._restore(saved, optimizer)
            self.console.print(f"resumed at step {start.step}")
        guard = Guard(
            self.fabric, self.method, restore=lambda: self._go_back(optimizer),
            saved=None if saved is None else saved.get("guard"),
        )  # fmt: skip
        if main:
            self._create_folder(lambda: self._snapshot(start, optimizer, guard))
        self.fabric.barrier()
        watch = self._watch()
        with ExitStack() as stack:
            observers: list[Observer] = []
            log = (
                RunLog(self.folder, step=start.step, size=(saved or {}).get("log"))
                if main
                else None
            )
            if log is not None:
                stack.callback(log.close)
                bar = stack.enter_context(TrainBar(self.console, self.length, start=start))
                observers += [bar, LossLog(log)]
            observers.append(TeachingLog(log, self._read_teaching, say=self._sayer(log)))
            keeper = self._keeper(optimizer, guard, log, watch)
            keeper.catch_up(start)
            ending = fit(
                self.fabric, method, optimizer, settings=settings_of(self.config, self.length),
                source=_Source(self, keeper), guard=guard, observers=[*observers, keeper],
                start=start,
            )  # fmt: skip
        return self._conclude(ending, keeper, watch=watch, guard=guard)

    def _conclude(
        self, ending: Ending, keeper: Keeper, *, watch: Watch | None, guard: Guard
    ) -> Outcome:
        """Say and write how it ended."""
        position, latest = ending.position, keeper.latest
        if self.length.progress(position.step, position.seconds) < 1 or latest is None:
            preempted = ending.signal == signal.SIGTERM
            return Outcome(self.folder, position, False, None, preempted)
        if self.fabric.is_global_zero:
            verdict = watch.verdict(best=keeper.best, final=latest.ap) if watch else None
            write_results(
                self.folder, position, latest, best=keeper.best, verdict=verdict,
                skipped=guard.skipped,
            )  # fmt: skip
            if verdict is not None:
                words = verdict.words(taught=self._has_taught(), num_images=len(self.data.val))
                self.console.print(words)
            self._write_report()
        return Outcome(self.folder, position, True, latest.metrics)

    def rehearse(self) -> tuple[list[Step], Evaluation]:
        """Train and evaluate without a folder: what happened at each step, and the figures."""
        steps: list[Step] = []
        optimizer = build_optimizer_of(self.config, self.method)
        self.method.to(memory_format=torch.channels_last)
        method, optimizer = self.fabric.setup(self.method, optimizer)
        fit(
            self.fabric, method, optimizer, settings=settings_of(self.config, self.length),
            source=_Source(self, None), observers=[steps.append],
            guard=Guard(self.fabric, self.method, restore=lambda: None),
        )  # fmt: skip
        return steps, self._evaluate()

    def batches(self, step: int) -> Generator[Sequence[Batch]]:
        """The parts of every step from this one on."""
        if isinstance(self.method, DSL) and self.method.teaching:
            self._learn_proxies(self.method)
            if self.fabric.is_global_zero and (gallery := self._gallery()) is not None:
                gallery.open(step)
        parts = self.config.optim.accumulate
        # Far more items than any run takes; the range is only read as far as training goes.
        items = range(step * parts, (self.length.steps or 1 << 40) * parts)
        with closing(load(self._training_batches(), items, workers=self._workers())) as loaded:
            for first in loaded:
                yield [first, *islice(loaded, parts - 1)]

    def shrink(self) -> None:
        """Smaller parts, and more of them: the images of a step stay the same. It is a setting, so
        that a resumed run starts with it."""
        optim = self.config.optim
        images = optim.batch // (optim.accumulate * self.fabric.world_size)
        if images == 1:
            raise UserError(
                "out of memory with one labeled image at a time: "
                "choose smaller images (views.max_side), or a smaller preset"
            )
        by = next(factor for factor in range(2, images + 1) if images % factor == 0)
        optim = optim.model_copy(update={"accumulate": optim.accumulate * by})
        self.config = self.config.model_copy(update={"optim": optim})
        self.console.print(
            f"out of memory: every step now goes in {optim.accumulate} parts of {images // by} "
            f"labeled images, instead of {images} (optim.accumulate = {optim.accumulate})"
        )

    def _watch(self) -> Watch | None:
        if not isinstance(self.method, DSL) or not self.config.run.watch:
            return None
        if bool(annotations_of(self.data.val).ignored.all()):  # also where there are none
            self.console.print(
                "val: holds no objects, so the run cannot watch whether the unlabeled images help"
            )
            return None
        return Watch(self.method.ease)

    def _training_batches(self) -> TrainingBatches:
        teaching = isinstance(self.method, DSL) and self.method.teaching
        return build_batches(
            self.config, self.data.labeled, self.data.unlabeled if teaching else None,
            rank=self.fabric.global_rank, ranks=self.fabric.world_size,
        )  # fmt: skip

    def _learn_proxies(self, method: DSL) -> None:
        short_side, max_side = teachers_sides(self.config)
        batches = LabeledBatches(
            self.data.labeled, short_side=short_side, max_side=max_side, batch=EVAL_BATCH
        )
        learn_proxies(
            method, batches, workers=min(1, self._workers()), device=self.fabric.device,
            console=self.console,
        )  # fmt: skip

    def _read_teaching(self) -> Mapping[str, Any] | None:
        if not isinstance(self.method, DSL) or self.method.telemetry is None:
            return None
        return self.method.telemetry.read(
            self.data.labeled.classes, self.method.policy.thresholds()
        )

    def _sayer(self, log: RunLog | None) -> Callable[[int, str], None]:
        """Says something at a step, and keeps it in the log."""

        def say(step: int, text: str) -> None:
            self.console.print(f"step {step}: {text}")
            if log is not None:
                log.write("notice", step, {"message": text})

        return say

    def _workers(self) -> int:
        if self.config.run.workers is not None:
            return self.config.run.workers
        return max(1, min(8, (os.cpu_count() or 2) // self.config.run.devices - 1))

    def _keeper(
        self, optimizer: _FabricOptimizer, guard: Guard, log: RunLog | None, watch: Watch | None
    ) -> Keeper:
        say = self._sayer(log)

        def report(step: int, evaluation: Evaluation, phase: str) -> None:
            if phase == "burn_in":
                say(step, f"end of burn-in, val AP {percent(evaluation.metrics['ap'])}")
                if log is not None:
                    log.write("val_burn_in", step, dict(evaluation.metrics))
                return
            if log is not None:
                log.write("val", step, dict(evaluation.metrics))
                log.write("val_student", step, dict(evaluation.student))
            self.console.print(
                f"step {step}: val AP {percent(evaluation.metrics['ap'])}, "
                f"AP50 {percent(evaluation.metrics['ap50'])} "
                f"(without averaging: AP {percent(evaluation.student['ap'])})"
            )
            if log is not None:
                if (gallery := self._gallery()) is not None:
                    gallery.picture(step)
                self._write_report()

        return Keeper(
            self.folder if log is not None else None,
            snapshot=lambda position: self._snapshot(position, optimizer, guard, log),
            evaluate=self._evaluate,
            report=report,
            say=say,
            watch=watch,
            eval_every=self.config.run.eval_every,
            save_every=self.config.run.save_every,
            resumed=self.checkpoint,
        )

    def _evaluate(self) -> Evaluation:
        share_buffers(self.method)
        truth, classes = annotations_of(self.data.val), self.data.labeled.classes
        teacher = self._detect(self.method.teacher)
        student = self._detect(self.method.student)
        return Evaluation(
            metrics=evaluate_coco(truth, teacher, classes).to_dict(),
            student=evaluate_coco(truth, student, classes).to_dict(),
            thresholds=tuple(best_f1_thresholds(truth, teacher, len(classes))),
        )

    def _gallery(self) -> Gallery | None:
        """None where nothing is taught yet, or nothing may be written."""
        method, unlabeled = self.method, self.data.unlabeled
        if self._rehearsed:
            return None
        stream = self._training_batches().unlabeled
        if not isinstance(method, DSL) or unlabeled is None or stream is None:
            return None
        short_side, max_side = teachers_sides(self.config)
        return Gallery(
            self.folder, method, unlabeled, self.data.labeled.classes,
            views=cast(UnlabeledViews, stream.views), short_side=short_side, max_side=max_side,
            seed=self.config.run.seed, device=self.fabric.device, precision=self.precision,
        )  # fmt: skip

    def _has_taught(self) -> bool:
        """Whether any unlabeled image had a pseudo-label; yes where the folder cannot tell."""
        try:
            counts = [each.counts["foreground"].overall for each in read_run(self.folder).teaching]
        except UserError:  # damaged pictures: the report says so
            return True
        return any(counts) or not counts

    def _write_report(self) -> None:
        """RUN/report.html as of now. A training is worth more than its picture: what goes wrong
        here is said, and the training goes on."""
        try:
            write_report(self.folder / "report.html", [read_run(self.folder)])
        except Exception as error:
            self.console.print(f"report.html was not written: {error}")

    def _detect(self, network: torch.nn.Module) -> list[Detections]:
        """Detections of the validation set by all ranks together."""
        if not isinstance(network, FCOS):
            raise TypeError("a method's networks are detectors")
        views, fabric = self.config.views, self.fabric
        batches = EvalBatches(
            self.data.val, short_side=views.test_short_side, max_side=views.max_side,
            batch=EVAL_BATCH, rank=fabric.global_rank, ranks=fabric.world_size,
        )  # fmt: skip
        detector = Detector(network, Decoder(), self.precision)
        items = load(batches, range(len(batches)), workers=min(1, self._workers()))
        mine = dict(detector.stream(items))
        if fabric.world_size > 1:
            gathered: list[Any] = [None] * fabric.world_size
            distributed.all_gather_object(gathered, mine)
            mine = {position: found for part in gathered for position, found in part.items()}
        return [mine[position] for position in range(len(self.data.val))]

    def _snapshot(
        self, position: Position, optimizer: _FabricOptimizer, guard: Guard,
        log: RunLog | None = None,
    ) -> Checkpoint:  # fmt: skip
        return Checkpoint(
            settings=self.config.model_dump(mode="json"),
            classes=self.data.labeled.classes,
            weights=self.method.teacher.state_dict(),
            training={
                "method": self.method.state_dict(),
                "optimizer": optimizer.state_dict(),
                "precision": self.fabric.strategy.precision.state_dict(),
                "step": position.step,
                "seconds": position.seconds,
                "data": self.data.fingerprint(),
                "guard": guard.state(),
                "log": 0 if log is None else log.size(),
            },
        )

    def _restore(self, saved: Mapping[str, Any], optimizer: _FabricOptimizer) -> Position:
        try:
            self.method.load_state_dict(saved["method"])
            optimizer.load_state_dict(saved["optimizer"])
            self.fabric.strategy.precision.load_state_dict(saved["precision"])
            position = Position(int(saved["step"]), float(saved["seconds"]))
        except (KeyError, ValueError, RuntimeError, TypeError) as error:
            raise UserError(f"--resume: {self.folder}/last.pt is damaged: {error}") from error
        return position

    def _go_back(self, optimizer: _FabricOptimizer) -> None:
        """To the weights that were saved last; the steps and their images go on."""
        self._restore(load_checkpoint(self.folder / "last.pt").training or {}, optimizer)

    def _check_method(self) -> None:
        if self.config.method == "supervised":
            return
        if self.data.unlabeled is None:
            raise UserError("--method dsl: name the unlabeled images with --unlabeled PATH")
        if self.data.unlabeled.annotations is not None:
            self.console.print("unlabeled: has labels; they measure the teacher, and train nothing")

    def _check_fingerprint(self) -> None:
        saved = self.checkpoint.training if self.checkpoint else None
        if saved is not None and saved.get("data") != self.data.fingerprint():
            raise UserError(
                f"--resume: the data sets changed since {self.folder} was started; "
                "start a new run, with --init to keep what was learned"
            )

    def _initialise(self, detector: FCOS, init: Path) -> None:
        skipped = load_initial(detector, load_tensors(init, field="--init"), source=init)
        rest = f", without {', '.join(skipped)} (other classes)" if skipped else ""
        self.console.print(f"initialised from {init}{rest}")

    def _create_folder(self, snapshot: Callable[[], Checkpoint]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        remove_partial(self.folder)
        if self.checkpoint is None:
            # Before anything else: a folder that holds more than a part of it can be resumed.
            save_checkpoint(self.folder / "last.pt", snapshot())
        write_json(self.folder / "config.json", self.config.model_dump(mode="json"))
        images = {
            "labeled": len(self.data.labeled),
            "unlabeled": len(self.data.unlabeled or ()),
            "val": len(self.data.val),
        }
        machine = environment(self.fabric, self.precision)
        write_json(self.folder / "environment.json", {**machine, "images": images})


@dataclass(frozen=True)
class _Source:
    """What the loop asks of a run while it trains."""

    training: Training
    keeper: Keeper | None  # None: a rehearsal, which keeps nothing

    def enter(self, position: Position) -> None:
        if self.keeper is not None:
            self.keeper.end_of_burn_in(position)

    def stream(self, step: int) -> Generator[Sequence[Batch]]:
        return self.training.batches(step)

    def shrink(self) -> None:
        self.training.shrink()
