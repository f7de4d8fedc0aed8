"""The twelve COCO numbers and each class's AP, computed by faster-coco-eval in memory.

It translates our columns to the library's records and its -1 for "no ground truth" to NaN; the
metric itself is the library's, and the tests hold it equal to pycocotools. It knows no VOC.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from faster_coco_eval import COCO, COCOeval_faster
from numpy.typing import NDArray

from dsl.metrics.columns import DetectionColumns, detection_columns, truth_images
from dsl.metrics.missing import nan_to_none
from dsl.types import Annotations, Detections

# The library's summary, in its order; each name is a field of CocoMetrics.
SUMMARY = (
    *("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large"),
    *("ar1", "ar10", "ar100", "ar_small", "ar_medium", "ar_large"),
)


class CocoClass(NamedTuple):
    """One class's average precision; NaN where the class has no ground truth."""

    name: str
    ap: float
    ap50: float


@dataclass(frozen=True)
class CocoMetrics:
    """Averages in 0..1; NaN where no ground truth has that size."""

    ap: float
    ap50: float
    ap75: float
    ap_small: float
    ap_medium: float
    ap_large: float
    ar1: float
    ar10: float
    ar100: float
    ar_small: float
    ar_medium: float
    ar_large: float
    per_class: tuple[CocoClass, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; None stands for NaN."""
        rows = [nan_to_none(row._asdict()) for row in self.per_class]
        return nan_to_none({**asdict(self), "per_class": rows})


def evaluate_coco(
    truth: Annotations, detections: Sequence[Detections], classes: Sequence[str]
) -> CocoMetrics:
    """COCO's bounding-box metrics; detections[i] answers image i of the ground truth.

    An ignored box is a crowd region; `truth.areas` decide which boxes are small, medium or large.
    """
    columns = detection_columns(truth, detections, num_classes=len(classes))
    if len(truth) == 0 or len(classes) == 0:  # the library takes "no ids" for "all ids"
        return _nothing_to_measure(classes)
    images = [{"id": image} for image in range(len(truth))]
    categories = [{"id": label, "name": name} for label, name in enumerate(classes)]
    evaluator = COCOeval_faster(
        _dataset(images, categories, annotations=_truth_records(truth)),
        _dataset(images, categories, annotations=_detection_records(columns)),
        iouType="bbox",
        print_function=_say_nothing,
    )
    evaluator.run()
    summary = [_nan_if_absent(value) for value in evaluator.stats]
    # (T, R, C, A, D): IoU thresholds, recalls, classes, areas (0 = all), detections (-1 = 100)
    precision = evaluator.eval["precision"][:, :, :, 0, -1]
    per_class = tuple(
        CocoClass(name, ap=_average(precision[:, :, label]), ap50=_average(precision[0, :, label]))
        for label, name in enumerate(classes)
    )
    return CocoMetrics(**dict(zip(SUMMARY, summary, strict=True)), per_class=per_class)


def _nothing_to_measure(classes: Sequence[str]) -> CocoMetrics:
    nan = float("nan")
    per_class = tuple(CocoClass(name, nan, nan) for name in classes)
    return CocoMetrics(**dict.fromkeys(SUMMARY, nan), per_class=per_class)


def _dataset(
    images: list[dict[str, Any]], categories: list[dict[str, Any]], *, annotations: list[Any]
) -> COCO:
    content = {"images": images, "categories": categories, "annotations": annotations}
    return COCO(content, print_function=_say_nothing)


def _truth_records(truth: Annotations) -> list[dict[str, Any]]:
    # Ids start at 1: to the library, 0 means "not matched".
    boxes = _xywh(truth.boxes.numpy()).tolist()
    images, labels = truth_images(truth).tolist(), truth.labels.tolist()
    areas, crowd = truth.areas.tolist(), truth.ignored.int().tolist()
    return [
        {"id": i, "image_id": image, "category_id": label, "bbox": box, "area": area, "iscrowd": c}
        for i, (image, label, box, area, c) in enumerate(
            zip(images, labels, boxes, areas, crowd, strict=True), start=1
        )
    ]


def _detection_records(columns: DetectionColumns) -> list[dict[str, Any]]:
    # What COCO.loadRes would make of them, without the polygons that boxes do not need.
    boxes = _xywh(columns.boxes)
    areas, scores = (boxes[:, 2] * boxes[:, 3]).tolist(), columns.scores.tolist()
    images, labels = columns.images.tolist(), columns.labels.tolist()
    return [
        {
            "id": i,
            "image_id": image,
            "category_id": label,
            "bbox": box,
            "area": area,
            "score": score,
        }
        for i, (image, label, box, area, score) in enumerate(
            zip(images, labels, boxes.tolist(), areas, scores, strict=True), start=1
        )
    ]


def _xywh(boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1)


def _average(precision: NDArray[np.float64]) -> float:
    present = precision[precision > -1]
    return float(present.mean()) if present.size else float("nan")


def _nan_if_absent(value: float) -> float:
    return float("nan") if value == -1 else float(value)


def _say_nothing(*_: object) -> None:
    """The library's reports go nowhere: the command line decides what a user reads."""
