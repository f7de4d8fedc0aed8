"""Geometry by painting: the moved boxes must cover exactly the moved pixels."""

import pytest
import torch

from dsl.geometry import Flip, Resize, VerticalFlip, clip, move_image, move_targets
from dsl.image import fitted_size
from dsl.types import Targets


def painted(height: int, width: int, box: tuple[int, int, int, int]) -> torch.Tensor:
    image = torch.zeros(3, height, width, dtype=torch.uint8)
    x1, y1, x2, y2 = box
    image[:, y1:y2, x1:x2] = 255
    return image


def extent(image: torch.Tensor) -> list[int]:
    """The half-open box around all pixels that are more than half lit."""
    rows, columns = (image[0] > 127).nonzero(as_tuple=True)
    return [int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1]


def one(box: tuple[int, int, int, int]) -> Targets:
    return Targets(
        torch.tensor([box], dtype=torch.float32), torch.tensor([4]), torch.tensor([True])
    )


@pytest.mark.parametrize("box", [(0, 0, 8, 4), (12, 6, 40, 20), (50, 30, 60, 40)])
@pytest.mark.parametrize(
    "moves",
    [
        [Flip(60)],
        [VerticalFlip(40)],
        [VerticalFlip(40), Flip(60), Resize((40, 60), (80, 60)), VerticalFlip(80)],
        [Resize((40, 60), (80, 120))],
        [Resize((40, 60), (20, 30))],
        [Resize((40, 60), (80, 60)), Flip(60), Resize((80, 60), (40, 180))],
    ],
)
def test_boxes_follow_the_pixels(box: tuple[int, int, int, int], moves: list) -> None:
    moved = move_image(painted(40, 60, box), moves)
    targets = move_targets(one(box), moves)
    assert targets.boxes[0].round().tolist() == extent(moved)
    assert targets.labels.tolist() == [4]
    assert targets.ignored.tolist() == [True]


@pytest.mark.parametrize("flips", [[Flip(60)], [VerticalFlip(40)], [Flip(60), VerticalFlip(40)]])
def test_flipping_twice_changes_nothing(flips: list) -> None:
    box = (3, 5, 17, 19)
    once = move_targets(one(box), flips)
    assert once.boxes[0].tolist() != list(box)
    assert move_targets(once, flips).boxes[0].tolist() == list(box)


def test_no_boxes_stay_no_boxes() -> None:
    moved = move_targets(Targets.empty(), [Flip(60), Resize((40, 60), (80, 120))])
    assert len(clip(moved, 80, 120)) == 0


def test_clip_cuts_at_the_border_and_drops_what_is_outside() -> None:
    boxes = torch.tensor([[-5.0, -5, 10, 10], [70, 10, 90, 20], [50, 30, 80, 50]])
    targets = Targets(boxes, torch.tensor([0, 1, 2]), torch.tensor([False, False, True]))
    clipped = clip(targets, 40, 60)
    assert clipped.boxes.tolist() == [[0, 0, 10, 10], [50, 30, 60, 40]]
    assert clipped.labels.tolist() == [0, 2]
    assert clipped.ignored.tolist() == [False, True]


@pytest.mark.parametrize(
    ("size", "expected"),
    [((480, 640), (800, 1067)), ((640, 480), (1067, 800)), ((200, 1000), (267, 1333))],
)
def test_short_side_until_the_long_one_is_too_long(
    size: tuple[int, int], expected: tuple[int, int]
) -> None:
    assert fitted_size(*size, short_side=800, max_side=1333) == expected


def test_a_sliver_keeps_one_pixel() -> None:
    assert fitted_size(1, 5000, short_side=100, max_side=200) == (1, 200)
