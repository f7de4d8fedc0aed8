"""The same few unlabeled images all through a run: what the teacher makes of them over time.

It looks on. It calls the teacher outside of the training step and changes no state; only the main
process has one.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsl.data.index import Index
from dsl.data.loader import collate_images
from dsl.data.views import UnlabeledViews, read_resized
from dsl.errors import UserError
from dsl.geometry import PatchShuffle, Resize
from dsl.inference import autocast
from dsl.methods.dsl import DSL
from dsl.randomness import generator
from dsl.report.teaching import Taught, write_teaching
from dsl.report.views import INDEX, Shown, StrongView, write_views
from dsl.ssod.pseudo_labels import PseudoLabels, carry

PICTURES = 16
STRONG_VIEWS = 6  # of them, also as the student sees them


@dataclass(frozen=True)
class Gallery:
    """Writes RUN/views when teaching begins, and RUN/pseudo_labels then and whenever asked."""

    folder: Path  # of the run
    method: DSL
    unlabeled: Index
    classes: tuple[str, ...]
    views: UnlabeledViews
    short_side: int  # of the test
    max_side: int
    seed: int
    device: torch.device
    precision: str

    def open(self, step: int) -> None:
        """The images, a few strong views and the first boxes; nothing where they exist already."""
        if (self.folder / "views" / INDEX).exists():
            return
        shown: list[Shown] = []
        for position, image, resize in self._images():
            known = self.unlabeled.annotations
            truth = None if known is None else resize.targets(known[position])
            strong = self._strong(position) if len(shown) < STRONG_VIEWS else None
            shown.append(Shown(self.unlabeled.names[position], _pixels(image), truth, strong))
        write_views(self.folder / "views", shown, self.classes)
        self.picture(step)

    def picture(self, step: int) -> None:
        """What the teacher makes of the images now."""
        if not self.method.teaching:
            return
        taught = [
            Taught(self.unlabeled.names[position], _pixels(image), self._pseudo_label(image))
            for position, image, _ in self._images()
        ]
        if taught:
            write_teaching(self.folder / "pseudo_labels", step, taught, self.classes)

    def _images(self) -> Iterator[tuple[int, Tensor, Resize]]:
        """Spread over the set; unreadable ones are left out, as in training."""
        count = len(self.unlabeled)
        for position in range(0, count, max(1, count // PICTURES))[:PICTURES]:
            with suppress(UserError):
                yield (
                    position,
                    *read_resized(
                        self.unlabeled, position, short_side=self.short_side, max_side=self.max_side
                    ),
                )

    def _strong(self, position: int) -> StrongView:
        """Drawn as in training, and with the targets that the student would learn from now."""
        random = generator(self.seed, "gallery", position)
        pair = self.views(self.unlabeled, position, random)
        size = torch.tensor(pair.strong.shape[-2:])
        targets = carry(self._pseudo_label(pair.weak).targets(), pair.moves, size=size)
        shuffled = any(isinstance(move, PatchShuffle) for move in pair.moves)
        return StrongView(_pixels(pair.strong), targets, shuffled)

    def _pseudo_label(self, image: Tensor) -> PseudoLabels:
        with autocast(self.device, self.precision):
            [labels] = self.method.pseudo_label(collate_images([image]).to(self.device))
        return labels.cpu()


def _pixels(image: Tensor) -> NDArray[np.uint8]:
    """(3, H, W) -> (H, W, 3)."""
    pixels: NDArray[np.uint8] = image.permute(1, 2, 0).contiguous().numpy()
    return pixels
