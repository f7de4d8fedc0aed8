"""Which detections are certain enough to be labels, and which images a person should look at first.

It sees detections and names only: no image, no annotation format.
"""

import csv
import io
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dsl.types import Annotations, Detections

LEAST_SCORE = 0.1  # below it a box is noise, whatever its class's operating point
_NAMED = 3  # least-known classes named per image


@dataclass(frozen=True)
class Bars:
    """Two scores per class: a box is certain from the one on, and uncertain from the other."""

    certain: Tensor  # (C,) the operating points
    uncertain: Tensor  # (C,) never above

    def __post_init__(self) -> None:
        if self.certain.shape != self.uncertain.shape or bool(
            (self.uncertain > self.certain).any()
        ):
            raise ValueError("bars: the uncertain one must not be above the certain one")

    @staticmethod
    def of(operating_points: Tensor) -> "Bars":
        """Half the operating point, but no noise: below it most boxes are wrong."""
        half = (operating_points / 2).clamp(min=LEAST_SCORE)
        return Bars(operating_points, half.minimum(operating_points))


@dataclass(frozen=True)
class Proposal:
    """What is proposed for one image."""

    detections: Detections
    uncertain: Tensor  # (M,) bool

    @staticmethod
    def of(found: Detections, bars: Bars) -> "Proposal":
        kept = found[found.scores >= bars.uncertain[found.labels]]
        return Proposal(kept, kept.scores < bars.certain[kept.labels])


@dataclass(frozen=True)
class Usefulness:
    """How much a person's label of an image would help, and why."""

    position: int  # of the image
    bits: float  # doubt that a look would settle, and the mix of classes
    num_certain: int
    num_uncertain: int
    class_entropy: float  # bits, of the classes among its boxes
    least_known: tuple[int, ...]  # its classes of which least boxes are certain, least known first


def rank(proposals: Sequence[Proposal], bars: Bars) -> list[Usefulness]:
    """All images, most helpful first; equal ones in the order given.

    A box's doubt is the entropy of its score, which is taken for even odds at the operating point:
    1 bit there, 0 bits for a score of 0 or 1. It counts up to twice in a class of which few boxes
    are certain. The entropy of the image's classes is added: it shows more than one thing.
    """
    known = known_shares(proposals, num_classes=len(bars.certain))
    ranked = [_usefulness(n, each, bars, known) for n, each in enumerate(proposals)]
    return sorted(ranked, key=lambda each: -each.bits)


def known_shares(proposals: Sequence[Proposal], *, num_classes: int) -> Tensor:
    """(C,) the share of each class's boxes that are certain; 0 for a class never seen."""
    total, certain = torch.zeros(num_classes), torch.zeros(num_classes)
    for each in proposals:
        total += torch.bincount(each.detections.labels, minlength=num_classes)
        certain += torch.bincount(each.detections.labels[~each.uncertain], minlength=num_classes)
    return certain / total.clamp(min=1)


def doubt(scores: Tensor, bar: Tensor) -> Tensor:
    """(M,) bits. Scores below the bar map to odds below one half, those above to odds above."""
    below = 0.5 * scores / bar.clamp(min=1e-6)
    above = 0.5 + 0.5 * (scores - bar) / (1 - bar).clamp(min=1e-6)
    odds = torch.where(scores < bar, below, above).clamp(1e-6, 1 - 1e-6)
    return -(odds * odds.log2() + (1 - odds) * (1 - odds).log2())


def to_annotations(proposals: Sequence[Proposal]) -> tuple[Annotations, Tensor]:
    """The proposals as labels, the uncertain ones ignored, and (B,) their scores."""
    counts = torch.tensor([0, *(len(each.detections) for each in proposals)])
    boxes = torch.cat([torch.zeros(0, 4), *(each.detections.boxes for each in proposals)]).double()
    labels = [each.detections.labels for each in proposals]
    ignored = [each.uncertain for each in proposals]
    annotations = Annotations(
        counts.cumsum(0),
        boxes,
        torch.cat([torch.zeros(0, dtype=torch.int64), *labels]),
        torch.cat([torch.zeros(0, dtype=torch.bool), *ignored]),
        (boxes[:, 2:] - boxes[:, :2]).prod(dim=1),
    )
    return annotations, torch.cat([torch.zeros(0), *(each.detections.scores for each in proposals)])


def ranking_csv(
    ranked: Sequence[Usefulness], names: Sequence[str], *, classes: Sequence[str]
) -> str:
    """The ranking as a table; `names` are those of the images by position."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(
        ["rank", "image", "usefulness", "uncertain", "certain", "class_entropy", "least_known"]
    )
    for place, each in enumerate(ranked, start=1):
        least = "; ".join(classes[label] for label in each.least_known)
        table.writerow([
            place, names[each.position], f"{each.bits:.3f}", each.num_uncertain, each.num_certain,
            f"{each.class_entropy:.3f}", least,
        ])  # fmt: skip
    return text.getvalue()


def _usefulness(position: int, proposal: Proposal, bars: Bars, known: Tensor) -> Usefulness:
    found = proposal.detections
    bits = doubt(found.scores, bars.certain[found.labels]) * (2 - known[found.labels])
    entropy = _class_entropy(found.labels.tolist())
    unsure = set(found.labels[proposal.uncertain].tolist())
    least = sorted(unsure, key=lambda label: (float(known[label]), label))[:_NAMED]
    num_uncertain = int(proposal.uncertain.sum())
    return Usefulness(
        position=position,
        bits=float(bits.sum()) + entropy,
        num_certain=len(found) - num_uncertain,
        num_uncertain=num_uncertain,
        class_entropy=entropy,
        least_known=tuple(least),
    )


def _class_entropy(labels: Sequence[int]) -> float:
    shares = [count / len(labels) for count in Counter(labels).values()]
    return sum(-share * math.log2(share) for share in shares)
