"""Streams: the same samples on any number of workers and ranks, from any starting point."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dsl.data.augment import Strong
from dsl.data.formats import open_dataset
from dsl.data.index import Index
from dsl.data.loader import EvalBatches, Stream, TrainingBatches, collate_images, load
from dsl.data.views import LabeledViews, Weak
from dsl.errors import UserError
from dsl.types import Batch

SIDES = (48, 64)


def batches(
    index: Index, *, batch: int = 4, rank: int = 0, ranks: int = 1, shared: bool = False,
    parts: int = 1,
) -> TrainingBatches:  # fmt: skip
    views = LabeledViews(Weak(SIDES, 120, flip=True), strong=Strong())
    return TrainingBatches(
        Stream(index, views, 3, "labeled"), batch=batch, rank=rank, ranks=ranks,
        shared_sizes=SIDES if shared else (), parts=parts,
    )  # fmt: skip


@pytest.fixture
def index(coco: Callable[..., Path]) -> Index:
    return open_dataset(coco(count=10))


def content(batch: Batch) -> list[bytes]:
    """Each image's valid pixels and boxes, free of the padding."""
    labeled = batch.labeled
    return [
        image[:, :height, :width].numpy().tobytes() + targets.boxes.numpy().tobytes()
        for image, (height, width), targets in zip(
            labeled.images.images, labeled.images.sizes.tolist(), labeled.targets, strict=True
        )
    ]


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_workers_and_resuming_change_nothing(index: Index, workers: int) -> None:
    dataset = batches(index)
    whole = [content(dataset[step]) for step in range(6)]
    assert len({tuple(b) for b in whole}) == 6
    assert [content(b) for b in load(dataset, range(6), workers=workers)] == whole
    assert [content(b) for b in load(dataset, range(4, 6), workers=workers)] == whole[4:]


def test_ranks_stride_over_the_same_positions(index: Index) -> None:
    for step in range(3):
        one = content(batches(index)[step])
        parts = [content(batches(index, rank=r, ranks=2)[step]) for r in range(2)]
        assert [parts[i % 2][i // 2] for i in range(4)] == one


def test_a_shared_size_is_that_of_all_images_and_ranks_of_a_step(index: Index) -> None:
    sides = []
    for step in range(12):
        ranks = [batches(index, rank=r, ranks=2, shared=True)[step] for r in range(2)]
        drawn = {size for b in ranks for size in b.labeled.images.sizes.amin(dim=1).tolist()}
        assert len(drawn) == 1
        sides += drawn
    assert set(sides) == set(SIDES)


@pytest.mark.parametrize("shared", [False, True])
def test_accumulated_parts_are_the_whole_batch(index: Index, shared: bool) -> None:
    """Two parts of 2 images are the step of 4 images."""
    whole = batches(index, batch=4, shared=shared)
    parts = batches(index, batch=2, shared=shared, parts=2)
    for step in range(3):
        assert content(parts[2 * step]) + content(parts[2 * step + 1]) == content(whole[step])


def test_an_unreadable_image_is_replaced_and_told(index: Index) -> None:
    before = content(batches(index)[0])
    broken = index.path(0)
    broken.write_bytes(b"not an image")
    told, same = [], 0
    for step in range(3):
        batch = batches(index)[step]
        assert len(batch.labeled.targets) == 4
        told += batch.unreadable
        same += step == 0 and len(set(before) & set(content(batch)))
    assert told
    assert all(broken.name in message for message in told)
    assert same >= 3  # the others are as before


def test_nothing_but_unreadable_images_is_an_error(index: Index) -> None:
    for position in range(len(index)):
        index.path(position).write_bytes(b"")
    with pytest.raises(UserError, match="in a row"):
        batches(index)[0]


def test_images_are_padded_to_a_multiple_of_32_at_the_right_and_bottom() -> None:
    one = torch.full((3, 40, 70), 7, dtype=torch.uint8)
    other = torch.full((3, 33, 20), 9, dtype=torch.uint8)
    batch = collate_images([one, other])
    assert batch.images.shape == (2, 3, 64, 96)
    assert batch.sizes.tolist() == [[40, 70], [33, 20]]
    assert (batch.images[0, :, :40, :70] == 7).all()
    assert batch.images[1].sum() == 9 * 3 * 33 * 20


def test_test_batches_hold_one_canvas_each_and_every_image_once(
    coco: Callable[..., Path],
) -> None:
    paths = [coco(count=5, name="a", size=(64, 96)), coco(count=4, name="b", size=(96, 64))]
    for path in paths:
        index = open_dataset(path)
        dataset = EvalBatches(index, short_side=32, max_side=100, batch=3)
        seen = [p for number in range(len(dataset)) for p in dataset[number].positions]
        assert sorted(seen) == list(range(len(index)))
    ranked = [
        EvalBatches(index, short_side=32, max_side=100, batch=1, rank=r, ranks=2).batches
        for r in range(2)
    ]
    assert sorted(p for batch in ranked[0] + ranked[1] for p in batch) == list(range(4))


def test_mixed_canvases_are_never_in_one_batch(coco: Callable[..., Path], tmp_path: Path) -> None:
    wide = open_dataset(coco(count=3, name="a", size=(64, 96)))
    tall = open_dataset(coco(count=3, name="b", size=(96, 64)))
    from dsl.data.pictures import read_pictures

    files = [i.path(p) for p in range(3) for i in (wide, tall)]
    dataset = EvalBatches(read_pictures(files), short_side=32, max_side=100, batch=8)
    assert len(dataset) == 2
    assert {tuple(dataset[n].images.images.shape) for n in range(2)} == {
        (3, 3, 32, 64), (3, 3, 64, 32),
    }  # fmt: skip
