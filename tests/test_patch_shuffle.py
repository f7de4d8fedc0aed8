"""Algorithm 1 by painting: pieces of boxes cover exactly the pixels that their boxes did."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dsl.data.views import Shuffle, Tilt
from dsl.geometry import (
    Affine,
    Flip,
    PatchShuffle,
    Resize,
    clip,
    halve,
    move_image,
    move_targets,
)  # fmt: skip
from dsl.types import Targets

Box = tuple[float, float, float, float]


def targets_of(boxes: list[Box], ignored: list[bool] | None = None) -> Targets:
    """Box number i has label i, so that its pieces can be told."""
    count = len(boxes)
    return Targets(
        torch.tensor(boxes, dtype=torch.float32).reshape(count, 4),
        torch.arange(count),
        torch.tensor(ignored or [False] * count, dtype=torch.bool),
    )


def paint(height: int, width: int, box: Box, *, zoom: int = 1) -> torch.Tensor:
    """(1, H, W): ones where the box is; `zoom` pixels for each, so that parts of one can be."""
    image = torch.zeros(1, height * zoom, width * zoom, dtype=torch.uint8)
    x1, y1, x2, y2 = (round(side * zoom) for side in box)
    image[:, y1:y2, x1:x2] = 1
    return image


def coverage(height: int, width: int, boxes: torch.Tensor, *, zoom: int = 1) -> torch.Tensor:
    """How many of the boxes lie over each pixel."""
    image = torch.zeros(1, height * zoom, width * zoom, dtype=torch.uint8)
    for box in boxes.tolist():
        sides = [side * zoom for side in box]
        assert all(abs(side - round(side)) < 1e-3 for side in sides)
        x1, y1, x2, y2 = (round(side) for side in sides)
        assert 0 <= x1 < x2 <= width * zoom
        assert 0 <= y1 < y2 <= height * zoom
        image[:, y1:y2, x1:x2] += 1
    return image


def pieces_of(moved: Targets, number: int) -> Targets:
    mine = moved.labels == number
    return Targets(moved.boxes[mine], moved.labels[mine], moved.ignored[mine])


def random_boxes(
    random: np.random.Generator, height: int, width: int, *, count: int, grid: int = 1
) -> list[Box]:
    """Boxes of one pixel (or 1 / grid) up to the whole image."""
    boxes = []
    for _ in range(count):
        x1, y1 = random.integers(0, width * grid), random.integers(0, height * grid)
        x2 = random.integers(x1 + 1, width * grid + 1)
        y2 = random.integers(y1 + 1, height * grid + 1)
        boxes.append((x1 / grid, y1 / grid, x2 / grid, y2 / grid))
    return boxes


# Algorithm 1.


def swap(image: NDArray[np.int64], mode: str, at: int) -> NDArray[np.int64]:
    """Steps 3 and 4: cut into two parts, exchange their order."""
    axis = 1 if mode == "horizontal" else 0
    first, second = np.split(image, [at], axis=axis)
    return np.concatenate([second, first], axis=axis)


@pytest.mark.parametrize("rounds", [1, 2, 3, 7])
def test_any_number_of_exchanges_is_one_roll(rounds: int) -> None:
    random = np.random.default_rng(rounds)
    for _ in range(20):
        height, width = (int(n) for n in random.integers(2, 40, 2))
        image = np.arange(height * width).reshape(height, width)
        shuffled, shuffle = image, PatchShuffle(height, width, 0, 0)
        for _ in range(rounds):
            mode = str(random.choice(["horizontal", "vertical"]))
            at = int(random.random() * (width if mode == "horizontal" else height))
            shuffled = swap(shuffled, mode, at)
            right, down = (width - at, 0) if mode == "horizontal" else (0, height - at)
            shuffle = shuffle.then(PatchShuffle(height, width, right, down))
        found = shuffle.image(torch.from_numpy(image)[None])[0]
        np.testing.assert_array_equal(found.numpy(), shuffled)


def test_drawn_shuffles_follow_the_algorithm() -> None:
    """One round moves one axis; both modes and all cuts occur, and none is preferred."""
    height, width = 30, 50
    rights, downs = [], []
    for seed in range(600):
        (shuffle,) = Shuffle(1).draw((height, width), np.random.default_rng(seed))
        assert isinstance(shuffle, PatchShuffle)
        assert (shuffle.height, shuffle.width) == (height, width)
        assert shuffle.right == 0 or shuffle.down == 0
        assert 0 <= shuffle.right < width
        assert 0 <= shuffle.down < height
        rights.append(shuffle.right)
        downs.append(shuffle.down)
    across, along = [r for r in rights if r], [d for d in downs if d]
    assert 230 < len(across) < 370
    assert 220 < len(along) < 370
    assert len(set(across)) > 40
    assert len(set(along)) > 25
    assert 22 < np.mean(across) < 28
    assert 13 < np.mean(along) < 17


def test_two_rounds_move_both_axes_half_of_the_time() -> None:
    draws = [Shuffle(2).draw((400, 500), np.random.default_rng(seed)) for seed in range(400)]
    assert all(len(operations) == 1 for operations in draws)
    shuffles = [operations[0] for operations in draws]
    both = sum(bool(s.right) and bool(s.down) for s in shuffles)  # type: ignore[attr-defined]
    across = sum(bool(s.right) and not s.down for s in shuffles)  # type: ignore[attr-defined]
    assert 160 < both < 240
    assert 65 < across < 135


def test_no_rounds_and_a_probability() -> None:
    random = np.random.default_rng(0)
    assert Shuffle(0).draw((10, 10), random) == []
    assert Shuffle(2, probability=0.0).draw((10, 10), random) == []
    drawn = sum(len(Shuffle(2, probability=0.5).draw((99, 99), random)) for _ in range(400))
    assert 160 < drawn < 240


def test_the_same_generator_draws_the_same_shuffle() -> None:
    one, two = (Shuffle(3).draw((77, 99), np.random.default_rng(5)) for _ in range(2))
    assert one == two


# Boxes.


@pytest.mark.parametrize("seed", range(8))
def test_pieces_cover_exactly_the_painted_pixels_once(seed: int) -> None:
    random = np.random.default_rng(seed)
    height, width = (int(n) for n in random.integers(8, 60, 2))
    boxes = [*random_boxes(random, height, width, count=25), (0.0, 0.0, width, height)]
    for _ in range(6):
        shuffle = PatchShuffle(
            height, width, int(random.integers(width)), int(random.integers(height))
        )
        moved = shuffle.targets(targets_of(boxes))
        for number, box in enumerate(boxes):
            pieces = pieces_of(moved, number)
            painted = shuffle.image(paint(height, width, box))
            assert torch.equal(coverage(height, width, pieces.boxes), painted)
            assert 1 <= len(pieces) <= 4


@pytest.mark.parametrize("seed", range(4))
def test_fractional_boxes_too(seed: int) -> None:
    random = np.random.default_rng(seed)
    height, width = 24, 40
    boxes = random_boxes(random, height, width, count=25, grid=4)
    for _ in range(4):
        right, down = int(random.integers(width)), int(random.integers(height))
        moved = PatchShuffle(height, width, right, down).targets(targets_of(boxes))
        for number, box in enumerate(boxes):
            painted = paint(height, width, box, zoom=4).roll((4 * down, 4 * right), dims=(-2, -1))
            found = coverage(height, width, pieces_of(moved, number).boxes, zoom=4)
            assert torch.equal(found, painted)


@pytest.mark.parametrize("seed", range(6))
def test_small_pieces_are_ignored_and_others_keep_their_status(seed: int) -> None:
    random = np.random.default_rng(seed)
    height, width = 48, 64
    boxes = random_boxes(random, height, width, count=40, grid=1 + seed % 2)
    known = random.random(40) < 0.3
    shuffle = PatchShuffle(height, width, int(random.integers(64)), int(random.integers(48)))
    moved = shuffle.targets(targets_of(boxes, known.tolist()))
    fates = {True: 0, False: 0}
    for number, (x1, y1, x2, y2) in enumerate(boxes):
        pieces = pieces_of(moved, number)
        for (left, top, right, bottom), ignored in zip(
            pieces.boxes.tolist(), pieces.ignored.tolist(), strict=True
        ):
            share = (right - left) * (bottom - top) / ((x2 - x1) * (y2 - y1))
            small = share < 0.25 or min(right - left, bottom - top) < 4
            expected = bool(known[number]) or (len(pieces) > 1 and small)
            assert ignored == expected
            fates[small and len(pieces) > 1] += not known[number]
    assert min(fates.values()) > 3


@pytest.mark.parametrize(
    ("box", "right", "expected"),
    [
        ((40, 0, 56, 8), 12, [(52, 64, False), (0, 4, False)]),  # exactly a quarter, exactly 4 px
        ((40, 0, 57, 8), 11, [(51, 64, False), (0, 4, True)]),  # 4 of 17: under a quarter
        ((40, 0, 52, 8), 15, [(55, 64, False), (0, 3, True)]),  # a quarter, but 3 px
        ((40, 0, 52, 3), 18, [(58, 64, True), (0, 6, True)]),  # halves, both 3 px high
    ],
)
def test_borders_of_what_is_small(
    box: Box, right: int, expected: list[tuple[float, float, bool]]
) -> None:
    moved = PatchShuffle(32, 64, right, 0).targets(targets_of([box]))
    found = sorted(
        (x1, x2, ignored)
        for (x1, _, x2, _), ignored in zip(
            moved.boxes.tolist(), moved.ignored.tolist(), strict=True
        )
    )
    assert found == sorted(expected)


@pytest.mark.parametrize("size", [(48, 64), (800, 1333)])
def test_an_uncut_box_is_never_turned_ignored(size: tuple[int, int]) -> None:
    """However small: only pieces of a cut box can be too small."""
    random, (height, width) = np.random.default_rng(0), size
    for _ in range(300):
        right, down = int(random.integers(width)), int(random.integers(height))
        # Where the box will stand after the roll, away from the border.
        wide, tall = random.uniform(2, 12, 2)
        x, y = random.uniform(0.1, width - wide - 0.1), random.uniform(0.1, height - tall - 0.1)
        x1, y1 = (x - right) % width, (y - down) % height
        if x1 + wide > width or y1 + tall > height:
            continue  # stood across the border before
        moved = PatchShuffle(height, width, right, down).targets(
            targets_of([(x1, y1, x1 + wide, y1 + tall)])
        )
        whole = moved.boxes[~moved.ignored]
        assert len(whole) == len(moved) == 1
        assert whole[0].tolist() == pytest.approx([x, y, x + wide, y + tall], abs=1e-3)


def test_rounding_does_not_cut_a_box() -> None:
    """A side that a resize left a hair before the border still counts as on it."""
    boxes: list[Box] = [(50 - 4e-6, 3, 53, 6), (10, 3, 50 + 4e-6, 6)]
    moved = PatchShuffle(32, 64, 14, 0).targets(targets_of(boxes))
    kept = moved.boxes[~moved.ignored]
    assert kept.tolist() == [
        pytest.approx([0, 3, 3, 6], abs=1e-4),
        pytest.approx([24, 3, 64, 6], abs=1e-4),
    ]


def test_a_box_that_ends_at_the_border_is_not_cut() -> None:
    moved = PatchShuffle(32, 64, 14, 12).targets(targets_of([(47, 17, 50, 20)]))
    assert moved.boxes.tolist() == [[61, 29, 64, 32]]
    assert moved.ignored.tolist() == [False]
    moved = PatchShuffle(32, 64, 14, 12).targets(targets_of([(50, 20, 53, 23)]))
    assert moved.boxes.tolist() == [[0, 0, 3, 3]]
    assert moved.ignored.tolist() == [False]


def test_ignored_boxes_stay_ignored_and_labels_stay() -> None:
    boxes = torch.tensor([[10.0, 10, 50, 30]])
    targets = Targets(boxes, torch.tensor([7]), torch.tensor([True]))
    moved = PatchShuffle(32, 64, 30, 10).targets(targets)
    assert len(moved) == 4
    assert moved.ignored.all()
    assert (moved.labels == 7).all()


@pytest.mark.parametrize("seed", range(5))
def test_rolling_back_returns_the_image_and_the_one_original_box(seed: int) -> None:
    random = np.random.default_rng(seed)
    height, width = 40, 56
    shuffle = PatchShuffle(height, width, int(random.integers(width)), int(random.integers(height)))
    boxes = [*random_boxes(random, height, width, count=20, grid=4), (0.0, 0.0, width, height)]
    targets = targets_of(boxes, (random.random(21) < 0.5).tolist())
    there_and_back = shuffle.then(shuffle.inverse())
    image = torch.randint(0, 256, (3, height, width), dtype=torch.uint8)
    assert torch.equal(there_and_back.image(image), image)
    assert torch.equal(shuffle.inverse().image(shuffle.image(image)), image)
    back = there_and_back.targets(targets)
    assert torch.equal(back.boxes, targets.boxes)
    assert torch.equal(back.labels, targets.labels)
    assert torch.equal(back.ignored, targets.ignored)


@pytest.mark.parametrize("seed", range(5))
def test_pieces_rolled_back_lie_side_by_side_in_the_original_box(seed: int) -> None:
    random = np.random.default_rng(seed)
    height, width = 40, 56
    shuffle = PatchShuffle(height, width, int(random.integers(width)), int(random.integers(height)))
    boxes = [*random_boxes(random, height, width, count=20), (0.0, 0.0, width, height)]
    there = shuffle.targets(targets_of(boxes))
    back = shuffle.inverse().targets(there)
    assert len(back) == len(there) > len(boxes)  # no piece is cut again
    assert sorted(back.ignored.tolist()) == sorted(there.ignored.tolist())
    for number, box in enumerate(boxes):
        found = coverage(height, width, pieces_of(back, number).boxes)
        assert torch.equal(found, paint(height, width, box))


def test_one_roll_is_what_two_are() -> None:
    one, two = PatchShuffle(30, 50, 31, 7), PatchShuffle(30, 50, 40, 29)
    image = torch.randint(0, 256, (3, 30, 50), dtype=torch.uint8)
    assert torch.equal(one.then(two).image(image), two.image(one.image(image)))


@pytest.mark.parametrize(("right", "down"), [(-7, -3), (57, 43), (0, 0), (-100, 90)])
def test_any_whole_number_is_a_roll(right: int, down: int) -> None:
    shuffle, box = PatchShuffle(40, 50, right, down), (20.0, 12.0, 45.0, 38.0)
    moved = shuffle.targets(targets_of([box]))
    assert torch.equal(coverage(40, 50, moved.boxes), shuffle.image(paint(40, 50, box)))


def test_no_boxes_stay_no_boxes() -> None:
    moved = move_targets(
        Targets.empty(), [PatchShuffle(40, 50, 3, 4), Affine(40, 50, (1, 0, 2, 0, 1, 3))]
    )
    assert len(moved) == 0
    assert len(halve(moved)) == 0


def test_half_the_size_is_half_of_every_side() -> None:
    targets = targets_of([(3, 5, 8, 9.5), (0, 0, 1, 1)], [False, True])
    half = halve(targets)
    assert half.boxes.tolist() == [[1.5, 2.5, 4, 4.75], [0, 0, 0.5, 0.5]]
    assert half.ignored.tolist() == [False, True]
    assert half.labels.tolist() == [0, 1]
    assert targets.boxes[0].tolist() == [3, 5, 8, 9.5]  # a query does not mutate


# The affine step.


def colored(height: int, width: int, box: Box) -> torch.Tensor:
    """A magenta box on green: neither is near the colour that comes in from outside."""
    inside = paint(height, width, box)
    return torch.cat([255 * inside, 255 * (1 - inside), 255 * inside])


def extent(image: torch.Tensor) -> list[int]:
    """The half-open box around all pixels that are mostly magenta."""
    rows, columns = ((image[0] > 140) & (image[1] < 110) & (image[2] > 140)).nonzero(as_tuple=True)
    return [int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1]


def turn(height: int, width: int, *, degrees: float, shear: float, scale: float) -> Affine:
    """About the image's centre."""
    cos, sin = math.cos(math.radians(degrees)) * scale, math.sin(math.radians(degrees)) * scale
    a, b, d, e = cos, cos * shear - sin, sin, sin * shear + cos
    x, y = width / 2, height / 2
    return Affine(height, width, (a, b, x - a * x - b * y, d, e, y - d * x - e * y))


BOXES: list[Box] = [(30, 30, 70, 60), (50, 20, 90, 80), (60, 45, 75, 52)]


@pytest.mark.parametrize("box", BOXES)
@pytest.mark.parametrize(
    "affine",
    [
        turn(100, 120, degrees=10, shear=0.0, scale=1.0),
        turn(100, 120, degrees=-10, shear=0.1, scale=1.0),
        turn(100, 120, degrees=0, shear=-0.1, scale=1.2),
        turn(100, 120, degrees=5, shear=0.0, scale=0.6),
        turn(100, 120, degrees=90, shear=0.0, scale=1.0),
        Affine(100, 120, (1, 0, 7, 0, 1, -12)),
        Affine(100, 120, (1, 0, 2.5, 0, 1, 6.25)),
    ],
)
def test_an_affine_box_surrounds_the_moved_pixels(affine: Affine, box: Box) -> None:
    moved = affine.targets(targets_of([box]))
    found = extent(affine.image(colored(100, 120, box)))
    assert clip(moved, 100, 120).boxes[0].tolist() == pytest.approx(found, abs=1.5)
    assert moved.ignored.tolist() == [False]


@pytest.mark.parametrize("seed", range(10))
def test_a_drawn_tilt_moves_boxes_with_pixels(seed: int) -> None:
    (affine,) = Tilt(1.0).draw((100, 120), np.random.default_rng(seed))
    for box in BOXES:
        found = extent(affine.image(colored(100, 120, box)))
        moved = clip(affine.targets(targets_of([box])), 100, 120)
        assert moved.boxes[0].tolist() == pytest.approx(found, abs=1.5)


def test_the_identity_changes_nothing() -> None:
    random = np.random.default_rng(0)
    targets = targets_of(
        random_boxes(random, 40, 50, count=20, grid=4), (random.random(20) < 0.5).tolist()
    )
    image = torch.randint(0, 256, (3, 40, 50), dtype=torch.uint8)
    affine = Affine(40, 50, (1, 0, 0, 0, 1, 0))
    assert torch.equal(affine.image(image), image)
    moved = affine.targets(targets)
    assert torch.equal(moved.boxes, targets.boxes)
    assert torch.equal(moved.ignored, targets.ignored)


def test_a_shift_by_whole_pixels_is_exact() -> None:
    image = torch.randint(0, 256, (3, 40, 50), dtype=torch.uint8)
    shifted = Affine(40, 50, (1, 0, 6, 0, 1, -4)).image(image)
    assert torch.equal(shifted[:, :36, 6:], image[:, 4:, :44])


def test_a_box_that_mostly_leaves_the_image_is_ignored() -> None:
    boxes: list[Box] = [(20, 10, 40, 30), (30, 10, 50, 30), (5, 10, 25, 30)]
    moved = Affine(40, 50, (1, 0, 16, 0, 1, 0)).targets(targets_of(boxes))
    # To 36..56: 14 of 20 columns stay; to 46..66: 4 of 20; to 21..41: all.
    assert moved.ignored.tolist() == [False, True, False]
    known = replace(targets_of(boxes), ignored=torch.tensor([True, False, True]))
    moved = Affine(40, 50, (1, 0, 16, 0, 1, 0)).targets(known)
    assert moved.ignored.tolist() == [True, True, True]


# One after the other, as views record them.


@pytest.mark.parametrize(("shift_x", "shift_y"), [(20, 0), (-25, 0), (0, 15), (12, -18)])
def test_what_an_affine_step_pushed_out_does_not_come_back_by_a_shuffle(
    shift_x: int, shift_y: int
) -> None:
    """An affine step loses what leaves the image; a roll that follows must not bring it back."""
    height, width, box = 40, 60, (15.0, 12.0, 55.0, 33.0)
    affine = Affine(height, width, (1, 0, shift_x, 0, 1, shift_y))
    for right in (0, 5, 20, 45):
        moves = [affine, PatchShuffle(height, width, right, 9)]
        magenta = move_image(colored(height, width, box), moves)
        painted = ((magenta[0] == 255) & (magenta[1] == 0)).to(torch.uint8)[None]
        assert painted.any()
        moved = clip(move_targets(targets_of([box]), moves), height, width)
        assert torch.equal(coverage(height, width, moved.boxes), painted), moved.boxes


def test_flip_resize_and_shuffle_together() -> None:
    height, width, box = 40, 60, (15.0, 12.0, 55.0, 33.0)
    moves = [Flip(60), Resize((40, 60), (80, 120)), PatchShuffle(80, 120, 47, 61)]
    pixels = move_image(255 * paint(height, width, box).repeat(3, 1, 1), moves)
    moved = move_targets(targets_of([box]), moves)
    painted = (pixels[:1] > 127).to(torch.uint8)
    assert torch.equal(coverage(80, 120, moved.boxes), painted)
