"""Eq. 7 against loops, with an extractor whose vectors are known."""

import io
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dsl.ssod.metanet import MetaNet
from dsl.types import Detections, ImageBatch, LabeledBatch, Targets


class Table(nn.Module):
    """The vector of a box is the row of a table that its left side names."""

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        self.rows = nn.Parameter(rows)  # wants a gradient: MetaNet must not give it one
        self.asked: list[list[int]] = []

    def forward(self, images: ImageBatch, boxes: Sequence[Tensor]) -> Tensor:
        assert len(images) == len(boxes)
        self.asked.append([len(b) for b in boxes])
        return self.rows[torch.cat(list(boxes))[:, 0].long()]


def boxes_of(rows: Sequence[int]) -> Tensor:
    """Boxes whose vectors are these rows of the table."""
    return torch.tensor([[r, 0.0, r + 5.0, 5.0] for r in rows]).reshape(-1, 4)


def images(count: int) -> ImageBatch:
    pixels = torch.zeros(count, 3, 32, 32, dtype=torch.uint8)
    return ImageBatch(pixels, torch.full((count, 2), 32))


Instance = tuple[int, int, bool]  # row of the table, class, crowd


def labeled(*instances: Sequence[Instance]) -> LabeledBatch:
    """One image per argument."""
    targets = tuple(
        Targets(
            boxes_of([row for row, _, _ in image]),
            torch.tensor([label for _, label, _ in image], dtype=torch.int64),
            torch.tensor([crowd for _, _, crowd in image], dtype=torch.bool),
        )
        for image in instances
    )
    return LabeledBatch(images(len(targets)), targets)


def found(*instances: Sequence[tuple[int, int]]) -> list[Detections]:
    return [
        Detections(
            boxes_of([row for row, _ in image]),
            torch.full((len(image),), 0.9),
            torch.tensor([label for _, label in image], dtype=torch.int64),
        )
        for image in instances
    ]


def all_of(detections: Sequence[Detections]) -> list[Tensor]:
    return [torch.ones(len(d), dtype=torch.bool) for d in detections]


def slow_cosine(a: Sequence[float], b: Sequence[float]) -> float:
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / (math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(y * y for y in b)))


def slow_proxies(
    table: Tensor, batches: Sequence[LabeledBatch], num_classes: int
) -> list[list[float]]:
    """m_k: the mean vector of the instances of class k that are no crowd."""
    width = table.shape[1]
    sums, counts = [[0.0] * width for _ in range(num_classes)], [0] * num_classes
    for batch in batches:
        for targets in batch.targets:
            for i in range(len(targets)):
                if targets.ignored[i]:
                    continue
                label, row = int(targets.labels[i]), table[int(targets.boxes[i, 0])]
                counts[label] += 1
                for d in range(width):
                    sums[label][d] += float(row[d])
    return [[s / max(n, 1) for s in row] for row, n in zip(sums, counts, strict=True)]


def random_world(seed: int) -> tuple[Tensor, list[LabeledBatch]]:
    """200 rows in 8 dimensions, and labels over classes 0, 1 and 3 of 4: class 2 has none."""
    random = np.random.default_rng(seed)
    table = torch.from_numpy(random.normal(0.4, 1.0, (200, 8))).float()
    batches = []
    for _ in range(5):
        pictures = [
            [
                (int(random.integers(200)), int(random.choice([0, 1, 3])), random.random() < 0.2)
                for _ in range(random.integers(0, 12))
            ]
            for _ in range(3)
        ]
        batches.append(labeled(*pictures))
    return table, batches


def net(table: Tensor, classes: int = 4, bar: float | str = 0.6, saved: bool = False) -> MetaNet:
    return MetaNet(classes, Table(table.clone()), width=table.shape[1], bar=bar, saved=saved)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(5))
def test_proxies_are_mean_features_of_each_class(seed: int) -> None:
    table, batches = random_world(seed)
    metanet = net(table)
    assert not metanet.ready
    metanet.learn(iter(batches))  # an iterator can be read only once
    assert metanet.ready
    expected = torch.tensor(slow_proxies(table, batches, 4))
    torch.testing.assert_close(metanet.proxies, expected, rtol=1e-4, atol=1e-5)
    assert (metanet.proxies[[0, 1, 3]].norm(dim=1) > 0).all()


def test_crowd_does_not_enter_a_proxy_or_a_bar() -> None:
    table = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    for bar in (0.6, "auto"):
        metanet = net(table, 2, bar)
        metanet.learn([labeled([(0, 0, False), (1, 0, True), (1, 1, True)])])
        assert metanet.proxies.tolist() == [[1, 0], [0, 0]]
        doubts = metanet.doubtful(images(1), found([(1, 1)]), all_of(found([(1, 1)])))
        assert doubts[0].tolist() == [False]  # class 1 has crowd only: as good as no labels
        assert metanet.bars[0].item() == pytest.approx(0.6 if bar == 0.6 else 1.0)


@pytest.mark.parametrize(
    ("vector", "doubted"),
    [
        ((3.0, 4.0), False),  # cosine .6 to (1, 0): at the bar
        ((2.99, 4.0), True),
        ((3.01, 4.0), False),
        ((30.0, 41.0), True),  # length plays no part
        ((0.5, 0.0), False),
        ((-3.0, 0.0), True),
        ((0.0, 1.0), True),
    ],
)
def test_cosine_below_six_tenths_is_doubtful_and_at_it_is_not(
    vector: tuple[float, float], doubted: bool
) -> None:
    metanet = net(torch.tensor([[1.0, 0.0], vector]), 1)
    metanet.learn([labeled([(0, 0, False)])])
    detections = found([(1, 0)])
    assert metanet.doubtful(images(1), detections, all_of(detections))[0].tolist() == [doubted]


@pytest.mark.parametrize("bar", [0.6, "auto"])
@pytest.mark.parametrize("seed", range(5))
def test_doubts_equal_a_loop(seed: int, bar: float | str) -> None:
    """Each foreground detection is compared with the proxy of its own class."""
    table, batches = random_world(seed)
    metanet = net(table, bar=bar)
    metanet.learn(batches)
    proxies = slow_proxies(table, batches, 4)
    random = np.random.default_rng(seed + 100)
    detections = found(*(
        [(int(random.integers(200)), int(random.integers(4))) for _ in range(count)]
        for count in (7, 0, 40, 1)
    ))  # fmt: skip
    foreground = [torch.from_numpy(random.random(len(d)) < 0.6) for d in detections]
    doubts = metanet.doubtful(images(4), detections, foreground)
    bars = [0.6] * 4 if bar == 0.6 else slow_auto_bars(table, batches, proxies)
    doubted = 0
    for d, kept, doubt in zip(detections, foreground, doubts, strict=True):
        assert doubt.shape == (len(d),)
        assert doubt.dtype == torch.bool
        for i in range(len(d)):
            label, row = int(d.labels[i]), table[int(d.boxes[i, 0])].tolist()
            expected = (
                bool(kept[i]) and label != 2 and slow_cosine(row, proxies[label]) < bars[label]
            )
            assert bool(doubt[i]) == expected
            doubted += expected
    assert doubted > 0


def slow_auto_bars(
    table: Tensor, batches: Sequence[LabeledBatch], proxies: Sequence[Sequence[float]]
) -> list[float]:
    """The 5th percentile of the labeled instances' similarities to their own proxy."""
    alike: list[list[float]] = [[] for _ in proxies]
    for batch in batches:
        for targets in batch.targets:
            for i in range(len(targets)):
                if not targets.ignored[i]:
                    label, row = int(targets.labels[i]), table[int(targets.boxes[i, 0])].tolist()
                    alike[label].append(slow_cosine(row, proxies[label]))
    return [float(np.quantile(values, 0.05)) if values else -math.inf for values in alike]


@pytest.mark.parametrize("seed", range(5))
def test_auto_bars_are_the_fifth_percentile_of_own_similarities(seed: int) -> None:
    table, batches = random_world(seed)
    metanet = net(table, bar="auto")
    metanet.learn(batches)
    expected = slow_auto_bars(table, batches, slow_proxies(table, batches, 4))
    for label in (0, 1, 3):
        assert metanet.bars[label].item() == pytest.approx(expected[label], abs=1e-5)


def test_auto_doubts_about_a_twentieth_of_the_labels_themselves() -> None:
    random = np.random.default_rng(0)
    table = torch.from_numpy(random.normal(1.0, 1.0, (200, 8))).float()
    metanet = net(table, 1, "auto")
    metanet.learn([labeled([(row, 0, False) for row in range(200)])])
    detections = found([(row, 0) for row in range(200)])
    assert int(metanet.doubtful(images(1), detections, all_of(detections))[0].sum()) == 10


@pytest.mark.parametrize("bar", [0.6, "auto"])
def test_a_class_without_labels_is_never_doubted(bar: float | str) -> None:
    metanet = net(torch.tensor([[1.0, 1.0], [-1.0, -1.0], [0.0, 0.0]]), 3, bar)
    metanet.learn([labeled([(0, 0, False)])])
    detections = found([(0, 1), (1, 1), (2, 1), (1, 2), (1, 0)])
    doubts = metanet.doubtful(images(1), detections, all_of(detections))
    assert doubts[0].tolist() == [False, False, False, False, True]


def test_nothing_is_doubted_before_the_proxies_are_known() -> None:
    metanet = net(torch.tensor([[1.0, 1.0], [-1.0, -1.0]]), 2)
    detections = found([(0, 0), (1, 1)])
    assert not metanet.doubtful(images(1), detections, all_of(detections))[0].any()


def test_only_foreground_is_looked_at() -> None:
    metanet = net(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), 1)
    metanet.learn([labeled([(0, 0, False)])])
    detections = found([(1, 0), (1, 0), (0, 0)], [(1, 0)])
    foreground = [torch.tensor([False, True, True]), torch.tensor([False])]
    doubts = metanet.doubtful(images(2), detections, foreground)
    assert [d.tolist() for d in doubts] == [[False, True, False], [False]]
    extractor = metanet.extractor
    assert isinstance(extractor, Table)
    assert extractor.asked[-1] == [2, 0]


def test_no_foreground_and_no_detections() -> None:
    metanet = net(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), 1)
    metanet.learn([labeled([(0, 0, False)])])
    detections = found([(1, 0), (1, 0)], [])
    nothing = [torch.zeros(2, dtype=torch.bool), torch.zeros(0, dtype=torch.bool)]
    doubts = metanet.doubtful(images(2), detections, nothing)
    assert [d.tolist() for d in doubts] == [[False, False], []]


def test_labeled_images_without_boxes() -> None:
    metanet = net(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), 2)
    metanet.learn([labeled([], []), labeled([(1, 1, False)], [])])
    assert metanet.proxies.tolist() == [[0, 0], [0, 1]]
    assert metanet.ready


def test_nothing_of_it_has_a_gradient() -> None:
    table, batches = random_world(0)
    metanet = net(table, saved=True)
    metanet.learn(batches)
    detections = found([(0, 0), (1, 1)])
    doubts = metanet.doubtful(images(1), detections, all_of(detections))
    assert not metanet.proxies.requires_grad
    assert not doubts[0].requires_grad
    extractor = metanet.extractor
    assert isinstance(extractor, Table)
    assert extractor.rows.grad is None
    assert torch.equal(extractor.rows, table)


@pytest.mark.parametrize("saved", [False, True])
def test_the_state_holds_the_extractor_only_where_it_is_saved(saved: bool) -> None:
    table, batches = random_world(0)
    first = net(table, saved=saved)
    first.learn(batches)
    state = first.state_dict()
    own = {"proxies", "bars", "ready"}
    assert own <= state.keys()
    rest = [state[name] for name in state.keys() - own]
    assert len(rest) == (1 if saved else 0)
    if saved:
        assert torch.equal(rest[0], table)
        assert len(list(first.parameters())) == 1


@pytest.mark.parametrize("bar", [0.6, "auto"])
def test_a_saved_metanet_doubts_the_same(bar: float | str) -> None:
    table, batches = random_world(1)
    first = net(table, bar=bar, saved=True)
    first.learn(batches)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = net(torch.zeros_like(table), bar=bar, saved=True)
    second.load_state_dict(torch.load(file, weights_only=True))
    assert second.ready
    detections = found([(row, row % 4) for row in range(200)])
    one, two = (m.doubtful(images(1), detections, all_of(detections))[0] for m in (first, second))
    assert torch.equal(one, two)
    assert one.any()
    assert not one.all()


@pytest.mark.parametrize("seed", range(5))
def test_odds_are_the_softmax_of_the_cosines_to_all_classes_with_labels(seed: int) -> None:
    table, batches = random_world(seed)  # class 2 has no labels
    metanet = net(table)
    metanet.learn(batches)
    proxies = slow_proxies(table, batches, 4)
    places = [[3, 50, 7], [], [9]]
    odds = metanet.odds(images(3), [boxes_of(rows) for rows in places])
    assert [len(o) for o in odds] == [3, 0, 1]
    for rows, of_image in zip(places, odds, strict=True):
        for row, seen in zip(rows, of_image.tolist(), strict=True):
            power = {
                k: math.exp(10 * slow_cosine(table[row].tolist(), proxies[k])) for k in (0, 1, 3)
            }
            wanted = [power.get(k, 0.0) / sum(power.values()) for k in range(4)]
            assert seen == pytest.approx(wanted, rel=1e-4, abs=1e-4)


def test_odds_without_any_labels_favour_no_class() -> None:
    [odds] = net(torch.eye(4)).odds(images(1), [boxes_of([0, 2])])
    assert torch.allclose(odds, torch.full((2, 4), 0.25))
