"""`dsl data ...`: make and inspect data sets."""

from pathlib import Path
from typing import Annotated

import typer

from dsl.cli.common import console


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
