"""`dsl data ...`: make and inspect data sets."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from dsl.cli.common import console
from dsl.errors import UserError


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


class SpreadPercents(TyperCommand):
    """Lets one --percent take several numbers, as in `--percent 1 2 5 10`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spread(args, "--percent"))


def spread(args: Sequence[str], option: str) -> list[str]:
    """`--percent 1 2` -> `--percent 1 --percent 2`."""
    result: list[str] = []
    values = -1  # numbers since the option; -1: not behind it
    for arg in args:
        if arg == option:
            values = 0
        elif values >= 0 and re.fullmatch(r"[\d.,]+", arg):
            result += [option] if values else []
            values += 1
        else:
            values = -1
        result.append(arg)
    return result


def split(
    data: Annotated[Path, typer.Argument(help="A labeled set: COCO, VOC or YOLO.")],
    out: Annotated[Path, typer.Option(help="New folder for the files.")],
    percent: Annotated[
        list[str] | None, typer.Option(help="Labeled share: 10, or several: 1 2 5 10.")
    ] = None,
    folds: Annotated[int, typer.Option(min=1, help="Splits of each percent.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Of the first fold; the next has seed + 1.")] = 1,
    stratified: Annotated[
        bool, typer.Option("--stratified", help="Every class has a labeled image.")
    ] = False,
    given: Annotated[
        Path | None,
        typer.Option("--from", help="Take the images from a split file of STAC, Soft Teacher, ..."),
    ] = None,
    fold: Annotated[
        int | None, typer.Option(help="With --from: which of the file's seeds.")
    ] = None,
) -> None:
    """Divide a labeled set into labeled and unlabeled parts, as COCO files.

    dsl data split annotations/instances_train2017.json --percent 1 2 5 10 --folds 3 --out splits

    dsl data split annotations/instances_train2017.json --from COCO_supervision.txt \
--percent 10 --fold 1 --out splits
    """
    from dsl.data.coco_records import open_source
    from dsl.data.split_files import Wanted, read_split
    from dsl.data.split_pairs import DRAWN, STRATIFIED, draw_choices, write_splits
    from dsl.engine.progress import CountBar

    screen, percents = console(), _percents(percent or [])
    if given is None and (not percents or fold is not None):
        raise UserError(
            "--fold goes with --from; --folds says how many" if percents
            else "--percent is missing: dsl data split DATA --percent 10 --out FOLDER"
        )  # fmt: skip
    if given is not None and (stratified or folds != 1 or seed != 1):
        raise UserError(
            "--from: the file says which images; leave out --stratified, --folds, --seed"
        )
    source = open_source(data)
    for note in source.index.notes:
        screen.print(note)
    if given is None:
        seeds, rule = range(seed, seed + folds), STRATIFIED if stratified else DRAWN
        choices = draw_choices(source, percents=percents, seeds=seeds, stratified=stratified)
    else:
        found = read_split(given, source, Wanted(percents, fold))
        choices, rule = list(found.choices), f"as {given.name} has them: {found.kind}"
        for line in (f"found: {found.kind}", *found.notes):
            screen.print(f"{given}: {line}")
    total = len(source.names) + len(source.annotations.boxes)
    with CountBar(screen, "writing splits", total) as bar:
        written = write_splits(source, out, choices=choices, rule=rule, progress=bar)
    for choice, files in zip(choices, written, strict=True):
        labeled = int(choice.labeled.sum())
        counts = f"{labeled:,} labeled, {len(source.names) - labeled:,} unlabeled"
        screen.print(f"written: {files.labeled} ({counts})")
    screen.print(
        f"counts and hashes: {out}/manifest.json. Next: "
        f"dsl train --labeled {written[0].labeled} --unlabeled {written[0].unlabeled} --out RUN"
    )


def _percents(texts: Sequence[str]) -> tuple[float, ...]:
    try:
        return tuple(float(part) for text in texts for part in text.split(",") if part)
    except ValueError:
        raise UserError(f"--percent {' '.join(texts)}: expected numbers such as 1 2 5 10") from None


def join(
    sources: Annotated[list[Path], typer.Argument(help="Sets of images, in any format.")],
    out: Annotated[Path, typer.Option(help="New .txt file: a list of image paths.")],
    classes_of: Annotated[
        Path | None,
        typer.Option(help="Of labeled sources, take only images that show a class of this set."),
    ] = None,
    without: Annotated[
        list[Path] | None, typer.Option(help="Leave out the images of this set. Repeatable.")
    ] = None,
) -> None:
    """Join several sets of unlabeled images into one list for --unlabeled.

    dsl data join VOC2012/ImageSets/Main/trainval.txt annotations/instances_train2017.json \
--classes-of VOC2007/ImageSets/Main/trainval.txt --without annotations/instances_val2017.json \
--out unlabeled.txt
    """
    from dsl.data.join import join_images

    joined = join_images(sources, out, classes_of=classes_of, without=without or [])
    screen = console()
    for part in joined:
        left = f"{part.other_classes:,} show other classes, {part.excluded:,} are left out"
        screen.print(f"{part.source}: {part.taken:,} of {part.images:,} images ({left})")
    screen.print(f"written: {out} ({sum(part.taken for part in joined):,} images)")


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
