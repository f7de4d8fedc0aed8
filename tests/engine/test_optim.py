"""Schedules as functions of progress, and who decays."""

import pytest
import torch
from torch import nn

from dsl.engine.optim import Schedule, build_optimizer, set_learning_rate


def test_steps_divide_by_ten_at_each_milestone() -> None:
    schedule = Schedule("steps", milestones=(0.5, 0.9))
    factors = [schedule(p, 1000) for p in (0.0, 0.49, 0.5, 0.89, 0.9, 1.0)]
    assert factors == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])


def test_warmup_climbs_from_a_third() -> None:
    schedule = Schedule("steps", warmup_steps=500)
    assert schedule(0.0, 0) == pytest.approx(1 / 3)
    assert schedule(0.001, 250) == pytest.approx(2 / 3)
    assert schedule(0.01, 500) == pytest.approx(1)


def test_warmup_of_a_short_run_ends_at_a_tenth_of_it() -> None:
    schedule = Schedule("steps", warmup_steps=500)
    assert schedule(0.1, 10) == pytest.approx(1)
    assert schedule(0.05, 5) == pytest.approx(2 / 3)


@pytest.mark.parametrize("kind", ["onecycle", "cosine"])
def test_smooth_schedules_end_at_zero_and_never_exceed_the_base_rate(kind: str) -> None:
    schedule = Schedule(kind)
    factors = [schedule(p / 100, p) for p in range(101)]
    assert factors[-1] == pytest.approx(0, abs=1e-9)
    assert max(factors) == pytest.approx(1)
    peak = factors.index(max(factors))
    assert peak == (10 if kind == "onecycle" else 0)
    assert factors[peak:] == sorted(factors[peak:], reverse=True)
    assert factors[:peak] == sorted(factors[:peak])


@pytest.mark.parametrize("kind", ["onecycle", "cosine", "steps"])
def test_a_restart_runs_the_whole_curve_twice(kind: str) -> None:
    once = Schedule(kind, milestones=(0.5, 0.9))
    twice = Schedule(kind, milestones=(0.5, 0.9), restart=0.4)
    for share in (0.0, 0.05, 0.3, 0.7, 0.95):
        assert twice(0.4 * share, 100) == pytest.approx(once(share, 100))
        assert twice(0.4 + 0.6 * share, 100) == pytest.approx(once(share, 100))
    assert twice(1.0, 100) == pytest.approx(once(1.0, 100))


def test_weights_decay_and_biases_and_norms_do_not() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1))
    net[2].requires_grad_(False)
    optimizer = build_optimizer(
        net, "sgd", lr=0.1, weight_decay=0.01, momentum=0.9, bias_lr_factor=2
    )
    decay = {id(p): g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
    rate = {id(p): g["lr"] for g in optimizer.param_groups for p in g["params"]}
    assert decay == {
        id(net[0].weight): 0.01, id(net[0].bias): 0, id(net[1].weight): 0, id(net[1].bias): 0,
    }  # fmt: skip
    assert rate[id(net[0].bias)] == pytest.approx(0.2)
    assert rate[id(net[0].weight)] == pytest.approx(0.1)
    set_learning_rate(optimizer, 0.5)
    assert optimizer.param_groups[2]["lr"] == pytest.approx(0.1)
    set_learning_rate(optimizer, 1.0)
    assert optimizer.param_groups[2]["lr"] == pytest.approx(0.2)


def test_both_optimizers_move_the_weights() -> None:
    for name in ("sgd", "adamw"):
        net = nn.Linear(3, 2)
        before = net.weight.detach().clone()
        optimizer = build_optimizer(
            net, name, lr=0.1, weight_decay=0, momentum=0.9, bias_lr_factor=1
        )
        net(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        assert not torch.equal(net.weight, before)
