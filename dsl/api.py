"""What the command line does, as functions: `import dsl; dsl.train(...)`."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from dsl.compose import build_model, config_of
from dsl.config import Config, load_config, states
from dsl.data.check import check_images
from dsl.data.classes import align_classes
from dsl.data.formats import open_dataset
from dsl.data.index import Index
from dsl.data.loader import EvalBatches
from dsl.data.loader import load as load_items
from dsl.data.pictures import read_pictures
from dsl.data.write_folder import below_common_folder, check_new
from dsl.data.write_set import DATA_FORMATS, TOOL_FORMATS, WrittenSet, write_set, writer_of
from dsl.doctor.case import open_case
from dsl.doctor.checks import examine
from dsl.doctor.finding import Finding
from dsl.engine.checkpoint import is_whole, load_checkpoint, save_checkpoint
from dsl.engine.processes import is_restarted
from dsl.engine.progress import CountBar
from dsl.errors import UserError
from dsl.inference import Model
from dsl.labeling import Bars, Proposal, rank, ranking_csv, to_annotations
from dsl.metrics import best_f1_thresholds, evaluate_coco, evaluate_voc
from dsl.report.predictions import Found, refuse_existing, write_predictions
from dsl.rundata import annotations_of, open_labeled
from dsl.training import EVAL_BATCH, Outcome, Training
from dsl.types import Detections

_QUIET = Console(quiet=True)


def load(path: str | Path, *, device: str = "auto") -> Model:
    """A detector from a checkpoint; `model(images)` gives one Detections per image."""
    if Path(path).suffix == ".onnx":
        raise UserError(
            f"checkpoint: {path} is an exported model; use dsl.onnx_detector.OnnxModel, "
            "or on the command line `dsl predict`"
        )
    return build_model(load_checkpoint(path), path, device=device)


def train(
    labeled: str | Path, *, out: str | Path, val: str | Path | None = None,
    unlabeled: str | Path | None = None, method: str | None = None, recipe: str = "small",
    settings: Mapping[str, Any] | None = None, init: str | Path | None = None,
    console: Console = _QUIET,
) -> Outcome:  # fmt: skip
    """Train a detector into the new folder `out`.

    `method` is "supervised" or "dsl"; None: what the recipe says, else "dsl" where there are
    unlabeled images. `recipe` is a shipped recipe's name or a TOML file; `settings` are dotted
    overrides such as {"run.steps": 500, "views.flip": False}.
    """
    config = settings_for(
        labeled, val=val, unlabeled=unlabeled, method=method, recipe=recipe, settings=settings
    )
    return train_config(config, out, init=init, console=console)


def settings_for(
    labeled: str | Path, *, val: str | Path | None = None, unlabeled: str | Path | None = None,
    method: str | None = None, recipe: str = "small", settings: Mapping[str, Any] | None = None,
) -> Config:  # fmt: skip
    """The complete settings that these arguments of `train` come to."""
    paths = {"data.labeled": labeled, "data.val": val, "data.unlabeled": unlabeled}
    given = {key: os.path.realpath(path) for key, path in paths.items() if path is not None}
    if method is not None:
        given["method"] = method
    elif unlabeled is not None and not states(recipe, "method"):
        given["method"] = "dsl"
    return load_config(recipe, {**given, **(settings or {})})


def diagnose(
    labeled: str | Path, *, val: str | Path | None = None, unlabeled: str | Path | None = None,
    method: str | None = None, recipe: str = "small", settings: Mapping[str, Any] | None = None,
) -> list[Finding]:  # fmt: skip
    """What the doctor says of this data and these settings, before any training."""
    config = settings_for(
        labeled, val=val, unlabeled=unlabeled, method=method, recipe=recipe, settings=settings
    )
    return examine(open_case(config))


def train_config(
    config: Config, out: str | Path, *, init: str | Path | None = None, console: Console = _QUIET
) -> Outcome:
    """Train by complete settings.

    Started anew by torchrun after a failure, it goes on with the run that it left in `out`.
    """
    folder = Path(out)
    if is_restarted() and _holds_run_of(config, folder):
        if (folder / "last.pt").exists():
            return resume(folder, console=console)
    else:
        refuse_existing_run(folder)
    return Training(config, folder, console, init=None if init is None else Path(init)).run()


def refuse_existing_run(folder: Path) -> None:
    """A run's folder must be new, or empty."""
    if folder.exists() and (not folder.is_dir() or any(map(is_whole, folder.iterdir()))):
        raise UserError(
            f"--out: {folder} exists already; choose another name, or go on with --resume {folder}"
        )


def _holds_run_of(config: Config, folder: Path) -> bool:
    """Whether the folder's run has these settings; a foreign run must not be gone on with."""
    try:
        written = Config.model_validate_json((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return False
    run = written.run.model_copy(update={"precision": config.run.precision})  # "auto" was settled
    return written.model_copy(update={"run": run}) == config


def resume(run: str | Path, *, console: Console = _QUIET) -> Outcome:
    """Go on with a run (its folder, or its last.pt) from where it was last saved."""
    path = Path(run) / "last.pt" if Path(run).is_dir() else Path(run)
    checkpoint = load_checkpoint(path)
    if checkpoint.training is None:
        raise UserError(f"--resume: {path} holds a detector but no training state; use last.pt")
    config = config_of(checkpoint, path)
    return Training(config, path.parent, console, checkpoint=checkpoint).run()


def evaluate(
    checkpoint: str | Path, data: str | Path, *, voc: bool = False, store: bool = True,
    device: str = "auto", console: Console = _QUIET,
) -> dict[str, Any]:  # fmt: skip
    """COCO's metrics of a checkpoint on a labeled set, and VOC's on request.

    Finds each class's best-F1 threshold and, if `store`, keeps it in the checkpoint as the
    operating point of prediction.
    """
    model = load(checkpoint, device=device)
    index = open_labeled(str(data), role="data", split="val", console=console)
    index = align_classes(index, model.classes, owner=str(checkpoint))
    truth, found = annotations_of(index), detect(model, index, console=console)
    thresholds = best_f1_thresholds(truth, found, len(model.classes))
    metrics: dict[str, Any] = evaluate_coco(truth, found, model.classes).to_dict()
    metrics["thresholds"] = thresholds
    if voc:
        metrics["voc"] = evaluate_voc(truth, found, model.classes).to_dict()
    if store:
        stored = replace(load_checkpoint(checkpoint), thresholds=tuple(thresholds))
        try:
            save_checkpoint(Path(checkpoint), stored)
        except OSError as error:  # the figures are worth more than their place
            console.print(f"the thresholds could not be stored in {checkpoint}: {error.strerror}")
    return metrics


def detect(model: Model, index: Index, *, console: Console = _QUIET) -> list[Detections]:
    """All detections in every image of a set, unfiltered."""
    batches = EvalBatches(
        index, short_side=model.short_side, max_side=model.max_side, batch=EVAL_BATCH
    )
    found: dict[int, Detections] = {}
    with CountBar(console, "detecting", len(index)) as bar:
        items = load_items(batches, range(len(batches)), workers=1)
        for position, detections in model.detector.stream(items):
            found[position] = detections
            bar(len(found))
    return [found[position] for position in range(len(index))]


def predict(
    checkpoint: str | Path, images: Sequence[str | Path], *, out: str | Path | None = None,
    threshold: float | None = None, device: str = "auto", console: Console = _QUIET,
) -> list[tuple[Path, Detections]]:  # fmt: skip
    """Detect in files, folders and globs; with `out`, write drawn images and detections.json."""
    refuse_existing(out)
    model = load(checkpoint, device=device)
    index = _checked_pictures(images, console=console)
    found = [model.keep(d, threshold) for d in detect(model, index, console=console)]
    paths = [index.path(position) for position in range(len(index))]
    pairs = list(zip(paths, found, strict=True))
    if out is not None:
        arrays = [
            Found(path, d.boxes.numpy(), d.scores.numpy(), d.labels.numpy()) for path, d in pairs
        ]
        write_predictions(Path(out), arrays, classes=model.classes, console=console)
    return pairs


def _checked_pictures(images: Sequence[str | Path], *, console: Console) -> Index:
    index = read_pictures(images)
    with CountBar(console, "checking images", len(index)) as bar:
        index = check_images(index, progress=bar)
    for note in index.notes:
        console.print(note)
    return index


def label(
    checkpoint: str | Path, images: Sequence[str | Path], *, out: str | Path, to: str,
    link: bool = False, device: str = "auto", console: Console = _QUIET,
) -> WrittenSet:  # fmt: skip
    """Detections as label files for a person to review, the most helpful images first.

    `to` is coco, voc, yolo, label-studio or cvat. Boxes below their class's operating point are
    marked as uncertain, and training on the files as they are ignores them.
    """
    writer = writer_of(to, TOOL_FORMATS)
    check_new(Path(out))
    model = load(checkpoint, device=device)
    index = below_common_folder(_checked_pictures(images, console=console))
    bars = Bars.of(model.thresholds)
    proposals = [Proposal.of(found, bars) for found in detect(model, index, console=console)]
    ranked = rank(proposals, bars)
    names = [index.names[position] for position in range(len(index))]
    order = [each.position for each in ranked]
    annotations, scores = to_annotations([proposals[position] for position in order])
    labeled = replace(
        index.select(torch.tensor(order)), annotations=annotations, classes=model.classes,
        category_ids=tuple(range(1, len(model.classes) + 1)), ids=torch.arange(1, len(order) + 1),
        notes=(f"{int(annotations.ignored.sum()):,} of {len(scores):,} boxes are uncertain",),
    )  # fmt: skip
    table = ranking_csv(ranked, names, classes=model.classes)
    with CountBar(console, "writing", len(index)) as bar:
        return write_set(
            labeled, Path(out), writer=writer, link=link, scores=scores,
            beside={"ranking.csv": table}, progress=bar,
        )  # fmt: skip


def convert(
    data: str | Path, out: str | Path, *, to: str, split: str | None = None, link: bool = False,
    console: Console = _QUIET,
) -> WrittenSet:  # fmt: skip
    """Write a data set in another format (coco, voc or yolo) into the new folder `out`."""
    writer = writer_of(to, DATA_FORMATS)
    check_new(Path(out))
    index = open_dataset(data, split=split)
    with CountBar(console, "writing", len(index)) as bar:
        return write_set(index, Path(out), writer=writer, link=link, progress=bar)
