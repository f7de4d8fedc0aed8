"""The three losses of FCOS as sums and counts (paper, Eq. 2 and 5; METHOD 1).

Nothing is divided here: batches and ranks are added up first, and one division follows. So a rank
or a batch with few positives cannot blow up the loss.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.ops import generalized_box_iou_loss, sigmoid_focal_loss

from dsl.models.assign import BACKGROUND, IGNORED, Assigner, Assignment, locate, to_boxes
from dsl.types import DenseOutput, Targets

MIN_SIDE = 1e-3  # in strides: GIoU of a box without area has NaN gradients


@dataclass(frozen=True)
class LossSums:
    """Sums over locations, and what they are to be divided by."""

    classification: Tensor
    box: Tensor  # weighted
    centerness: Tensor
    num_positives: Tensor
    box_weights: Tensor  # sum of the weights: the positives' target centerness, or ones
    level_positives: Tensor  # (V,): positives of each pyramid level, to look at

    def __add__(self, other: "LossSums") -> "LossSums":
        return LossSums(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


def flatten(maps: Sequence[Tensor]) -> Tensor:
    """Maps (N, K, H_v, W_v) of all levels -> (N, L, K)."""
    return torch.cat([m.permute(0, 2, 3, 1).flatten(1, 2) for m in maps], dim=1)


def centerness_of(distances: Tensor) -> Tensor:
    """1 in the middle of a box, 0 on its border; distances are (..., 4)."""
    horizontal, vertical = distances[..., 0::2], distances[..., 1::2]
    ratio = horizontal.amin(-1) / horizontal.amax(-1) * vertical.amin(-1) / vertical.amax(-1)
    return ratio.sqrt()


class Criterion:
    """Assigns targets to locations and compares."""

    def __init__(
        self, assigner: Assigner, *, box_weight: float = 1.0, by_centerness: bool = True
    ) -> None:
        """`by_centerness`: a box counts by the centerness of its location; else all alike."""
        self.assigner, self.box_weight, self.by_centerness = assigner, box_weight, by_centerness

    def __call__(self, output: DenseOutput, targets: Sequence[Targets]) -> LossSums:
        shapes = [(m.shape[-2], m.shape[-1]) for m in output.class_logits]
        sizes = [height * width for height, width in shapes]
        locations = locate(shapes, output.strides, output.class_logits[0].device)
        assignment = self.assigner(locations, targets)
        logits = flatten(output.class_logits).float()  # (N, L, C)
        positive = assignment.labels >= 0  # (N, L)
        predicted = flatten(output.distances)[positive].float()  # (P, 4)
        wanted = assignment.distances[positive]  # (P, 4)
        centerness = flatten(output.centerness)[positive].float().squeeze(-1)  # (P,)
        middle = centerness_of(wanted)  # (P,)
        weight = middle if self.by_centerness else torch.ones_like(middle)
        return LossSums(
            classification=_class_loss(logits, assignment)
            if all(t.certainty is None for t in targets)
            else _soft_class_loss(logits, assignment),
            box=self.box_weight * (_box_loss(predicted, wanted) * weight).sum(),
            centerness=F.binary_cross_entropy_with_logits(centerness, middle, reduction="sum"),
            num_positives=positive.sum().float(),
            box_weights=weight.sum(),
            level_positives=torch.stack(
                [p.sum() for p in torch.split(positive, sizes, dim=1)]
            ).float(),
        )


def _class_loss(logits: Tensor, assignment: Assignment) -> Tensor:
    """Focal loss (gamma 2, alpha .25) over all locations that are not ignored."""
    logits, wanted = _scores_to_learn(logits, assignment)
    loss: Tensor = sigmoid_focal_loss(logits, wanted, alpha=0.25, gamma=2.0, reduction="sum")
    return loss


def _soft_class_loss(logits: Tensor, assignment: Assignment) -> Tensor:
    """The same between its ends: least, and flat, where the score is the one to learn."""
    logits, wanted = _scores_to_learn(logits, assignment)
    alpha, distance = 0.75 - 0.5 * wanted, (wanted - logits.sigmoid()).abs()
    entropy = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    return (alpha * distance**2 * entropy).sum()


def _scores_to_learn(logits: Tensor, assignment: Assignment) -> tuple[Tensor, Tensor]:
    """(K, C) both: the logits of the locations that are not ignored, and the scores they aim at."""
    kept = assignment.classes != IGNORED
    logits, classes, certainty = logits[kept], assignment.classes[kept], assignment.certainty[kept]
    wanted = torch.zeros_like(logits)
    positive = (classes != BACKGROUND).nonzero().squeeze(1)
    wanted[positive, classes[positive]] = certainty[positive]
    return logits, wanted


def _box_loss(predicted: Tensor, wanted: Tensor) -> Tensor:
    """GIoU loss (P,) of boxes around one shared point, in strides."""
    origin = predicted.new_zeros(len(predicted), 2)
    boxes = to_boxes(origin, predicted.clamp(min=MIN_SIDE))
    loss: Tensor = generalized_box_iou_loss(boxes, to_boxes(origin, wanted))
    return loss
