"""Does it scale: opening large sets, loader workers, the loader's speed, evaluation.

All sets are made on the spot; nothing is downloaded. Memory is measured in fresh processes.
"""

import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from torch.utils.data import Dataset

from benchmarks.bars import Bar, finish, parser
from dsl.compose import build_batches, build_detector, build_method, build_optimizer_of
from dsl.config import load_config
from dsl.data.formats import open_dataset
from dsl.data.index import Index
from dsl.data.loader import load
from dsl.metrics import evaluate_coco
from dsl.types import Annotations, Detections

MILLION, TRAIN_IMAGES, TRAIN_BOXES = 1_000_000, 118_000, 860_000


def write_list(path: Path) -> None:
    path.write_text("".join(f"unlabeled2017/{n:012d}.jpg\n" for n in range(MILLION)))


def write_image_info(path: Path) -> None:
    with path.open("w") as file:
        file.write('{"info": {}, "images": [')
        for n in range(MILLION):
            record = {
                "license": 3, "file_name": f"{n:012d}.jpg", "height": 480, "width": 640,
                "coco_url": f"http://images.example.org/unlabeled2017/{n:012d}.jpg",
                "date_captured": "2013-11-14 11:18:45", "id": n + 1,
            }  # fmt: skip
            file.write((", " if n else "") + json.dumps(record))
        file.write('], "categories": []}')


def write_train2017(path: Path) -> None:
    random = np.random.default_rng(0)
    images = [
        {"id": n, "file_name": f"{n:012d}.jpg", "height": 480, "width": 640}
        for n in range(TRAIN_IMAGES)
    ]
    owner = random.integers(0, TRAIN_IMAGES, TRAIN_BOXES).tolist()
    boxes = (random.random((TRAIN_BOXES, 4)) * [400, 300, 200, 150] + [0, 0, 5, 5]).round(2)
    annotations = [
        {
            "id": n, "image_id": image, "category_id": 1 + n % 80, "bbox": box, "iscrowd": 0,
            "area": round(box[2] * box[3], 2), "segmentation": [[*box[:2], *box[2:], *box[:2]]],
        }
        for n, (image, box) in enumerate(zip(owner, boxes.tolist(), strict=True))
    ]  # fmt: skip
    categories = [{"id": n, "name": f"class {n}"} for n in range(1, 81)]
    content = {"images": images, "annotations": annotations, "categories": categories}
    path.write_text(json.dumps(content))


def _open_in_process(path: str, answer: Any) -> None:
    before = _status("VmRSS")
    began = time.perf_counter()
    index = open_dataset(path)
    took = time.perf_counter() - began
    # The kernel's own peak of this process; getrusage would give the parent's where that is larger.
    answer.put((took, (_status("VmHWM") - before) / 1024, len(index)))


def _status(field: str) -> int:
    """Kilobytes."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field))


def opening(path: Path) -> tuple[float, float, int]:
    """Seconds, megabytes of growth at the peak, images."""
    context = multiprocessing.get_context("spawn")
    answer = context.Queue()
    process = context.Process(target=_open_in_process, args=(str(path), answer))
    process.start()
    result: tuple[float, float, int] = answer.get()
    process.join()
    return result


class Private(Dataset[float]):
    """Each item: the megabytes that this worker holds for itself, after reading the index."""

    def __init__(self, index: Index) -> None:
        self.index = index

    def __getitem__(self, item: int) -> float:
        for position in range(0, len(self.index), 97):
            self.index.path(position)
        with open("/proc/self/smaps_rollup") as rollup:
            lines = [line.split() for line in rollup]
        return sum(int(line[1]) for line in lines if line[0].startswith("Private_")) / 1024


def worker_copies(index: Index) -> float:
    """Megabytes that a worker holds more with this index than with one of a single image."""
    small = index.select(torch.arange(1))
    held = [max(load(Private(each), range(4), workers=2)) for each in (small, index)]
    return held[1] - held[0]


def loader_ratio(folder: Path) -> tuple[float, float]:
    """Images per second of the loader alone and of the tiny preset's training step."""
    random = np.random.default_rng(0)
    (folder / "images").mkdir()
    images, annotations = [], []
    for n in range(64):
        coarse = Image.fromarray(random.integers(0, 255, (60, 80, 3), dtype=np.uint8))
        coarse.resize((640, 480), Image.Resampling.BICUBIC).save(folder / "images" / f"{n}.jpg")
        images.append({"id": n, "file_name": f"{n}.jpg", "height": 480, "width": 640})
        annotations.append({"id": n, "image_id": n, "category_id": 1, "bbox": [9, 9, 200, 200]})
    content = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "x"}]}
    (folder / "photos.json").write_text(json.dumps(content))
    config = load_config("tiny")
    batches = build_batches(config, open_dataset(folder / "photos.json"), None, rank=0, ranks=1)
    stream = load(batches, range(200), workers=2)
    next(stream)
    began = time.perf_counter()
    for _ in range(100):
        batch = next(stream)
    of_loader = 100 * config.optim.batch / (time.perf_counter() - began)
    del stream
    torch.set_num_threads(2)
    method = build_method(config, build_detector(config, 1)).train()
    method.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = build_optimizer_of(config, method)
    best = float("inf")
    for _ in range(6):
        began = time.perf_counter()
        method(batch)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
        best = min(best, time.perf_counter() - began)
    return of_loader, config.optim.batch / best


def detections_and_truth() -> tuple[Annotations, list[Detections]]:
    """5,000 images of 7 boxes and 100 detections each, 80 classes."""
    generator = torch.Generator().manual_seed(0)

    def boxes(count: int) -> torch.Tensor:
        corner = torch.rand(count, 2, generator=generator) * 400
        return torch.cat([corner, corner + 5 + torch.rand(count, 2, generator=generator) * 200], 1)

    images, each = 5000, 7
    true = boxes(images * each)
    labels = torch.randint(0, 80, (images * each,), generator=generator)
    areas = ((true[:, 2] - true[:, 0]) * (true[:, 3] - true[:, 1])).double()
    ignored = torch.rand(images * each, generator=generator) < 0.01
    truth = Annotations(torch.arange(images + 1) * each, true.double(), labels, ignored, areas)
    found = []
    for image in range(images):
        own = slice(image * each, (image + 1) * each)
        near = true[own] + torch.randn(each, 4, generator=generator) * 4
        all_boxes = torch.cat([near, boxes(100 - each)])
        all_labels = torch.cat([labels[own], torch.randint(0, 80, (93,), generator=generator)])
        scores = torch.rand(100, generator=generator).sort(descending=True).values
        found.append(Detections(all_boxes, scores, all_labels))
    return truth, found


def by_pycocotools(truth: Annotations, found: list[Detections]) -> float:
    """AP, with the usual way in: dictionaries for both sides."""
    owner = torch.arange(len(truth)).repeat_interleave(truth.offsets.diff()).tolist()
    annotations = [
        {"id": n + 1, "image_id": image, "category_id": label, "iscrowd": int(crowd),
         "bbox": [b[0], b[1], b[2] - b[0], b[3] - b[1]], "area": area}
        for n, (image, label, crowd, b, area) in enumerate(
            zip(owner, truth.labels.tolist(), truth.ignored.tolist(), truth.boxes.tolist(),
                truth.areas.tolist(), strict=True))
    ]  # fmt: skip
    gt = COCO()
    gt.dataset = {
        "images": [{"id": n} for n in range(len(truth))],
        "annotations": annotations,
        "categories": [{"id": n} for n in range(80)],
    }
    gt.createIndex()
    results = [
        {"image_id": n, "category_id": label, "score": score,
         "bbox": [b[0], b[1], b[2] - b[0], b[3] - b[1]]}
        for n, d in enumerate(found)
        for b, score, label in zip(
            d.boxes.tolist(), d.scores.tolist(), d.labels.tolist(), strict=True)
    ]  # fmt: skip
    evaluation = COCOeval(gt, gt.loadRes(results), "bbox")
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    return float(evaluation.stats[0])


def timed(job: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = job()
    return time.perf_counter() - began, result


def main() -> None:
    arguments = parser(__doc__ or "").parse_args()
    bars, details = [], {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name, file, write, seconds in (
            ("1,000,000 lines of a list", "list.txt", write_list, 10),
            ("1,000,000 records of an image_info JSON", "info.json", write_image_info, 10),
            ("118,000 images with 860,000 boxes", "train.json", write_train2017, 15),
        ):
            write(folder / file)
            took, growth, count = opening(folder / file)
            details[name] = {"seconds": took, "megabytes": growth, "images": count}
            bars.append(Bar(f"open {name}", took, seconds, at_least=False, unit=" s"))
            if count == MILLION:
                bars.append(
                    Bar(f"memory growth of {name}", growth, 500, at_least=False, unit=" MB")
                )
        copies = worker_copies(open_dataset(folder / "info.json"))
        bars.append(
            Bar("a worker's own share of the million", copies, 10, at_least=False, unit=" MB")
        )
        of_loader, of_step = loader_ratio(folder)
        details["images per second"] = {"loader": of_loader, "training": of_step}
        bars.append(Bar("loader against the tiny training step", of_loader / of_step, 2, unit="x"))
    truth, found = detections_and_truth()
    classes = [str(n) for n in range(80)]
    ours = min(timed(lambda: evaluate_coco(truth, found, classes))[0] for _ in range(2))
    theirs, ap = timed(lambda: by_pycocotools(truth, found))
    difference = abs(evaluate_coco(truth, found, classes).ap - ap)
    details["evaluation"] = {"ours": ours, "pycocotools": theirs, "AP difference": difference}
    bars.append(Bar("evaluation of 5,000 x 100 against pycocotools", theirs / ours, 4, unit="x"))
    bars.append(Bar("difference of AP", difference, 1e-6, at_least=False))
    finish("scale", bars, json_file=arguments.json, details=details)


if __name__ == "__main__":
    main()
