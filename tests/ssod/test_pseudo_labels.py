"""Every detection has one fate, and foreground and ignored boxes follow the geometry alike."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from dsl.geometry import Affine, Flip, PatchShuffle, Resize, VerticalFlip
from dsl.ssod.adaptive_filter import FixedThreshold, Partition
from dsl.ssod.pseudo_labels import PseudoLabels, carry, named
from dsl.types import Detections, Objects, Targets


@dataclass(frozen=True)
class Shift:
    """Some other operation: boxes move to where part of them is outside."""

    x: float
    y: float

    def image(self, image: Tensor) -> Tensor:
        return image

    def targets(self, targets: Targets) -> Targets:
        move = targets.boxes.new_tensor([self.x, self.y, self.x, self.y])
        return replace(targets, boxes=targets.boxes + move)


def detections(count: int, seed: int = 0) -> Detections:
    generator = torch.Generator().manual_seed(seed)
    corners = torch.rand(count, 2, generator=generator) * 40
    sides = 1 + torch.rand(count, 2, generator=generator) * 20
    scores = torch.rand(count, generator=generator).sort(descending=True).values
    labels = torch.randint(0, 5, (count,), generator=generator)
    return Detections(torch.cat([corners, corners + sides], dim=1), scores, labels)


def split(found: Detections) -> Partition:
    policy = FixedThreshold(5, background=0.1, foreground=0.3)
    return policy.split(found.scores, found.labels)


Row = tuple[list[float], int, bool]


def rows(targets: Targets) -> list[Row]:
    """Box, label and fate of each target, in an order of their own."""
    return sorted(
        zip(targets.boxes.tolist(), targets.labels.tolist(), targets.ignored.tolist(), strict=True)
    )


@pytest.mark.parametrize("count", [0, 1, 40, 300])
@pytest.mark.parametrize("with_doubts", [False, True])
def test_every_detection_lands_in_exactly_one_part(count: int, with_doubts: bool) -> None:
    found = detections(count)
    generator = torch.Generator().manual_seed(1)
    # Doubts may stand anywhere; they matter where there is foreground.
    doubtful = torch.rand(count, generator=generator) < 0.4 if with_doubts else None
    pseudo = PseudoLabels.of(found, split(found), doubtful)
    kept: list[Row] = []
    fates = set()
    for i, score in enumerate(found.scores.tolist()):
        doubt = doubtful is not None and bool(doubtful[i])
        foreground = score >= 0.3 and not doubt
        ignored = 0.1 < score < 0.3 or (score >= 0.3 and doubt)
        assert bool(pseudo.foreground[i]) == foreground
        assert bool(pseudo.ignored[i]) == ignored
        assert bool(pseudo.rejected[i]) == (score >= 0.3 and doubt)
        fates.add((foreground, ignored))
        if foreground or ignored:
            kept.append((found.boxes[i].tolist(), int(found.labels[i]), ignored))
    assert (True, True) not in fates
    assert len(fates) == 3 or count < 40
    targets = pseudo.targets()
    assert rows(targets) == sorted(kept)
    assert targets.boxes.shape == (len(kept), 4)


def test_rejected_foreground_is_ignored_and_not_background() -> None:
    found = Detections(
        torch.tensor([[0.0, 0, 9, 9], [1.0, 1, 8, 8], [2.0, 2, 7, 7], [3.0, 3, 6, 6]]),
        torch.tensor([0.9, 0.8, 0.2, 0.05]), torch.tensor([0, 1, 2, 3]),
    )  # fmt: skip
    pseudo = PseudoLabels.of(found, split(found), torch.tensor([False, True, True, True]))
    assert pseudo.foreground.tolist() == [True, False, False, False]
    assert pseudo.ignored.tolist() == [False, True, True, False]
    assert pseudo.rejected.tolist() == [False, True, False, False]
    assert rows(pseudo.targets()) == [
        ([0, 0, 9, 9], 0, False), ([1, 1, 8, 8], 1, True), ([2, 2, 7, 7], 2, True)
    ]  # fmt: skip


def test_doubts_are_optional() -> None:
    found = detections(50)
    pseudo = PseudoLabels.of(found, split(found))
    assert not pseudo.rejected.any()
    assert torch.equal(pseudo.foreground, found.scores >= 0.3)


def test_foreground_and_ignored_boxes_move_alike() -> None:
    """Flip a width of 60, enlarge twice, flip again: by hand."""
    found = detections(300)
    targets = PseudoLabels.of(found, split(found)).targets()
    assert 0 < int(targets.ignored.sum()) < len(targets)
    moves = [Flip(60), Resize((60, 60), (120, 150))]
    moved = carry(targets, moves, size=torch.tensor([120, 150]))
    expected = [
        ([(60 - x2) * 2.5, y1 * 2.0, (60 - x1) * 2.5, y2 * 2.0], label, ignored)
        for (x1, y1, x2, y2), label, ignored in zip(
            targets.boxes.tolist(), targets.labels.tolist(), targets.ignored.tolist(), strict=True
        )
    ]
    expected = [
        ([max(0, x1), max(0, y1), min(150, x2), min(120, y2)], label, ignored)
        for (x1, y1, x2, y2), label, ignored in expected
        if min(150, x2) > max(0, x1) and min(120, y2) > max(0, y1)
    ]
    assert len(moved) == len(expected)
    for found_row, wanted in zip(rows(moved), sorted(expected), strict=True):
        assert found_row[0] == pytest.approx(wanted[0], abs=1e-3)
        assert found_row[1:] == wanted[1:]


def test_certainty_goes_with_its_box() -> None:
    """Each box has a certainty of its own, so a moved one tells whose it is."""
    found = detections(200)
    certainty = torch.linspace(0.01, 0.99, 200)
    doubtful = torch.arange(200) % 7 == 0
    pseudo = PseudoLabels.of(found, split(found), doubtful, certainty)
    targets = pseudo.targets()
    assert targets.certainty is not None
    owner = {round(float(c), 6): m for m, c in enumerate(certainty)}
    kept = (pseudo.foreground | pseudo.ignored).nonzero().squeeze(1)
    assert pseudo.rejected.any()
    for m, box, sure in zip(kept.tolist(), targets.boxes, targets.certainty.tolist(), strict=True):
        assert torch.equal(box, found.boxes[m])
        assert sure == (0 if pseudo.rejected[m] else pytest.approx(float(certainty[m])))
    assert torch.equal(pseudo.cpu().certainty, certainty)
    assert torch.equal(targets.to(torch.device("cpu")).certainty, targets.certainty)
    shift, roll = Affine(60, 60, (1.0, 0.0, 5.0, 0.0, 1.0, -3.0)), PatchShuffle(60, 60, 17, 20)
    same = Resize((60, 60), (60, 60))
    for moves in ([Flip(60)], [VerticalFlip(60)], [shift], [roll], [same, shift, roll, Flip(60)]):
        moved = carry(targets, moves, size=torch.tensor([60, 60]))
        assert moved.certainty is not None
        assert len(moved) > 50
        for label, ignored, sure in zip(
            moved.labels.tolist(), moved.ignored.tolist(), moved.certainty.tolist(), strict=True
        ):
            if sure > 0:
                m = owner[round(sure, 6)]
                assert label == found.labels[m]
                assert ignored == pseudo.ignored[m]
            else:
                assert ignored  # a doubted class, or too small a piece of a box


def test_boxes_are_cut_to_the_valid_area_whatever_their_part() -> None:
    """The valid area is 50 high and 70 wide; the canvas around it plays no part."""
    boxes = torch.tensor([
        [0.0, 0, 20, 20],  # partly out at the left and top
        [50.0, 30, 90, 60],  # partly out at the right and bottom
        [0.0, 0, 8, 30],  # altogether out at the left
        [90.0, 10, 99, 20],  # in the padding
        [30.0, 20, 40, 30],  # inside
    ])  # fmt: skip
    for ignored in (False, True):
        targets = Targets(boxes, torch.arange(5), torch.full((5,), ignored))
        moved = carry(targets, [Shift(-10, -5)], size=torch.tensor([50, 70]))
        assert rows(moved) == sorted([
            ([0, 0, 10, 15], 0, ignored),
            ([40, 25, 70, 50], 1, ignored),
            ([20, 15, 30, 25], 4, ignored),
        ])  # fmt: skip


def test_a_box_that_wraps_around_brings_all_its_pieces() -> None:
    boxes = torch.tensor([[40.0, 10, 60, 30], [42.0, 12, 62, 32]])
    targets = Targets(boxes, torch.tensor([1, 2]), torch.tensor([False, True]))
    moved = carry(targets, [PatchShuffle(48, 64, 14, 0)], size=torch.tensor([48, 64]))
    assert rows(moved) == sorted([
        ([54, 10, 64, 30], 1, False), ([0, 10, 10, 30], 1, False),
        ([56, 12, 64, 32], 2, True), ([0, 12, 12, 32], 2, True),
    ])  # fmt: skip


def test_moves_are_replayed_in_order() -> None:
    targets = Targets(torch.tensor([[10.0, 0, 20, 8]]), torch.tensor([0]), torch.tensor([False]))
    size = torch.tensor([64, 64])
    there = carry(targets, [Shift(6, 0), Flip(64)], size=size)
    back = carry(targets, [Flip(64), Shift(6, 0)], size=size)
    assert there.boxes.tolist() == [[38, 0, 48, 8]]
    assert back.boxes.tolist() == [[50, 0, 60, 8]]


def test_no_detections_and_no_moves() -> None:
    found = detections(0)
    targets = PseudoLabels.of(found, split(found), torch.zeros(0, dtype=torch.bool)).targets()
    moves = [Flip(60), Resize((60, 60), (30, 30)), PatchShuffle(30, 30, 7, 9)]
    moved = carry(targets, moves, size=torch.tensor([30, 30]))
    assert len(moved) == 0
    assert moved.boxes.shape == (0, 4)
    one = Targets(torch.tensor([[1.0, 2, 3, 4]]), torch.tensor([3]), torch.tensor([True]))
    assert rows(carry(one, [], size=torch.tensor([9, 9]))) == [([1, 2, 3, 4], 3, True)]


def test_all_background_gives_no_targets() -> None:
    found = replace(detections(20), scores=torch.full((20,), 0.1))
    assert len(PseudoLabels.of(found, split(found)).targets()) == 0


@pytest.mark.parametrize("count", [0, 1, 30])
def test_an_object_gets_the_name_that_detector_and_metanet_find_likeliest(count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    scores = 0.06 + 0.9 * torch.rand(count, 5, generator=generator)
    odds = torch.rand(count, 5, generator=generator).softmax(dim=1)
    objects = Objects(torch.zeros(count, 4), scores)
    seen, labels = named(objects, odds, background=0.05)
    assert seen.shape == labels.shape == (count,)
    for i in range(count):
        belief = [scores[i, k].item() ** 0.5 * odds[i, k].item() for k in range(5)]
        best = max(range(5), key=lambda k: belief[k])
        assert labels[i] == best
        wanted = max(scores[i].tolist()) * belief[best] / sum(belief)
        assert float(seen[i]) == pytest.approx(max(wanted, 0.05), rel=1e-5)
    own, own_labels = named(objects, torch.ones_like(odds), background=0.05)
    assert own_labels.tolist() == scores.argmax(dim=1).tolist()  # who says nothing changes no name
    assert (own <= scores.amax(dim=1)).all()


def test_a_doubted_object_is_never_background() -> None:
    objects = Objects(torch.zeros(1, 4), torch.tensor([[0.11, 0.11, 0.11]]))
    seen, _ = named(objects, torch.full((1, 3), 1 / 3), background=0.1)
    assert 0.1 < float(seen) < 0.1001
