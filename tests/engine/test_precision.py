"""The right arithmetic on each device, and inputs that are left alone."""

import pytest
import torch

from dsl.engine import precision
from dsl.engine.precision import choose_precision, make_plugin
from dsl.types import Targets


@pytest.fixture(params=[True, False])
def fast_bf16(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(precision, "_cpu_gains_from_bf16", lambda: request.param)
    return request.param


def test_a_cpu_without_bfloat16_falls_back_and_says_so(fast_bf16: bool) -> None:
    chosen, note = choose_precision("bf16-mixed", "cpu")
    assert chosen == ("bf16-mixed" if fast_bf16 else "fp32")
    assert (note is None) == fast_bf16
    assert choose_precision("auto", "cpu") == (chosen, None)


def test_fp16_on_a_cpu_falls_back_and_says_so(fast_bf16: bool) -> None:
    chosen, note = choose_precision("fp16-mixed", "cpu")
    assert chosen == ("bf16-mixed" if fast_bf16 else "fp32")
    assert "fp16-mixed" in (note or "")


def test_apple_gpus_train_in_fp32() -> None:
    assert choose_precision("auto", "mps") == ("fp32", None)


def test_the_measurement_answers_at_all() -> None:
    assert precision._cpu_gains_from_bf16() in (True, False)


@pytest.mark.parametrize("name", ["fp32", "bf16-mixed"])
def test_boxes_are_not_rounded_on_their_way_in(name: str) -> None:
    boxes = torch.tensor([[300.7, 215.3, 511.9, 400.1]])
    targets = Targets(boxes, torch.tensor([0]), torch.tensor([False]))
    plugin = make_plugin(name, "cpu")
    assert plugin.convert_input(targets) is targets
    with plugin.forward_context():
        product = torch.ones(2, 2) @ torch.ones(2, 2)
    assert product.dtype == (torch.float32 if name == "fp32" else torch.bfloat16)
