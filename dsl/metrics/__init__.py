"""How good are these detections? COCO metrics, VOC metrics, and the thresholds to predict with.

Evaluation sees annotations and detections only: never models, images, files or the console.
"""

from dsl.metrics.coco import CocoClass, CocoMetrics, evaluate_coco
from dsl.metrics.operating_point import best_f1_thresholds
from dsl.metrics.voc import VocClass, VocMetrics, evaluate_voc

__all__ = [
    "CocoClass",
    "CocoMetrics",
    "VocClass",
    "VocMetrics",
    "best_f1_thresholds",
    "evaluate_coco",
    "evaluate_voc",
]
