"""What the teacher teaches, in figures: how much of what, and how right it is where that is known.

Counts are added up over steps and ranks, and divided when they are read. It looks on: nothing here
comes near a loss. Ground truth of unlabeled images, where there happens to be some, ends here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed
from torchvision.ops import box_iou

from dsl.ssod.pseudo_labels import PseudoLabels
from dsl.types import Targets

MATCH_IOU = 0.5
BINS = 20  # of the score histograms, over 0..1


@dataclass(frozen=True)
class Verdict:
    """Of M detections of one image: what the ground truth says (paper, Figure 3)."""

    true_positive: Tensor  # (M,) bool: right class, IoU at least .5 (TP+)
    misplaced: Tensor  # (M,) bool: the class is there, but IoU below .5 (TP-)
    localised: Tensor  # (M,) bool: IoU at least .5 with an object of any class

    @property
    def background(self) -> Tensor:
        """Background, or the wrong class (BG)."""
        return ~(self.true_positive | self.misplaced)


def judge(boxes: Tensor, labels: Tensor, truth: Targets) -> Verdict:
    """Compare detections with the objects of an image; crowd counts as no object."""
    real = ~truth.ignored
    if len(boxes) == 0 or not bool(real.any()):
        none = torch.zeros_like(labels, dtype=torch.bool)
        return Verdict(none, none.clone(), none.clone())
    overlap = box_iou(boxes, truth.boxes[real].to(boxes))  # (M, G)
    same = labels[:, None] == truth.labels[real]
    found = (overlap >= MATCH_IOU) & same
    misplaced = ((overlap > 0) & same).any(dim=1) & ~found.any(dim=1)
    return Verdict(found.any(dim=1), misplaced, (overlap >= MATCH_IOU).any(dim=1))


def recalled(boxes: Tensor, labels: Tensor, truth: Targets) -> tuple[Tensor, Tensor]:
    """Of G objects that are no crowd, which were found: with their class, and with any class."""
    real = ~truth.ignored
    wanted, names = truth.boxes[real], truth.labels[real]
    if len(boxes) == 0 or len(wanted) == 0:
        none = torch.zeros_like(names, dtype=torch.bool)
        return none, none.clone()
    near = box_iou(wanted, boxes.to(wanted)) >= MATCH_IOU  # (G, M)
    return (near & (names[:, None] == labels)).any(dim=1), near.any(dim=1)


class Telemetry:
    """Sums since they were last read; all as one vector of tensors, so that ranks add up."""

    def __init__(self, classes: int, levels: int, device: torch.device) -> None:
        self._counts = {
            name: torch.zeros(size, device=device)
            for name, size in {
                "images": 1, "score": 1, "detections": 1,
                "foreground": classes, "ignored": classes, "background": classes,
                "rejected": classes, "levels": levels,
                "right": classes, "localised": classes, "objects": classes,
                "recalled": classes, "recalled_any_class": classes, "judged": classes,
                "scores_tp": BINS, "scores_misplaced": BINS, "scores_bg": BINS,
            }.items()
        }  # fmt: skip
        self.num_classes = classes

    @torch.no_grad()
    def watch(self, labels: Sequence[PseudoLabels], truth: Sequence[Targets] | None) -> None:
        """Take in one batch of pseudo-labels, and the truth about it where it is known."""
        for number, pseudo in enumerate(labels):
            found, counts = pseudo.detections, self._counts
            counts["images"] += 1
            counts["detections"] += len(found)
            counts["score"] += found.scores.sum()
            self._count("foreground", found.labels[pseudo.foreground])
            self._count("ignored", found.labels[pseudo.ignored])
            self._count("background", found.labels[~(pseudo.foreground | pseudo.ignored)])
            self._count("rejected", found.labels[pseudo.rejected])
            if truth is not None:
                self._judge(pseudo, truth[number])

    def watch_levels(self, positives: Tensor) -> None:
        """(V,) positives of each pyramid level."""
        self._counts["levels"] += positives

    def _judge(self, pseudo: PseudoLabels, truth: Targets) -> None:
        found, kept = pseudo.detections, pseudo.foreground
        verdict = judge(found.boxes, found.labels, truth)
        self._count("judged", found.labels[kept])
        self._count("right", found.labels[kept & verdict.true_positive])
        self._count("localised", found.labels[kept & verdict.localised])
        names = truth.labels[~truth.ignored]
        right, near = recalled(found.boxes[kept], found.labels[kept], truth)
        self._count("objects", names)
        self._count("recalled", names[right])
        self._count("recalled_any_class", names[near])
        for name, mask in (
            ("scores_tp", verdict.true_positive),
            ("scores_misplaced", verdict.misplaced),
            ("scores_bg", verdict.background),
        ):
            bins = (found.scores[mask] * BINS).long().clamp(0, BINS - 1)
            self._counts[name] += bins.bincount(minlength=BINS)

    def _count(self, name: str, labels: Tensor) -> None:
        self._counts[name] += labels.bincount(minlength=self.num_classes)

    def read(self, classes: Sequence[str], thresholds: Tensor) -> dict[str, Any]:
        """The figures since the last reading, over all ranks: every rank must call this."""
        counts = self._collect()
        images = max(1.0, float(counts["images"]))

        def each(name: str) -> dict[str, float]:
            values = (counts[name] / images).tolist()
            return dict(zip(classes, values, strict=True))

        figures: dict[str, Any] = {
            "images": int(counts["images"]),
            "teacher_score": _ratio(counts["score"], counts["detections"]),
            "tau2": dict(zip(classes, thresholds.tolist(), strict=True)),
            "levels": (counts["levels"] / counts["levels"].sum().clamp(min=1)).tolist(),
        }
        for part in ("foreground", "ignored", "background", "rejected"):
            figures[part] = float(counts[part].sum()) / images
            figures[f"{part}_per_class"] = each(part)
        if float(counts["objects"].sum()):
            figures |= self._quality(counts, classes)
        return figures

    def _quality(self, counts: dict[str, Tensor], classes: Sequence[str]) -> dict[str, Any]:
        names = {
            "precision": ("right", "judged"),
            "precision_any_class": ("localised", "judged"),
            "recall": ("recalled", "objects"),
            "recall_any_class": ("recalled_any_class", "objects"),
        }
        figures: dict[str, Any] = {}
        for name, (part, whole) in names.items():
            figures[name] = _ratio(counts[part].sum(), counts[whole].sum())
            shares = [_ratio(a, b) for a, b in zip(counts[part], counts[whole], strict=True)]
            figures[f"{name}_per_class"] = dict(zip(classes, shares, strict=True))
        for name in ("scores_tp", "scores_misplaced", "scores_bg"):
            figures[name] = counts[name].long().tolist()
        return figures

    def _collect(self) -> dict[str, Tensor]:
        """Sums over all ranks; the own ones start anew."""
        own = torch.cat(list(self._counts.values()))
        if distributed.is_available() and distributed.is_initialized():
            distributed.all_reduce(own)
        sizes = [len(count) for count in self._counts.values()]
        total = dict(zip(self._counts, torch.split(own, sizes), strict=True))
        for count in self._counts.values():
            count.zero_()
        return total


def _ratio(part: Tensor, whole: Tensor) -> float | None:
    """None where there is nothing to take a share of."""
    return float(part / whole) if float(whole) else None
