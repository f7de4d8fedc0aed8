"""What each protocol of the paper costs: the tables of docs/scale.md.

FLOPs and saved bytes are counted while the real networks run, forward and backward, on one image of
SIDE pixels, and grow with the number of pixels: the student at the middle of the drawn sizes, the
teacher forward at the test's size. Hours follow from a named GPU's peak and an assumed utilisation,
both printed; detectors of this kind (GroupNorm, large maps, few images) reach a small part of it.
"""

import argparse
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from dsl.compose import build_detector
from dsl.config import Config, load_config, shipped_recipes
from dsl.models.fcos import FCOS

GPU, PEAK, UTILISATION = "A100", 312e12, 0.13  # bfloat16, dense
SIDE = 256  # of the image that is counted on
ASPECT = 4 / 3  # of most photographs
MINI_BATCH = 2  # images of one kind on one GPU at a time, for the memory
COCO, UNLABELED, VOC07, VOC12, COCO20 = 118_287, 123_403, 5_011, 11_540, 94_940
DISK = {"COCO": 19, "unlabeled2017": 19, "VOC": 3}  # GB, images
# Recipe, labeled images, unlabeled images, disk.
PROTOCOLS = [
    *((f"coco-{p}", COCO * p // 100, COCO - COCO * p // 100, ("COCO",)) for p in (1, 2, 5, 10)),
    ("coco-full", COCO, UNLABELED, ("COCO", "unlabeled2017")),
    ("voc", VOC07, VOC12, ("VOC",)),
    ("voc-coco20", VOC07, VOC12 + COCO20, ("VOC", "COCO")),
]


@dataclass(frozen=True)
class Image:
    """What one image costs at one size."""

    forward: float  # FLOPs
    training: float  # forward and backward
    activations: int  # bytes kept for backward, in bfloat16

    def at(self, short_side: int) -> "Image":
        """The same network on a photograph of this short side."""
        factor = short_side * short_side * ASPECT / SIDE**2
        return Image(
            self.forward * factor, self.training * factor, round(self.activations * factor)
        )


def image_cost(detector: FCOS) -> Image:
    """Of one image of SIDE pixels."""
    images = torch.zeros(1, 3, SIDE, SIDE)
    with torch.no_grad(), FlopCounterMode(display=False) as forward:
        detector.dense(images)
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, torch.nn.Parameter):
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with FlopCounterMode(display=False) as training:
        with hooks:
            output = detector.dense(images)
        maps = (*output.class_logits, *output.distances, *output.centerness)
        torch.stack([m.sum() for m in maps]).sum().backward()
    saved = sum(2 * tensor.numel() for tensor in kept.values())
    return Image(forward.get_total_flops(), training.get_total_flops(), saved)


@dataclass(frozen=True)
class Cost:
    """One training."""

    steps: int
    flops: float
    activations: int  # of one mini-batch on one GPU

    @property
    def gpu_hours(self) -> float:
        return self.flops / (PEAK * UTILISATION) / 3600


def cost_of(config: Config, image: Image, *, labeled: int, unlabeled: int) -> Cost:
    """`image`: what the detector of these settings costs at SIDE."""
    drawn, batch = config.views.short_sides, config.optim.batch
    middle = round(sum(drawn) / len(drawn))
    full, half = image.at(middle), image.at(middle // 2)
    if config.method == "supervised":
        steps = round((config.run.epochs or 0) * labeled / batch)
        return Cost(steps, batch * steps * full.training, MINI_BATCH * full.activations)
    steps = round((config.run.epochs or 0) * max(labeled, unlabeled) / batch)
    teacher = image.at(config.views.test_short_side).forward
    taught = (1 - config.teaching.burn_in) * (full.training + half.training + teacher)
    activations = MINI_BATCH * (2 * full.activations + half.activations)
    return Cost(steps, batch * steps * (full.training + taught), activations)


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(f"{GPU}: {PEAK / 1e12:.0f} TFLOPS bfloat16, assumed utilisation {UTILISATION:.0%}\n")
    print("| recipe | labeled | unlabeled | steps | EFLOP | 1 GPU | 8 GPUs | memory | disk |")
    print("|---" * 9 + "|")
    counted: dict[int, Image] = {}  # by number of classes: all protocols share the rest
    for name, labeled, unlabeled, disk in PROTOCOLS:
        num_classes = 20 if name.startswith("voc") else 80
        for recipe in (f"{name}-supervised", name):
            if f"protocols/{recipe}" not in shipped_recipes():
                continue  # voc-coco20 has the baseline of voc
            config = load_config(f"protocols/{recipe}")
            if num_classes not in counted:
                counted[num_classes] = image_cost(
                    build_detector(config, num_classes, restored=True)
                )
            cost = cost_of(config, counted[num_classes], labeled=labeled, unlabeled=unlabeled)
            used = unlabeled if config.method == "dsl" else 0
            print(
                f"| {recipe} | {labeled:,} | {used:,} | {cost.steps:,} | {cost.flops / 1e18:.1f} "
                f"| {cost.gpu_hours:.0f} h | {cost.gpu_hours / 8:.1f} h "
                f"| {cost.activations / 1e9:.1f} GB | {sum(DISK[part] for part in disk)} GB |"
            )


if __name__ == "__main__":
    main()
