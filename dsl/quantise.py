"""Smaller variants of an exported ONNX file: weights in half precision, or convolutions in int8.

It sees ONNX files and input arrays; what an accuracy loss is, the caller measures.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsl.onnx_detector import INPUTS, METADATA_KEY, Description

Batch = tuple[NDArray[np.uint8], NDArray[np.int64]]  # the graph's two inputs

MAX_CALIBRATION = 100  # images: ranges settle after a few dozen

# Scores and distances are regressed here: 8 bits are too few, and these layers are small.
_LAST_LAYERS = ("head.class_logits.", "head.distances.", "head.centerness.")


def store_half(source: Path, target: Path) -> None:
    """Weights in fp16, cast back to fp32 when the file is loaded: half the size, the same speed.

    Computing in fp16 would gain nothing on a CPU, where onnxruntime casts every layer's input.
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    model = onnx.load(str(source))
    graph = model.graph
    casts = []
    for tensor in graph.initializer:
        if tensor.data_type != TensorProto.FLOAT or len(tensor.dims) < 2:
            continue  # biases and scalars weigh nothing and matter most
        name = tensor.name
        half = numpy_helper.to_array(tensor).astype(np.float16)
        tensor.CopyFrom(numpy_helper.from_array(half, f"{name}.half"))
        casts.append(helper.make_node("Cast", [tensor.name], [name], to=TensorProto.FLOAT))
    nodes = [*casts, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    _describe(model, precision="fp16")
    onnx.save(model, str(target))


def to_int8(source: Path, target: Path, images: Sequence[Batch]) -> None:
    """Convolutions in int8, all but the last ones; activations' ranges come from `images`."""
    import onnx
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    model = onnx.load(str(source))
    with _quiet():
        quantize_static(
            model, str(target), _Reader(images), quant_format=QuantFormat.QDQ,
            op_types_to_quantize=["Conv"], per_channel=True,
            # 7 bits: without VNNI, a processor's sums of 8 x 8 bits overflow.
            reduce_range=True,
            activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
            nodes_to_exclude=_last_layers(model),
        )  # fmt: skip
    quantised = onnx.load(str(target))
    del quantised.metadata_props[:]
    quantised.metadata_props.extend(model.metadata_props)
    _describe(quantised, precision="int8")
    onnx.save(quantised, str(target))


class _Reader:
    """onnxruntime's protocol: the next inputs, or None."""

    def __init__(self, images: Sequence[Batch]) -> None:
        self._images = iter(images)

    def get_next(self) -> dict[str, Any] | None:
        batch = next(self._images, None)
        return None if batch is None else dict(zip(INPUTS, batch, strict=True))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.get_next, None)


def _last_layers(model: Any) -> list[str]:
    """Names of the convolutions whose weights belong to the head's output layers."""
    return [
        node.name
        for node in model.graph.node
        if node.op_type == "Conv" and any(part in node.input[1] for part in _LAST_LAYERS)
    ]


def _describe(model: Any, *, precision: str) -> None:
    """The metadata say which variant this is."""
    for entry in model.metadata_props:
        if entry.key == METADATA_KEY:
            about = Description.from_json(entry.value)
            entry.value = replace(about, precision=precision).to_json()


@contextmanager
def _quiet() -> Iterator[None]:
    """onnxruntime advises its own preprocessing, which cannot follow dynamic shapes."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(level)
