"""The vectorised rule says of every box what the assigner itself says of it alone."""

import numpy as np
import pytest
import torch

from dsl.doctor.levels import levels_reached
from dsl.models.assign import Assigner, locate
from dsl.models.fpn import STRIDES
from dsl.types import Targets

CANVAS = 256


def by_assigner(boxes: np.ndarray, assigner: Assigner) -> np.ndarray:
    """(M, V), box after box."""
    shapes = [(-(-CANVAS // stride),) * 2 for stride in STRIDES]
    locations = locate(shapes, STRIDES, torch.device("cpu"))
    rows = []
    for box in torch.from_numpy(boxes).float():
        alone = Targets(box[None], torch.zeros(1, dtype=torch.int64), torch.zeros(1).bool())
        positive = assigner(locations, [alone]).labels[0] == 0
        rows.append([bool(positive[locations.levels == v].any()) for v in range(len(STRIDES))])
    return np.array(rows)


@pytest.mark.parametrize("radius", [0.0, 1.0, 1.5])
@pytest.mark.parametrize("ranges", [(16, 32, 64, 128), (32, 64, 128, 256), (3, 9, 40, 41)])
def test_it_agrees_with_the_assigner(radius: float, ranges: tuple[float, ...]) -> None:
    random = np.random.default_rng(0)
    sides = np.exp(random.uniform(0, np.log(CANVAS), (200, 2)))
    corners = random.uniform(0, 1, (200, 2)) * (CANVAS - sides)
    boxes = np.concatenate([corners, corners + sides], axis=1)
    assigner = Assigner(ranges, center_radius=radius)
    expected = by_assigner(boxes, assigner)
    assert 0 < expected.any(axis=1).mean() < 1  # some are lost, some are not
    np.testing.assert_array_equal(levels_reached(boxes, assigner, STRIDES), expected)


def test_edges_belong_to_the_side_that_the_assigner_says() -> None:
    """Whole pixels: locations that lie exactly on a border, at a radius or at a range's end."""
    boxes = np.array(
        [[0, 0, 8, 8], [4, 4, 12, 12], [0, 0, 4, 4], [4, 4, 5, 5], [0, 0, 32, 32], [8, 8, 40, 24],
         [0, 0, 64, 64], [16, 16, 80, 48], [4, 0, 36, 32], [0, 0, 24, 256]], float)  # fmt: skip
    for radius in (0.0, 1.0, 1.5):
        assigner = Assigner((16, 32, 64, 128), center_radius=radius)
        np.testing.assert_array_equal(
            levels_reached(boxes, assigner, STRIDES), by_assigner(boxes, assigner)
        )


def test_no_boxes() -> None:
    assert levels_reached(np.zeros((0, 4)), Assigner((16, 32, 64, 128)), STRIDES).shape == (0, 5)
