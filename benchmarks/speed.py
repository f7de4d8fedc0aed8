"""Our R50-FPN-256 against torchvision's fcos_resnet50_fpn: 320 px, batch of 4, 2 threads.

Both train all layers from random weights. "network": forward (and backward) of the bare network;
"end to end": with targets and losses, or with decoding. Ratios of the best of several repeats,
interleaved in one run. "bf16" is what a user gets who asks for it: a processor that only emulates
bfloat16 computes in fp32, and says so.
"""

import copy
import time
from collections.abc import Callable
from functools import cached_property

import torch
import torchvision

from benchmarks.bars import Bar, finish, parser
from dsl.engine.memory import keep_freed_memory
from dsl.engine.precision import Choice, choose_precision
from dsl.engine.winograd import quicken, share_maps
from dsl.methods.base import counts_of, normalise
from dsl.models.assign import Assigner
from dsl.models.decode import Decoder
from dsl.models.fcos import FCOS
from dsl.models.fold import fold_norms
from dsl.models.losses import Criterion
from dsl.models.resnet import ResNet
from dsl.types import ImageBatch, Targets

SIZE, BATCH, CLASSES, THREADS = 320, 4, 80, 2


def targets() -> list[Targets]:
    generator = torch.Generator().manual_seed(0)
    made = []
    for _ in range(BATCH):
        corner = torch.rand(7, 2, generator=generator) * 200
        side = 20 + torch.rand(7, 2, generator=generator) * 100
        labels = torch.randint(0, CLASSES, (7,), generator=generator)
        boxes = torch.cat([corner, corner + side], dim=1)
        made.append(Targets(boxes, labels, torch.zeros(7, dtype=torch.bool)))
    return made


class Ours:
    """Our detector and its four measured jobs."""

    def __init__(self, precision: str) -> None:
        torch.manual_seed(0)
        self.net = FCOS(ResNet("resnet50"), CLASSES).to(memory_format=torch.channels_last)
        quicken(self.net)
        share_maps(self.net.head)  # over the levels, as a training step does
        self.criterion = Criterion(Assigner((64, 128, 256, 512)))
        self.decoder = Decoder()
        asked: Choice = "bf16-mixed" if precision == "bf16" else "fp32"
        taken, said = choose_precision(asked, "cpu")
        self.low = taken == "bf16-mixed"
        if said is not None:
            print(said)
        self.targets = targets()
        pixels = torch.randint(0, 256, (BATCH, 3, SIZE, SIZE), dtype=torch.uint8)
        self.images = ImageBatch(pixels, torch.full((BATCH, 2), SIZE))
        self.input = self.net.normalise(self.images)

    def train_network(self) -> None:
        self.net.train()
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            output = self.net.dense(self.input)
        maps = [*output.class_logits, *output.distances, *output.centerness]
        torch.stack([m.sum() for m in maps]).sum().backward()
        self.net.zero_grad()

    def train_whole(self) -> None:
        self.net.train()
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            output = self.net(self.images)
            sums = self.criterion(output, self.targets)
            losses = normalise(sums, counts_of(sums, shared=True))
        losses["loss"].backward()
        self.net.zero_grad()

    @cached_property
    def loaded(self) -> FCOS:
        """The network as `dsl.load` prepares it."""
        network = copy.deepcopy(self.net).eval()
        fold_norms(network)
        return network.to(memory_format=torch.channels_last)

    @torch.inference_mode()
    def infer_network(self) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            self.loaded.dense(self.input)

    @torch.inference_mode()
    def infer_whole(self) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            output = self.loaded(self.images)
        self.decoder(output, self.images.sizes)


class Theirs:
    """torchvision's detector, doing the same."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = torchvision.models.detection.fcos_resnet50_fpn(
            weights=None, weights_backbone=None, num_classes=CLASSES,
            trainable_backbone_layers=5, min_size=SIZE, max_size=SIZE,
        )  # fmt: skip
        self.images = list(torch.rand(BATCH, 3, SIZE, SIZE))
        self.input = torch.randn(BATCH, 3, SIZE, SIZE)
        self.targets = [{"boxes": t.boxes, "labels": t.labels} for t in targets()]

    def train_network(self) -> None:
        self.net.train()
        output = self.net.head(list(self.net.backbone(self.input).values()))
        torch.stack([m.sum() for m in output.values()]).sum().backward()
        self.net.zero_grad()

    def train_whole(self) -> None:
        self.net.train()
        losses = self.net(self.images, self.targets)
        torch.stack(list(losses.values())).sum().backward()
        self.net.zero_grad()

    @torch.inference_mode()
    def infer_network(self) -> None:
        self.net.eval()
        self.net.head(list(self.net.backbone(self.input).values()))

    @torch.inference_mode()
    def infer_whole(self) -> None:
        self.net.eval()
        self.net(self.images)


def seconds(job: Callable[[], None]) -> float:
    began = time.perf_counter()
    job()
    return time.perf_counter() - began


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument(
        "--precision", nargs="+", choices=["fp32", "bf16"], default=["fp32", "bf16"]
    )
    arguments = options.parse_args()
    torch.set_num_threads(THREADS)
    keep_freed_memory()
    sides: dict[str, Theirs | Ours] = {"torchvision": Theirs()}
    sides |= {name: Ours(name) for name in arguments.precision}
    best: dict[tuple[str, str], float] = {}
    for job in ("train_network", "train_whole", "infer_network", "infer_whole"):
        for repeat in range(arguments.repeats + 1):
            for side, detector in sides.items():
                took = seconds(getattr(detector, job))
                if repeat:  # the first one warms up
                    best[side, job] = min(took, best.get((side, job), took))
    bars = []
    for job, of_fp32, of_bf16 in (
        ("train_network", 1.4, 2.5), ("train_whole", 1.4, 2.5),
        ("infer_network", 1.2, 2.0), ("infer_whole", 1.2, 2.0),
    ):  # fmt: skip
        for side, bar in (("fp32", of_fp32), ("bf16", of_bf16)):
            if side not in sides:
                continue
            ratio = best["torchvision", job] / best[side, job]
            bars.append(Bar(f"{job.replace('_', ', ')}: {side}", ratio, bar, unit="x"))
    details = {f"{side} {job}": took for (side, job), took in best.items()}
    finish("speed", bars, json_file=arguments.json, details=details)


if __name__ == "__main__":
    main()
