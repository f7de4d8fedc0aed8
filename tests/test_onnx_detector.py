"""The torch-free path where no model is needed; tests/test_export.py runs whole exported ones."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dsl.errors import UserError
from dsl.onnx_detector import Description, OnnxModel
from dsl.report.predictions import Found, refuse_existing

pytest.importorskip("onnxruntime")
ABOUT = Description(("a", "b"), (0.2, 0.3), 64, 128, 32, "fp32")


def test_the_description_survives_its_json() -> None:
    assert Description.from_json(ABOUT.to_json()) == ABOUT


def test_one_threshold_per_class() -> None:
    with pytest.raises(ValueError, match="one threshold"):
        Description(("a", "b"), (0.2,), 64, 128, 32, "fp32")


def test_metadata_of_another_version_are_refused() -> None:
    with pytest.raises(ValueError, match="version 9"):
        Description.from_json(ABOUT.to_json().replace('"version": 1', '"version": 9'))


def test_absent_and_foreign_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        OnnxModel(tmp_path / "absent.onnx")
    (tmp_path / "foreign.onnx").write_bytes(b"no model at all")
    with pytest.raises(UserError, match="cannot be used"):
        OnnxModel(tmp_path / "foreign.onnx")


def test_another_device_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").touch()
    with pytest.raises(UserError, match="--device"):
        OnnxModel(tmp_path / "m.onnx", device="mps")


def test_without_onnxruntime_the_error_says_what_to_install() -> None:
    script = (
        "import sys; sys.modules['onnxruntime'] = None\n"
        "sys.argv = ['dsl', 'predict', 'm.onnx', 'images']\n"
        "from dsl.cli import main; main()\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "dsl: error: onnxruntime is not installed; pip install 'dsl-detection[export]'"
    ]


def test_found_objects_have_matching_columns() -> None:
    boxes, scores = np.zeros((2, 4), np.float32), np.zeros(2, np.float32)
    assert len(Found(Path("a"), boxes, scores, np.zeros(2, np.int64))) == 2
    with pytest.raises(ValueError, match="expected"):
        Found(Path("a"), boxes, scores, np.zeros(3, np.int64))


def test_a_folder_with_content_is_not_written_into(tmp_path: Path) -> None:
    refuse_existing(None)
    refuse_existing(tmp_path / "absent")
    refuse_existing(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="exists already"):
        refuse_existing(tmp_path)
