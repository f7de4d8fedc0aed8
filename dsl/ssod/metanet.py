"""MetaNet: a foreground pseudo-label that does not look like its class is put aside (DSL, Eq. 7).

m_k is the mean feature of the labeled instances of class k, computed once before the unlabeled
images are used. A pseudo-label of class k whose cosine similarity to m_k is below the bar becomes
ignored. It is given its feature extractor and never trains it.
"""

from collections.abc import Iterable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dsl.types import Detections, ImageBatch, LabeledBatch

PERCENTILE = 0.05  # of the labeled instances' own similarities, which "auto" takes as the bar
REMEMBERED = 500  # instances of each class whose similarities "auto" looks at
NO_BAR = -2.0  # below any cosine: a class without labels is never doubted
SHARPNESS = 10.0  # of the odds between classes, per unit of cosine


class MetaNet(nn.Module):
    """Proxies and bars. `extractor` maps images and the boxes of each to vectors (M, width)."""

    proxies: Tensor
    bars: Tensor
    ready: Tensor

    def __init__(
        self, num_classes: int, extractor: nn.Module, *, width: int,
        bar: float | Literal["auto"], saved: bool,
    ) -> None:  # fmt: skip
        """`saved`: the extractor is part of the state. One that can be had again is not; it stands
        in a tuple, where torch does not look for modules."""
        super().__init__()
        self.bar = bar
        self.saved_extractor = extractor if saved else None
        self._extractor = (extractor,)
        self.register_buffer("proxies", torch.zeros(num_classes, width))
        self.register_buffer("bars", torch.full((num_classes,), NO_BAR))
        self.register_buffer("ready", torch.zeros((), dtype=torch.bool))

    @property
    def extractor(self) -> nn.Module:
        """On the device of the proxies, wherever it was before."""
        return self._extractor[0].to(self.proxies.device)

    @torch.no_grad()
    def learn(self, batches: Iterable[LabeledBatch]) -> None:
        """Proxies from the labeled instances that are no crowd."""
        num_classes = len(self.proxies)
        sums, counts = torch.zeros_like(self.proxies), self.proxies.new_zeros(num_classes)
        kept: list[list[Tensor]] = [[] for _ in range(num_classes)]
        for batch in batches:
            boxes = [t.boxes[~t.ignored] for t in batch.targets]
            labels = torch.cat([t.labels[~t.ignored] for t in batch.targets])
            found = self.extractor(batch.images, boxes)  # (M, D)
            sums.index_add_(0, labels, found)
            counts.index_add_(0, labels, torch.ones_like(labels, dtype=counts.dtype))
            for label, vector in zip(labels.tolist(), found, strict=True):
                if len(kept[label]) < REMEMBERED:
                    kept[label].append(vector)
        self.proxies.copy_(sums / counts.clamp(min=1)[:, None])
        for label, vectors in enumerate(kept):
            self.bars[label] = self._bar_of(label, vectors)
        self.ready.fill_(True)

    def _bar_of(self, label: int, vectors: Sequence[Tensor]) -> float:
        if not vectors:
            return NO_BAR
        if self.bar != "auto":
            return self.bar
        alike = F.cosine_similarity(torch.stack(list(vectors)), self.proxies[label], dim=-1)
        return float(alike.float().quantile(PERCENTILE))

    @torch.no_grad()
    def doubtful(
        self, images: ImageBatch, found: Sequence[Detections], foreground: Sequence[Tensor]
    ) -> list[Tensor]:
        """Of each image's M detections, which are foreground and unlike their class: (M,) bool."""
        chosen = [d[mask] for d, mask in zip(found, foreground, strict=True)]
        vectors: Tensor = self.extractor(images, [d.boxes for d in chosen])  # (K, D)
        labels = torch.cat([d.labels for d in chosen])
        alike = F.cosine_similarity(vectors, self.proxies[labels], dim=-1)
        return _laid_out(alike < self.bars[labels], foreground)

    @torch.no_grad()
    def odds(self, images: ImageBatch, boxes: Sequence[Tensor]) -> list[Tensor]:
        """Of each image's M boxes the probabilities of all classes, (M, C): softmax of the cosines;
        next to nothing for a class without labels."""
        vectors: Tensor = self.extractor(images, boxes)  # (M of all images, D)
        cosines = F.cosine_similarity(vectors[:, None], self.proxies, dim=-1)
        cosines = cosines.masked_fill(self.bars == NO_BAR, NO_BAR)
        odds = (SHARPNESS * cosines).softmax(dim=1)
        return list(torch.split(odds, [len(of_image) for of_image in boxes]))


def _laid_out(doubted: Tensor, asked: Sequence[Tensor]) -> list[Tensor]:
    """Answers (K,) about the instances that were asked about, among all (M,) of each image."""
    laid, counts = [], [int(mask.sum()) for mask in asked]
    for mask, part in zip(asked, torch.split(doubted, counts), strict=True):
        whole = torch.zeros_like(mask)
        whole[mask] = part
        laid.append(whole)
    return laid
