"""A trained detector in use: pixels in, detections in the file's own pixels out."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from dsl.data.loader import EvalBatch, collate_images
from dsl.errors import UserError
from dsl.geometry import Resize
from dsl.image import fitted_size, read_image, to_rgb
from dsl.models.decode import Decoder
from dsl.models.fcos import FCOS
from dsl.types import Detections, ImageBatch

Picture = str | Path | Image.Image | NDArray[np.uint8]

DEFAULT_THRESHOLD = 0.3  # of a class whose operating point was never measured


def autocast(device: torch.device, precision: str) -> AbstractContextManager[None]:
    """The context that `precision` means; fp32 means none."""
    dtype = torch.float16 if precision == "fp16-mixed" else torch.bfloat16
    return torch.autocast(device.type, dtype=dtype, enabled=precision.endswith("mixed"))


@dataclass(frozen=True)
class Detector:
    """A network with its decoding, on its device."""

    network: FCOS
    decoder: Decoder
    precision: str = "fp32"

    @property
    def device(self) -> torch.device:
        return self.network.pixel_mean.device

    @torch.inference_mode()
    def __call__(self, images: ImageBatch, original_sizes: Tensor) -> list[Detections]:
        """Detections in the pixels of the files, whose (N, 2) sizes are given."""
        was_training = self.network.training
        self.network.eval()
        with autocast(self.device, self.precision):
            output = self.network(images.to(self.device))
        self.network.train(was_training)
        found = self.decoder(output, images.sizes.to(self.device))
        return [
            rescale(detections.cpu(), size, original)
            for detections, size, original in zip(found, images.sizes, original_sizes, strict=True)
        ]

    def stream(self, batches: Iterable[EvalBatch]) -> Iterator[tuple[int, Detections]]:
        """(position, detections) of every image, in the order of the batches."""
        for batch in batches:
            found = self(batch.images, batch.original_sizes)
            yield from zip(batch.positions, found, strict=True)


def rescale(detections: Detections, size: Tensor, original: Tensor) -> Detections:
    factor = (original / size).flip(0).repeat(2).float()  # width, height, width, height
    return Detections(detections.boxes * factor, detections.scores, detections.labels)


class Model:
    """A loaded detector: `model(images)` gives one Detections per image, best first."""

    def __init__(
        self, detector: Detector, classes: Sequence[str], *, thresholds: Sequence[float] | None,
        short_side: int, max_side: int,
    ) -> None:  # fmt: skip
        self.detector, self.classes = detector, tuple(classes)
        self.thresholds = torch.tensor(
            [DEFAULT_THRESHOLD] * len(self.classes) if thresholds is None else list(thresholds)
        )
        self.short_side, self.max_side = short_side, max_side

    def __call__(
        self, images: Picture | Sequence[Picture], *, threshold: float | None = None
    ) -> list[Detections]:
        """Detect in files, Pillow images or (H, W, 3) RGB arrays.

        `threshold` None: each class's operating point; a number: that for all; 0: everything.
        """
        many = images if isinstance(images, Sequence) and not isinstance(images, str) else [images]
        return [self._one(picture, threshold) for picture in many]

    def keep(self, detections: Detections, threshold: float | None) -> Detections:
        """Those at or above the operating point, or the given threshold."""
        bar = self.thresholds[detections.labels] if threshold is None else threshold
        return detections[detections.scores >= bar]

    def _one(self, picture: Picture, threshold: float | None) -> Detections:
        image, resize = self._prepare(picture)
        [found] = self.detector(collate_images([image]), torch.tensor([resize.source]))
        return self.keep(found, threshold)

    def _prepare(self, picture: Picture) -> tuple[Tensor, Resize]:
        if isinstance(picture, str | Path):
            read = read_image(picture, draft_short_side=self.short_side)
            pixels, height, width = read.pixels, read.height, read.width
        else:
            if isinstance(picture, Image.Image):
                picture = np.asarray(to_rgb(ImageOps.exif_transpose(picture)))
            pixels = np.array(picture)  # a copy: torch cannot share an array that is read-only
            if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8:
                raise UserError(
                    f"image: expected (H, W, 3) uint8 RGB, got {pixels.shape} {pixels.dtype}"
                )
            height, width = pixels.shape[:2]
        target = fitted_size(height, width, short_side=self.short_side, max_side=self.max_side)
        resize = Resize((height, width), target)
        return resize.image(torch.from_numpy(pixels).permute(2, 0, 1)), resize
