"""The detections of all images as flat columns, checked against the ground truth they answer.

It knows no metric. Columns are float64, because that is what COCO's own code computes in.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsl.errors import UserError
from dsl.types import Annotations, Detections


@dataclass(frozen=True)
class DetectionColumns:
    """D detections in the order given: image by image, and within an image as the detector said.

    That order decides between equal scores, so every metric sorts these columns stably.
    """

    images: NDArray[np.int64]  # (D,) position of the image
    boxes: NDArray[np.float64]  # (D, 4) xyxy
    scores: NDArray[np.float64]  # (D,)
    labels: NDArray[np.int64]  # (D,)

    def __len__(self) -> int:
        return len(self.scores)


def detection_columns(
    truth: Annotations, detections: Sequence[Detections], *, num_classes: int
) -> DetectionColumns:
    """Flatten, or say why these detections cannot be an answer to this ground truth."""
    if len(truth) != len(detections):
        raise ValueError(f"detections of {len(detections)} images for {len(truth)} annotated ones")
    counts = np.array([len(found) for found in detections], dtype=np.int64)
    columns = DetectionColumns(
        images=np.arange(len(counts)).repeat(counts),
        boxes=_concatenate([found.boxes for found in detections], torch.zeros(0, 4))
        .double()
        .numpy(),
        scores=_concatenate([found.scores for found in detections], torch.zeros(0))
        .double()
        .numpy(),
        labels=_concatenate([found.labels for found in detections], torch.zeros(0)).long().numpy(),
    )
    _check_labels(columns.labels, owner="detections", num_classes=num_classes)
    _check_labels(truth.labels.numpy(), owner="annotations", num_classes=num_classes)
    _check_finite(columns)
    return columns


def truth_images(truth: Annotations) -> NDArray[np.int64]:
    """The position of the image that owns each annotated box, (B,)."""
    return np.arange(len(truth)).repeat(np.diff(truth.offsets.numpy()))


def _concatenate(parts: list[Tensor], empty: Tensor) -> Tensor:
    return torch.cat(parts).detach().cpu() if parts else empty


def _check_labels(labels: NDArray[np.int64], *, owner: str, num_classes: int) -> None:
    wrong = labels[(labels < 0) | (labels >= num_classes)]
    if len(wrong):
        raise UserError(
            f"{owner} hold class {wrong[0]}, but the data set has {num_classes} classes (0 to "
            f"{num_classes - 1}): use a model that was trained on the classes of this data set"
        )


def _check_finite(columns: DetectionColumns) -> None:
    # Sorting by NaN has no defined order: the metric would be noise, or the C++ code would crash.
    finite = np.isfinite(columns.scores) & np.isfinite(columns.boxes).all(axis=1)
    if not finite.all():
        image = columns.images[~finite][0]
        raise UserError(
            f"detections of image {image} hold NaN or infinity: the model has diverged; "
            "go back to an earlier checkpoint or lower the learning rate"
        )
