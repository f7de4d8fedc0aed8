"""From the teacher's detections to the student's targets (DSL, section 3.2; METHOD 2 and 3).

Detections stand in the pixels of the weak view. Once they are split, and doubtful classes are put
aside, they follow the recorded geometry into the strong view.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torchvision.ops import nms

from dsl.geometry import clip, move_targets
from dsl.ssod.adaptive_filter import Partition
from dsl.types import Detections, Objects, Operation, Targets


@dataclass(frozen=True)
class PseudoLabels:
    """What the teacher makes of one image, in weak pixels: every detection and its part."""

    detections: Detections
    foreground: Tensor  # (M,) bool: what the student is to learn
    ignored: Tensor  # (M,) bool: no box is learned there, and no class but by its certainty
    rejected: Tensor  # (M,) bool: was foreground until its class was doubted; ignored too
    certainty: Tensor | None = None  # (M,): the class scores to learn, ignored ones too; None: 1

    @staticmethod
    def of(
        detections: Detections, part: Partition, doubtful: Tensor | None = None,
        certainty: Tensor | None = None,
    ) -> "PseudoLabels":  # fmt: skip
        """`doubtful`: (M,) bool; foreground whose class is doubtful becomes ignored (MetaNet)."""
        rejected = part.foreground & (part.ignored if doubtful is None else doubtful)
        foreground, ignored = part.foreground & ~rejected, part.ignored | rejected
        return PseudoLabels(detections, foreground, ignored, rejected, certainty)

    def cpu(self) -> "PseudoLabels":
        masks = (self.foreground.cpu(), self.ignored.cpu(), self.rejected.cpu())
        certainty = None if self.certainty is None else self.certainty.cpu()
        return PseudoLabels(self.detections.cpu(), *masks, certainty)

    def targets(self) -> Targets:
        """Foreground and ignored boxes; background is what is left out. Of a doubted class nothing
        is learned."""
        found = self.detections
        targets = Targets(found.boxes, found.labels, self.ignored, self.certainty)
        return targets.put_aside(self.rejected)[self.foreground | self.ignored]


def named(objects: Objects, odds: Tensor, *, background: float) -> tuple[Tensor, Tensor]:
    """Scores and labels, (M,) both, of objects by the names that detector and MetaNet, whose `odds`
    are (M, C), find likeliest together: max(s) * p_k, with p proportional to sqrt(s) * odds. All
    stay more than background: who doubts the class has not said that nothing is there."""
    belief = objects.scores.sqrt() * odds
    shares, labels = (belief / belief.sum(dim=1, keepdim=True)).max(dim=1)
    least = torch.nextafter(shares.new_tensor(background), shares.new_tensor(1.0))
    return (objects.scores.amax(dim=1) * shares).maximum(least), labels


def best_of_rivals(found: Detections, part: Partition, *, iou: float) -> Partition:
    """Where foreground boxes lie on each other, of whatever classes, the best one is taught alone:
    one object has one class. Its rivals become ignored."""
    places = part.foreground.nonzero().squeeze(1)
    kept = nms(found.boxes[places].float(), found.scores[places].float(), iou)
    best = torch.zeros_like(part.foreground)
    best[places[kept]] = True
    return Partition(best, part.ignored | (part.foreground & ~best))


def carry(targets: Targets, moves: Sequence[Operation], *, size: Tensor) -> Targets:
    """The targets in the strong view, cut to its valid area: `size` is (2,), height and width."""
    height, width = size.tolist()
    return clip(move_targets(targets, moves), height, width)
