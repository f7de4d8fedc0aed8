"""Views: boxes on the pixels they belong to, and strong augmentation that moves nothing."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from dsl.data.augment import Hole, Strong
from dsl.data.formats import open_dataset
from dsl.data.views import LabeledViews, Shuffle, UnlabeledViews, Weak
from dsl.geometry import clip, move_targets
from dsl.randomness import generator


@pytest.mark.parametrize("flips", [(False, False), (True, False), (False, True), (True, True)])
def test_boxes_lie_on_their_bright_rectangles(
    coco: Callable[..., Path], flips: tuple[bool, bool]
) -> None:
    index = open_dataset(coco(count=6))
    views = LabeledViews(Weak((64, 100), 200, *flips))
    checked = 0
    for position in range(6):
        for draw in range(4):
            sample = views(index, position, generator(0, "t", draw))
            for x1, y1, x2, y2 in sample.targets.boxes.round().int().tolist():
                inside = sample.image[0, y1 + 2 : y2 - 2, x1 + 2 : x2 - 2]
                assert (inside > 150).float().mean() > 0.95
                checked += 1
    assert checked > 20


def test_flip_happens_half_of_the_time_and_never_when_off(coco: Callable[..., Path]) -> None:
    index = open_dataset(coco(count=1))

    def images(*flips: bool) -> set[bytes]:
        views = LabeledViews(Weak((64,), 200, *flips))
        drawn = [views(index, 0, generator(0, "t", d)).image.numpy().tobytes() for d in range(20)]
        return set(drawn)

    assert len(images(False)) == 1
    assert len(images(True)) == len(images(False, True)) == 2
    assert len(images(True, True)) == 4


def test_a_strong_view_changes_pixels_but_neither_size_nor_boxes(coco: Callable[..., Path]) -> None:
    index = open_dataset(coco(count=1))
    weak = LabeledViews(Weak((64,), 200, flip=False))(index, 0, generator(0, "t", 0))
    for draw in range(10):
        strong = LabeledViews(Weak((64,), 200, flip=False), strong=Strong())(
            index, 0, generator(0, "t", draw)
        )
        assert strong.image.shape == weak.image.shape
        assert strong.image.dtype == torch.uint8
        assert torch.equal(strong.targets.boxes, weak.targets.boxes)
    assert not torch.equal(strong.image, weak.image)


def test_cutout_covers_the_share_it_is_told_to() -> None:
    image = torch.zeros(3, 100, 200, dtype=torch.uint8)
    strong = Strong(jitter=0, grayscale=0, blur=0, holes=(Hole(1.0, 0.1, 0.2),))
    shares = []
    for draw in range(30):
        cut = strong(image, generator(0, "t", draw))
        filled = (cut > 0).any(dim=0)
        shares.append(filled.float().mean().item())
        # One rectangle, and no colour in it: noise around the middle of the range.
        rows, columns = filled.any(dim=1).sum(), filled.any(dim=0).sum()
        assert filled.sum() == pytest.approx(int(rows * columns), abs=2)
        assert cut[:, filled].float().mean() == pytest.approx(127.5, abs=5)
        assert cut[:, filled].float().std() > 60
    assert 0.08 < min(shares) <= max(shares) < 0.22
    assert image.sum() == 0  # the original is untouched


def test_each_photometric_step_is_drawn_at_its_rate() -> None:
    rng = np.random.default_rng(0)
    image = torch.from_numpy(rng.integers(0, 255, (3, 16, 16), dtype=np.uint8))
    gray = Strong(jitter=0, blur=0, holes=(), grayscale=0.2)
    changed = sum(not torch.equal(gray(image, generator(0, "t", d)), image) for d in range(400))
    assert changed / 400 == pytest.approx(0.2, abs=0.06)
    off = Strong(jitter=0, blur=0, holes=(), grayscale=0)
    assert torch.equal(off(image, generator(0, "t", 0)), image)


@pytest.mark.parametrize("size", [(1, 1), (3, 40), (17, 5)])
def test_the_smallest_images_survive(size: tuple[int, int]) -> None:
    image = torch.full((3, *size), 100, dtype=torch.uint8)
    for draw in range(30):
        assert Strong()(image, generator(0, "t", draw)).shape == image.shape


@pytest.mark.parametrize("rounds", [0, 2])
def test_the_recorded_geometry_leads_from_the_weak_view_to_the_strong_one(
    coco: Callable[..., Path], rounds: int
) -> None:
    """Boxes of the weak view, replayed, lie on bright pixels of the strong view and on all of
    them."""
    index = open_dataset(coco(count=6))
    plain = Strong(jitter=0, grayscale=0, blur=0, holes=())
    weak, sizes = Weak((96,), 200, True, True), Weak((64, 128), 260, True, True)
    views = UnlabeledViews(weak, sizes, plain, Shuffle(rounds))
    for position in range(6):
        for draw in range(4):
            pair = views(index, position, generator(0, "pair", draw))
            assert pair.truth is not None
            height, width = pair.strong.shape[-2:]
            moved = clip(move_targets(pair.truth, pair.moves), height, width)
            bright = (pair.strong[0] > 150).numpy()
            covered = np.zeros_like(bright)
            for x1, y1, x2, y2 in moved.boxes.round().int().tolist():
                covered[y1:y2, x1:x2] = True
            differing = (bright != covered).sum()
            around = sum(2 * float((b[2:] - b[:2]).sum()) for b in moved.boxes)
            assert differing <= 2 * around + 8  # two pixels along the borders


def test_the_truth_of_a_set_without_labels_is_unknown(coco: Callable[..., Path]) -> None:
    index = open_dataset(coco(count=2).parent / "images")
    weak = Weak((64,), 200, flip=False)
    pair = UnlabeledViews(weak, weak, Strong(), Shuffle(2))(index, 0, generator(0, "pair", 0))
    assert pair.truth is None
