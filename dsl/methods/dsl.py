"""DSL: dense learning from few labels and many unlabeled images (the paper's Figure 2; METHOD 2).

A burn-in on labels alone, then in every step: the teacher looks at weak views, what it finds is
filtered, and the student learns it on strong views, at full and at half size.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, distributed, nn

from dsl.geometry import clip, halve
from dsl.methods.base import Losses, Method, counts_of, mean_over_ranks, normalise
from dsl.models.decode import Decoder
from dsl.models.fcos import FCOS
from dsl.models.losses import Criterion, LossSums
from dsl.ssod.adaptive_filter import Partition, Policy
from dsl.ssod.metanet import MetaNet
from dsl.ssod.pseudo_labels import PseudoLabels, best_of_rivals, carry, named
from dsl.ssod.scale_consistency import Space, halve_images, scale_consistency
from dsl.ssod.teacher import make_teacher, update_teacher
from dsl.ssod.telemetry import Telemetry
from dsl.types import Batch, DenseOutput, Detections, ImageBatch, Targets, UnlabeledBatch

LEAST_TRUST = 1 / 64  # of alpha that is left after many a halving


@dataclass(frozen=True)
class Weights:
    """How much each part counts, and when."""

    unlabeled: float = 3.0  # alpha
    scale: float = 1.0  # lambda_scale
    scale_space: Space = "logits"
    scale_reduction: Literal["mean", "sum"] = "mean"  # over elements; "sum": per image
    scale_warmup: float = 0.1  # share of the run over which `scale` rises from 0
    boxes: bool = True  # L_u of boxes and centerness; False: of classes alone
    half_view: bool = True  # L_u on the half-size view too
    normaliser: Literal["joint", "separate"] = "joint"
    burn_in: float = 0.2  # share of the run on labels alone
    keep_rate: float = 0.99  # epsilon; 0: the teacher is the student itself
    teaching_keep_rate: float | None = None  # epsilon after the burn-in; None: the same


class DSL(Method):
    """L = L_s + unlabeled * L_u + scale * L_scale."""

    started: Tensor
    trust: Tensor

    def __init__(
        self, detector: FCOS, criterion: Criterion, *, decoder: Decoder, policy: Policy,
        metanet: MetaNet | None, weights: Weights, shared_counts: bool = True,
        one_class: bool = False, rival_iou: float = 0.6, names: bool = False, soft: bool = False,
    ) -> None:  # fmt: skip
        """`one_class`: of boxes that overlap by `rival_iou`, only the best is taught. `names`:
        MetaNet has a say in the class of every object, instead of a bar that foreground must pass.
        `soft`: classes are taught as sure as the teacher is, those between the bars too."""
        super().__init__()
        self.shared_counts, self.one_class, self.names = shared_counts, one_class, names
        self.soft, self.rival_iou = soft, rival_iou
        self.student, self.teacher = detector, make_teacher(detector)
        self.criterion, self.decoder, self.weights = criterion, decoder, weights
        self.policy, self.metanet = policy, metanet
        self.register_buffer("started", torch.zeros((), dtype=torch.bool))
        self.register_buffer("trust", torch.ones(()))  # share of alpha that is left
        self.telemetry: Telemetry | None = None
        self._progress = 0.0

    @property
    def teaching(self) -> bool:
        """The burn-in is over."""
        return bool(self.started)

    @property
    def phase(self) -> str:
        return "semi-supervised" if self.teaching else "burn-in"

    def advance(self, progress: float) -> bool:
        self._progress = progress
        if self.teaching or progress < self.weights.burn_in:
            return False
        # The average is still far behind a student that learns fast.
        self.teacher.load_state_dict(self.student.state_dict())
        self.started.fill_(True)
        return True

    def ease(self) -> str | None:
        if not self.teaching or float(self.trust) <= LEAST_TRUST:
            return None
        self.trust.mul_(0.5)
        return f"halved the weight of the unlabeled images, to {float(self.alpha):.3g}"

    @property
    def alpha(self) -> Tensor:
        """The weight of L_u, as far as it was not lowered."""
        return self.weights.unlabeled * self.trust

    def forward(self, batch: Batch) -> Losses:
        labeled = self.criterion(self.student(batch.labeled.images), batch.labeled.targets)
        if batch.unlabeled is None or not self.teaching:
            return normalise(labeled, self._counts(labeled))
        pseudo = self.pseudo_label(batch.unlabeled.weak)
        self._observe(pseudo)
        targets = _carried(pseudo, batch.unlabeled)
        strong = self.student(batch.unlabeled.strong)
        unlabeled = self._taught(strong, targets)
        scale = None
        if self.weights.half_view or self.weights.scale:
            small = halve_images(batch.unlabeled.strong)
            with _statistics_kept(self.student):
                half = self.student(small)
            if self.weights.half_view:
                unlabeled += self._taught(half, _halved(targets, small))
            scale = scale_consistency(half, strong, space=self.weights.scale_space)
            if self.weights.scale_reduction == "sum":
                scale = scale[0], scale[1].new_tensor(float(len(small)))
        self._watch(pseudo, batch.unlabeled, unlabeled)
        return self._combine(labeled, unlabeled, scale) | _counts(pseudo)

    def _taught(self, output: DenseOutput, targets: Sequence[Targets]) -> LossSums:
        sums = self.criterion(output, targets)
        if self.weights.boxes:
            return sums
        # Nothing to learn, and nothing in what the boxes of the labels are divided by.
        none = torch.zeros_like(sums.box)
        return replace(sums, box=none, centerness=none, box_weights=none)

    @torch.no_grad()
    def pseudo_label(self, images: ImageBatch) -> list[PseudoLabels]:
        """What the teacher says of weak views, filtered."""
        output: DenseOutput = self.teacher(images)
        if self.metanet is not None and self.names:
            return self._named(images, output, self.metanet)
        found, of_class = zip(*self.decoder.with_classes(output, images.sizes), strict=True)
        parts = [self._split(detections) for detections in found]
        doubts: Sequence[Tensor | None] = [None] * len(found)
        if self.metanet is not None:
            doubts = self.metanet.doubtful(images, found, [p.foreground for p in parts])
        certainty = of_class if self.soft else [None] * len(found)
        return [
            PseudoLabels.of(*each) for each in zip(found, parts, doubts, certainty, strict=True)
        ]

    def _named(
        self, images: ImageBatch, output: DenseOutput, metanet: MetaNet
    ) -> list[PseudoLabels]:
        """MetaNet is asked about what may be foreground: it makes no score higher. Rejected is what
        would have been foreground by the detector's own name for it."""
        background, bar = self.policy.background, float(self.policy.thresholds().min())
        found = self.decoder.objects(output, images.sizes, least=background)
        asked = [objects.scores.amax(dim=1) >= bar for objects in found]
        boxes = [objects.boxes[mask] for objects, mask in zip(found, asked, strict=True)]
        pseudo = []
        for objects, mask, answer in zip(found, asked, metanet.odds(images, boxes), strict=True):
            odds = torch.ones_like(objects.scores)
            odds[mask] = answer.to(odds)
            scores, labels = named(objects, odds, background=background)
            order = scores.argsort(descending=True, stable=True)
            detections = Detections(objects.boxes, scores, labels)[order]
            part = self._split(detections)
            before = self.policy.split(*objects.scores.max(dim=1)).foreground[order]
            pseudo.append(PseudoLabels(detections, *part, before & ~part.foreground))
        return pseudo

    def _split(self, found: Detections) -> Partition:
        part = self.policy.split(found.scores, found.labels)
        return best_of_rivals(found, part, iou=self.rival_iou) if self.one_class else part

    def after_step(self, step: int) -> None:
        keep_rate, later = self.weights.keep_rate, self.weights.teaching_keep_rate
        if self.teaching and later is not None:
            keep_rate = later
        update_teacher(self.teacher, self.student, keep_rate=keep_rate, step=step)

    def _observe(self, pseudo: Sequence[PseudoLabels]) -> None:
        """The thresholds of the next step follow what was found in this one, on all ranks."""
        found = [labels.detections for labels in pseudo]
        rows = torch.stack([self.policy.rows(d.scores, d.labels) for d in found])
        self.policy.observe(_gathered(rows))

    def _combine(
        self, labeled: LossSums, unlabeled: LossSums, scale: tuple[Tensor, Tensor] | None
    ) -> Losses:
        """One division for all: a batch with few pseudo-labels cannot make L_u explode."""
        if self.weights.normaliser == "joint":
            counts = self._counts(labeled + unlabeled)
            of_labels, taught = normalise(labeled, counts), normalise(unlabeled, counts)
        else:
            of_labels = normalise(labeled, self._counts(labeled))
            taught = normalise(unlabeled, self._counts(unlabeled))
        loss = of_labels["loss"] + self.alpha * taught["loss"]
        losses = {**of_labels, "unlabeled": taught["loss"]}
        if scale is not None:
            total, count = scale
            losses["scale"] = total / (mean_over_ranks(count) if self.shared_counts else count)
            loss = loss + self._scale_weight() * losses["scale"]
        return {**losses, "loss": loss}

    def _counts(self, sums: LossSums) -> Tensor:
        return counts_of(sums, shared=self.shared_counts)

    def _scale_weight(self) -> float:
        """It rises after the burn-in: two untrained views agree best on saying nothing."""
        risen = (self._progress - self.weights.burn_in) / max(self.weights.scale_warmup, 1e-9)
        return self.weights.scale * min(1.0, max(0.0, risen))

    def _watch(
        self, pseudo: Sequence[PseudoLabels], unlabeled: UnlabeledBatch, sums: LossSums
    ) -> None:
        if self.telemetry is None:
            self.telemetry = Telemetry(
                self.policy.num_classes, len(sums.level_positives), sums.level_positives.device
            )
        self.telemetry.watch(pseudo, unlabeled.truth)
        self.telemetry.watch_levels(sums.level_positives)


def _carried(pseudo: Sequence[PseudoLabels], unlabeled: UnlabeledBatch) -> list[Targets]:
    """The pseudo-labels in the strong views."""
    return [
        carry(labels.targets(), moves, size=size)
        for labels, moves, size in zip(pseudo, unlabeled.moves, unlabeled.strong.sizes, strict=True)
    ]


def _halved(targets: Sequence[Targets], small: ImageBatch) -> list[Targets]:
    """The targets of the half-size views; odd sizes lose their last pixel."""
    return [clip(halve(t), *size) for t, size in zip(targets, small.sizes.tolist(), strict=True)]


def _counts(pseudo: Sequence[PseudoLabels]) -> Losses:
    """Foreground and ignored boxes per image, for the progress line."""
    foreground = torch.stack([labels.foreground.sum() for labels in pseudo]).float().mean()
    ignored = torch.stack([labels.ignored.sum() for labels in pseudo]).float().mean()
    return {"fg/img": foreground, "ign/img": ignored}


def _gathered(rows: Tensor) -> Tensor:
    """(N, 2, C) of this rank -> those of all ranks, in the order of their stream positions."""
    if not distributed.is_available() or not distributed.is_initialized():
        return rows
    parts = [torch.empty_like(rows) for _ in range(distributed.get_world_size())]
    distributed.all_gather(parts, rows.contiguous())
    return torch.stack(parts, dim=1).flatten(0, 1)


@contextmanager
def _statistics_kept(network: nn.Module) -> Iterator[None]:
    """Live BatchNorms normalise by the batch, but do not remember it: the teacher is tested at full
    size, where half-size statistics would be in its way."""
    norms = [m for m in network.modules() if isinstance(m, nn.BatchNorm2d) and m.training]
    kept = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, momentum in zip(norms, kept, strict=True):
            norm.momentum = momentum
