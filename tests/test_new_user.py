"""From `git clone` to an exported model on a folder of YOLO-labeled images: three commands.

The tests type what a new user types, plus what makes the training short. No file is edited on the
way.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("onnxruntime")
ROOT = Path(__file__).parents[1]
SHORT = [
    "--preset", "tiny", "--steps", "2", "--device", "cpu", "--set", "optim.batch=2",
    "--set", "views.short_sides=[64]", "--set", "views.test_short_side=64",
    "--set", "run.workers=0", "--set", "run.precision=fp32",
]  # fmt: skip


def write_yolo(folder: Path) -> None:
    """images/, labels/ and classes.txt, as annotation tools leave them."""
    random = np.random.default_rng(0)
    (folder / "images").mkdir(parents=True)
    (folder / "labels").mkdir()
    (folder / "classes.txt").write_text("square\n")
    for number in range(12):
        pixels = random.integers(0, 60, (64, 64, 3), dtype=np.uint8)
        left, top = random.integers(0, 44, 2)
        pixels[top : top + 20, left : left + 20] = 220
        Image.fromarray(pixels).save(folder / "images" / f"{number}.png")
        middle = f"{(left + 10) / 64} {(top + 10) / 64}"
        (folder / "labels" / f"{number}.txt").write_text(f"0 {middle} {20 / 64} {20 / 64}\n")


def type_in(folder: Path, *words: str) -> str:
    """The command `dsl`, in this folder."""
    return call([sys.executable, "-m", "dsl", *words], folder, {"PYTHONPATH": str(ROOT)})


def call(command: list[str], folder: Path, more: dict[str, str] | None = None) -> str:
    """What the command printed; as from a shell of its own, not from inside of `make test`."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "PYTHON", "VIRTUAL"))}
    environment = {**kept, "OMP_NUM_THREADS": "1", **(more or {})}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_from_a_clone_in_three_commands(tmp_path: Path) -> None:
    write_yolo(tmp_path / "mine")
    project = tmp_path / "project"
    call(["git", "clone", "-q", str(ROOT), str(project)], tmp_path)
    if "installing the libraries" in call(["make", "-n", "env"], project):
        pytest.skip("the libraries (several GB) are not there yet; `make test` installs them")
    call(["make", "env"], project)
    call([".venv/bin/dsl", "train", "--labeled", "../mine", "--out", "run", *SHORT], project)
    call([".venv/bin/dsl", "export", "run/best.pt", "--out", "detector.onnx"], project)
    assert (project / "detector.onnx").stat().st_size > 1_000_000


def test_from_a_yolo_folder_to_an_exported_model(tmp_path: Path) -> None:
    write_yolo(tmp_path / "mine")
    type_in(tmp_path, "train", "--labeled", "mine", "--out", "run", *SHORT)
    said = type_in(tmp_path, "export", "run/best.pt", "--out", "detector.onnx")
    assert "written: detector.onnx" in said
    # What was written works, on its own.
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "detector.onnx").rename(tmp_path / "elsewhere" / "detector.onnx")
    type_in(
        tmp_path / "elsewhere", "predict", "detector.onnx", "../mine/images", "--out", "found",
        "--threshold", "0",
    )  # fmt: skip
    content = json.loads((tmp_path / "elsewhere" / "found" / "detections.json").read_text())
    assert len(content["images"]) == 12
    assert [category["name"] for category in content["categories"]] == ["square"]
    assert len(list((tmp_path / "elsewhere" / "found" / "images").iterdir())) == 12
