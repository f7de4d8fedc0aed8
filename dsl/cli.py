"""The command line: parse, call, print. A user's mistake is one line and exit code 2.

torch is imported inside the commands, so that `--help` answers at once.
"""

import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from dsl.errors import UserError

app = typer.Typer(
    name="dsl", no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False,
    help="Train object detectors from few labels and many unlabeled images.",
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip
data_app = typer.Typer(no_args_is_help=True, help="Make and inspect data sets.")
app.add_typer(data_app, name="data")

# typer brings its own click in some versions and imports it in others; these are its classes.
_UsageError: Any = typer.BadParameter.__mro__[1]
_ClickError: Any = typer.BadParameter.__mro__[2]

Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]


def console() -> Console:
    """Where everything but errors goes; wide enough for a table when it is not a terminal."""
    return Console(
        markup=False,  # class and file names may hold brackets
        highlight=False,
        soft_wrap=True,  # a path or a command to copy stays in one piece
        width=None if sys.stdout.isatty() else 120,
    )


@app.command()
def train(
    labeled: Annotated[
        Path | None,
        typer.Option(help="Labeled images: COCO .json, VOC folder, YOLO .yaml or folder."),
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
) -> None:
    """Train a detector.

    dsl train --labeled data/train.json --val data/val.json --out runs/first

    dsl train --labeled data/few.json --unlabeled data/many/ --val data/val.json --out runs/better

    dsl train --labeled photos/data.yaml --out runs/quick --time 30m

    dsl train --resume runs/first
    """
    from dsl import api
    from dsl.config import parse_overrides

    if resume is not None:
        given = {
            "--labeled": labeled, "--out": out, "--unlabeled": unlabeled, "--val": val,
            "--method": method, "--preset": preset, "--steps": steps, "--time": time,
            "--seed": seed, "--flip": flip, "--init": init, "--device": device,
            "--devices": devices, "--set": settings,
        }  # fmt: skip
        extra = [name for name, value in given.items() if value is not None]
        if extra:
            raise UserError(f"--resume takes its settings from the run; leave out {extra[0]}")
        outcome = api.resume(resume, console=console())
    else:
        if labeled is None or out is None:
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
        outcome = api.train(
            labeled, out=out, val=val, unlabeled=unlabeled, recipe=preset or "small",
            method=method, settings=overrides, init=init, console=console(),
        )  # fmt: skip
    _say_how_it_ended(outcome)


def _say_how_it_ended(outcome: Any) -> None:
    from dsl.report.tables import coco_table

    if int(os.environ.get("LOCAL_RANK", "0")):
        return
    folder = outcome.folder
    if not outcome.finished:
        console().print(
            f"stopped at step {outcome.position.step} and saved; "
            f"go on with: dsl train --resume {folder}"
        )
        return
    if outcome.metrics is not None:
        console().print(coco_table(outcome.metrics, "Validation, final weights"))
    console().print(
        f"done: {folder}/best.pt. Try: dsl predict {folder}/best.pt IMAGES --out pictures"
    )


@app.command("eval")
def evaluate(
    checkpoint: Annotated[Path, typer.Argument(help="best.pt or last.pt of a run.")],
    data: Annotated[Path, typer.Argument(help="A labeled set.")],
    voc: Annotated[bool, typer.Option("--voc", help="VOC's AP50 too.")] = False,
    store: Annotated[
        bool,
        typer.Option("--store/--no-store", help="Keep the best-F1 thresholds in the checkpoint."),
    ] = True,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures to this file.")
    ] = None,
    device: Device = "auto",
) -> None:
    """Measure a detector: COCO's table, AP per class, best-F1 thresholds.

    dsl eval runs/first/best.pt data/val.json
    """
    import json

    from dsl import api
    from dsl.report.tables import class_table, coco_table, percent

    metrics = api.evaluate(checkpoint, data, voc=voc, store=store, device=device, console=console())
    screen = console()
    screen.print(coco_table(metrics, f"{checkpoint} on {data}"))
    screen.print(class_table(metrics, metrics["thresholds"], voc=metrics.get("voc")))
    if voc:
        of_voc = metrics["voc"]
        screen.print(
            f"VOC AP50: {percent(of_voc['ap'])} (area), "
            f"{percent(of_voc['ap_11_point'])} (11 points)"
        )
    if json_file is not None:
        json_file.write_text(json.dumps(metrics, indent=2) + "\n")


@app.command()
def predict(
    checkpoint: Annotated[Path, typer.Argument(help="best.pt or last.pt of a run.")],
    images: Annotated[list[str], typer.Argument(help="Files, folders or globs.")],
    out: Annotated[
        Path | None, typer.Option(help="New folder for drawn images and detections.json.")
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Least score; default: each class's operating point."),
    ] = None,
    device: Device = "auto",
) -> None:
    """Detect objects in images; draw them, and write COCO-format JSON.

    dsl predict runs/first/best.pt photos/ --out found
    """
    from rich.table import Table

    from dsl import api

    screen = console()
    found = api.predict(
        checkpoint, images, out=out, threshold=threshold, device=device, console=screen
    )
    classes = api.load(checkpoint, device="cpu").classes
    table = Table("image", "objects", "found")
    for path, detections in found[:50]:
        counts: dict[str, int] = {}
        for label in detections.labels.tolist():
            counts[classes[label]] = counts.get(classes[label], 0) + 1
        listed = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
        table.add_row(str(path), str(len(detections)), listed or "nothing")
    screen.print(table)
    if len(found) > 50:
        screen.print(f"and {len(found) - 50} more images")
    if out is not None:
        screen.print(f"written: {out}/images, {out}/detections.json")


@app.command()
def demo(
    out: Annotated[Path, typer.Argument(help="New folder for data, runs and pictures.")],
    labeled: Annotated[int, typer.Option(min=10, help="Labeled images, of 1,000.")] = 100,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps of each training.")] = None,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
) -> None:
    """See what unlabeled images are worth: digit scenes, trained without and with them.

    dsl demo demo
    """
    from dsl.demo import run_demo

    run_demo(out, labeled=labeled, steps=steps, seed=seed, console=console())


@data_app.command()
def scenes(
    out: Annotated[Path, typer.Argument(help="New folder.")],
    train: Annotated[int, typer.Option(min=0, help="Training images.")] = 1000,
    val: Annotated[int, typer.Option(min=0, help="Validation images.")] = 200,
    test: Annotated[int, typer.Option(min=0, help="Test images.")] = 500,
    labeled: Annotated[
        int | None,
        typer.Option(
            help="Part the training images: so many in labeled.json, the others in unlabeled.json."
        ),
    ] = None,
    size: Annotated[int, typer.Option(help="Side of the square images, in pixels.")] = 128,
    min_digits: Annotated[int, typer.Option(help="Fewest digits of an image.")] = 3,
    max_digits: Annotated[int, typer.Option(help="Most digits of an image.")] = 7,
    min_side: Annotated[int, typer.Option(help="Smallest longer side of a digit, in pixels.")] = 20,
    max_side: Annotated[int, typer.Option(help="Largest longer side of a digit, in pixels.")] = 52,
    clutter: Annotated[float, typer.Option(help="Amount of lines and noise.")] = 1.0,
    imbalance: Annotated[float, typer.Option(help="0: all digits alike; 1: 0 ten times 9.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Equal seeds give equal files.")] = 0,
) -> None:
    """Write the embedded data set: handwritten digits in scenes, as images and COCO JSON.

    dsl data scenes scenes && dsl train --labeled scenes/train.json --val scenes/val.json \
--preset tiny --no-flip --out runs/digits
    """
    from dsl.data.scenes import SceneOptions, write_scenes
    from dsl.engine.progress import CountBar

    options = SceneOptions(
        size=size, min_digits=min_digits, max_digits=max_digits, min_side=min_side,
        max_side=max_side, clutter=clutter, imbalance=imbalance, seed=seed,
    )  # fmt: skip
    screen = console()
    with CountBar(screen, "drawing scenes", train + val + test) as bar:
        write_scenes(out, options, train=train, val=val, test=test, labeled=labeled, progress=bar)
    screen.print(f"written: {out}/train.json ({train}), val.json ({val}), test.json ({test})")
    if labeled is not None:
        screen.print(f"written: {out}/labeled.json, {out}/unlabeled.json")


def seconds_of(text: str) -> float:
    """ "90s", "30m", "2h", "1h30m" or plain seconds."""
    match = re.fullmatch(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?", text)
    parts = [float(part or 0) for part in match.groups()] if match and text else []
    total = sum(part * unit for part, unit in zip(parts, (3600, 60, 1), strict=False))
    if total <= 0:
        raise UserError(f"--time {text!r}: expected something like 90s, 30m or 2h")
    return total


def main() -> None:
    """Run the command; errors that a user can cause become one line on stderr and exit code 2."""
    try:
        code = app(standalone_mode=False)
    except UserError as error:
        code = _fail(str(error))
    except typer.Abort:
        code = 130
    except _ClickError as error:
        code = _fail(_describe(error))
    except OSError as error:  # a full disk, a forbidden folder
        code = _fail(f"{error.filename or 'file system'}: {error.strerror or error}")
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


def _describe(error: Any) -> str:
    """typer's message with the value that was given, which it leaves out."""
    context = error.ctx if isinstance(error, _UsageError) else None
    hint = f" (see {context.command_path} --help)" if context else ""
    return f"{error.format_message()}{hint}"


def _fail(message: str) -> int:
    print(f"dsl: error: {' '.join(message.split())}", file=sys.stderr)
    return 2
