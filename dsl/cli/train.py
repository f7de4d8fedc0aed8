"""`dsl train` and `dsl demo`."""

import os
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from dsl.cli.common import console
from dsl.errors import UserError

RESUME_ME = 75  # EX_TEMPFAIL of sysexits.h: whoever started this may start it again


def train(
    labeled: Annotated[
        Path | None,
        typer.Option(help="Labeled images: COCO, VOC, YOLO, or an export of Label Studio or CVAT."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="New folder for the run.")] = None,
    unlabeled: Annotated[
        Path | None, typer.Option(help="More images: any of the above, a folder, a .txt list.")
    ] = None,
    val: Annotated[
        Path | None, typer.Option(help="Validation set; without it a tenth of the labeled images.")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(help="supervised, or dsl (default where --unlabeled is given)."),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="tiny, small (default), medium, paper, another recipe, or a TOML file."),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps.")] = None,
    time: Annotated[
        str | None, typer.Option(help="Train for so long instead, e.g. 90s, 30m, 2h.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of everything random.")] = None,
    flip: Annotated[
        bool | None,
        typer.Option("--flip/--no-flip", help="Mirror training images; off for digits, text."),
    ] = None,
    init: Annotated[
        Path | None, typer.Option(help="Start from a detector: a .pt of ours, or torchvision's.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with this run folder.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or mps.")] = None,
    devices: Annotated[int | None, typer.Option(help="How many devices or processes.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any setting, e.g. --set optim.batch=16. Repeatable."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Try everything in small, and write nothing.")
    ] = False,
) -> None:
    """Train a detector.

    dsl train --labeled data/train.json --val data/val.json --out runs/first

    dsl train --labeled data/few.json --unlabeled data/many/ --val data/val.json --out runs/better

    dsl train --labeled photos/data.yaml --out runs/quick --time 30m

    dsl train --resume runs/first

    dsl train --labeled few.json --unlabeled rest.json --preset protocols/coco-10 --dry-run

    Ctrl-C, or SIGTERM as of a machine that is taken away, finishes the step and saves. Exit codes:
    0 done, or stopped by Ctrl-C; 2 an error; 75 ended by SIGTERM: go on with --resume.
    """
    from dsl import api
    from dsl.config import parse_overrides

    if resume is not None:
        given = {
            "--labeled": labeled, "--out": out, "--unlabeled": unlabeled, "--val": val,
            "--method": method, "--preset": preset, "--steps": steps, "--time": time,
            "--seed": seed, "--flip": flip, "--init": init, "--device": device,
            "--devices": devices, "--set": settings, "--dry-run": dry_run or None,
        }  # fmt: skip
        extra = [name for name, value in given.items() if value is not None]
        if extra:
            raise UserError(f"--resume takes its settings from the run; leave out {extra[0]}")
        outcome = api.resume(resume, console=console())
    else:
        if labeled is None or (out is None and not dry_run):
            missing = "--labeled" if labeled is None else "--out"
            raise UserError(f"{missing} is missing: dsl train --labeled DATA --out RUN")
        options = {
            "run.steps": steps, "run.seconds": None if time is None else seconds_of(time),
            "run.seed": seed, "views.flip": flip, "run.device": device, "run.devices": devices,
        }  # fmt: skip
        if steps is not None and time is not None:
            raise UserError("--steps and --time: give one of them")
        overrides = parse_overrides(settings or [])
        if steps is not None:
            overrides |= {"run.epochs": None}
        overrides |= {key: value for key, value in options.items() if value is not None}
        if dry_run or out is None:  # without --out it is a dry run, see above
            config = api.settings_for(
                labeled, val=val, unlabeled=unlabeled, recipe=preset or "small", method=method,
                settings=overrides,
            )  # fmt: skip
            _rehearse(config, out, init)
            return
        outcome = api.train(
            labeled, out=out, val=val, unlabeled=unlabeled, recipe=preset or "small",
            method=method, settings=overrides, init=init, console=console(),
        )  # fmt: skip
    _say_how_it_ended(outcome)
    if outcome.preempted:
        raise typer.Exit(RESUME_ME)


def _rehearse(config: Any, out: Path | None, init: Path | None) -> None:
    from dsl import api
    from dsl.dry_run import NOT_CHECKED, rehearse, table_of

    if out is not None:
        api.refuse_existing_run(out)
    screen = console()
    rehearsal = rehearse(config, screen, init=init)
    screen.print(table_of(rehearsal, config))
    screen.print(NOT_CHECKED)


def _say_how_it_ended(outcome: Any) -> None:
    from dsl.report.tables import coco_table

    if int(os.environ.get("LOCAL_RANK", "0")):
        return
    folder = outcome.folder
    if not outcome.finished:
        console().print(
            f"stopped at step {outcome.position.step} and saved; "
            f"go on with: dsl train --resume {folder}"
            + (f" (exit code {RESUME_ME})" if outcome.preempted else "")
        )
        return
    if outcome.metrics is not None:
        console().print(coco_table(outcome.metrics, "Validation, final weights"))
    console().print(
        f"done: {folder}/best.pt. Try: dsl predict {folder}/best.pt IMAGES --out pictures"
    )


def demo(
    out: Annotated[Path, typer.Argument(help="New folder for data, runs and pictures.")],
    labeled: Annotated[int, typer.Option(min=10, help="Labeled images, of 1,000.")] = 100,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps of each training.")] = 1100,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
) -> None:
    """See what unlabeled images are worth: digit scenes, trained without and with them.

    dsl demo demo
    """
    from dsl.demo import run_demo

    run_demo(out, labeled=labeled, steps=steps, seed=seed, console=console())


def seconds_of(text: str) -> float:
    """ "90s", "30m", "2h", "1h30m" or plain seconds."""
    match = re.fullmatch(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?", text)
    parts = [float(part or 0) for part in match.groups()] if match and text else []
    total = sum(part * unit for part, unit in zip(parts, (3600, 60, 1), strict=False))
    if total <= 0:
        raise UserError(f"--time {text!r}: expected something like 90s, 30m or 2h")
    return total
