"""The detector as one graph: bytes in, (N, 100) detections out; what `dsl export` writes.

The same rule as `decode.py`, written without loops over images and without shapes that depend on
what was found: every level gives exactly `per_level` candidates, empty ones with score 0. It must
not know of files, formats or metadata.
"""

import copy
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from timm.layers.conv2d_same import Conv2dSame
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.ops import nms

from dsl.models.assign import locate, to_boxes
from dsl.models.decode import Decoder
from dsl.models.fcos import FCOS
from dsl.types import ImageBatch

NO_LABEL = -1  # of the places past an image's count


class Candidates(NamedTuple):
    """K scored boxes of each image; one with score 0 is none."""

    boxes: Tensor  # (N, K, 4), clipped to the image
    scores: Tensor  # (N, K)
    labels: Tensor  # (N, K) int64


Suppress = Callable[[Candidates, int, Decoder], Tensor]  # also the number of classes -> (N, K) bool


class ExportedDetector(nn.Module):
    """A network with its decoding and suppression."""

    def __init__(self, network: FCOS, decoder: Decoder, suppress: Suppress) -> None:
        super().__init__()
        self.network, self.decoder, self.suppress = copy.deepcopy(network), decoder, suppress
        _fix_padding(self.network)
        self.eval().requires_grad_(False)

    def forward(self, images: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(N, 3, H, W) uint8 and (N, 2) int64 -> boxes (N, 100, 4), scores (N, 100), labels
        (N, 100) int64 and counts (N,) int64; best first."""
        output = self.network(ImageBatch(images, sizes))
        levels = [
            self._level(*maps, sizes)
            for maps in zip(
                output.class_logits, output.distances, output.centerness, output.strides,
                strict=True,
            )
        ]  # fmt: skip
        found = Candidates(*(torch.cat(columns, dim=1) for columns in zip(*levels, strict=True)))
        keep = self.suppress(found, self.network.num_classes, self.decoder)
        scores, best = torch.where(keep, found.scores, 0.0).topk(self.decoder.max_detections)
        real = scores > 0  # (N, 100)
        boxes = found.boxes.gather(1, best[..., None].expand(-1, -1, 4))
        labels = torch.where(real, found.labels.gather(1, best), NO_LABEL)
        return boxes * real[..., None], scores, labels, real.sum(dim=1)

    def _level(
        self, logits: Tensor, distances: Tensor, centerness: Tensor, stride: int, sizes: Tensor
    ) -> Candidates:
        """The best candidates of one level, whose maps are (N, C or 4 or 1, H, W)."""
        height, width = logits.shape[-2:]
        classes = logits.shape[1]
        bar = math.log(self.decoder.min_class_score / (1 - self.decoder.min_class_score))
        products = logits.sigmoid() * centerness.sigmoid()
        products = torch.where(logits > bar, products, 0.0)
        flat = products.permute(0, 2, 3, 1).flatten(1)  # (N, H * W * C)
        # Padded, so that there are always enough to choose from, however small the level.
        scores, chosen = F.pad(flat, (0, self.decoder.per_level)).topk(self.decoder.per_level)
        place = (chosen // classes).clamp(max=height * width - 1)  # (N, K)
        points = locate([(height, width)], [stride], logits.device).points  # (H * W, 2)
        reach = distances.permute(0, 2, 3, 1).flatten(1, 2)  # (N, H * W, 4)
        reach = reach.gather(1, place[..., None].expand(-1, -1, 4)) * stride
        boxes = to_boxes(points[place], reach)
        tall, wide = sizes.to(boxes.dtype).unbind(1)
        limit = torch.stack([wide, tall, wide, tall], dim=1)[:, None]  # (N, 1, 4)
        boxes = torch.minimum(boxes.clamp(min=0), limit)
        real = (boxes[..., 2:] > boxes[..., :2]).all(dim=-1)  # the padding leaves nothing
        return Candidates(boxes, torch.where(real, scores, 0.0), chosen % classes)


class _EvenConv(nn.Module):
    """TensorFlow's "same" padding for sides that the stride divides: then it is a constant."""

    def __init__(self, conv: Conv2dSame) -> None:
        super().__init__()
        self.stride = conv.stride  # layer aggregation asks for it
        self.pads: list[int] = []  # left, right, top, bottom
        for axis in (1, 0):
            reach = (conv.kernel_size[axis] - 1) * conv.dilation[axis] + 1
            spare = max(reach - conv.stride[axis], 0)
            self.pads += [spare // 2, spare - spare // 2]
        self.conv = conv

    def forward(self, x: Tensor) -> Tensor:
        conv, padded = self.conv, F.pad(x, self.pads)
        return F.conv2d(padded, conv.weight, conv.bias, conv.stride, 0, conv.dilation, conv.groups)


def _fix_padding(network: FCOS) -> None:
    """Canvases are multiples of 32, so every strided layer of a backbone sees even sides."""
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, Conv2dSame):
                setattr(module, name, _EvenConv(child))


def suppress_by_torchvision(found: Candidates, num_classes: int, decoder: Decoder) -> Tensor:
    """All images and classes in one call, moved apart so that none overlaps another.

    In double precision: in single one, an offset of many classes would cost the boxes' digits.
    """
    images, count = found.scores.shape
    group = found.labels + num_classes * torch.arange(images, device=found.labels.device)[:, None]
    apart = group * (found.boxes.max() + 1)
    boxes = (found.boxes.double() + apart[..., None]).flatten(0, 1)
    kept: Tensor = nms(boxes, found.scores.flatten().double(), decoder.nms_iou)
    keep = torch.zeros_like(found.scores).flatten().index_fill(0, kept, 1.0)
    return (keep.view(images, count) > 0) & (found.scores > 0)


def suppress_by_operator(found: Candidates, num_classes: int, decoder: Decoder) -> Tensor:
    """The one operator that ONNX knows: boxes of an image, their scores by class."""
    classes = torch.arange(num_classes, device=found.labels.device)[:, None]
    scores = torch.where(found.labels[:, None] == classes, found.scores[:, None], 0.0)  # (N, C, K)
    keep: Tensor = non_max_suppression(found.boxes, scores, decoder.nms_iou, decoder.max_detections)
    return keep


@torch.library.custom_op("dsl::non_max_suppression", mutates_args=())
def non_max_suppression(boxes: Tensor, scores: Tensor, iou: float, per_class: int) -> Tensor:
    """(N, K, 4) and (N, C, K) -> (N, K) bool: kept in one of the classes; a score of 0 never is."""
    keep = torch.zeros(boxes.shape[:2], dtype=torch.bool, device=boxes.device)
    for image, of_image in enumerate(scores):
        for of_class in of_image:
            at = of_class.nonzero().squeeze(1)
            keep[image, at[nms(boxes[image, at], of_class[at], iou)[:per_class]]] = True
    return keep


@non_max_suppression.register_fake
def _(boxes: Tensor, scores: Tensor, iou: float, per_class: int) -> Tensor:
    return boxes.new_empty(boxes.shape[:2], dtype=torch.bool)
