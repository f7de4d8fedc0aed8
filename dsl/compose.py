"""The composition root: settings become components. Only here do names become classes."""

import copy
import os
from dataclasses import replace
from pathlib import Path

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy

from dsl.config import Config, parse_config
from dsl.data.augment import STRONG
from dsl.data.index import Index
from dsl.data.loader import Stream, TrainingBatches
from dsl.data.views import LabeledViews, Pair, Sample, Shuffle, Tilt, UnlabeledViews, Weak
from dsl.engine.checkpoint import Checkpoint
from dsl.engine.depthwise import quicken_depthwise
from dsl.engine.optim import Schedule, build_optimizer
from dsl.engine.precision import choose_precision, make_plugin
from dsl.engine.processes import PATIENCE
from dsl.engine.train import Length, Settings
from dsl.engine.winograd import quicken, share_maps
from dsl.errors import UserError
from dsl.inference import Detector, Model
from dsl.methods.base import Method
from dsl.methods.dsl import DSL, Weights
from dsl.methods.supervised import Supervised
from dsl.models.assign import Assigner
from dsl.models.build import build_backbone, build_extractor
from dsl.models.decode import Decoder
from dsl.models.fcos import FCOS
from dsl.models.fold import fold_norms
from dsl.models.instance_features import InstanceFeatures
from dsl.models.losses import Criterion
from dsl.models.rla import LayerAggregation
from dsl.ssod.adaptive_filter import (
    CURVES,
    AdaptiveThreshold,
    FixedThreshold,
    Policy,
    SingleThreshold,
)  # fmt: skip
from dsl.ssod.metanet import MetaNet


def config_of(checkpoint: Checkpoint, path: str | Path) -> Config:
    """The settings that a checkpoint was made with."""
    return parse_config(checkpoint.settings, source=str(path))


def build_detector(config: Config, num_classes: int, *, restored: bool = False) -> FCOS:
    """`restored`: weights will be loaded over it, so no pretrained ones are looked up."""
    model = config.model
    backbone = build_backbone(model.backbone, "none" if restored else model.weights)
    if model.weights != "none":
        backbone.freeze()
    if model.aggregation != "off":
        backbone = LayerAggregation(backbone, form=model.aggregation, width=model.aggregation_width)
    detector = FCOS(backbone, num_classes, channels=model.channels, num_convs=model.num_convs)
    quicken(detector)
    quicken_depthwise(detector)
    return detector


def build_method(config: Config, detector: FCOS) -> Method:
    """The iteration that the settings ask for."""
    assigner = Assigner(config.model.size_ranges, center_radius=config.model.center_radius)
    model = config.model
    criterion = Criterion(
        assigner, box_weight=model.box_weight, by_centerness=model.box_loss == "weighted"
    )
    method: Method
    if config.method == "supervised":
        method = Supervised(
            detector, criterion, keep_rate=config.optim.keep_rate, shared_counts=model.shared_counts
        )
    else:
        method = _build_dsl(config, detector, criterion)
    share_maps(method)
    return method


def _build_dsl(config: Config, detector: FCOS, criterion: Criterion) -> DSL:
    teaching = config.teaching
    if teaching.thresholds == "single" and teaching.metanet_rule == "names":
        raise UserError(
            "teaching.metanet_rule = 'names': a single threshold has no band for what is doubted; "
            "--set teaching.metanet_rule=bar, or other thresholds"
        )
    named = teaching.metanet_rule == "names" and teaching.metanet != "off"
    if teaching.targets == "soft" and named:
        raise UserError(
            "teaching.targets = 'soft': names give an object one class and no score of it; "
            "--set teaching.metanet_rule=bar, or targets = 'hard'"
        )
    if teaching.targets == "soft" and teaching.normaliser == "separate":
        raise UserError(
            "teaching.targets = 'soft': separate counts leave out what is taught softly; "
            "--set teaching.normaliser=joint, or targets = 'hard'"
        )
    weights = Weights(
        unlabeled=teaching.unlabeled_weight, scale=teaching.scale_weight,
        scale_space=teaching.scale_space, scale_reduction=teaching.scale_reduction,
        scale_warmup=teaching.scale_warmup,
        boxes=teaching.learn_boxes, half_view=teaching.half_view, normaliser=teaching.normaliser,
        burn_in=teaching.burn_in, keep_rate=config.optim.keep_rate,
        # Rate 0 means no teacher (an ablation's row), whatever the recipe beneath says of one.
        teaching_keep_rate=teaching.keep_rate if config.optim.keep_rate else None,
    )  # fmt: skip
    return DSL(
        detector, criterion, decoder=Decoder(), policy=build_policy(config, detector.num_classes),
        metanet=build_metanet(config, detector), weights=weights,
        shared_counts=config.model.shared_counts,
        one_class=teaching.one_class, rival_iou=teaching.rival_iou,
        names=teaching.metanet_rule == "names", soft=teaching.targets == "soft",
    )  # fmt: skip


def build_policy(config: Config, num_classes: int) -> Policy:
    """The adaptive filter's thresholds."""
    teaching = config.teaching
    if teaching.thresholds == "single":
        return SingleThreshold(num_classes, foreground=teaching.foreground)
    if teaching.thresholds == "fixed":
        return FixedThreshold(
            num_classes, background=teaching.background, foreground=teaching.foreground
        )
    curve = replace(CURVES[teaching.thresholds], unseen=teaching.unseen)
    if teaching.curve is not None:
        factor, power, low, high = teaching.curve
        curve = replace(curve, factor=factor, power=power, low=low, high=high)
    return AdaptiveThreshold(
        num_classes, background=teaching.background, curve=curve, window=teaching.window
    )


def build_metanet(config: Config, detector: FCOS) -> MetaNet | None:
    """Its extractor is saved with it only where it is a copy of the detector's own backbone."""
    teaching = config.teaching
    if teaching.metanet == "off":
        return None
    own = teaching.metanet == "detector"
    network = (
        copy.deepcopy(detector.backbone)
        if own
        else build_extractor(teaching.metanet, teaching.metanet_weights)
    )
    features = InstanceFeatures(network, crop=teaching.metanet_crop)
    features.eval()  # an extractor that is not saved is no part of the method, whose mode it misses
    return MetaNet(
        detector.num_classes, features, width=features.width, bar=teaching.metanet_bar, saved=own
    )


def build_model(checkpoint: Checkpoint, path: str | Path, *, device: str) -> Model:
    """A detector in working order. How it was taught does not matter any more, and may be said in
    words of an earlier version."""
    config = config_of(replace(checkpoint, settings={**checkpoint.settings, "teaching": {}}), path)
    network = build_detector(config, len(checkpoint.classes), restored=True)
    try:
        network.load_state_dict(checkpoint.weights)
    except RuntimeError as error:
        raise UserError(f"checkpoint: {path} does not fit its own settings") from error
    where = find_device(device)
    network.eval()
    fold_norms(network)
    network = network.to(where).to(memory_format=torch.channels_last)
    precision, _ = choose_precision(config.run.precision, where.type)
    return Model(
        Detector(network, Decoder(), precision),
        checkpoint.classes,
        thresholds=checkpoint.thresholds,
        short_side=config.views.test_short_side,
        max_side=config.views.max_side,
    )


def find_device(name: str) -> torch.device:
    """The device of this name on this machine; "auto" takes the best one."""
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name not in ("auto", "cpu", *present):
        raise UserError(f"--device: {name!r} is unknown; choose auto, cpu, cuda or mps")
    if name in present and not present[name]:
        raise UserError(f"--device: this machine has no {name}; try --device auto")
    device: torch.device = Fabric(accelerator=name, devices=1).device
    return device


def build_fabric(config: Config) -> tuple[Fabric, str, str | None]:
    """Devices and processes, the precision, and a line for the user where that was changed."""
    run = config.run
    kind, many = find_device(run.device).type, run.devices * run.nodes > 1
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started not in (1, run.devices * run.nodes):
        raise UserError(
            f"--devices: torchrun started {started} processes, but the settings ask for "
            f"{run.devices} devices on {run.nodes} nodes; say the same on both sides"
        )
    # "auto" is measured on a CPU, and several processes could come to different results.
    wanted = "fp32" if many and kind == "cpu" and run.precision == "auto" else run.precision
    precision, note = choose_precision(wanted, kind)
    fabric = Fabric(
        accelerator=kind, devices=run.devices, num_nodes=run.nodes,
        strategy=DDPStrategy(timeout=PATIENCE) if many else "auto",
        plugins=[make_plugin(precision, kind)],
    )  # fmt: skip
    return fabric, precision, note


def build_batches(
    config: Config, labeled: Index, unlabeled: Index | None, *, rank: int, ranks: int
) -> TrainingBatches:
    """The stream of training batches; an accumulated step takes several of them."""
    views, optim, teaching = config.views, config.optim, config.teaching
    parts = optim.accumulate * ranks
    if optim.batch % parts:
        raise UserError(
            f"optim.batch = {optim.batch}: does not divide by {ranks} devices x "
            f"{optim.accumulate} parts; choose a multiple of {parts}"
        )
    seed = config.run.seed
    weak = Weak(views.short_sides, views.max_side, views.flip, views.flip_vertical)
    strong = replace(STRONG[views.strong], max_sigma=views.blur)
    tilt = Tilt(0.5) if views.strong == "code" else None
    shuffle = Shuffle(teaching.shuffle_rounds, teaching.shuffle_share)
    of_labeled = LabeledViews(
        weak,
        strong=strong if views.labeled == "strong" else None,
        shuffle=replace(shuffle, probability=views.labeled_shuffle),
    )
    short_side, max_side = teachers_sides(config)
    of_unlabeled = UnlabeledViews(
        weak
        if teaching.teacher_size == "drawn"
        else replace(weak, short_sides=(short_side,), max_side=max_side),
        weak, strong, shuffle, tilt,
    )  # fmt: skip
    streams: tuple[Stream[Sample], Stream[Pair] | None] = (
        Stream(labeled, of_labeled, seed, "labeled"),
        None if unlabeled is None else Stream(unlabeled, of_unlabeled, seed, "unlabeled"),
    )
    return TrainingBatches(
        *streams, batch=optim.batch // optim.accumulate, rank=rank, ranks=ranks,
        shared_sizes=views.short_sides if views.size_of == "batch" else (), parts=optim.accumulate,
    )  # fmt: skip


def teachers_sides(config: Config) -> tuple[int, int]:
    """Short and longest side of what the teacher looks at; the test's where it draws them."""
    views, size = config.views, config.teaching.teacher_size
    if isinstance(size, str):
        return views.test_short_side, views.max_side
    # The longest side is to the short one what it is in training.
    return size, round(views.max_side * size / max(views.short_sides))


def build_optimizer_of(config: Config, method: Method) -> torch.optim.Optimizer:
    """The learning rate grows linearly with the batch.

    Fused steps are faster, but Fabric cannot clip what a fused step unscales by itself (fp16).
    """
    optim = config.optim
    slow: list[str] = []
    if config.model.weights != "none" and optim.backbone_lr_factor != 1:
        names = [name for name, _ in method.student.named_parameters()]
        slow = [n for n in names if n.startswith("backbone.") and "aggregation." not in n]
    return build_optimizer(
        method.student, optim.optimizer, lr=optim.lr * optim.batch / optim.lr_batch,
        weight_decay=optim.weight_decay, momentum=optim.momentum,
        bias_lr_factor=optim.bias_lr_factor, fused=config.run.precision != "fp16-mixed",
        slow=slow, slow_factor=optim.backbone_lr_factor,
    )  # fmt: skip


def length_of(config: Config, num_images: int) -> Length:
    """Seconds before epochs before steps: the more special one was asked for."""
    run = config.run
    if run.seconds is not None:
        return Length(seconds=run.seconds)
    if run.epochs is not None:
        return Length(steps=max(1, round(run.epochs * num_images / config.optim.batch)))
    if run.steps is None:
        raise UserError("run.steps: say how long to train: steps, epochs or seconds")
    return Length(steps=run.steps)


def settings_of(config: Config, length: Length) -> Settings:
    optim = config.optim
    schedule = Schedule(optim.schedule, optim.milestones, optim.warmup_steps, restart=optim.restart)
    return Settings(schedule, length, config.run.seed, clip_norm=optim.clip_norm)
