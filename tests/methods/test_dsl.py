"""One iteration of DSL, recomputed by hand from the detector's maps (METHOD 2 to 5)."""

import copy
import functools
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.ops import box_iou

from dsl.geometry import Flip, Resize
from dsl.methods.dsl import DSL, Weights
from dsl.methods.supervised import Supervised
from dsl.models.assign import Assigner
from dsl.models.decode import Decoder
from dsl.models.fcos import FCOS
from dsl.models.losses import Criterion, LossSums
from dsl.models.timm_backbone import TimmBackbone
from dsl.ssod.adaptive_filter import (
    CURVES,
    AdaptiveThreshold,
    FixedThreshold,
    Policy,
    SingleThreshold,
)  # fmt: skip
from dsl.ssod.metanet import MetaNet
from dsl.ssod.pseudo_labels import PseudoLabels
from dsl.types import (
    Batch,
    DenseOutput,
    Detections,
    ImageBatch,
    LabeledBatch,
    Targets,
    UnlabeledBatch,
)  # fmt: skip

RANGES = (16.0, 32.0, 64.0, 128.0)
STRIDES = (8, 16, 32, 64, 128)
CRITERION = Criterion(Assigner(RANGES))
DECODER = Decoder()
FIXED = FixedThreshold(3, background=0.1, foreground=0.3)


# What is needed to run it.


@functools.cache
def _detector(num_classes: int, seed: int) -> FCOS:
    torch.manual_seed(seed)
    detector = FCOS(TimmBackbone("resnet10t_half"), num_classes, channels=64, num_convs=1)
    head = detector.head
    with torch.no_grad():  # talkative from the start: scores from 0 to .6, boxes of some size
        head.class_logits.weight.normal_(std=0.15)
        head.class_logits.bias.fill_(-1.0)  # type: ignore[union-attr]
        head.distances.weight.normal_(std=0.05)
        head.distances.bias.fill_(1.5)  # type: ignore[union-attr]
        head.centerness.bias.fill_(1.0)  # type: ignore[union-attr]
    return detector


def method(
    weights: Weights | None = None, *, policy: Policy = FIXED, metanet: MetaNet | None = None,
    num_classes: int = 3, seed: int = 0, started: bool = True, one_class: bool = False,
    rival_iou: float = 0.6, names: bool = False, soft: bool = False,
) -> DSL:  # fmt: skip
    """With another teacher than student, as after some steps, so that it is told who is asked."""
    detector = copy.deepcopy(_detector(num_classes, seed))
    built = DSL(
        detector, CRITERION, decoder=DECODER, policy=copy.deepcopy(policy), metanet=metanet,
        weights=weights or Weights(), one_class=one_class, rival_iou=rival_iou,
        names=names, soft=soft,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in built.student.parameters():
            p.add_(0.01 * torch.randn(p.shape, generator=generator) * p.abs().mean())
    if started:
        assert built.advance(0.9)
    return built.train()  # type: ignore[return-value]


def pixels(seed: int, count: int, *, side: int = 64) -> Tensor:
    """Multiples of 4: the mean of four of them is a whole number. Smooth, so that halves agree."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randint(0, 64, (count, 3, side // 8, side // 8), generator=generator)
    fine = torch.randint(0, 8, (count, 3, side, side), generator=generator)
    blocks = coarse.repeat_interleave(8, dim=2).repeat_interleave(8, dim=3)
    return (4 * (blocks + fine).clamp(max=63)).to(torch.uint8)


def full(images: Tensor) -> ImageBatch:
    return ImageBatch(images, torch.tensor([images.shape[-2:]] * len(images)))


def target(
    boxes: list[list[float]], labels: list[int], ignored: list[bool] | None = None
) -> Targets:
    return Targets(
        torch.tensor(boxes).reshape(-1, 4),
        torch.tensor(labels, dtype=torch.int64),
        torch.tensor(ignored or [False] * len(labels), dtype=torch.bool),
    )


OBJECTS = (
    target([[4.0, 6, 30, 28], [36.0, 10, 60, 60], [2.0, 40, 20, 62]], [0, 2, 1]),
    target([[10.0, 10, 58, 50]], [1]),
)


def labeled(targets: tuple[Targets, ...] = OBJECTS, *, seed: int = 1) -> LabeledBatch:
    return LabeledBatch(full(pixels(seed, len(targets))), targets)


@dataclass(frozen=True)
class World:
    """Two unlabeled images whose views differ in size, flip and padding; moves known by heart."""

    batch: UnlabeledBatch

    def by_hand(self, image: int, box: Sequence[float]) -> list[float]:
        """From weak pixels to strong pixels."""
        x1, y1, x2, y2 = box
        if image == 0:  # flip a width of 40, then 40 x 40 -> 60 x 50 (height, width)
            return [(40 - x2) * 1.25, y1 * 1.5, (40 - x1) * 1.25, y2 * 1.5]
        return [x1, y1, x2, y2]


def world(*, seed: int = 2, truth: bool = False) -> World:
    weak = ImageBatch(pixels(seed, 2), torch.tensor([[40, 40], [64, 64]]))
    strong = ImageBatch(pixels(seed + 50, 2), torch.tensor([[60, 50], [64, 64]]))
    moves = ((Flip(40), Resize((40, 40), (60, 50))), ())
    known = (target([[3.0, 3, 20, 30]], [1]), target([], [])) if truth else None
    return World(UnlabeledBatch(weak, strong, moves, known))


def plain_batch(*, seed: int = 2, truth: tuple[Targets, ...] | None = None) -> Batch:
    """Full canvases, no geometry between the views."""
    unlabeled = UnlabeledBatch(
        full(pixels(seed, 2)), full(pixels(seed + 50, 2)), moves=((), ()), truth=truth
    )
    return Batch(labeled(), unlabeled)


def weak_of(batch: Batch) -> ImageBatch:
    assert batch.unlabeled is not None
    return batch.unlabeled.weak


def saying(*images: Targets) -> Callable[[ImageBatch], list[PseudoLabels]]:
    """A teacher that says just this, in weak pixels."""

    def pseudo_label(weak: ImageBatch) -> list[PseudoLabels]:
        assert len(weak) == len(images)
        return [
            PseudoLabels(
                Detections(t.boxes, torch.full((len(t),), 0.5), t.labels),
                ~t.ignored, t.ignored, torch.zeros_like(t.ignored),
            )
            for t in images
        ]  # fmt: skip

    return pseudo_label


class Recorder:
    """Keeps what a network was shown and said, and asks for the gradients of its class maps."""

    def __init__(self, network: nn.Module) -> None:
        self.outputs: list[DenseOutput] = []
        self.inputs: list[ImageBatch] = []
        network.register_forward_hook(self._keep)

    def _keep(self, network: nn.Module, args: tuple[ImageBatch], output: DenseOutput) -> None:
        self.inputs.append(args[0])
        self.outputs.append(output)
        for maps in (output.class_logits, output.distances, output.centerness):
            for m in maps:
                if m.requires_grad:
                    m.retain_grad()


# The same by hand.


def divided(sums: LossSums, num_positives: Tensor, box_weights: Tensor) -> Tensor:
    """Classification and centerness by N_pos (at least 1), boxes by their weights."""
    count = num_positives.clamp(min=1)
    return (sums.classification + sums.centerness) / count + sums.box / box_weights.clamp(min=1)


def slow_scale(half: DenseOutput, strong: DenseOutput, space: str) -> tuple[Tensor, int]:
    total, count = torch.zeros(()), 0
    for v in range(1, 5):
        a, b = half.class_logits[v - 1], strong.class_logits[v]
        if space == "scores":
            a, b = a.sigmoid(), b.sigmoid()
        total, count = total + ((a - b) ** 2).sum(), count + a.numel()
    return total, count


def teacher_says(
    teacher: nn.Module, world: World, *, low: float, high: float, soft: bool = False
) -> list[Targets]:
    """Detections on the weak views, split one by one, carried by hand into the strong views."""
    with torch.no_grad():
        found = DECODER.with_classes(teacher(world.batch.weak), world.batch.weak.sizes)
    result = []
    for image, (detections, of_class) in enumerate(found):
        boxes, labels, ignored, sure = [], [], [], []
        for box, score, label, of_box in zip(
            detections.boxes.tolist(), detections.scores.tolist(), detections.labels.tolist(),
            of_class.tolist(), strict=True,
        ):  # fmt: skip
            if score <= low:
                continue
            boxes.append(world.by_hand(image, box))
            labels.append(label)
            ignored.append(score < high)
            sure.append(of_box)
        certainty = torch.tensor(sure) if soft else None
        result.append(replace(target(boxes, labels, ignored), certainty=certainty))
    return result


def halved(targets: Sequence[Targets], sizes: Sequence[tuple[int, int]]) -> list[Targets]:
    result = []
    for t, (height, width) in zip(targets, sizes, strict=True):
        boxes = [
            [x1 / 2, y1 / 2, min(x2 / 2, width), min(y2 / 2, height)]
            for x1, y1, x2, y2 in t.boxes.tolist()
        ]
        half = target(boxes, t.labels.tolist(), t.ignored.tolist())
        result.append(replace(half, certainty=t.certainty))
    return result


def half_images(strong: ImageBatch) -> ImageBatch:
    a = strong.images.long()
    mean = (a[..., ::2, ::2] + a[..., 1::2, ::2] + a[..., ::2, 1::2] + a[..., 1::2, 1::2]) // 4
    return ImageBatch(mean.to(torch.uint8), strong.sizes // 2)


def expected_loss(built: DSL, world: World, weights: Weights, *, scale_weight: float) -> Tensor:
    """L_s + alpha L_u + lambda L_scale, from copies of both networks as they stand."""
    student, teacher = copy.deepcopy(built.student).train(), copy.deepcopy(built.teacher).eval()
    pseudo = teacher_says(teacher, world, low=0.1, high=0.3, soft=built.soft)
    assert any((~t.ignored).any() for t in pseudo)
    assert any(t.ignored.any() for t in pseudo)
    batch = labeled()
    supervised = CRITERION(student(batch.images), batch.targets)
    strong = student(world.batch.strong)
    half = student(half_images(world.batch.strong))
    taught = CRITERION(strong, pseudo)
    if weights.half_view:
        taught = taught + CRITERION(half, halved(pseudo, [(30, 25), (32, 32)]))
    assert taught.num_positives > 3
    if not weights.boxes:
        none = torch.zeros(())
        taught = replace(taught, box=none, centerness=none, box_weights=none)
    count_s, count_u = supervised.num_positives, taught.num_positives
    weight_s, weight_u = supervised.box_weights.detach(), taught.box_weights.detach()
    if weights.normaliser == "joint":
        count_s = count_u = count_s + count_u
        weight_s = weight_u = weight_s + weight_u
    total, elements = slow_scale(half, strong, weights.scale_space)
    scale = total / (elements if weights.scale_reduction == "mean" else 2)
    return (
        divided(supervised, count_s, weight_s)
        + weights.unlabeled * divided(taught, count_u, weight_u)
        + scale_weight * scale
    )


# Burn-in.


def test_during_the_burn_in_the_loss_is_the_supervised_one() -> None:
    built = method(started=False)
    student = copy.deepcopy(built.student).train()
    assert not built.advance(0.1)
    batch = Batch(labeled(), world().batch)
    for given in (batch, replace(batch, unlabeled=None)):
        losses = built(given)
        sums = CRITERION(student(given.labeled.images), given.labeled.targets)
        expected = divided(sums, sums.num_positives, sums.box_weights)
        torch.testing.assert_close(losses["loss"], expected)
        baseline = Supervised(copy.deepcopy(student), CRITERION, keep_rate=0.99).train()
        assert torch.equal(losses["loss"], baseline(given)["loss"])
        assert not {"unlabeled", "scale"} & losses.keys()


def test_teaching_begins_once() -> None:
    built = method(Weights(burn_in=0.25), started=False)
    assert [built.advance(p) for p in (0.0, 0.1, 0.2499)] == [False] * 3
    assert not built.teaching
    assert built.advance(0.25)
    assert built.teaching
    assert [built.advance(p) for p in (0.25, 0.3, 1.0)] == [False] * 3
    assert built.teaching
    assert method(Weights(burn_in=0.0), started=False).advance(0.0)


def test_teaching_without_unlabeled_images_is_supervised() -> None:
    built = method()
    student = copy.deepcopy(built.student).train()
    sums = CRITERION(student(labeled().images), OBJECTS)
    expected = divided(sums, sums.num_positives, sums.box_weights)
    torch.testing.assert_close(built(Batch(labeled()))["loss"], expected)


def test_the_teacher_begins_to_teach_as_an_exact_copy_of_the_student() -> None:
    """METHOD 2: "burn-in on labels [...], teacher = exact copy, then online"."""
    built = method(Weights(burn_in=0.2, keep_rate=0.99), started=False)
    optimizer = torch.optim.SGD(built.student.parameters(), lr=0.05)
    for step in range(1, 4):
        built.advance(0.05 * step)
        optimizer.zero_grad()
        built(Batch(labeled()))["loss"].backward()
        optimizer.step()
        built.after_step(step)
    assert built.advance(0.2)
    taught = built.student.state_dict()
    for name, tensor in built.teacher.state_dict().items():
        assert torch.equal(tensor, taught[name]), name


# The whole loss.


@pytest.mark.parametrize("normaliser", ["joint", "separate"])
@pytest.mark.parametrize("half_view", [True, False])
@pytest.mark.parametrize(
    ("space", "reduction"), [("logits", "mean"), ("scores", "sum"), ("scores", "mean")]
)
def test_the_loss_is_the_sum_of_its_three_parts(
    normaliser: Any, half_view: bool, space: Any, reduction: Any
) -> None:
    weights = Weights(
        unlabeled=3.0, scale=0.7, scale_space=space, scale_reduction=reduction,
        half_view=half_view, normaliser=normaliser, burn_in=0.2, scale_warmup=0.1,
    )  # fmt: skip
    built, here = method(weights), world()
    expected = expected_loss(built, here, weights, scale_weight=0.7)
    losses = built(Batch(labeled(), here.batch))
    torch.testing.assert_close(losses["loss"], expected, rtol=1e-4, atol=1e-5)
    assert losses["scale"] > 0
    assert losses["unlabeled"] > 0


def test_without_half_view_and_scale_the_half_image_is_not_even_shown() -> None:
    weights = Weights(half_view=False, scale=0.0)
    built, here = method(weights), world()
    expected = expected_loss(built, here, weights, scale_weight=0.0)
    seen = Recorder(built.student)
    torch.testing.assert_close(
        built(Batch(labeled(), here.batch))["loss"], expected, rtol=1e-4, atol=1e-5
    )
    assert [tuple(i.images.shape[-2:]) for i in seen.inputs] == [(64, 64), (64, 64)]


@pytest.mark.parametrize("normaliser", ["joint", "separate"])
@pytest.mark.parametrize("half_view", [True, False])
def test_of_pseudo_labels_perhaps_classes_alone_are_learned(
    normaliser: Any, half_view: bool
) -> None:
    weights = Weights(scale=0.0, normaliser=normaliser, half_view=half_view, boxes=False)
    built, here = method(weights), world()
    expected = expected_loss(built, here, weights, scale_weight=0.0)
    seen = Recorder(built.student)
    losses = built(Batch(labeled(), here.batch))
    torch.testing.assert_close(losses["loss"], expected, rtol=1e-4, atol=1e-5)
    losses["loss"].backward()
    of_labels, *of_views = seen.outputs
    assert len(of_views) == 1 + half_view
    for output in of_views:
        assert all((m.grad != 0).any() for m in output.class_logits)
        assert all(m.grad is None for m in (*output.distances, *output.centerness))
    assert any((m.grad != 0).any() for m in of_labels.distances)


@pytest.mark.parametrize("half_view", [True, False])
def test_classes_are_perhaps_taught_as_sure_as_the_teacher_is(half_view: bool) -> None:
    weights, here = Weights(scale=0.0, half_view=half_view), world()
    losses = {}
    for soft in (True, False):
        built = method(weights, soft=soft)
        expected = expected_loss(built, here, weights, scale_weight=0.0)
        losses[soft] = built(Batch(labeled(), here.batch))["loss"]
        torch.testing.assert_close(losses[soft], expected, rtol=1e-4, atol=1e-5)
    assert not torch.isclose(losses[True], losses[False], rtol=1e-2)


def test_alpha_weighs_the_unlabeled_part() -> None:
    losses = {
        alpha: method(Weights(unlabeled=alpha, scale=0.0))(Batch(labeled(), world().batch))
        for alpha in (0.0, 1.0, 3.0)
    }
    for alpha in (1.0, 3.0):
        torch.testing.assert_close(
            losses[alpha]["loss"], losses[0.0]["loss"] + alpha * losses[0.0]["unlabeled"]
        )


def test_the_weight_of_scale_rises_from_zero_after_the_burn_in() -> None:
    built = method(Weights(scale=0.8, burn_in=0.2, scale_warmup=0.1), started=False)
    batch = Batch(labeled(), world().batch)
    built.advance(0.2)
    losses = built(batch)
    base, scale = losses["loss"], losses["scale"]
    expected = expected_loss(built, world(), built.weights, scale_weight=0.0)
    torch.testing.assert_close(base, expected, rtol=1e-4, atol=1e-5)
    for progress, share in ((0.225, 0.25), (0.25, 0.5), (0.3, 1.0), (0.31, 1.0), (1.0, 1.0)):
        built.advance(progress)
        found = built(batch)["loss"] - base
        torch.testing.assert_close(found, 0.8 * share * scale, rtol=1e-3, atol=1e-5)


def test_no_warm_up_is_full_weight_at_once() -> None:
    built = method(Weights(burn_in=0.2, scale_warmup=0.0), started=False)
    built.advance(0.21)
    expected = expected_loss(built, world(), built.weights, scale_weight=1.0)
    torch.testing.assert_close(
        built(Batch(labeled(), world().batch))["loss"], expected, rtol=1e-4, atol=1e-5
    )


def test_the_joint_normaliser_tames_few_pseudo_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pseudo-labels at all: `separate` divides the background by 1, `joint` by the labels."""
    found = {}
    for normaliser in ("joint", "separate"):
        built = method(Weights(normaliser=normaliser, half_view=False, scale=0.0))  # type: ignore[arg-type]
        monkeypatch.setattr(built, "pseudo_label", saying(target([], []), target([], [])))
        found[normaliser] = built(plain_batch())
    student = copy.deepcopy(method().student).train()
    of_labels = CRITERION(student(labeled().images), OBJECTS)
    background = CRITERION(student(plain_batch().unlabeled.strong), [target([], [])] * 2)  # type: ignore[union-attr]
    assert background.num_positives == 0
    torch.testing.assert_close(found["separate"]["unlabeled"], background.classification)
    torch.testing.assert_close(
        found["joint"]["unlabeled"], background.classification / of_labels.num_positives
    )


# Eq. 5: who has a gradient.


def slow_assignment(targets: Targets, shapes: Sequence[tuple[int, int]]) -> list[Tensor]:
    """Per level (H, W): a class, -1 for background, -2 for ignored; from METHOD 1 and 3."""
    bounds = [0.0, *RANGES, float("inf")]
    result = []
    for level, ((height, width), stride) in enumerate(zip(shapes, STRIDES, strict=True)):
        answer = torch.full((height, width), -1)
        for row in range(height):
            for column in range(width):
                x, y = (column + 0.5) * stride, (row + 0.5) * stride
                best, smallest, hidden = -1, float("inf"), False
                for (x1, y1, x2, y2), label, ignored in zip(
                    targets.boxes.tolist(), targets.labels.tolist(), targets.ignored.tolist(),
                    strict=True,
                ):  # fmt: skip
                    sides = (x - x1, y - y1, x2 - x, y2 - y)
                    off = max(abs(x - (x1 + x2) / 2), abs(y - (y1 + y2) / 2))
                    reach, area = max(sides), (x2 - x1) * (y2 - y1)
                    fits = bounds[level] < reach <= bounds[level + 1]
                    if min(sides) <= 0 or off >= 1.5 * stride or not fits:
                        continue
                    if ignored:
                        hidden = True
                    elif area < smallest:
                        best, smallest = label, area
                answer[row, column] = best if best >= 0 else -2 if hidden else -1
        result.append(answer)
    return result


PSEUDO = (
    # Foreground, ignored boxes of two sizes, and one ignored box just over a foreground one.
    target(
        [[4.0, 4, 24, 24], [34.0, 34, 60, 58], [5.0, 5, 25, 25], [2.0, 36, 22, 62]],
        [1, 0, 2, 2], [False, True, True, True],
    ),
    target([[6.0, 4, 60, 62]], [2], [True]),
)  # fmt: skip


@pytest.mark.parametrize("half_view", [True, False])
def test_ignored_locations_have_exactly_no_gradient(
    monkeypatch: pytest.MonkeyPatch, half_view: bool
) -> None:
    built = method(Weights(scale=0.0, half_view=half_view))
    monkeypatch.setattr(built, "pseudo_label", saying(*PSEUDO))
    seen = Recorder(built.student)
    built(plain_batch())["loss"].backward()
    views = [(seen.outputs[1], 1.0)] + ([(seen.outputs[2], 0.5)] if half_view else [])
    assert len(seen.outputs) == 1 + len(views)
    for output, factor in views:
        counts = {"foreground": 0, "background": 0, "ignored": 0}
        for image, said in enumerate(PSEUDO):
            shapes = [(m.shape[-2], m.shape[-1]) for m in output.class_logits]
            answers = slow_assignment(replace(said, boxes=said.boxes * factor), shapes)
            for level, answer in enumerate(answers):
                of_class, of_box, of_center = (
                    maps[level].grad[image]  # type: ignore[index]
                    for maps in (output.class_logits, output.distances, output.centerness)
                )
                ignored, positive = answer == -2, answer >= 0
                assert (of_class[:, ignored] == 0).all()
                assert (of_class[:, ~ignored] != 0).all()
                assert (of_center[:, positive] != 0).all()
                assert (of_center[:, ~positive] == 0).all()
                assert (of_box[:, ~positive] == 0).all()
                counts["ignored"] += int(ignored.sum())
                counts["foreground"] += int(positive.sum())
                counts["background"] += int((answer == -1).sum())
        assert min(counts.values()) > 0


def test_rejected_and_ignored_boxes_cost_less_than_background(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The ignore band is there: hiding locations takes their share out of the loss."""
    losses = {}
    for name, said in (
        ("ignored", PSEUDO),
        ("background", (target([[4.0, 4, 24, 24]], [1]), target([], []))),
    ):
        built = method(Weights(scale=0.0, half_view=False))
        monkeypatch.setattr(built, "pseudo_label", saying(*said))
        losses[name] = built(plain_batch())["unlabeled"].item()
    assert losses["ignored"] < losses["background"]


def test_no_gradient_reaches_the_teacher() -> None:
    built = method(policy=adaptive())
    seen = Recorder(built.teacher)
    built(plain_batch())["loss"].backward()
    assert len(seen.outputs) == 1
    assert not seen.outputs[0].class_logits[0].requires_grad
    assert all(p.grad is None and not p.requires_grad for p in built.teacher.parameters())
    assert all(p.grad is not None for p in built.student.parameters())
    assert {id(p) for p in built.parameters() if p.requires_grad} == {
        id(p) for p in built.student.parameters()
    }


def test_the_teacher_sees_the_weak_views_and_the_student_the_strong_ones() -> None:
    built, batch = method(), Batch(labeled(), world().batch)
    teacher, student = Recorder(built.teacher), Recorder(built.student)
    built(batch)
    assert batch.unlabeled is not None
    assert [i.images.tolist() for i in teacher.inputs] == [batch.unlabeled.weak.images.tolist()]
    shown = [batch.labeled.images.images, batch.unlabeled.strong.images]
    assert [i.images.tolist() for i in student.inputs[:2]] == [s.tolist() for s in shown]
    assert torch.equal(student.inputs[2].images, half_images(batch.unlabeled.strong).images)
    assert len(student.inputs) == 3


def test_gradients_of_scale_reach_both_views() -> None:
    built = method(Weights(unlabeled=0.0, scale=1.0))
    seen = Recorder(built.student)
    built(plain_batch())["loss"].backward()
    strong, half = seen.outputs[1], seen.outputs[2]
    for v in range(1, 5):
        assert strong.class_logits[v].grad.any()  # type: ignore[union-attr]
        assert half.class_logits[v - 1].grad.any()  # type: ignore[union-attr]


# Empty and full.


def finite(built: DSL, losses: dict[str, Tensor]) -> None:
    assert all(torch.isfinite(value).all() for value in losses.values())
    losses["loss"].backward()
    grads = [p.grad for p in built.student.parameters() if p.grad is not None]
    assert grads
    assert all(torch.isfinite(g).all() for g in grads)


@pytest.mark.parametrize("normaliser", ["joint", "separate"])
def test_no_pseudo_labels(normaliser: Any) -> None:
    built = method(Weights(normaliser=normaliser), policy=SingleThreshold(3, foreground=0.999))
    losses = built(plain_batch())
    assert losses["fg/img"] == 0
    assert losses["ign/img"] == 0
    assert losses["unlabeled"] > 0  # all of it is background
    finite(built, losses)


def test_no_detections() -> None:
    built = method(policy=adaptive())
    with torch.no_grad():
        built.teacher.head.class_logits.bias.fill_(-30)
        built.teacher.head.class_logits.weight.zero_()
    finite(built, built(plain_batch()))
    assert built.policy.thresholds().tolist() == pytest.approx([0.3] * 3)


@pytest.mark.parametrize("normaliser", ["joint", "separate"])
def test_labeled_images_without_boxes(normaliser: Any) -> None:
    built = method(Weights(normaliser=normaliser))
    batch = replace(plain_batch(), labeled=labeled((target([], []), target([], []))))
    losses = built(batch)
    assert losses["box"] == 0
    assert losses["centerness"] == 0
    finite(built, losses)


def test_nothing_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    built = method()
    monkeypatch.setattr(built, "pseudo_label", saying(target([], []), target([], [])))
    batch = replace(plain_batch(), labeled=labeled((target([], []), target([], []))))
    finite(built, built(batch))


def test_only_ignored_pseudo_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    built = method()
    everywhere = [[float(x), float(y), x + 16.0, y + 16.0]
                  for x in range(0, 64, 8) for y in range(0, 64, 8)]  # fmt: skip
    said = target(everywhere, [0] * 64, [True] * 64)
    monkeypatch.setattr(built, "pseudo_label", saying(said, said))
    losses = built(plain_batch())
    assert losses["fg/img"] == 0
    assert losses["ign/img"] == 64
    finite(built, losses)


def test_one_class() -> None:
    built = method(
        num_classes=1,
        policy=AdaptiveThreshold(1, background=0.1, curve=CURVES["paper"], window=10),
    )
    objects = tuple(replace(t, labels=torch.zeros_like(t.labels)) for t in OBJECTS)
    losses = built(replace(plain_batch(), labeled=labeled(objects)))
    assert losses["fg/img"] > 0
    finite(built, losses)


def test_three_hundred_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    corners = torch.rand(300, 2, generator=generator) * 50
    boxes = torch.cat([corners, corners + 2 + torch.rand(300, 2, generator=generator) * 12], dim=1)
    many = Targets(boxes, torch.arange(300) % 3, torch.arange(300) % 7 == 0)
    built = method()
    monkeypatch.setattr(built, "pseudo_label", saying(many, target([], [])))
    losses = built(replace(plain_batch(), labeled=labeled((many, target([], [])))))
    assert losses["fg/img"] == pytest.approx(int((~many.ignored).sum()) / 2)
    finite(built, losses)


# The teacher and its filter.


def adaptive(window: int = 5) -> AdaptiveThreshold:
    return AdaptiveThreshold(3, background=0.1, curve=CURVES["paper"], window=window)


def test_the_filter_judges_by_its_thresholds_and_then_observes() -> None:
    built = method(policy=adaptive(window=1000))
    counts = torch.zeros(3)
    for seed in (2, 3, 4):
        batch = plain_batch(seed=seed)
        thresholds = built.policy.thresholds().clone()
        for pseudo in built.pseudo_label(weak_of(batch)):
            found = pseudo.detections
            wanted = found.scores >= thresholds[found.labels]
            assert torch.equal(pseudo.foreground, wanted)
            assert torch.equal(pseudo.ignored, (found.scores > 0.1) & ~wanted)
            counts += found.labels[wanted].bincount(minlength=3)
        assert torch.equal(built.policy.thresholds(), thresholds)  # asking alone moves nothing
        losses = built(batch)
        torch.testing.assert_close(built.policy.counts.sum(dim=0), counts)
        assert losses["fg/img"] > 0
    assert counts.sum() > 5
    assert not torch.equal(thresholds, torch.full((3,), 0.3))


class Opposite(nn.Module):
    """Labeled instances look one way; asked a second time, everything looks the other way."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, images: ImageBatch, boxes: Sequence[Tensor]) -> Tensor:
        self.calls += 1
        sign = 1.0 if self.calls == 1 else -1.0
        return torch.tensor([[sign, 0.0]]).expand(sum(len(b) for b in boxes), 2)


def test_what_the_metanet_doubts_is_ignored_not_background() -> None:
    metanet = MetaNet(3, Opposite(), width=2, bar=0.6, saved=False)
    metanet.learn([labeled()])
    doubting, trusting = method(metanet=metanet), method()
    weak = weak_of(plain_batch())
    for doubted, trusted in zip(
        doubting.pseudo_label(weak), trusting.pseudo_label(weak), strict=True
    ):
        assert trusted.foreground.any()
        assert not doubted.foreground.any()
        assert torch.equal(doubted.rejected, trusted.foreground)
        assert torch.equal(doubted.ignored, trusted.foreground | trusted.ignored)


class Sides(nn.Module):
    """What lies on the left looks one way, on the right another, and in the middle between."""

    def forward(self, images: ImageBatch, boxes: Sequence[Tensor]) -> Tensor:
        angle = torch.cat(list(boxes))[:, 0::2].mean(dim=1) / 32
        return torch.stack([angle.cos(), angle.sin()], dim=1)


def test_metanet_names_what_the_detector_found() -> None:
    """Class 0 is on the left, class 1 on the right, class 2 has no labels."""
    metanet = MetaNet(3, Sides(), width=2, bar="auto", saved=False)
    sides = target([[2.0, 8, 22, 28], [40.0, 8, 60, 28]], [0, 1])
    metanet.learn([labeled((sides, sides))])
    naming, images = method(metanet=metanet, names=True), weak_of(plain_batch())
    objects = DECODER.objects(naming.teacher(images), images.sizes, least=0.1)
    renamed = rejected = 0
    for pseudo, found in zip(naming.pseudo_label(images), objects, strict=True):
        fates: dict[tuple[float, ...], tuple[int, bool, bool]] = {}
        for box, scores in zip(found.boxes.tolist(), found.scores.tolist(), strict=True):
            middle, best = (box[0] + box[2]) / 2, max(scores)
            odds = [math.exp(10 * math.cos((middle - side) / 32)) for side in (12, 50)] + [0.0]
            belief = [score**0.5 * o for score, o in zip(scores, odds, strict=True)]
            label = belief.index(max(belief)) if best >= 0.3 else scores.index(best)
            taught = best >= 0.3 and best * max(belief) / sum(belief) >= 0.3
            fates[tuple(box)] = (label, taught, best >= 0.3 and not taught)
            renamed += taught and label != scores.index(best)
        assert len(fates) == len(pseudo.detections)
        assert (pseudo.foreground ^ pseudo.ignored).all()  # nothing found is background
        for i, box in enumerate(pseudo.detections.boxes.tolist()):
            seen = (pseudo.detections.labels[i], pseudo.foreground[i], pseudo.rejected[i])
            assert tuple(map(int, seen)) == tuple(map(int, fates[tuple(box)]))
        assert (pseudo.detections.scores.diff() <= 0).all()
        rejected += int(pseudo.rejected.sum())
    assert renamed > 0
    assert rejected > 0


@pytest.mark.parametrize("overlap", [0.6, 0.3])
def test_of_boxes_on_one_object_the_best_is_taught_alone(overlap: float) -> None:
    batch = plain_batch()
    before, after = (
        method(one_class=on, rival_iou=overlap).pseudo_label(weak_of(batch)) for on in (False, True)
    )
    outdone = 0
    for all_taught, best_taught in zip(before, after, strict=True):
        found, taken = all_taught.detections, torch.zeros_like(all_taught.foreground)
        for place in found.scores.argsort(descending=True).tolist():
            if not all_taught.foreground[place]:
                continue
            better = found.boxes[taken]
            if len(better) == 0 or box_iou(found.boxes[place, None], better).max() <= overlap:
                taken[place] = True
        assert torch.equal(best_taught.foreground, taken)
        assert torch.equal(
            best_taught.ignored, all_taught.ignored | (all_taught.foreground & ~taken)
        )
        outdone += int((all_taught.foreground & ~taken).sum())
    assert outdone > 0


def test_the_teacher_stays_in_eval_mode() -> None:
    built = method()
    for mode in (True, False, True):
        built.train(mode)
        assert all(m.training == mode for m in built.student.modules())
        assert not any(m.training for m in built.teacher.modules())
    before = copy.deepcopy(built.teacher.state_dict())
    built(plain_batch())["loss"].backward()
    for name, tensor in built.teacher.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_the_teacher_follows_the_student_after_a_step() -> None:
    built = method(Weights(keep_rate=0.9))
    before = {k: v.clone() for k, v in built.teacher.named_parameters()}
    built.after_step(1000)
    student = dict(built.student.named_parameters())
    for name, tensor in built.teacher.named_parameters():
        torch.testing.assert_close(tensor, 0.9 * before[name] + 0.1 * student[name])


@pytest.mark.parametrize(("started", "later", "kept"), [
    (True, 0.75, 0.75), (True, 0.0, 0.0), (True, None, 0.5), (False, 0.75, 0.5)])  # fmt: skip
def test_the_teacher_has_a_rate_of_its_own_once_it_teaches(
    started: bool, later: float | None, kept: float
) -> None:
    built = method(Weights(keep_rate=0.5, teaching_keep_rate=later), started=started)
    student = dict(built.student.named_parameters())
    for tensor in student.values():
        tensor.data += 1
    before = {k: v.clone() for k, v in built.teacher.named_parameters()}
    built.after_step(1000)
    for name, tensor in built.teacher.named_parameters():
        expected = kept * before[name] + (1 - kept) * student[name]
        torch.testing.assert_close(tensor, expected)


def test_half_size_images_leave_no_trace_in_the_running_statistics() -> None:
    built, batch = method(), plain_batch()
    student = copy.deepcopy(built.student).train()
    student(batch.labeled.images)
    student(batch.unlabeled.strong)  # type: ignore[union-attr]
    momenta = [m.momentum for m in built.student.modules() if isinstance(m, nn.BatchNorm2d)]
    built(batch)
    expected = {n: b for n, b in student.named_buffers() if "running" in n}
    assert len(expected) > 10
    for name, buffer in built.student.named_buffers():
        if name in expected:
            torch.testing.assert_close(buffer, expected[name], rtol=1e-5, atol=1e-6)
    assert momenta == [m.momentum for m in built.student.modules() if isinstance(m, nn.BatchNorm2d)]


# What must not matter, and what must be saved.


def train(built: DSL, batches: Sequence[Batch], optimizer: torch.optim.Optimizer) -> list[float]:
    losses = []
    for step, batch in enumerate(batches, start=1):
        built.advance(0.5 + step / 100)
        optimizer.zero_grad()
        loss = built(batch)["loss"]
        loss.backward()
        optimizer.step()
        built.after_step(step)
        losses.append(loss.item())
    return losses


def sgd(built: DSL) -> torch.optim.Optimizer:
    return torch.optim.SGD(built.student.parameters(), lr=0.01, momentum=0.9)


def test_truth_about_unlabeled_images_changes_nothing() -> None:
    known = target([[0.0, 0, 30, 30], [20.0, 20, 50, 60]], [0, 1]), target([[5.0, 5, 40, 40]], [2])
    results = []
    for truth in (None, known):
        built = method(policy=adaptive())
        batches = [plain_batch(seed=seed, truth=truth) for seed in (2, 3)]
        losses = train(built, batches, sgd(built))
        results.append((built, losses, built.state_dict()))
    (blind, losses, state), (seeing, same_losses, same_state) = results
    assert losses == same_losses
    assert state.keys() == same_state.keys()
    assert all(torch.equal(state[name], same_state[name]) for name in state)
    assert blind.telemetry is not None
    assert seeing.telemetry is not None
    thresholds = seeing.policy.thresholds()
    assert "recall" in seeing.telemetry.read("abc", thresholds)  # it was looked at all the same
    assert "recall" not in blind.telemetry.read("abc", thresholds)


def test_a_restored_method_goes_on_identically() -> None:
    first = method(policy=adaptive())
    train(first, [plain_batch(seed=seed) for seed in (2, 3)], sgd(first))
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = method(policy=adaptive(), seed=7, started=False)
    assert not second.teaching
    second.load_state_dict(torch.load(file, weights_only=True))
    assert second.teaching
    later = [plain_batch(seed=seed) for seed in (4, 5, 6)]
    one, two = (train(built, later, sgd(built)) for built in (first, second))
    assert one == two
    assert not second.advance(0.9)
    state = second.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in first.state_dict().items())


def test_a_method_restored_in_its_burn_in_is_still_in_it() -> None:
    first, second = method(started=False), method(seed=7, started=False)
    second.load_state_dict(first.state_dict())
    assert not second.teaching
    assert second.advance(0.2)
