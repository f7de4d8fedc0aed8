"""Broken files by the thousand: every outcome must be a valid object or a `UserError`.

    python -m benchmarks.fuzz --seconds 60

Good files are mutated with a seeded generator and given to the readers of annotations, settings and
checkpoints. A crash prints the reader, the error and the input in base64, to become a test.
"""

import argparse
import base64
import io
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from PIL import Image

from benchmarks.reliability_cases import Case
from dsl.config import load_config, parse_overrides
from dsl.data.coco import read_coco
from dsl.data.folder import read_list
from dsl.data.index import Index
from dsl.data.voc import read_voc
from dsl.data.yolo import read_yolo
from dsl.engine.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from dsl.errors import UserError

Reader = Callable[[Path, bytes], None]

_WORDS = [
    b"", b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"-1", b"0", b"1e999", b"NaN", b"-Infinity", b"null",
    b"9" * 5000, b"0x" + b"f" * 5000, b"[" * 3000, b"{" * 500, b'"\\ud800"', b"true", b"../", b"/",
    b"<a>", b"&lt;", b"<!DOCTYPE a>", b"!!int ''", b"!!float ''", b"!!timestamp x", b"!!bool x",
    b"!!binary x", b"&a [*a]", b"? ", b"\n", b"\r", b"\t", b": ", b"- ", b"=", b".", b"'", b'"',
    b"bbox", b"id", b"names", b"1979-99-99", b"0b1", b"1_0", b"\xe2\x80\xa8", b"[[optim]]",
]  # fmt: skip


@dataclass(frozen=True)
class Target:
    """A reader, and good files for it."""

    name: str
    read: Reader
    seeds: tuple[bytes, ...]


@dataclass
class Tally:
    """What became of the tries with one target."""

    tries: int = 0
    valid: int = 0
    crashes: list[str] = field(default_factory=list)


def mutate(source: bytes, other: bytes, draw: random.Random) -> bytes:
    """One to four random edits."""
    data = bytearray(source)
    for _ in range(draw.choice((1, 1, 2, 4))):
        at = draw.randrange(len(data) + 1)
        length = draw.choice((1, 2, 8, 64))
        kind = draw.randrange(7)
        if kind == 0 and data:
            data[at % len(data)] ^= 1 << draw.randrange(8)
        elif kind == 1:
            del data[at : at + length]
        elif kind == 2:
            data[at:at] = data[at : at + length] * draw.choice((1, 2, 20))
        elif kind == 3:
            data[at:at] = draw.choice(_WORDS)
        elif kind == 4:
            data[at : at + length] = draw.choice(_WORDS)
        elif kind == 5:
            start = draw.randrange(len(other) + 1)
            data[at : at + length] = other[start : start + length]
        else:
            del data[at:]
    return bytes(data)


def attempt(target: Target, content: bytes, folder: Path, tally: Tally) -> None:
    """Give one input to the reader."""
    tally.tries += 1
    try:
        target.read(folder, content)
        tally.valid += 1
    except UserError as error:
        if "\n" in str(error):
            tally.crashes.append(f"{target.name}: more than one line: {_shown(content)}")
    except Exception as error:  # that is what is looked for
        problem = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        tally.crashes.append(f"{target.name}: {problem}: {_shown(content)}")


def _shown(content: bytes) -> str:
    return base64.b64encode(content[:1500]).decode()


def inputs(target: Target, draw: random.Random) -> Iterator[bytes]:
    """The good files, then mutations of them without end."""
    yield from target.seeds
    while True:
        yield mutate(draw.choice(target.seeds), draw.choice(target.seeds), draw)


def fuzz(target: Target, *, seed: int, tries: int | None = None, seconds: float = 1e9) -> Tally:
    """So many tries, or as many as fit into the time."""
    draw, tally, end = random.Random(f"{seed}/{target.name}"), Tally(), time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name in ("images", "labels", "Annotations"):
            (folder / name).mkdir()
        Image.new("RGB", (20, 10)).save(folder / "images" / "a.png")
        for content in inputs(target, draw):
            attempt(target, content, folder, tally)
            if tally.tries == tries or time.monotonic() > end or len(tally.crashes) >= 5:
                return tally
    return tally


# The readers, each with a check that what it returns is valid.


def _check(index: Index) -> None:
    assert len(index) > 0
    for name in index.classes:
        assert name.strip()
        name.encode()
    for position in range(len(index)):
        assert "\0" not in index.names[position]
    if index.annotations is not None:
        boxes = index.annotations.boxes
        assert bool(boxes.isfinite().all())
        assert bool((boxes[:, 2:] > boxes[:, :2]).all())
        labels = index.annotations.labels
        assert bool(((labels >= 0) & (labels < len(index.classes))).all())


def _coco(folder: Path, content: bytes) -> None:
    (folder / "a.json").write_bytes(content)
    _check(read_coco(folder / "a.json"))


def _voc(folder: Path, content: bytes) -> None:
    (folder / "Annotations" / "a.xml").write_bytes(content)
    _check(read_voc(folder))


def _voc_split(folder: Path, content: bytes) -> None:
    (folder / "Annotations" / "a.xml").write_bytes(_PAGE)
    (folder / "split.txt").write_bytes(content)
    _check(read_voc(folder / "split.txt"))


def _list(folder: Path, content: bytes) -> None:
    (folder / "list.txt").write_bytes(content)
    _check(read_list(folder / "list.txt"))


def _yolo(folder: Path, content: bytes) -> None:
    (folder / "labels" / "a.txt").write_bytes(b"0 .5 .5 .5 .5\n")
    (folder / "data.yaml").write_bytes(content)
    _check(read_yolo(folder / "data.yaml"))


def _yolo_labels(folder: Path, content: bytes) -> None:
    (folder / "labels" / "a.txt").write_bytes(content)
    (folder / "data.yaml").write_bytes(_YAML)
    _check(read_yolo(folder / "data.yaml"))


def _recipe(folder: Path, content: bytes) -> None:
    (folder / "mine.toml").write_bytes(content)
    load_config(str(folder / "mine.toml"))


def _overrides(folder: Path, content: bytes) -> None:
    text = content.decode("utf-8", "surrogateescape")
    load_config("tiny", parse_overrides(text.split("\n")))


def _checkpoint(folder: Path, content: bytes) -> None:
    (folder / "a.pt").write_bytes(content)
    _check_checkpoint(load_checkpoint(folder / "a.pt"))


def _checkpoint_fields(folder: Path, content: bytes) -> None:
    """A well-formed file with odd content: what to put where is drawn from the input."""
    draw = random.Random(content)
    saved = torch.load(io.BytesIO(_CHECKPOINT), weights_only=True)
    for _ in range(draw.choice((1, 2))):
        key = draw.choice(list(saved))
        if draw.random() < 0.2:
            del saved[key]
        else:
            saved[key] = draw.choice(_ODD)
        if not saved:
            break
    torch.save(saved, folder / "a.pt")
    _check_checkpoint(load_checkpoint(folder / "a.pt"))


def _check_checkpoint(checkpoint: Checkpoint) -> None:
    assert isinstance(checkpoint.settings, dict)
    assert all(isinstance(name, str) for name in checkpoint.classes)
    assert all(isinstance(name, str) for name in checkpoint.weights)
    assert checkpoint.metrics is None or isinstance(checkpoint.metrics, dict)
    assert checkpoint.training is None or isinstance(checkpoint.training, dict)
    assert all(isinstance(bar, float) for bar in checkpoint.thresholds or ())


def _make_checkpoint() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.pt"
        save_checkpoint(path, Checkpoint({"method": "dsl"}, ("cat",), {"w": torch.ones(2)}, (0.5,)))
        return path.read_bytes()


_ODD = [
    None, 0, -1, 1.5, True, "", "x", "[" * 5000, "9" * 5000, "null", "[]", "5", [], [1], ["x"], {},
    {"a": 1}, {1: torch.ones(1)}, {"w": torch.ones(0)}, torch.ones(1), (1, 2), ["\ud800"],
    [None], ["a", "a"], [0.5, 0.5], float("nan"), [float("nan")], b"x", {"best": "x"},
]  # fmt: skip
_CHECKPOINT = _make_checkpoint()
_COCO = json.dumps(
    {
        "info": {"year": 2020},
        "images": [
            {"id": 1, "file_name": "a.png", "width": 20, "height": 10},
            {"id": 7, "file_name": "sub/b.png", "width": 20, "height": 10},
        ],
        "annotations": [
            {"id": 1, "image_id": 1, "category_id": 3, "bbox": [1, 2, 5.5, 6], "area": 33,
             "iscrowd": 0, "segmentation": [[1, 2, 3, 4, 5, 6]]},
            {"id": 2, "image_id": 7, "category_id": 4, "bbox": [0, 0, 20, 10], "iscrowd": 1},
        ],
        "categories": [{"id": 3, "name": "cat"}, {"id": 4, "name": "d\u00f6g"}],
    }
).encode()  # fmt: skip
_PAGE = (
    b"<annotation><filename>a.png</filename><size><width>20</width><height>10</height></size>"
    b"<object><name>cat</name><difficult>0</difficult><bndbox><xmin>1</xmin><ymin>2</ymin>"
    b"<xmax>12.5</xmax><ymax>9</ymax></bndbox></object></annotation>"
)
_YAML = b"path: .\ntrain: images\nval: [images]\nnc: 2\nnames: {0: cat, 1: dog}\n"
_TOML = (
    b'extends = "tiny"\nmethod = "dsl"\n[optim]\nlr = 0.002\nbatch = 4\n[views]\n'
    b"short_sides = [96, 128]\nflip = false\n[teaching]\ncurve = [0.35, 0.7, 0.25, 0.35]\n"
)

TARGETS = (
    Target("COCO", _coco, (_COCO, json.dumps(json.loads(_COCO), indent=1).encode())),
    Target("VOC page", _voc, (_PAGE, b'<?xml version="1.0" encoding="utf-8"?>\n' + _PAGE)),
    Target("VOC split", _voc_split, (b"a\n", b"a 1\n\n", b"a -1\nb 0\n")),
    Target("list of images", _list, (b"a.png\nsub/b.jpg\n", b"/c/d.webp\r\n../e f.jpeg\n")),
    Target("YOLO yaml", _yolo, (_YAML, b"train: images\nnames: [cat, dog]\n")),
    Target("YOLO labels", _yolo_labels, (b"0 .5 .5 .2 .2\n1 0.1 0.1 0.2 0.1 0.2 0.2\n", b"")),
    Target("recipe", _recipe, (_TOML, b"[run]\nsteps = 5\n[model]\nchannels = 64\n")),
    Target("--set", _overrides, (b"optim.lr=0.1\nviews.flip=false", b"run.steps=none")),
    Target("checkpoint bytes", _checkpoint, (_CHECKPOINT,)),
    Target("checkpoint content", _checkpoint_fields, (b"a", b"some other bytes")),
)


def run(*, seconds: float, seed: int = 0) -> list[Case]:
    """All targets in turn, each for its share of the time."""
    cases = []
    for target in TARGETS:
        tally = fuzz(target, seed=seed, seconds=seconds / len(TARGETS))
        for crash in tally.crashes:
            print(crash, file=sys.stderr)
        lost = f"{len(tally.crashes)} crashes" if tally.crashes else ""
        survived = tally.tries - len(tally.crashes)
        cases.append(Case(f"fuzzed {target.name}", tally.tries, survived, lost))
    return cases


def main() -> None:
    options = argparse.ArgumentParser(description="Mutated files against the readers.")
    options.add_argument("--seconds", type=float, default=60.0)
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    cases = run(seconds=given.seconds, seed=given.seed)
    for case in cases:
        print(f"{case.case:28} {case.tries:8} tries, {case.tries - case.survived} crashes")
    sys.exit(1 if any(case.survived < case.tries for case in cases) else 0)


if __name__ == "__main__":
    main()
