"""COCO against pycocotools, VOC and F1 against slow loops written from the rules."""

import contextlib
import io
import json
import math
from collections.abc import Callable
from dataclasses import astuple, replace
from typing import Any

import numpy as np
import pytest
import torch
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from dsl.errors import UserError
from dsl.metrics import best_f1_thresholds, evaluate_coco, evaluate_voc
from dsl.types import Annotations, Detections

Sample = tuple[Annotations, list[Detections]]


# --- samples ----------------------------------------------------------------------------------


def annotations(images: list[list[tuple[list[float], int, bool]]]) -> Annotations:
    """From (box, label, ignored) triples, image by image."""
    rows = [row for image in images for row in image]
    boxes = torch.tensor([box for box, _, _ in rows], dtype=torch.float64).reshape(-1, 4)
    return Annotations(
        offsets=torch.tensor([0, *np.cumsum([len(image) for image in images])]),
        boxes=boxes,
        labels=torch.tensor([label for _, label, _ in rows], dtype=torch.int64),
        ignored=torch.tensor([ignored for _, _, ignored in rows], dtype=torch.bool),
        areas=(boxes[:, 2:] - boxes[:, :2]).prod(1),
    )


def detections(rows: list[tuple[list[float], float, int]]) -> Detections:
    """From (box, score, label) triples."""
    return Detections(
        torch.tensor([box for box, _, _ in rows], dtype=torch.float32).reshape(-1, 4),
        torch.tensor([score for _, score, _ in rows], dtype=torch.float32),
        torch.tensor([label for _, _, label in rows], dtype=torch.int64),
    )


def random_sample(
    seed: int,
    *,
    num_images: int = 20,
    num_classes: int = 3,
    boxes: int = 6,
    found: int = 15,
    ignored: float = 0.2,
    decimals: int = 7,
) -> Sample:
    """Boxes of all sizes, and detections that are noisy copies of them or invented."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, boxes + 1, num_images)
    total = int(counts.sum())
    sides = rng.lognormal(4.0, 1.0, (total, 2)).clip(4, 400)
    corners = rng.uniform(0, 300, (total, 2))
    truth = Annotations(
        offsets=torch.tensor([0, *counts.cumsum()]),
        boxes=torch.tensor(np.concatenate([corners, corners + sides], axis=1)),
        labels=torch.tensor(rng.integers(0, num_classes, total)),
        ignored=torch.tensor(rng.random(total) < ignored),
        areas=torch.tensor(sides.prod(1) * rng.uniform(0.4, 1.0, total)),  # as of masks
    )
    return truth, [
        random_answer(rng, truth, image, found=found, num_classes=num_classes, decimals=decimals)
        for image in range(num_images)
    ]


def random_answer(
    rng: np.random.Generator,
    truth: Annotations,
    image: int,
    *,
    found: int,
    num_classes: int,
    decimals: int,
) -> Detections:
    count = int(rng.integers(0, found + 1))
    corners = rng.uniform(0, 300, (count, 2))
    boxes = np.concatenate([corners, corners + rng.uniform(5, 200, (count, 2))], axis=1)
    labels = rng.integers(0, num_classes, count)
    owned = truth[image]
    if len(owned):
        copied = rng.random(count) < 0.7
        source = rng.integers(0, len(owned), count)
        near = owned.boxes.numpy()[source]
        noise = rng.normal(0, 0.08, (count, 4)) * np.tile(near[:, 2:] - near[:, :2], 2)
        boxes = np.where(copied[:, None], near + noise, boxes)
        labels = np.where(copied, owned.labels.numpy()[source], labels)
    boxes[:, 2:] = np.maximum(boxes[:, 2:], boxes[:, :2])
    scores = np.sort(rng.random(count).round(decimals))[::-1].copy()
    return Detections(
        torch.tensor(boxes, dtype=torch.float32),
        torch.tensor(scores, dtype=torch.float32),
        torch.tensor(labels),
    )


def shuffled(sample: Sample) -> Sample:
    generator = torch.Generator().manual_seed(0)
    truth, answers = sample
    return truth, [found[torch.randperm(len(found), generator=generator)] for found in answers]


def without_detections(sample: Sample) -> Sample:
    truth, answers = sample
    return truth, [detections([]) for _ in answers]


def without_truth(sample: Sample) -> Sample:
    truth, answers = sample
    return Annotations.none(len(truth)), answers


def without_truth_of_class(sample: Sample, *, label: int) -> Sample:
    truth, answers = sample
    return replace(truth, labels=torch.where(truth.labels == label, 0, truth.labels)), answers


def all_ignored(sample: Sample) -> Sample:
    truth, answers = sample
    return replace(truth, ignored=torch.ones_like(truth.ignored)), answers


def with_zero_area_detections(sample: Sample) -> Sample:
    truth, answers = sample
    return truth, [
        replace(found, boxes=torch.cat([found.boxes[:, :2], found.boxes[:, :2]], dim=1))
        for found in answers
    ]


SAMPLES: dict[str, Callable[[], Sample]] = {
    "seed 0": lambda: random_sample(0),
    "seed 1": lambda: random_sample(1),
    "seed 2, no crowd": lambda: random_sample(2, ignored=0.0),
    "mostly crowd": lambda: random_sample(3, ignored=0.7),
    "equal scores": lambda: random_sample(4, decimals=1),
    "all scores equal": lambda: random_sample(5, decimals=0),
    "shuffled": lambda: shuffled(random_sample(6)),
    "shuffled, equal scores": lambda: shuffled(random_sample(7, decimals=1)),
    "many images": lambda: random_sample(8, num_images=300, num_classes=2, decimals=2),
    "over 100 per image": lambda: random_sample(9, num_images=5, num_classes=1, found=400),
    "over 100, equal scores": lambda: random_sample(
        10, num_images=5, num_classes=1, found=400, decimals=1
    ),
    "no detections": lambda: without_detections(random_sample(11)),
    "no truth": lambda: without_truth(random_sample(12)),
    "neither": lambda: without_truth(without_detections(random_sample(13))),
    "one class without truth": lambda: without_truth_of_class(random_sample(14), label=1),
    "only crowd": lambda: all_ignored(random_sample(15)),
    "zero-area detections": lambda: with_zero_area_detections(random_sample(16)),
    "one image": lambda: random_sample(17, num_images=1),
}
CLASSES = ["ant", "bee", "cat"]
every_sample = pytest.mark.parametrize("name", SAMPLES)


# --- COCO -------------------------------------------------------------------------------------


def xywh(box: list[float]) -> list[float]:
    return [box[0], box[1], box[2] - box[0], box[3] - box[1]]


def pycocotools_evaluation(truth: Annotations, answers: list[Detections]) -> COCOeval:
    truth_rows: list[dict[str, Any]] = []
    answer_rows: list[dict[str, Any]] = []
    record: dict[str, Any]
    for image in range(len(truth)):
        for row in range(int(truth.offsets[image]), int(truth.offsets[image + 1])):
            record = {"image_id": image, "category_id": int(truth.labels[row]), "id": row + 1}
            record |= {"bbox": xywh(truth.boxes[row].tolist()), "area": float(truth.areas[row])}
            truth_rows.append(record | {"iscrowd": int(truth.ignored[row])})
        found = answers[image]
        for box, score, label in zip(found.boxes, found.scores, found.labels, strict=True):
            record = {"image_id": image, "category_id": int(label), "score": float(score)}
            answer_rows.append(record | {"bbox": xywh(box.tolist())})
    with contextlib.redirect_stdout(io.StringIO()):
        gt = COCO()
        gt.dataset = {
            "images": [{"id": image} for image in range(len(truth))],
            "categories": [{"id": label, "name": name} for label, name in enumerate(CLASSES)],
            "annotations": truth_rows,
        }
        gt.createIndex()
        if answer_rows:
            dt = gt.loadRes(answer_rows)
        else:  # loadRes looks at the first of them
            dt = COCO()
            dt.dataset = gt.dataset | {"annotations": []}
            dt.createIndex()
        evaluation = COCOeval(gt, dt, "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation


def mean_of_present(values: np.ndarray) -> float:
    present = values[values > -1]
    return float(present.mean()) if present.size else math.nan


@every_sample
def test_coco_equals_pycocotools(name: str) -> None:
    truth, answers = SAMPLES[name]()
    metrics = evaluate_coco(truth, answers, CLASSES)
    oracle = pycocotools_evaluation(truth, answers)
    stats = np.where(oracle.stats == -1, np.nan, oracle.stats)
    np.testing.assert_allclose(astuple(metrics)[:12], stats, atol=1e-6, rtol=0)
    precision = oracle.eval["precision"][:, :, :, 0, -1]
    assert [row.name for row in metrics.per_class] == CLASSES
    for label, row in enumerate(metrics.per_class):
        expected = [mean_of_present(p) for p in (precision[:, :, label], precision[0, :, label])]
        np.testing.assert_allclose([row.ap, row.ap50], expected, atol=1e-6, rtol=0)


def test_coco_samples_are_not_trivial() -> None:
    """The comparison above would prove little if most numbers were 0, 1 or absent."""
    metrics = evaluate_coco(*random_sample(0, num_images=100), CLASSES)
    assert all(0.02 < value < 0.98 for value in astuple(metrics)[:12])


def test_perfect_detections_score_one_and_absent_sizes_are_nan() -> None:
    truth = annotations([[([0, 0, 10, 10], 0, False)], [([5, 5, 20, 25], 1, False)]])
    answers = [detections([([0, 0, 10, 10], 0.9, 0)]), detections([([5, 5, 20, 25], 0.8, 1)])]
    metrics = evaluate_coco(truth, answers, CLASSES)
    assert metrics.ap == metrics.ap50 == metrics.ap_small == metrics.ar1 == pytest.approx(1.0)
    assert math.isnan(metrics.ap_large)
    assert math.isnan(metrics.per_class[2].ap)


def test_coco_area_comes_from_the_annotation_not_from_the_box() -> None:
    truth = annotations([[([0, 0, 100, 100], 0, False)]])
    answers = [detections([([0, 0, 100, 100], 0.9, 0)])]
    metrics = evaluate_coco(replace(truth, areas=torch.tensor([500.0]).double()), answers, CLASSES)
    assert metrics.ap_small == pytest.approx(1.0)
    assert math.isnan(metrics.ap_large)


def test_metrics_become_strict_json() -> None:
    truth, answers = without_truth_of_class(random_sample(0), label=1)
    coco = json.loads(json.dumps(evaluate_coco(truth, answers, CLASSES).to_dict(), allow_nan=False))
    voc = json.loads(json.dumps(evaluate_voc(truth, answers, CLASSES).to_dict(), allow_nan=False))
    assert coco["per_class"][1] == {"name": "bee", "ap": None, "ap50": None}
    assert voc["per_class"][1] == {"name": "bee", "ap": None, "ap_11_point": None}
    assert 0 < coco["ap"] < coco["ap50"] < 1
    assert 0 < voc["ap"] < 1


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    evaluate_coco(*random_sample(0), CLASSES)
    evaluate_voc(*random_sample(0), CLASSES)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("classes", [[], CLASSES])
def test_no_images_at_all(classes: list[str]) -> None:
    truth = Annotations.none(0)
    assert math.isnan(evaluate_coco(truth, [], classes).ap)
    assert math.isnan(evaluate_voc(truth, [], classes).ap)
    assert best_f1_thresholds(truth, [], len(classes), default=0.4) == [0.4] * len(classes)


# --- VOC --------------------------------------------------------------------------------------


def overlap(a: list[float], b: list[float]) -> float:
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    areas = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1])
    return width * height / (areas - width * height)


def slow_verdicts(
    truth: Annotations, answers: list[Detections], *, label: int
) -> tuple[list[tuple[float, str]], int]:
    """((score, verdict), best first; boxes to be found), as VOC's development kit loops."""
    ranked = []
    for image, found in enumerate(answers):
        rows = zip(found.boxes.tolist(), found.scores.tolist(), found.labels.tolist(), strict=True)
        ranked += [(score, image, box) for box, score, of_class in rows if of_class == label]
    ranked.sort(key=lambda row: -row[0])
    taken: set[int] = set()
    verdicts = []
    for score, image, box in ranked:
        best, best_row = -1.0, None
        for row in range(int(truth.offsets[image]), int(truth.offsets[image + 1])):
            if truth.labels[row] == label and overlap(box, truth.boxes[row].tolist()) > best:
                best, best_row = overlap(box, truth.boxes[row].tolist()), row
        if best_row is None or best < 0.5:
            verdicts.append((score, "false"))
        elif truth.ignored[best_row]:
            verdicts.append((score, "neutral"))
        elif best_row in taken:
            verdicts.append((score, "false"))
        else:
            taken.add(best_row)
            verdicts.append((score, "true"))
    return verdicts, int(((truth.labels == label) & ~truth.ignored).sum())


def slow_average_precisions(
    verdicts: list[tuple[float, str]], num_truth: int
) -> tuple[float, float]:
    """(area, 11-point) from the list of (true ones, precision) points."""
    if num_truth == 0:
        return math.nan, math.nan
    points, num_true, num_false = [], 0, 0
    for _, verdict in verdicts:
        num_true += verdict == "true"
        num_false += verdict == "false"
        points.append((num_true, num_true / max(num_true + num_false, 1)))
    eleven = [
        max((p for found, p in points if found * 10 >= tenth * num_truth), default=0.0)
        for tenth in range(11)
    ]
    area = [
        max((p for found, p in points if found >= wanted), default=0.0)
        for wanted in range(1, num_truth + 1)
    ]
    return sum(area) / num_truth, sum(eleven) / 11


@every_sample
def test_voc_equals_the_slow_loop(name: str) -> None:
    truth, answers = SAMPLES[name]()
    metrics = evaluate_voc(truth, answers, CLASSES)
    expected = [
        slow_average_precisions(*slow_verdicts(truth, answers, label=label))
        for label in range(len(CLASSES))
    ]
    measured = [(row.ap, row.ap_11_point) for row in metrics.per_class]
    np.testing.assert_allclose(measured, expected, atol=1e-9)
    present = [pair for pair in expected if not math.isnan(pair[0])]
    means = np.mean(present, axis=0) if present else (math.nan, math.nan)
    np.testing.assert_allclose((metrics.ap, metrics.ap_11_point), means, atol=1e-9)


def test_voc_by_hand() -> None:
    """Two boxes to find and a difficult one: true, false (found already), neutral, true."""
    truth = annotations(
        [[([0, 0, 10, 10], 0, False), ([20, 0, 30, 10], 0, False), ([40, 0, 50, 10], 0, True)]]
    )
    answers = [
        detections(
            [
                ([0, 0, 10, 10], 0.9, 0),
                ([0, 0, 10, 9], 0.8, 0),
                ([40, 0, 50, 10], 0.7, 0),
                ([20, 0, 30, 10], 0.6, 0),
            ]
        )
    ]
    metrics = evaluate_voc(truth, answers, ["ant"])
    assert metrics.ap == pytest.approx((1 + 2 / 3) / 2)  # recalls 1/2 and 2/2
    assert metrics.ap_11_point == pytest.approx((6 * 1 + 5 * 2 / 3) / 11)  # 0 .. 0.5, 0.6 .. 1


def test_voc_overlap_is_that_of_inclusive_pixels() -> None:
    """Pixels 1..10 against 6..10 share exactly half by VOC's "+ 1" rule: that is enough."""
    truth = annotations([[([0, 0, 10, 10], 0, False)]])
    assert evaluate_voc(truth, [detections([([5, 0, 10, 10], 0.9, 0)])], ["ant"]).ap == 1.0
    assert evaluate_voc(truth, [detections([([5.01, 0, 10, 10], 0.9, 0)])], ["ant"]).ap == 0.0


def test_voc_takes_its_overlap_from_the_caller() -> None:
    truth = annotations([[([0, 0, 10, 10], 0, False)]])
    answers = [detections([([0, 0, 10, 7], 0.9, 0)])]
    assert evaluate_voc(truth, answers, ["ant"], iou=0.7).ap == 1.0
    assert evaluate_voc(truth, answers, ["ant"], iou=0.75).ap == 0.0


# --- operating point --------------------------------------------------------------------------


def f1_at(threshold: float, verdicts: list[tuple[float, str]], num_truth: int) -> float:
    kept = [verdict for score, verdict in verdicts if score >= threshold]
    num_true, num_false = kept.count("true"), kept.count("false")
    return 2 * num_true / (num_true + num_false + num_truth) if num_truth else 0.0


@every_sample
def test_no_threshold_beats_the_chosen_one(name: str) -> None:
    truth, answers = SAMPLES[name]()
    for label, threshold in enumerate(best_f1_thresholds(truth, answers, len(CLASSES))):
        verdicts, num_truth = slow_verdicts(truth, answers, label=label)
        best = max((f1_at(score, verdicts, num_truth) for score, _ in verdicts), default=0.0)
        assert f1_at(threshold, verdicts, num_truth) == best
        if best > 0:  # ... and no higher one is as good
            higher = [score for score, _ in verdicts if score > threshold]
            kept = min(higher, default=threshold)
            assert all(f1_at(score, verdicts, num_truth) < best for score in higher if score > kept)
        else:
            assert threshold == 0.3


def test_threshold_lies_halfway_between_neighbours() -> None:
    truth = annotations([[([0, 0, 10, 10], 0, False)]])
    answers = [detections([([0, 0, 10, 10], 0.75, 0), ([50, 50, 60, 60], 0.25, 0)])]
    assert best_f1_thresholds(truth, answers, 1) == [0.5]


def test_threshold_below_the_last_detection_lies_halfway_to_zero() -> None:
    truth = annotations([[([0, 0, 10, 10], 0, False)]])
    assert best_f1_thresholds(truth, [detections([([0, 0, 10, 10], 0.5, 0)])], 1) == [0.25]


def test_threshold_can_keep_a_detection_that_scores_zero() -> None:
    truth = annotations([[([0, 0, 10, 10], 0, False)]])
    assert best_f1_thresholds(truth, [detections([([0, 0, 10, 10], 0.0, 0)])], 1) == [0.0]


def test_equally_good_thresholds_give_the_highest() -> None:
    """Three to find: one true; then three false and one true. F1 is 2/4 and 4/8."""
    boxes: list[list[float]] = [[0, 0, 10, 10], [20, 0, 30, 10], [40, 0, 50, 10]]
    far: list[list[float]] = [[60 + 20 * i, 60, 70 + 20 * i, 70] for i in range(3)]
    truth = annotations([[(box, 0, False) for box in boxes]])
    rows = [(boxes[0], 0.9, 0), *((box, 0.6, 0) for box in far), (boxes[1], 0.3, 0)]
    assert best_f1_thresholds(truth, [detections(rows)], 1) == [pytest.approx(0.75)]


def test_threshold_does_not_count_on_separating_equal_scores() -> None:
    """Keeping 0.9 and one of the 0.5s would be perfect, but the false 0.5s come with it."""
    boxes: list[list[float]] = [[0, 0, 10, 10], [20, 0, 30, 10]]
    far: list[list[float]] = [[60 + 20 * i, 60, 70 + 20 * i, 70] for i in range(3)]
    truth = annotations([[(box, 0, False) for box in boxes]])
    rows = [(boxes[0], 0.9, 0), (boxes[1], 0.5, 0), *((box, 0.5, 0) for box in far)]
    assert best_f1_thresholds(truth, [detections(rows)], 1) == [pytest.approx(0.7)]


def test_class_without_a_true_detection_has_the_default() -> None:
    truth = annotations([[([0, 0, 10, 10], 0, False), ([0, 0, 10, 10], 1, True)]])
    answers = [detections([([50, 50, 60, 60], 0.9, 0), ([0, 0, 10, 10], 0.9, 1)])]
    assert best_f1_thresholds(truth, answers, 3, default=0.2) == [0.2, 0.2, 0.2]


# --- what cannot be evaluated -----------------------------------------------------------------


def test_number_of_images_must_agree() -> None:
    with pytest.raises(ValueError, match="2 images for 3"):
        evaluate_coco(Annotations.none(3), [detections([])] * 2, CLASSES)


def test_class_outside_of_the_data_set_is_named() -> None:
    with pytest.raises(UserError, match="class 3, but the data set has 3 classes"):
        evaluate_voc(Annotations.none(1), [detections([([0, 0, 1, 1], 0.5, 3)])], CLASSES)


def test_detections_of_a_diverged_model_are_refused() -> None:
    answers = [detections([]), detections([([0, 0, 1, 1], math.nan, 0)])]
    with pytest.raises(UserError, match="image 1 hold NaN"):
        evaluate_coco(Annotations.none(2), answers, CLASSES)
