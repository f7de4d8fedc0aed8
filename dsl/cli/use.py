"""What one does with a trained detector: `dsl eval`, `predict`, `export` and `label`."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from dsl.cli.common import Device, console


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


def predict(
    checkpoint: Annotated[
        Path, typer.Argument(help="best.pt or last.pt of a run, or an exported .onnx file.")
    ],
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

    screen = console()
    found: Sequence[tuple[Path, Any]]
    if checkpoint.suffix == ".onnx":  # without torch: an exported model needs none
        from dsl.onnx_detector import OnnxModel, predict_files

        model = OnnxModel(checkpoint, device=device)
        classes = model.classes
        files = predict_files(model, images, out=out, threshold=threshold, console=screen)
        found = [(of_file.path, of_file) for of_file in files]
    else:
        from dsl import api

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


class Format(StrEnum):
    """Kinds of exported files."""

    onnx = "onnx"
    torch = "torch"


class Precision(StrEnum):
    """Of an exported file's weights."""

    fp32 = "fp32"
    fp16 = "fp16"
    int8 = "int8"


def export(
    checkpoint: Annotated[Path, typer.Argument(help="best.pt or last.pt of a run.")],
    out: Annotated[
        Path | None, typer.Option(help="New file; default: beside the checkpoint.")
    ] = None,
    file_format: Annotated[
        Format, typer.Option("--format", help="onnx, or torch: a TorchScript program.")
    ] = Format.onnx,
    precision: Annotated[
        Precision,
        typer.Option(help="fp16: half the size; int8: a quarter, and faster on most processors."),
    ] = Precision.fp32,
    calibrate: Annotated[
        Path | None, typer.Option(help="Images that int8 learns its ranges from.")
    ] = None,
    val: Annotated[
        Path | None, typer.Option(help="A labeled set: measure what the file is worth on it.")
    ] = None,
) -> None:
    """Write a detector as a file that needs neither this package nor, as ONNX, torch.

    dsl export runs/first/best.pt --out detector.onnx
    """
    from dsl.export import Request, default_out
    from dsl.export import export as write
    from dsl.report.tables import percent

    target = out or default_out(checkpoint, file_format.value, precision.value)
    request = Request(
        checkpoint, target, file_format.value, precision.value, calibrate=calibrate, val=val
    )
    screen = console()
    variants = write(request, console=screen)
    for variant in variants:
        ap = "" if variant.ap is None else f", AP {percent(variant.ap)}"
        screen.print(f"{variant.precision}: {variant.num_bytes / 1e6:.1f} MB{ap}")
    first, last = variants[0], variants[-1]
    if first is not last and first.ap is not None and last.ap is not None:
        lost = 100 * (first.ap - last.ap)
        screen.print(f"AP lost by {last.precision}: {lost:.2f} points")
    screen.print(f"written: {target}")


def label(
    checkpoint: Annotated[Path, typer.Argument(help="best.pt or last.pt of a run.")],
    images: Annotated[list[str], typer.Argument(help="Files, folders or globs.")],
    to: Annotated[str, typer.Option(help="coco, voc, yolo, label-studio or cvat.")],
    out: Annotated[Path, typer.Option(help="New folder.")],
    link: Annotated[
        bool, typer.Option("--link", help="Link to the images instead of copying them.")
    ] = False,
    device: Device = "auto",
) -> None:
    """Label images with a trained detector, for a person to review.

    Uncertain boxes are marked, and ranking.csv says which images to look at first. What comes back
    from the review can be trained on: dsl train --labeled.

    dsl label runs/first/best.pt photos/ --to label-studio --out review
    """
    from dsl import api

    screen = console()
    written = api.label(
        checkpoint, images, out=out, to=to, link=link, device=device, console=screen
    )
    for note in written.notes:
        screen.print(note)
    screen.print(
        f"written: {written.path} ({written.num_images} images, {written.num_boxes} boxes), "
        f"{out}/ranking.csv"
    )
    if hint := _REVIEW.get(to):
        screen.print(hint.format(out=out.absolute()))


_REVIEW = {
    "label-studio": (
        "start Label Studio with LABEL_STUDIO_LOCAL_FILES_SERVING_ENABLED=true and "
        "LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT={out}, paste label_config.xml into the project's "
        "labeling interface, add the local storage {out}/images, import tasks.json; "
        "afterwards export as JSON into {out}"
    ),
    "cvat": (
        "create a task with the labels of labels.json (raw editor) and the images of {out}/images, "
        "upload annotations.xml as 'CVAT 1.1'; afterwards export as 'CVAT for images 1.1'"
    ),
}
