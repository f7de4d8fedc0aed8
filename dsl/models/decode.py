"""From raw maps to boxes: score, select, suppress (METHOD 1)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torchvision.ops import batched_nms, nms

from dsl.models.assign import Locations, locate, to_boxes
from dsl.models.losses import flatten
from dsl.types import DenseOutput, Detections, Objects


@dataclass(frozen=True)
class Decoder:
    """score = sigmoid(class) * sigmoid(centerness), without a square root: the thresholds of
    the adaptive filter are made for this product."""

    min_class_score: float = 0.05
    per_level: int = 1000
    nms_iou: float = 0.6
    max_detections: int = 100

    @torch.no_grad()
    def __call__(self, output: DenseOutput, sizes: Tensor) -> list[Detections]:
        """One Detections per image; boxes clipped to `sizes`, (N, 2) height and width."""
        return [found for found, _ in self.with_classes(output, sizes)]

    @torch.no_grad()
    def with_classes(self, output: DenseOutput, sizes: Tensor) -> list[tuple[Detections, Tensor]]:
        """The same, and of each image the class scores (M,) by themselves, without centerness."""
        return [self._one(*maps) for maps in zip(*_flat(output), sizes, strict=True)]

    @torch.no_grad()
    def objects(self, output: DenseOutput, sizes: Tensor, *, least: float) -> list[Objects]:
        """One Objects per image: of boxes that lie on each other, whatever their classes, the best.
        `least`: what its best score exceeds."""
        return [self._all(*maps, least) for maps in zip(*_flat(output), sizes, strict=True)]

    def _one(
        self,
        locations: Locations,
        logits: Tensor,
        distances: Tensor,
        centerness: Tensor,
        size: Tensor,
    ) -> tuple[Detections, Tensor]:
        # Comparing logits first: most locations never need a sigmoid.
        bar = math.log(self.min_class_score / (1 - self.min_class_score))
        place, label = (logits > bar).nonzero(as_tuple=True)  # (K,), (K,)
        of_class = logits[place, label].sigmoid()
        scores = of_class * centerness[place].sigmoid()
        best = self._best_per_level(scores, locations.levels[place])
        place, label, scores, of_class = place[best], label[best], scores[best], of_class[best]
        boxes, real = _boxes(locations, distances, place, size)
        boxes, scores, label, of_class = boxes[real], scores[real], label[real], of_class[real]
        keep = batched_nms(boxes, scores, label, self.nms_iou)[: self.max_detections]
        return Detections(boxes[keep], scores[keep], label[keep]), of_class[keep]

    def _all(
        self,
        locations: Locations,
        logits: Tensor,
        distances: Tensor,
        centerness: Tensor,
        size: Tensor,
        least: float,
    ) -> Objects:
        scores = logits.sigmoid() * centerness.sigmoid()[:, None]  # (L, C)
        place = (scores.amax(dim=1) > least).nonzero().squeeze(1)  # (K,)
        best = self._best_per_level(scores[place].amax(dim=1), locations.levels[place])
        boxes, real = _boxes(locations, distances, place[best], size)
        boxes, scores = boxes[real], scores[place[best]][real]
        keep = nms(boxes, scores.amax(dim=1), self.nms_iou)[: self.max_detections]
        return Objects(boxes[keep], scores[keep])

    def _best_per_level(self, scores: Tensor, levels: Tensor) -> Tensor:
        """Positions of the highest scores of each level."""
        if len(scores) <= self.per_level:
            return torch.arange(len(scores), device=scores.device)
        chosen = []
        for level in range(int(levels.max()) + 1):
            at = (levels == level).nonzero().squeeze(1)
            chosen.append(at[scores[at].topk(min(self.per_level, len(at))).indices])
        return torch.cat(chosen)


def _flat(
    output: DenseOutput,
) -> tuple[list[Locations], Tensor, Tensor, Tensor]:
    """For each image the locations (L); class logits (N, L, C), distances (N, L, 4), centerness
    (N, L)."""
    shapes = [(m.shape[-2], m.shape[-1]) for m in output.class_logits]
    locations = locate(shapes, output.strides, output.class_logits[0].device)
    logits = flatten(output.class_logits).float()
    distances = flatten(output.distances).float()
    centerness = flatten(output.centerness).float().squeeze(-1)
    return [locations] * len(logits), logits, distances, centerness


def _boxes(
    locations: Locations, distances: Tensor, place: Tensor, size: Tensor
) -> tuple[Tensor, Tensor]:
    """Boxes (K, 4) of the locations at `place`, within the image, and which of them are any."""
    boxes = to_boxes(locations.points[place], distances[place] * locations.strides[place, None])
    limit = size.flip(0).repeat(2).to(boxes.dtype)  # width, height, width, height
    boxes = torch.minimum(boxes.clamp(min=0), limit)
    return boxes, (boxes[:, 2:] > boxes[:, :2]).all(dim=1)  # none in the padding
