"""Photometric augmentation of the strong view: colour, grayscale, blur, cutout (METHOD 7).

Changes pixels, never places: boxes are not touched.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as F


@dataclass(frozen=True)
class Hole:
    """One cutout: drawn with this probability, covering this share of the image."""

    probability: float
    low: float
    high: float


@dataclass(frozen=True)
class Strong:
    """The strong view's settings; defaults are those of METHOD 7."""

    jitter: float = 0.8
    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4
    hue: float = 0.1
    grayscale: float = 0.2
    blur: float = 0.5
    max_sigma: float = 2.0
    holes: tuple[Hole, ...] = (Hole(0.7, 0.05, 0.2), Hole(0.5, 0.02, 0.2), Hole(0.3, 0.02, 0.2))

    def __call__(self, image: Tensor, random: np.random.Generator) -> Tensor:
        """(3, H, W) uint8 -> the same shape."""
        if random.random() < self.jitter:
            image = self._jitter(image, random)
        if random.random() < self.grayscale:
            image = F.rgb_to_grayscale(image, num_output_channels=3)
        if random.random() < self.blur:
            image = _blur(image, random.uniform(0.1, self.max_sigma))
        for hole in self.holes:
            if random.random() < hole.probability:
                image = _cut(image, hole, random)
        return image

    def _jitter(self, image: Tensor, random: np.random.Generator) -> Tensor:
        for step in random.permutation(4):
            if step == 0:
                image = F.adjust_brightness(image, _around(1, self.brightness, random))
            elif step == 1:
                image = F.adjust_contrast(image, _around(1, self.contrast, random))
            elif step == 2:
                image = F.adjust_saturation(image, _around(1, self.saturation, random))
            else:
                image = F.adjust_hue(image, _around(0, self.hue, random))
        return image


def _around(middle: float, reach: float, random: np.random.Generator) -> float:
    return float(random.uniform(middle - reach, middle + reach))


def _blur(image: Tensor, sigma: float) -> Tensor:
    side = 2 * max(1, round(2.5 * sigma)) + 1  # a wider kernel would hold only zeros
    if min(image.shape[-2:]) <= side // 2:  # the kernel reflects at borders
        return image
    blurred: Tensor = F.gaussian_blur(image, [side, side], [sigma, sigma])
    return blurred


def _cut(image: Tensor, hole: Hole, random: np.random.Generator) -> Tensor:
    """Fill one rectangle of random share, aspect and place with noise: any one colour could be that
    of an object, whose border would then be anywhere."""
    height, width = image.shape[-2:]
    area = height * width * random.uniform(hole.low, hole.high)
    aspect = np.exp(random.uniform(np.log(0.3), np.log(1 / 0.3)))
    tall, wide = (
        min(height, round((area * aspect) ** 0.5)),
        min(width, round((area / aspect) ** 0.5)),
    )
    top, left = random.integers(0, height - tall + 1), random.integers(0, width - wide + 1)
    image = image.clone()
    noise = random.integers(0, 256, (3, tall, wide), np.uint8)
    image[:, top : top + tall, left : left + wide] = torch.from_numpy(noise)
    return image


STRONG = {
    "ours": Strong(),
    "paper": Strong(grayscale=0.0, blur=0.0),
    "code": Strong(),  # with an affine step, which is geometry
}
