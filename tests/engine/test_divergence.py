"""Losses and gradients that are not finite reach nothing; too little memory makes smaller parts."""

import copy
import math
import multiprocessing
import os
import socket
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from dsl.engine.divergence import PATIENCE, Fault, Guard
from dsl.engine.optim import Schedule
from dsl.engine.precision import make_plugin
from dsl.engine.shortage import is_out_of_memory
from dsl.engine.train import Length, Position, Settings, Step, fit
from dsl.errors import UserError
from dsl.methods.base import Losses, Method
from dsl.types import Batch, ImageBatch, LabeledBatch, Targets


class Toy(Method):
    """A line through BatchNorm, with a window that remembers every batch, as a policy does."""

    window: Tensor

    def __init__(self, trouble: Callable[[int], float], *, easings: int = 0) -> None:
        """`trouble` is what the loss of a step is multiplied by; 1 is none."""
        super().__init__()
        torch.manual_seed(0)
        self.student = nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 1, 1))
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.register_buffer("window", torch.zeros(()))
        self.trouble, self.easings, self.forwards, self.taken = trouble, easings, 0, 0

    def forward(self, batch: Batch) -> Losses:
        value = self.student(batch.labeled.images.images.float() / 255).float().square().mean()
        factor = self.trouble(self.forwards)
        self.forwards += 1
        self.window += value.detach() * factor
        return {"loss": value * factor, "class": value * factor, "box": value.detach()}

    def ease(self) -> str | None:
        self.easings -= 1
        return "eased" if self.easings >= 0 else None

    def after_step(self, step: int) -> None:
        self.taken += 1


class Images:
    """Batches of one random picture each, in `parts` per step."""

    def __init__(self, images: int = 4) -> None:
        self.images, self.parts = images, 1

    def enter(self, position: Position) -> None:
        raise AssertionError("there is one phase")

    def stream(self, step: int) -> Generator[Sequence[Batch]]:
        while True:
            random = torch.Generator().manual_seed(step)
            pixels = torch.randint(
                0, 255, (self.images, 3, 32, 32), generator=random, dtype=torch.uint8
            )
            yield [self.batch(part, step) for part in pixels.chunk(self.parts)]
            step += 1

    def batch(self, pixels: Tensor, step: int) -> Batch:
        images = ImageBatch(pixels, torch.full((len(pixels), 2), 32))
        targets = tuple(Targets.empty() for _ in pixels)
        return Batch(LabeledBatch(images, targets), names=(f"{step}.png",))

    def shrink(self) -> None:
        if self.parts == self.images:
            raise UserError("out of memory with one image")
        self.parts *= 2


class Run:
    """A training of a toy, and what became of it."""

    def __init__(
        self, method: Toy, *, steps: int = 8, images: Images | None = None,
        precision: Any = "fp32", restore: Callable[[], None] | None = None,
        fabric: Fabric | None = None,
    ) -> None:  # fmt: skip
        self.told: list[Step] = []
        self.restores, self.images = 0, images or Images()
        if fabric is None:
            plugin = make_plugin(precision, "cpu")
            fabric = Fabric(accelerator="cpu", devices=1, plugins=[plugin])
        optimizer = torch.optim.SGD(method.student.parameters(), lr=0.1)
        optimizer.param_groups[0]["base_lr"] = 0.1
        module, wrapped = fabric.setup(method, optimizer)

        def go_back() -> None:
            self.restores += 1
            if restore is not None:
                restore()

        self.guard = Guard(fabric, method, restore=go_back)
        settings = Settings(Schedule("steps"), Length(steps), 0, clip_norm=1.0)
        self.ending = fit(
            fabric, module, wrapped, settings=settings,
            source=self.images, guard=self.guard, observers=[self.told.append],
        )  # fmt: skip

    @property
    def faults(self) -> list[Fault | None]:
        return [step.fault for step in self.told]


def only_at(*steps: int, value: float = math.nan) -> Callable[[int], float]:
    return lambda step: value if step in steps else 1.0


def is_finite(method: nn.Module) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in method.state_dict().values())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_bad_step_leaves_no_trace(value: float) -> None:
    method, steps = Toy(only_at(2, value=value)), []
    run = Run(method, steps=4)
    assert is_finite(method)
    assert method.taken == 3
    assert run.guard.skipped == 1
    assert run.ending.position.step == 4  # the next step has other images
    [fault] = [fault for fault in run.faults if fault]
    assert fault.causes == ("class", "loss")
    assert fault.images == ("2.png",)
    assert "2.png" in str(fault)
    # Exactly as if that batch had never been: BatchNorm's statistics, too.
    twin = Toy(only_at())
    images = Images()
    whole = images.stream

    def without(step: int) -> Generator[Sequence[Batch]]:
        for number, parts in enumerate(whole(step)):
            if number != 2:
                steps.append(number)
                yield parts

    images.stream = without  # type: ignore[method-assign]
    counted = Run(twin, steps=3, images=images)
    assert steps == [0, 1, 3]
    assert torch.equal(method.window, twin.window)
    norm, other = method.student[0], twin.student[0]  # type: ignore[index]
    assert norm.num_batches_tracked == other.num_batches_tracked == 3
    assert counted.guard.skipped == 0


def test_a_gradient_alone_can_be_bad() -> None:
    method = Toy(only_at())
    # The square root's slope at zero is infinite; its value is not.
    bias = nn.Parameter(torch.zeros(()))
    method.student.register_parameter("bias", bias)
    plain = method.forward
    method.forward = lambda batch: {  # type: ignore[method-assign]
        **(losses := plain(batch)),
        "loss": losses["loss"] + (bias * 0).sqrt() if method.forwards == 2 else losses["loss"],
    }
    run = Run(method, steps=4)
    assert is_finite(method)
    [fault] = [fault for fault in run.faults if fault]
    assert fault.causes == ("gradient",)


def test_three_in_a_row_ease_then_restore_then_stop() -> None:
    method = Toy(lambda step: math.nan if step >= 1 else 1.0, easings=1)
    with pytest.raises(UserError, match=r"diverged, 9 steps in a row: class, loss.*9\.png"):
        Run(method, steps=20)
    assert is_finite(method)
    assert method.taken == 1
    assert method.easings == -1  # asked again when the saved weights came back


def test_where_nothing_can_be_eased_the_saved_weights_come_back() -> None:
    """Weights that became infinite by themselves: skipping alone would go on forever."""
    method = Toy(only_at())
    good = copy.deepcopy(method.state_dict())
    poison = torch.full((1,), math.inf)

    def after_step(step: int) -> None:
        method.taken += 1
        if method.taken == 2:
            method.student[1].bias.data.copy_(poison)  # type: ignore[index]

    method.after_step = after_step  # type: ignore[method-assign]
    run = Run(method, steps=10, restore=lambda: method.load_state_dict(good) and None)
    assert run.restores == 1
    assert run.guard.skipped == PATIENCE
    assert is_finite(method)
    actions = [fault.action for fault in run.faults if fault]
    assert actions == ["", "", "went back to the last saved weights"]


def test_a_good_step_forgives() -> None:
    method = Toy(lambda step: math.nan if step % 3 else 1.0)
    run = Run(method, steps=12)
    assert run.guard.skipped == 8
    assert run.restores == 0


def test_counts_go_on_after_a_resume() -> None:
    first = Run(Toy(only_at(2, 3)), steps=4)
    state = first.guard.state()
    assert state == {"skipped": 2, "row": 2, "restored": 0}
    fabric = Fabric(accelerator="cpu", devices=1)
    guard = Guard(fabric, Toy(only_at()), restore=lambda: None, saved=state)
    assert guard.state() == state


def test_fp16_may_overflow_while_it_looks_for_its_scale() -> None:
    """The loss is finite; only its scaled gradient is not."""
    method = Toy(lambda step: 100.0)  # times 65,536, where the search begins: more than fp16 holds
    run = Run(method, steps=12, precision="fp16-mixed")
    assert is_finite(method)
    faults = [fault for fault in run.faults if fault]
    assert faults
    assert {fault.action for fault in faults} == {"lowered the scale of fp16"}
    assert method.taken == 12 - len(faults) > 0


def test_too_little_memory_halves_the_parts_of_the_same_step() -> None:
    seen: list[tuple[int, int]] = []

    class Hungry(Toy):
        def forward(self, batch: Batch) -> Losses:
            seen.append((int(batch.names[0].removesuffix(".png")), len(batch.labeled.targets)))
            losses = super().forward(batch)
            if len(batch.labeled.targets) > 1:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return losses

    method = Hungry(only_at())
    run = Run(method, steps=2)
    assert seen == [(0, 4), (0, 2), *[(0, 1)] * 4, *[(1, 1)] * 4]
    assert run.told[0].num_images == 4
    assert method.taken == 2
    # What the failed attempts left in the statistics is gone.
    assert method.student[0].num_batches_tracked == 8  # type: ignore[index]


def test_one_image_that_does_not_fit_is_an_error() -> None:
    class Starving(Toy):
        def forward(self, batch: Batch) -> Losses:
            raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(UserError, match="one image"):
        Run(Starving(only_at()))


def test_other_errors_are_not_mistaken_for_it() -> None:
    with pytest.raises(RuntimeError, match="shape") as error:
        Run(Toy(lambda step: (_ for _ in ()).throw(RuntimeError("shape mismatch"))))
    assert not is_out_of_memory(error.value)


def test_the_cpus_own_words_are_understood() -> None:
    with pytest.raises(RuntimeError) as error:
        torch.empty(1 << 58, dtype=torch.uint8)
    assert is_out_of_memory(error.value)


def test_long_lists_of_images_are_cut_and_odd_names_can_be_printed(tmp_path: Path) -> None:
    text = str(Fault(("box",), ("a\udce9.png", "b", "c", "d", "e", "f")))
    assert text.endswith("d and 2 more")
    text.encode()


def _one_of_two(rank: int, port: int, results: Any) -> None:
    os.environ |= {
        "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }  # fmt: skip
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    # An infinite loss whose gradient is finite: the others would not see it in the gradients.
    method = Toy(only_at())
    plain = method.forward
    method.forward = lambda batch: {  # type: ignore[method-assign]
        **plain(batch),
        "box": torch.tensor(math.inf if rank and method.forwards == 2 else 1.0),
    }
    run = Run(method, steps=4, fabric=fabric)
    [fault] = [fault for fault in run.faults if fault]
    results.put((rank, run.guard.skipped, fault, method.student[1].weight.tolist()))  # type: ignore[index]


def test_all_ranks_skip_together_and_know_whose_images_it_was() -> None:
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = [context.Process(target=_one_of_two, args=(r, port, results)) for r in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(timeout=300)
        assert process.exitcode == 0
    (_, skipped, fault, weights), other = sorted(results.get() for _ in ranks)
    assert skipped == other[1] == 1
    assert fault == other[2] == Fault(("box",), ("1.png", "1.png"))
    assert weights == other[3]
