"""An exported R50-FPN-256 against our own eager torch: 320 px, batch of 1, 2 threads.

Both do the whole job, bytes in and detections out: onnxruntime with the fp32 ONNX file, torch as
`dsl.load` prepares it (fp32, channels_last, BatchNorms folded). Random weights; the head is biased
so that there is plenty to suppress. Ratio of the best of several repeats, interleaved in one run.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.bars import Bar, finish, parser
from dsl.compose import build_detector
from dsl.config import load_config
from dsl.engine.memory import keep_freed_memory
from dsl.export import write_onnx
from dsl.inference import Detector, Model
from dsl.models.decode import Decoder
from dsl.models.fold import fold_norms
from dsl.onnx_detector import OnnxModel
from dsl.types import ImageBatch

SIZE, CLASSES, THREADS = 320, 80, 2


def make_model() -> Model:
    """The paper's network, as `dsl.load` would hand it over."""
    settings = {"model.weights": "none", "model.aggregation": "off"}
    torch.manual_seed(0)
    network = build_detector(load_config("paper", settings), CLASSES).eval()
    nn.init.normal_(network.head.class_logits.weight, std=0.03)
    for module in network.backbone.modules():
        if isinstance(module, nn.BatchNorm2d):  # residual branches start at zero: equal weights,
            nn.init.constant_(module.weight, 0.5)  # which the file would hold only once
    fold_norms(network)
    network = network.to(memory_format=torch.channels_last)
    names = [f"class {number}" for number in range(CLASSES)]
    detector = Detector(network, Decoder())
    return Model(detector, names, thresholds=None, short_side=SIZE, max_side=SIZE)


def seconds(job: Callable[[], object]) -> float:
    began = time.perf_counter()
    job()
    return time.perf_counter() - began


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--repeats", type=int, default=10)
    arguments = options.parse_args()
    torch.set_num_threads(THREADS)
    keep_freed_memory()
    model = make_model()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "r50.onnx"
        write_onnx(model, file)
        exported = OnnxModel(file, device="cpu", threads=THREADS)
        megabytes = file.stat().st_size / 1e6
    pixels = np.random.default_rng(0).integers(0, 256, (1, 3, SIZE, SIZE), np.uint8)
    sizes = np.array([[SIZE, SIZE]])
    batch, original = (
        ImageBatch(torch.from_numpy(pixels), torch.from_numpy(sizes)),
        torch.tensor(sizes),
    )
    jobs = {
        "torch": lambda: model.detector(batch, original),
        "onnxruntime": lambda: exported.run(pixels, sizes),
    }
    best: dict[str, float] = {}
    for repeat in range(arguments.repeats + 1):
        for side, job in jobs.items():
            took = seconds(job)
            if repeat:  # the first one warms up
                best[side] = min(took, best.get(side, took))
    for side, took in best.items():
        print(f"{side}: {1000 * took:.0f} ms an image")
    print(f"found: {len(model.detector(batch, original)[0])} objects; file: {megabytes:.1f} MB")
    bar = Bar(
        "onnxruntime over torch, R50 at 320 px", best["torch"] / best["onnxruntime"], 1.3, unit="x"
    )
    finish("export", [bar], json_file=arguments.json, details={**best, "megabytes": megabytes})


if __name__ == "__main__":
    main()
