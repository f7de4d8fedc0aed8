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


def convert(
    data: Annotated[Path, typer.Argument(help="A data set of any format that can be trained on.")],
    out: Annotated[Path, typer.Argument(help="New folder.")],
    to: Annotated[str, typer.Option(help="coco, voc or yolo.")],
    split: Annotated[
        str | None, typer.Option(help="Part of a YOLO set: train (default), val or test.")
    ] = None,
    link: Annotated[
        bool, typer.Option("--link", help="Link to the images instead of copying them.")
    ] = False,
) -> None:
    """Write a data set in another format, images included.

    dsl data convert photos/data.yaml photos-coco --to coco
    """
    from dsl import api

    screen = console()
    written = api.convert(data, out, to=to, split=split, link=link, console=screen)
    for note in written.notes:
        screen.print(note)
    screen.print(
        f"written: {written.path} ({written.num_images} images, {written.num_boxes} boxes)"
    )


def show(
    data: Annotated[Path, typer.Argument(help="A data set, with or without labels.")],
    out: Annotated[Path, typer.Option(help="New HTML file.")] = Path("dataset.html"),
    split: Annotated[
        str | None, typer.Option(help="Part of a YOLO set: train (default), val or test.")
    ] = None,
) -> None:
    """Look at a data set: one HTML page with images, boxes, classes and sizes.

    dsl data show data/train.json --out train.html
    """
    from dsl.data.formats import open_dataset
    from dsl.engine.progress import CountBar
    from dsl.report.dataset_page import SAMPLE, write_dataset_page

    index = open_dataset(data, split=split)
    screen = console()
    with CountBar(screen, "drawing images", min(SAMPLE, len(index))) as bar:
        write_dataset_page(index, out, progress=bar)
    screen.print(f"written: {out}; open it in a browser")
