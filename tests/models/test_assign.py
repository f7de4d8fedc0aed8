"""Assignment against a slow loop over locations and boxes, written from METHOD section 1."""

from dataclasses import replace

import pytest
import torch

from dsl.models.assign import BACKGROUND, IGNORED, Assigner, locate, to_boxes
from dsl.models.losses import centerness_of
from dsl.types import Targets

SHAPES, STRIDES = [(8, 12), (4, 6), (2, 3), (1, 2), (1, 1)], (8, 16, 32, 64, 128)
RANGES = (16.0, 32.0, 64.0, 128.0)


def random_targets(seed: int, count: int) -> Targets:
    generator = torch.Generator().manual_seed(seed)
    corner = torch.rand(count, 2, generator=generator) * torch.tensor([80.0, 50.0])
    side = 4 + torch.rand(count, 2, generator=generator) * 60
    ignored = torch.rand(count, generator=generator) < 0.3
    labels = torch.randint(0, 5, (count,), generator=generator)
    return Targets(torch.cat([corner, corner + side], dim=1), labels, ignored)


def slow(targets: Targets, radius: float) -> tuple[list[int], list[list[float]]]:
    labels, distances = [], []
    bounds = [0.0, *RANGES, float("inf")]
    for level, ((height, width), stride) in enumerate(zip(SHAPES, STRIDES, strict=True)):
        for row in range(height):
            for column in range(width):
                x, y = (column + 0.5) * stride, (row + 0.5) * stride
                best, best_area, ignore = None, float("inf"), False
                for m, (x1, y1, x2, y2) in enumerate(targets.boxes.tolist()):
                    ltrb = [x - x1, y - y1, x2 - x, y2 - y]
                    if min(ltrb) <= 0 or not bounds[level] < max(ltrb) <= bounds[level + 1]:
                        continue
                    offset = max(abs(x - (x1 + x2) / 2), abs(y - (y1 + y2) / 2))
                    if radius and offset >= radius * stride:
                        continue
                    if targets.ignored[m]:
                        ignore = True
                    elif (x2 - x1) * (y2 - y1) < best_area:
                        best, best_area = (m, ltrb), (x2 - x1) * (y2 - y1)
                if best:
                    labels.append(int(targets.labels[best[0]]))
                    distances.append([d / stride for d in best[1]])
                else:
                    labels.append(IGNORED if ignore else BACKGROUND)
                    distances.append([0.0] * 4)
    return labels, distances


@pytest.mark.parametrize("radius", [0.0, 1.5])
@pytest.mark.parametrize("seed", range(6))
def test_equals_the_slow_loop(seed: int, radius: float) -> None:
    targets = random_targets(seed, count=12)
    locations = locate(SHAPES, STRIDES, torch.device("cpu"))
    found = Assigner(RANGES, center_radius=radius)(locations, [targets])
    labels, distances = slow(targets, radius)
    assert found.labels[0].tolist() == labels
    torch.testing.assert_close(found.distances[0], torch.tensor(distances))
    assert {label >= 0 for label in labels} == {True, False}


def slow_classes(targets: Targets, labels: list[int]) -> list[tuple[int, float]]:
    """Class and score to learn of every location: of its foreground box; of the smallest ignored
    one, if all the ignored ones here have a certainty; else none."""
    assert targets.certainty is not None
    alone = [
        [label != BACKGROUND for label in slow(targets[torch.tensor([m])], 1.5)[0]]
        for m in range(len(targets))
    ]
    areas = (targets.boxes[:, 2:] - targets.boxes[:, :2]).prod(1).tolist()
    certainty, result = targets.certainty.tolist(), []
    for place, label in enumerate(labels):
        matched = [m for m in range(len(targets)) if alone[m][place]]
        if label >= 0:
            matched = [m for m in matched if not targets.ignored[m]]
        if not matched or min(certainty[m] for m in matched) == 0 > label:
            result.append((label, 1.0 if not matched else 0.0))
        else:
            best = min(matched, key=lambda m: areas[m])
            result.append((int(targets.labels[best]), certainty[best]))
    return result


@pytest.mark.parametrize("seed", range(6))
def test_what_is_certain_to_a_degree_is_learned_as_a_class_and_not_as_a_box(seed: int) -> None:
    count, generator = 24, torch.Generator().manual_seed(seed)
    ignored = torch.rand(count, generator=generator) < 0.7
    targets = replace(random_targets(seed, count), ignored=ignored)
    certainty = 0.1 + 0.9 * torch.rand(count, generator=generator)
    certainty[ignored & (torch.rand(count, generator=generator) < 0.3)] = 0
    soft = replace(targets, certainty=certainty)
    locations = locate(SHAPES, STRIDES, torch.device("cpu"))
    hard, found = (Assigner(RANGES)(locations, [given]) for given in (targets, soft))
    assert torch.equal(found.labels, hard.labels)  # boxes are learned as before
    assert torch.equal(found.distances, hard.distances)
    assert torch.equal(hard.classes, hard.labels)
    assert (hard.certainty == 1).all()
    expected = slow_classes(soft, found.labels[0].tolist())
    assert found.classes[0].tolist() == [label for label, _ in expected]
    taught = found.classes[0] >= 0
    scores = torch.tensor([score for _, score in expected])
    torch.testing.assert_close(found.certainty[0, taught], scores[taught])
    assert ((found.classes >= 0) & (found.labels == IGNORED)).any()


def test_nothing_is_learned_where_nothing_is_known_of_one_of_the_boxes() -> None:
    boxes, ignored = torch.tensor([[10.0, 10, 30, 30]]).repeat(2, 1), torch.tensor([True, True])
    both = Targets(boxes, torch.tensor([3, 1]), ignored, torch.tensor([0.4, 0.0]))
    locations = locate(SHAPES, STRIDES, torch.device("cpu"))
    found = Assigner(RANGES)(locations, [both, both[torch.tensor([0])]])
    assert set(found.classes[0].tolist()) == {BACKGROUND, IGNORED}
    assert set(found.classes[1].tolist()) == {BACKGROUND, 3}


def test_empty_and_crowded_images_share_a_batch() -> None:
    locations = locate(SHAPES, STRIDES, torch.device("cpu"))
    crowd = random_targets(1, count=300)
    found = Assigner(RANGES)(locations, [Targets.empty(), crowd])
    assert (found.labels[0] == BACKGROUND).all()
    assert (found.labels[1] >= 0).any()


def test_foreground_wins_over_an_ignored_box_at_the_same_place() -> None:
    boxes = torch.tensor([[10.0, 10, 30, 30], [10.0, 10, 30, 30]])
    locations = locate(SHAPES, STRIDES, torch.device("cpu"))
    both = Targets(boxes, torch.tensor([3, 1]), torch.tensor([True, False]))
    only = Targets(boxes[:1], torch.tensor([3]), torch.tensor([True]))
    found = Assigner(RANGES)(locations, [both, only])
    assert set(found.labels[0].tolist()) == {BACKGROUND, 1}
    assert set(found.labels[1].tolist()) == {BACKGROUND, IGNORED}


def test_each_object_size_lands_on_its_level() -> None:
    locations = locate(SHAPES, STRIDES, torch.device("cpu"))
    for side, level in ((20, 0), (50, 1), (90, 2)):
        box = torch.tensor([[2.0, 2, 2 + side, 2 + side]])
        target = Targets(box, torch.tensor([0]), torch.tensor([False]))
        assigned = Assigner(RANGES)(locations, [target])
        positive = assigned.labels[0] == 0
        # Off-centre locations reach farther and may belong to the next level; the best do not.
        best = centerness_of(assigned.distances[0, positive]).argmax()
        assert locations.levels[positive][best] == level


def test_distances_and_boxes_are_inverse() -> None:
    targets = Targets(torch.tensor([[11.0, 9, 37, 41]]), torch.tensor([0]), torch.tensor([False]))
    locations = locate(SHAPES, STRIDES, torch.device("cpu"))
    found = Assigner(RANGES)(locations, [targets])
    positive = found.labels[0] == 0
    reach = found.distances[0, positive] * locations.strides[positive, None]
    boxes = to_boxes(locations.points[positive], reach)
    torch.testing.assert_close(boxes, targets.boxes.expand(len(boxes), 4))
