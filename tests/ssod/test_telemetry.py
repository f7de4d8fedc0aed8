"""The paper's Figure 3 and the figures of a log, recounted by loops."""

from typing import Any

import pytest
import torch

from dsl.ssod.adaptive_filter import Partition
from dsl.ssod.pseudo_labels import PseudoLabels
from dsl.ssod.telemetry import Telemetry, judge, recalled
from dsl.types import Detections, Targets

NAMES = ("ant", "bee", "cat")
THRESHOLDS = torch.tensor([0.25, 0.3, 0.35])
Rows = list[list[float]]


def at_least_half(a: list[float], b: list[float]) -> bool:
    """IoU >= .5 of boxes with whole coordinates, without a division."""
    inter = shared(a, b)
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - inter
    return 2 * inter >= union


def shared(a: list[float], b: list[float]) -> float:
    across = min(a[2], b[2]) - max(a[0], b[0])
    along = min(a[3], b[3]) - max(a[1], b[1])
    return max(0.0, across) * max(0.0, along)


def slow_verdict(box: list[float], label: int, truth: Targets) -> tuple[str, bool]:
    """TP+, TP- or BG, and whether the box is on any object."""
    right = misplaced = near = False
    for other, name, crowd in zip(
        truth.boxes.tolist(), truth.labels.tolist(), truth.ignored.tolist(), strict=True
    ):
        if crowd:
            continue
        near = near or at_least_half(box, other)
        if name == label:
            right = right or at_least_half(box, other)
            misplaced = misplaced or shared(box, other) > 0
    return ("TP+" if right else "TP-" if misplaced else "BG"), near


def random_boxes(generator: torch.Generator, count: int) -> torch.Tensor:
    """Whole coordinates on a small canvas, so that all degrees of overlap occur."""
    corners = torch.randint(0, 16, (count, 2), generator=generator)
    sides = torch.randint(3, 10, (count, 2), generator=generator)
    return torch.cat([corners, corners + sides], dim=1).float()


def random_truth(generator: torch.Generator, count: int) -> Targets:
    return Targets(
        random_boxes(generator, count),
        torch.randint(0, 3, (count,), generator=generator),
        torch.rand(count, generator=generator) < 0.3,
    )


def random_pseudo(generator: torch.Generator, truth: Targets, count: int) -> PseudoLabels:
    """Some boxes lie near an object, some anywhere; all four fates occur."""
    boxes = random_boxes(generator, count)
    if len(truth) and count:
        near = torch.rand(count, generator=generator) < 0.6
        which = torch.randint(0, len(truth), (count,), generator=generator)
        boxes[near] = truth.boxes[which[near]]
        boxes[near, 2:] += torch.randint(0, 3, (int(near.sum()), 2), generator=generator).float()
    scores = torch.rand(count, generator=generator)
    labels = torch.randint(0, 3, (count,), generator=generator)
    foreground, ignored = scores >= 0.3, (scores > 0.1) & (scores < 0.3)
    doubtful = torch.rand(count, generator=generator) < 0.2
    return PseudoLabels.of(
        Detections(boxes, scores, labels), Partition(foreground, ignored), doubtful
    )


def world(seed: int, images: int) -> tuple[list[PseudoLabels], list[Targets]]:
    generator = torch.Generator().manual_seed(seed)
    truth = [random_truth(generator, i % 6) for i in range(images)]
    return [random_pseudo(generator, t, (5 * i) % 17) for i, t in enumerate(truth)], truth


def telemetry(levels: int = 5) -> Telemetry:
    return Telemetry(3, levels, torch.device("cpu"))


def one(box: list[float], label: int, crowd: bool = False) -> Targets:
    return Targets(torch.tensor([box]), torch.tensor([label]), torch.tensor([crowd]))


# One image.


@pytest.mark.parametrize("seed", range(10))
def test_verdicts_equal_a_loop(seed: int) -> None:
    seen = set()
    for pseudo, truth in zip(*world(seed, 20), strict=True):
        found = pseudo.detections
        verdict = judge(found.boxes, found.labels, truth)
        for i in range(len(found)):
            fate, near = slow_verdict(found.boxes[i].tolist(), int(found.labels[i]), truth)
            assert bool(verdict.true_positive[i]) == (fate == "TP+")
            assert bool(verdict.misplaced[i]) == (fate == "TP-")
            assert bool(verdict.background[i]) == (fate == "BG")
            assert bool(verdict.localised[i]) == near
            seen.add((fate, near))
    assert {("TP+", True), ("TP-", False), ("BG", False), ("BG", True)} <= seen


@pytest.mark.parametrize(
    ("box", "label", "fate"),
    [
        ([0.0, 0, 10, 10], 1, "tp"),
        ([0.0, 0, 10, 5], 1, "tp"),  # IoU exactly .5
        ([0.0, 0, 10, 4.9], 1, "misplaced"),
        ([9.0, 9, 20, 20], 1, "misplaced"),
        ([10.0, 0, 20, 10], 1, "bg"),  # touches
        ([0.0, 0, 10, 10], 2, "bg"),  # wrong class
        ([30.0, 30, 40, 40], 1, "bg"),
    ],
)
def test_the_three_fates_by_hand(box: list[float], label: int, fate: str) -> None:
    verdict = judge(torch.tensor([box]), torch.tensor([label]), one([0, 0, 10.0, 10], 1))
    assert verdict.true_positive.tolist() == [fate == "tp"]
    assert verdict.misplaced.tolist() == [fate == "misplaced"]
    assert verdict.background.tolist() == [fate == "bg"]


def test_crowd_is_no_object() -> None:
    box, label = torch.tensor([[0.0, 0, 10, 10]]), torch.tensor([1])
    crowd = one([0.0, 0, 10, 10], 1, crowd=True)
    verdict = judge(box, label, crowd)
    assert verdict.background.tolist() == [True]
    assert verdict.localised.tolist() == [False]
    assert [r.tolist() for r in recalled(box, label, crowd)] == [[], []]


def test_no_detections_or_no_truth() -> None:
    nothing = torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)
    verdict = judge(*nothing, one([0.0, 0, 10, 10], 1))
    assert verdict.true_positive.shape == verdict.background.shape == (0,)
    assert [r.tolist() for r in recalled(*nothing, one([0.0, 0, 10, 10], 1))] == [[False], [False]]
    something = torch.tensor([[0.0, 0, 10, 10]]), torch.tensor([1])
    verdict = judge(*something, Targets.empty())
    assert verdict.background.tolist() == [True]
    assert verdict.localised.tolist() == [False]
    assert [r.tolist() for r in recalled(*something, Targets.empty())] == [[], []]
    assert judge(*nothing, Targets.empty()).background.shape == (0,)


@pytest.mark.parametrize("seed", range(5))
def test_recalled_objects_equal_a_loop(seed: int) -> None:
    for pseudo, truth in zip(*world(seed, 20), strict=True):
        boxes, labels = pseudo.detections.boxes, pseudo.detections.labels
        right, near = recalled(boxes, labels, truth)
        expected = []
        for g in range(len(truth)):
            if truth.ignored[g]:
                continue
            hits = [
                int(labels[m])
                for m in range(len(boxes))
                if at_least_half(truth.boxes[g].tolist(), boxes[m].tolist())
            ]
            expected.append((int(truth.labels[g]) in hits, bool(hits)))
        assert list(zip(right.tolist(), near.tolist(), strict=True)) == expected


# Many images.


def slow_figures(labels: list[PseudoLabels], truths: list[Targets]) -> dict[str, Any]:
    """All counts by class, recounted box by box."""
    parts: dict[str, list[float]] = {
        name: [0.0] * 3
        for name in (
            "foreground", "ignored", "background", "rejected",
            "right", "localised", "objects", "recalled", "recalled_any",
        )
    }  # fmt: skip
    scores: dict[str, list[int]] = {name: [0] * 20 for name in ("TP+", "TP-", "BG")}
    total, count = 0.0, 0
    for pseudo, truth in zip(labels, truths, strict=True):
        found = pseudo.detections
        for i in range(len(found)):
            label, box = int(found.labels[i]), found.boxes[i].tolist()
            fate, near = slow_verdict(box, label, truth)
            total, count = total + float(found.scores[i]), count + 1
            scores[fate][min(19, int(float(found.scores[i]) / 0.05))] += 1
            if pseudo.foreground[i]:
                parts["foreground"][label] += 1
                parts["right"][label] += fate == "TP+"
                parts["localised"][label] += near
            elif pseudo.ignored[i]:
                parts["ignored"][label] += 1
            else:
                parts["background"][label] += 1
            parts["rejected"][label] += bool(pseudo.rejected[i])
        for g in range(len(truth)):
            if truth.ignored[g]:
                continue
            name, box = int(truth.labels[g]), truth.boxes[g].tolist()
            hits = [
                int(found.labels[m])
                for m in range(len(found))
                if pseudo.foreground[m] and at_least_half(box, found.boxes[m].tolist())
            ]
            parts["objects"][name] += 1
            parts["recalled"][name] += name in hits
            parts["recalled_any"][name] += bool(hits)
    return {"parts": parts, "scores": scores, "teacher_score": total / count}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("batch", [1, 3, 40])
def test_figures_equal_a_recount(seed: int, batch: int) -> None:
    labels, truths = world(seed, 40)
    watching = telemetry()
    for start in range(0, 40, batch):
        watching.watch(labels[start : start + batch], truths[start : start + batch])
    figures = watching.read(NAMES, THRESHOLDS)
    expected = slow_figures(labels, truths)
    parts = expected["parts"]
    assert figures["images"] == 40
    assert figures["teacher_score"] == pytest.approx(expected["teacher_score"], rel=1e-4)
    assert figures["tau2"] == pytest.approx({"ant": 0.25, "bee": 0.3, "cat": 0.35})
    for part in ("foreground", "ignored", "background", "rejected"):
        assert sum(parts[part]) > 5
        assert figures[part] == pytest.approx(sum(parts[part]) / 40)
        assert list(figures[f"{part}_per_class"]) == list(NAMES)
        assert list(figures[f"{part}_per_class"].values()) == pytest.approx(
            [value / 40 for value in parts[part]]
        )
    for name, part, whole in (
        ("precision", "right", "foreground"),
        ("precision_any_class", "localised", "foreground"),
        ("recall", "recalled", "objects"),
        ("recall_any_class", "recalled_any", "objects"),
    ):
        assert figures[name] == pytest.approx(sum(parts[part]) / sum(parts[whole]))
        assert 0 < figures[name] < 1
        assert list(figures[f"{name}_per_class"].values()) == pytest.approx(
            [a / b for a, b in zip(parts[part], parts[whole], strict=True)]
        )
    for name, fate in (("scores_tp", "TP+"), ("scores_misplaced", "TP-"), ("scores_bg", "BG")):
        assert figures[name] == expected["scores"][fate]


def test_reading_starts_anew() -> None:
    labels, truths = world(0, 20)
    more, more_truths = world(1, 8)
    once, twice = telemetry(), telemetry()
    twice.watch(labels, truths)
    twice.watch_levels(torch.tensor([9.0, 1, 0, 0, 0]))
    twice.read(NAMES, THRESHOLDS)
    for watching in (once, twice):
        watching.watch(more, more_truths)
        watching.watch_levels(torch.tensor([1.0, 2, 0, 0, 1]))
    figures = twice.read(NAMES, THRESHOLDS)
    assert figures == once.read(NAMES, THRESHOLDS)
    assert figures["images"] == 8
    assert figures["levels"] == pytest.approx([0.25, 0.5, 0, 0, 0.25])


def test_levels_are_shares_of_all_positives() -> None:
    watching = telemetry(levels=3)
    watching.watch_levels(torch.tensor([6.0, 3, 0]))
    watching.watch_levels(torch.tensor([0.0, 0, 3]))
    assert watching.read(NAMES, THRESHOLDS)["levels"] == pytest.approx([0.5, 0.25, 0.25])
    assert watching.read(NAMES, THRESHOLDS)["levels"] == [0, 0, 0]


def test_without_truth_there_is_no_quality() -> None:
    labels, _ = world(0, 12)
    watching = telemetry()
    watching.watch(labels, None)
    figures = watching.read(NAMES, THRESHOLDS)
    assert figures["foreground"] > 0
    assert not {"precision", "recall", "scores_tp"} & figures.keys()


def test_nothing_watched_can_be_read() -> None:
    figures = telemetry().read(NAMES, THRESHOLDS)
    assert figures["images"] == 0
    assert figures["foreground"] == 0
    assert figures["teacher_score"] is None


def test_a_class_without_foreground_or_objects_has_no_share() -> None:
    found = Detections(torch.tensor([[0.0, 0, 10, 10]]), torch.tensor([0.9]), torch.tensor([0]))
    part = Partition(torch.tensor([True]), torch.tensor([False]))
    watching = telemetry()
    watching.watch([PseudoLabels.of(found, part)], [one([0.0, 0, 10, 10], 1)])
    figures = watching.read(NAMES, THRESHOLDS)
    assert figures["precision_per_class"] == {"ant": 0.0, "bee": None, "cat": None}
    assert figures["recall_per_class"] == {"ant": None, "bee": 0.0, "cat": None}
    assert figures["recall_any_class_per_class"]["bee"] == 1.0
    assert figures["precision_any_class"] == 1.0
