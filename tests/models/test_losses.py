"""The criterion against slow formulas, and what must have no gradient."""

import math
from dataclasses import replace

import torch

from dsl.models.assign import Assigner, locate
from dsl.models.losses import Criterion, centerness_of, flatten
from dsl.types import DenseOutput, Targets

STRIDES = (8, 16, 32, 64, 128)
SHAPES = [(4, 4), (2, 2), (1, 1), (1, 1), (1, 1)]
CRITERION = Criterion(Assigner((16.0, 32.0, 64.0, 128.0)))


def random_output(num_classes: int = 3, images: int = 2) -> DenseOutput:
    generator = torch.Generator().manual_seed(0)

    def maps(channels: int) -> list[torch.Tensor]:
        return [
            torch.randn(images, channels, h, w, generator=generator).requires_grad_()
            for h, w in SHAPES
        ]

    distances = [m.abs().detach().requires_grad_() for m in maps(4)]
    return DenseOutput(maps(num_classes), distances, maps(1), STRIDES)


def target(boxes: list[list[float]], labels: list[int], ignored: list[bool]) -> Targets:
    return Targets(torch.tensor(boxes), torch.tensor(labels), torch.tensor(ignored))


IMAGES = (
    target([[2.0, 3, 14, 15], [8.0, 4, 30, 31]], [0, 2], [False, False]),
    target([[4.0, 4, 20, 18]], [1], [False]),
)


def test_sums_equal_a_slow_loop() -> None:
    output = random_output()
    sums = CRITERION(output, IMAGES)
    assigned = CRITERION.assigner(locate(SHAPES, STRIDES, torch.device("cpu")), IMAGES)
    logits, reach = flatten(output.class_logits), flatten(output.distances)
    centerness = flatten(output.centerness)
    focal = box = bce = weights = positives = 0.0
    for i in range(2):
        for k, label in enumerate(assigned.labels[i].tolist()):
            for c in range(3):
                p = 1 / (1 + math.exp(-logits[i, k, c].item()))
                if label == c:
                    focal += 0.25 * (1 - p) ** 2 * -math.log(p)
                else:
                    focal += 0.75 * p**2 * -math.log(1 - p)
            if label < 0:
                continue
            positives += 1
            l, t, r, b = assigned.distances[i, k].tolist()  # noqa: E741
            weight = math.sqrt(min(l, r) / max(l, r) * min(t, b) / max(t, b))
            pl, pt, pr, pb = reach[i, k].tolist()
            inter = (min(l, pl) + min(r, pr)) * (min(t, pt) + min(b, pb))
            union = (l + r) * (t + b) + (pl + pr) * (pt + pb) - inter
            hull = (max(l, pl) + max(r, pr)) * (max(t, pt) + max(b, pb))
            box += weight * (1 - inter / union + (hull - union) / hull)
            q = 1 / (1 + math.exp(-centerness[i, k, 0].item()))
            bce += -(weight * math.log(q) + (1 - weight) * math.log(1 - q))
            weights += weight
    assert positives > 3
    for found, wanted in (
        (sums.classification, focal), (sums.box, box), (sums.centerness, bce),
        (sums.num_positives, positives), (sums.box_weights, weights),
    ):  # fmt: skip
        torch.testing.assert_close(found, torch.tensor(wanted), rtol=1e-4, atol=1e-5)


def test_ignored_locations_have_exactly_no_gradient() -> None:
    output = random_output(images=1)
    hidden = target([[2.0, 3, 14, 15], [16.0, 16, 31, 31]], [0, 1], [True, False])
    sums = CRITERION(output, [hidden])
    (sums.classification + sums.box + sums.centerness).backward()
    assigned = CRITERION.assigner(locate(SHAPES, STRIDES, torch.device("cpu")), [hidden])
    grads = [flatten([m.grad for m in maps]) for maps in (output.class_logits,)]
    ignored = assigned.labels[0] == -2
    assert ignored.any()
    assert (grads[0][0, ignored] == 0).all()
    assert (grads[0][0, ~ignored] != 0).all()


SOFT = (
    replace(IMAGES[0], certainty=torch.tensor([0.3, 0.9])),
    replace(IMAGES[1], ignored=torch.tensor([True]), certainty=torch.tensor([0.2])),
)


def test_soft_classes_equal_a_slow_loop() -> None:
    """alpha |t - p|^2 (-t log p - (1 - t) log (1 - p)), alpha from .75 at t = 0 to .25 at t = 1."""
    output = random_output()
    sums = CRITERION(output, SOFT)
    assigned = CRITERION.assigner(locate(SHAPES, STRIDES, torch.device("cpu")), SOFT)
    logits, expected, soft = flatten(output.class_logits), 0.0, 0
    for i in range(2):
        for k, label in enumerate(assigned.classes[i].tolist()):
            for c in range(3):
                p = 1 / (1 + math.exp(-logits[i, k, c].item()))
                t = assigned.certainty[i, k].item() if label == c else 0.0
                entropy = -t * math.log(p) - (1 - t) * math.log(1 - p)
                expected += (0.75 - 0.5 * t) * (t - p) ** 2 * entropy
                soft += 0 < t < 1
    assert soft > 5
    torch.testing.assert_close(sums.classification, torch.tensor(expected), rtol=1e-4, atol=1e-5)
    hard = CRITERION(output, [replace(t, certainty=None) for t in SOFT])
    assert sums.num_positives == hard.num_positives > 0
    for part in ("box", "centerness", "box_weights"):
        assert torch.equal(getattr(sums, part), getattr(hard, part))


def test_soft_classes_that_are_sure_are_the_focal_loss() -> None:
    output = random_output()
    sure = [replace(t, certainty=torch.ones(len(t))) for t in IMAGES]
    found, focal = (CRITERION(output, given).classification for given in (sure, IMAGES))
    torch.testing.assert_close(found, focal)


def test_a_score_that_is_what_it_should_be_stays() -> None:
    output = random_output(images=1)
    box = replace(target([[2.0, 3, 14, 15]], [1], [False]), certainty=torch.tensor([0.4]))
    place = CRITERION.assigner(locate(SHAPES, STRIDES, torch.device("cpu")), [box]).labels[0] == 1
    assert place.any()
    with torch.no_grad():
        for m in output.class_logits:
            m[:, 1] = math.log(0.4 / 0.6)
    CRITERION(output, [box]).classification.backward()
    gradient = flatten([m.grad for m in output.class_logits])[0]  # type: ignore[misc]
    assert gradient[place, 1].abs().max() < 1e-6
    assert gradient[~place, 1].abs().min() > 1e-3


def test_an_ignored_box_without_certainty_has_no_gradient_among_soft_ones() -> None:
    output = random_output(images=1)
    hidden = target([[2.0, 3, 14, 15], [16.0, 16, 31, 31]], [0, 1], [True, False])
    soft = replace(hidden, certainty=torch.tensor([0.0, 0.5]))
    CRITERION(output, [soft]).classification.backward()
    assigned = CRITERION.assigner(locate(SHAPES, STRIDES, torch.device("cpu")), [soft])
    ignored = assigned.labels[0] == -2
    gradient = flatten([m.grad for m in output.class_logits])[0]  # type: ignore[misc]
    assert ignored.any()
    assert (gradient[ignored] == 0).all()
    assert (gradient[~ignored] != 0).all()


def test_no_boxes_at_all_is_pure_background() -> None:
    output = random_output()
    sums = CRITERION(output, [Targets.empty(), Targets.empty()])
    assert sums.num_positives == 0
    assert sums.box == 0
    assert sums.centerness == 0
    assert sums.classification > 0
    sums.classification.backward()


def test_zero_size_predictions_have_finite_gradients() -> None:
    output = random_output()
    flat = [torch.zeros_like(m).requires_grad_() for m in output.distances]
    sums = CRITERION(DenseOutput(output.class_logits, flat, output.centerness, STRIDES), IMAGES)
    sums.box.backward()
    assert all(torch.isfinite(m.grad).all() for m in flat)
    assert torch.isfinite(sums.box)


def test_sums_of_two_batches_add_up_to_the_sum_of_both() -> None:
    output = random_output()
    apart = [
        CRITERION(
            DenseOutput(*([m[i : i + 1] for m in maps] for maps in (
                output.class_logits, output.distances, output.centerness)), STRIDES),
            [IMAGES[i]],
        )
        for i in range(2)
    ]  # fmt: skip
    whole, added = CRITERION(output, IMAGES), apart[0] + apart[1]
    torch.testing.assert_close(added.classification, whole.classification)
    torch.testing.assert_close(added.box_weights, whole.box_weights)


def test_centerness_is_one_in_the_middle_and_falls_to_the_border() -> None:
    middle, off, edge = centerness_of(torch.tensor([[2.0, 2, 2, 2], [1, 2, 3, 2], [0, 2, 4, 2]]))
    assert middle == 1
    assert off.item() == torch.tensor(1 / 3).sqrt().item()
    assert edge == 0
