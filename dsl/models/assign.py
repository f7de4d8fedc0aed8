"""Which location answers for which box (FCOS, METHOD 1).

A location is positive for a box when it lies inside (near the centre, if sampling is on) and its
largest distance falls into its level's size range; of several boxes the smallest wins. Ignored
boxes go through the same rule and take their locations out of the loss; foreground wins over them.
Where the class of an ignored box is certain to a degree, the location learns that and no box.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dsl.types import Targets

BACKGROUND = -1
IGNORED = -2


@dataclass(frozen=True)
class Locations:
    """All locations of a pyramid, level after level, row after row."""

    points: Tensor  # (L, 2): x, y in pixels, the middle of each cell
    strides: Tensor  # (L,)
    levels: Tensor  # (L,) int64


def locate(
    shapes: Sequence[tuple[int, int]], strides: Sequence[int], device: torch.device
) -> Locations:
    """The locations of levels with these (height, width)."""
    points, steps, levels = [], [], []
    for level, ((height, width), stride) in enumerate(zip(shapes, strides, strict=True)):
        y = (torch.arange(height, device=device) + 0.5) * stride
        x = (torch.arange(width, device=device) + 0.5) * stride
        grid_y, grid_x = torch.meshgrid(y, x, indexing="ij")
        points.append(torch.stack([grid_x, grid_y], dim=-1).reshape(-1, 2))
        steps.append(torch.full((height * width,), float(stride), device=device))
        levels.append(torch.full((height * width,), level, device=device))
    return Locations(torch.cat(points), torch.cat(steps), torch.cat(levels))


@dataclass(frozen=True)
class Assignment:
    """What each location of N images should say."""

    labels: Tensor  # (N, L) int64: a class, BACKGROUND or IGNORED
    distances: Tensor  # (N, L, 4): l, t, r, b in units of the stride; 0 off the positives
    classes: Tensor  # (N, L) int64: as labels, and also the class of what is ignored but certain
    certainty: Tensor  # (N, L): the score to learn as that class


class Assigner:
    """The rule, with its two settings: the size ranges and the sampling radius."""

    def __init__(self, size_ranges: Sequence[float], *, center_radius: float = 1.5) -> None:
        """`size_ranges`: upper bounds of all levels but the last (which has none), in pixels.
        `center_radius`: in strides; 0 takes every location inside the box (the paper)."""
        self.size_ranges = tuple(size_ranges)
        self.center_radius = center_radius

    def __call__(self, locations: Locations, targets: Sequence[Targets]) -> Assignment:
        parts = zip(*(self._assign(locations, t) for t in targets), strict=True)
        return Assignment(*map(torch.stack, parts))

    def _assign(
        self, locations: Locations, targets: Targets
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        count, device = len(locations.points), locations.points.device
        labels = torch.full((count,), BACKGROUND, device=device)
        certainty = torch.ones(count, device=device)
        if len(targets) == 0:
            return labels, torch.zeros(count, 4, device=device), labels, certainty
        boxes = targets.boxes.to(locations.points.dtype)
        distances = _distances(locations.points, boxes)  # (L, M, 4)
        matched = self._match(locations, boxes, distances)  # (L, M)

        areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])  # (M,)
        candidate = matched & ~targets.ignored
        smallest, winner = torch.where(candidate, areas, torch.inf).min(dim=1)  # (L,)
        positive = smallest < torch.inf
        labels[(matched & targets.ignored).any(dim=1)] = IGNORED
        labels = torch.where(positive, targets.labels[winner], labels)
        won = distances[torch.arange(count, device=device), winner] / locations.strides[:, None]
        wanted, classes = torch.where(positive[:, None], won, 0.0), labels
        if targets.certainty is not None:
            known = targets.certainty > 0
            smallest, second = torch.where(matched & known, areas, torch.inf).min(dim=1)
            hidden = (matched & targets.ignored & ~known).any(dim=1)
            softly = (labels == IGNORED) & (smallest < torch.inf) & ~hidden
            classes = torch.where(softly, targets.labels[second], labels)
            certainty = targets.certainty[torch.where(positive, winner, second)]
        return labels, wanted, classes, certainty

    def _match(self, locations: Locations, boxes: Tensor, distances: Tensor) -> Tensor:
        """(L, M) bool: the location may answer for the box."""
        bounds = distances.new_tensor([0.0, *self.size_ranges, torch.inf])
        low, high = bounds[locations.levels], bounds[locations.levels + 1]  # (L,)
        reach = distances.amax(dim=-1)  # (L, M)
        inside = distances.amin(dim=-1) > 0
        if self.center_radius > 0:
            centers = (boxes[:, :2] + boxes[:, 2:]) / 2  # (M, 2)
            offset = (locations.points[:, None] - centers).abs().amax(dim=-1)  # (L, M)
            inside &= offset < self.center_radius * locations.strides[:, None]
        return inside & (reach > low[:, None]) & (reach <= high[:, None])


def _distances(points: Tensor, boxes: Tensor) -> Tensor:
    """(L, M, 4): from each point to the left, top, right and bottom of each box, in pixels."""
    near = points[:, None] - boxes[:, :2]
    far = boxes[:, 2:] - points[:, None]
    return torch.cat([near, far], dim=-1)


def to_boxes(points: Tensor, distances: Tensor) -> Tensor:
    """The boxes (..., 4) that lie at these distances, in pixels, around these points."""
    return torch.cat([points - distances[..., :2], points + distances[..., 2:]], dim=-1)
