"""What holds for any input: geometry by painting, assignment, decoding and thresholds."""

from collections.abc import Sequence

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchvision.ops import box_iou

from dsl.geometry import Affine, Flip, PatchShuffle, Resize, VerticalFlip, move_image, move_targets
from dsl.models.assign import BACKGROUND, IGNORED, Assigner, locate, to_boxes
from dsl.models.decode import Decoder
from dsl.ssod.adaptive_filter import CURVES, UNSEEN, AdaptiveThreshold
from dsl.types import DenseOutput, Operation, Targets

FEW = settings(max_examples=60, deadline=None, derandomize=True, database=None)
SIZES = st.tuples(st.integers(4, 24), st.integers(4, 24))  # height, width


@st.composite
def boxes_in(draw: st.DrawFn, size: tuple[int, int], most: int = 4) -> Targets:
    """Whole-pixel boxes inside an image."""
    height, width = size
    boxes = []
    for _ in range(draw(st.integers(0, most))):
        left, top = draw(st.integers(0, width - 1)), draw(st.integers(0, height - 1))
        right = draw(st.integers(left + 1, width))
        boxes.append([left, top, right, draw(st.integers(top + 1, height))])
    labels = draw(st.lists(st.integers(0, 2), min_size=len(boxes), max_size=len(boxes)))
    ignored = draw(st.lists(st.booleans(), min_size=len(boxes), max_size=len(boxes)))
    return Targets(
        torch.tensor(boxes, dtype=torch.float32).view(-1, 4),
        torch.tensor(labels, dtype=torch.int64),
        torch.tensor(ignored, dtype=torch.bool),
    )


def lit(size: tuple[int, int], boxes: Tensor) -> Tensor:
    """(H, W) bool: the pixels that the boxes cover."""
    mask = torch.zeros(size, dtype=torch.bool)
    for x1, y1, x2, y2 in boxes.round().long().tolist():
        mask[y1:y2, x1:x2] = True
    return mask


@st.composite
def chains(draw: st.DrawFn, size: tuple[int, int]) -> tuple[list[Operation], tuple[int, int]]:
    """Any steps, with one enlargement at most, by two at most: beyond that a blurred corner is no
    longer either lit or dark (.67 * .67 < .5)."""
    steps: list[Operation] = []
    enlarged = False
    kinds = st.sampled_from(["flip", "upset", "roll", "shift", "enlarge"])
    for kind in draw(st.lists(kinds, max_size=6)):
        height, width = size
        if kind == "flip":
            steps.append(Flip(width))
        elif kind == "upset":
            steps.append(VerticalFlip(height))
        elif kind == "roll":
            right, down = draw(st.integers(0, width - 1)), draw(st.integers(0, height - 1))
            steps.append(PatchShuffle(height, width, right, down))
        elif kind == "shift":
            x, y = draw(st.integers(-width, width)), draw(st.integers(-height, height))
            steps.append(Affine(height, width, (1.0, 0.0, float(x), 0.0, 1.0, float(y))))
        elif not enlarged:
            enlarged = True
            size = (height * draw(st.integers(1, 2)), width * draw(st.integers(1, 2)))
            steps.append(Resize((height, width), size))
    return steps, size


@FEW
@given(st.data())
def test_boxes_cover_the_pixels_that_they_covered_after_any_chain(data: st.DataObject) -> None:
    start = data.draw(SIZES)
    targets = data.draw(boxes_in(start))
    steps, end = data.draw(chains(start))
    image = lit(start, targets.boxes).to(torch.uint8).mul(255).expand(3, -1, -1).contiguous()
    moved = move_image(image, steps)
    assert moved.shape == (3, *end)
    after = move_targets(targets, steps)
    assert torch.equal(lit(end, after.boxes), moved[0] > 127)
    assert set(after.labels.tolist()) <= set(targets.labels.tolist())
    assert (after.boxes[:, 2:] > after.boxes[:, :2]).all()


@FEW
@given(st.data())
def test_a_roll_and_its_inverse_bring_every_pixel_back(data: st.DataObject) -> None:
    height, width = data.draw(SIZES)
    roll = PatchShuffle(height, width, data.draw(st.integers(0, 99)), data.draw(st.integers(0, 99)))
    image = torch.arange(3 * height * width).view(3, height, width)
    assert torch.equal(move_image(image, [roll, roll.inverse()]), image)
    again = roll.then(roll)
    assert torch.equal(again.image(image), move_image(image, [roll, roll]))


STRIDES = (8, 16)
SHAPES = [(6, 8), (3, 4)]


def contains(box: Tensor, point: Tensor) -> bool:
    return bool((point > box[:2]).all() and (point < box[2:]).all())


@FEW
@given(boxes_in((48, 64), most=6), st.sampled_from([0.0, 1.5]))
def test_every_location_answers_for_the_smallest_box_that_may_claim_it(
    targets: Targets, radius: float
) -> None:
    locations = locate(SHAPES, STRIDES, torch.device("cpu"))
    result = Assigner((16.0,), center_radius=radius)(locations, [targets])
    areas = (targets.boxes[:, 2:] - targets.boxes[:, :2]).prod(dim=1)
    for place, label in enumerate(result.labels[0].tolist()):
        point, stride = locations.points[place], locations.strides[place]
        around = [m for m in range(len(targets)) if contains(targets.boxes[m], point)]
        if label == BACKGROUND:
            continue
        if label == IGNORED:
            assert any(targets.ignored[m] for m in around)
            continue
        box = to_boxes(point, result.distances[0, place] * stride)
        same = [
            m
            for m in around
            if not targets.ignored[m] and torch.allclose(targets.boxes[m], box, atol=1e-3)
        ]
        assert label in {int(targets.labels[m]) for m in same}
        reach = float((result.distances[0, place] * stride).max())
        assert (reach <= 16) == (stride == 8)
        rivals = _claiming(targets, point, float(stride), radius=radius)
        assert float(areas[same[0]]) == min(float(areas[m]) for m in rivals)


def _claiming(targets: Targets, point: Tensor, stride: float, *, radius: float) -> Sequence[int]:
    """Foreground boxes that this location may answer for, by the rule in words."""
    found = []
    for m, box in enumerate(targets.boxes):
        reach = float(torch.cat([point - box[:2], box[2:] - point]).max())
        off = float((point - (box[:2] + box[2:]) / 2).abs().max())
        near = radius == 0 or off < radius * stride
        fits = reach <= 16 if stride == 8 else reach > 16
        if contains(box, point) and near and fits and not targets.ignored[m]:
            found.append(m)
    return found


@FEW
@given(st.integers(0, 10_000), st.floats(0.1, 6), st.tuples(st.integers(1, 48), st.integers(1, 64)))
def test_detections_are_sorted_inside_and_apart(
    seed: int, spread: float, size: tuple[int, int]
) -> None:
    generator = torch.Generator().manual_seed(seed)

    def maps(channels: int) -> list[Tensor]:
        return [spread * torch.randn(1, channels, *shape, generator=generator) for shape in SHAPES]

    output = DenseOutput(maps(3), [m.relu() for m in maps(4)], maps(1), STRIDES)
    decoder = Decoder(per_level=20, max_detections=15)
    [found] = decoder(output, torch.tensor([size]))
    height, width = size
    assert len(found) <= 15
    assert torch.equal(found.scores, found.scores.sort(descending=True).values)
    assert ((found.scores > 0) & (found.scores <= 1)).all()
    assert (found.boxes >= 0).all()
    assert (found.boxes[:, [0, 2]] <= width).all()
    assert (found.boxes[:, [1, 3]] <= height).all()
    assert (found.boxes[:, 2:] > found.boxes[:, :2]).all()
    for label in range(3):
        boxes = found.boxes[found.labels == label]
        overlap = box_iou(boxes, boxes).fill_diagonal_(0)
        assert (overlap <= decoder.nms_iou + 1e-6).all()


IMAGES = st.lists(
    st.lists(st.tuples(st.floats(0, 1, width=32), st.integers(0, 2)), max_size=5), max_size=12
)


@FEW
@given(IMAGES, st.sampled_from(sorted(CURVES)), st.integers(1, 8), st.integers(1, 12))
def test_thresholds_stay_in_range_and_do_not_depend_on_the_batches(
    images: list[list[tuple[float, int]]], name: str, window: int, batch: int
) -> None:
    curve = CURVES[name]
    one, other = (
        AdaptiveThreshold(3, background=0.1, curve=curve, window=window) for _ in range(2)
    )
    rows = []
    for image in images:
        scores = torch.tensor([score for score, _ in image], dtype=torch.float32)
        labels = torch.tensor([label for _, label in image], dtype=torch.int64)
        part = one.split(scores, labels)
        assert not (part.foreground & part.ignored).any()
        assert ((scores <= 0.1) <= ~part.ignored).all()
        rows.append(one.rows(scores, labels))
        one.observe(rows[-1][None])
    for start in range(0, len(rows), batch):
        other.observe(torch.stack(rows[start : start + batch]))
    assert torch.equal(one.thresholds(), other.thresholds())
    for value in one.thresholds().tolist():
        assert curve.low - 1e-6 <= value <= curve.high + 1e-6 or value == torch.tensor(UNSEEN)


@FEW
@given(st.floats(0, 20, width=32), st.integers(1, 40), st.integers(0, 47))
def test_an_edge_on_a_location_stays_on_it(top: float, half: int, down: int) -> None:
    """Rebuilt from the length, the bottom edge would be off by a rounding."""
    bottom = 20 + half / 2
    box = torch.tensor([[0.0, top, 8.0, bottom]], dtype=torch.float64)
    targets = Targets(box, torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.bool))
    moved = PatchShuffle(48, 64, 0, down).targets(targets).boxes
    assert (bottom + down) % 48 in [edge % 48 for edge in moved[:, 3].tolist()]
