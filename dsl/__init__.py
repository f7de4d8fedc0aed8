"""Train object detectors from few labels and many unlabeled images.

import dsl
model = dsl.load("run/best.pt")
detections = model(["a.jpg", "b.jpg"])
"""

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsl.api import convert, evaluate, label, load, predict, resume, train

try:
    __version__ = version("dsl-detection")
except PackageNotFoundError:  # run from a checkout that was never installed
    __version__ = "0"

__all__ = ["convert", "evaluate", "label", "load", "predict", "resume", "train"]


def __getattr__(name: str) -> Any:
    # Imported on first use: torch takes seconds, and `dsl --help` and the ONNX path need none.
    if name in __all__:
        from dsl import api

        return getattr(api, name)
    raise AttributeError(f"module 'dsl' has no attribute {name!r}")
