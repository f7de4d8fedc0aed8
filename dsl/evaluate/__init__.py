"""How good are these detections? COCO metrics, VOC metrics, and the thresholds to predict with.

Evaluation sees annotations and detections only: never models, images, files or the console.
"""

from dsl.evaluate.coco import CocoClass, CocoMetrics, evaluate_coco
from dsl.evaluate.operating_point import best_f1_thresholds
from dsl.evaluate.voc import VocClass, VocMetrics, evaluate_voc

__all__ = [
    "CocoClass",
    "CocoMetrics",
    "VocClass",
    "VocMetrics",
    "best_f1_thresholds",
    "evaluate_coco",
    "evaluate_voc",
]
