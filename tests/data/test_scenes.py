"""The embedded data set: repeatable, extendable, leak-free, and with boxes that fit."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits  # type: ignore[import-untyped]

from dsl.data.scenes import (
    MAX_OVERLAP,
    SPLITS,
    VISIBLE,
    SceneOptions,
    _digit_mask,
    _overlap,
    draw_background,
    draw_scene,
    scans_by_class,
    scene_random,
    write_scenes,
)
from dsl.errors import UserError


def read_tree(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def read_split(root: Path, split: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((root / f"{split}.json").read_text())
    return content


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("scenes") / "digits"
    write_scenes(out, SceneOptions(), train=12, val=5, test=7)
    return out


def test_two_runs_write_the_same_bytes(written: Path, tmp_path: Path) -> None:
    write_scenes(tmp_path / "again", SceneOptions(), train=12, val=5, test=7)
    assert read_tree(tmp_path / "again") == read_tree(written)


EXPECTED = [
    [(4, 887), (1, 1485), (4, 1671), (6, 598), (1, 753)],
    [(9, 765), (2, 1364), (8, 1443), (0, 1336), (3, 91)],
    [(5, 1189), (3, 91), (3, 385), (8, 1666), (1, 693), (1, 883)],
]


def test_the_data_set_is_still_the_one_our_numbers_were_measured_on() -> None:
    scenes = [draw_scene(SceneOptions(), "test", number=n) for n in range(3)]
    # What is drawn, not how Pillow renders it: that may change by a grey level with its version.
    assert [[(d.label, d.scan) for d in s.digits] for s in scenes] == EXPECTED


def test_more_images_do_not_change_the_earlier_ones(written: Path, tmp_path: Path) -> None:
    write_scenes(tmp_path / "few", SceneOptions(), train=4, val=5, test=0)
    few, many = read_split(tmp_path / "few", "train"), read_split(written, "train")
    assert few["images"] == many["images"][:4]
    assert few["annotations"] == many["annotations"][: len(few["annotations"])]
    images = read_tree(tmp_path / "few" / "images")
    assert len(images) == 9
    assert images.items() <= read_tree(written / "images").items()


def test_seed_split_and_number_each_change_the_scene() -> None:
    keys = [(seed, split, number) for seed in (0, 1) for split in SPLITS for number in (0, 1)]
    # The first draws paint the background, which must not be shared between splits either.
    draws = {scene_random(seed, split, number=number).random() for seed, split, number in keys}
    assert len(draws) == 12
    scenes = {
        draw_scene(SceneOptions(seed=seed), split, number=number).pixels.tobytes()
        for seed, split, number in keys
    }
    assert len(scenes) == 12


def test_no_scan_serves_two_splits(tmp_path: Path) -> None:
    pools = [{int(s) for own in scans_by_class(split) for s in own} for split in SPLITS]
    assert sum(map(len, pools)) == len(set.union(*pools)) == 1797
    assert [round(len(pool) / 1797, 2) for pool in pools] == [0.6, 0.2, 0.2]

    write_scenes(tmp_path / "out", SceneOptions(), train=40, val=40, test=40)
    for split, pool in zip(SPLITS, pools, strict=True):
        used = {a["scan"] for a in read_split(tmp_path / "out", split)["annotations"]}
        assert len(used) > 100
        assert used <= pool


def test_a_label_is_what_its_scan_shows() -> None:
    truth = load_digits().target
    for split in SPLITS:
        for number in range(10):
            for digit in draw_scene(SceneOptions(), split, number=number).digits:
                assert digit.label == truth[digit.scan]


@pytest.mark.parametrize("size", [128, 256])
def test_boxes_cover_exactly_what_was_painted(size: int) -> None:
    options = SceneOptions(size=size, clutter=0)
    for number in range(40):
        scene = draw_scene(options, "train", number=number)
        random = scene_random(options.seed, "train", number=number)
        background = np.asarray(draw_background(size, random))
        change = np.abs(scene.pixels.astype(int) - background).max(axis=2)
        boxed = np.zeros((size, size), dtype=bool)
        for x1, y1, x2, y2 in (digit.box for digit in scene.digits):
            assert x2 - x1 == y2 - y1
            boxed[y1:y2, x1:x2] = True
        assert (change[boxed] >= 8).all()  # of 255: what a person can just see
        assert (change[~boxed] == 0).all()


def test_every_scan_can_be_drawn_at_the_asked_size() -> None:
    for scan in range(0, 1797, 7):
        for side in (20, 52):
            turn = (-1) ** scan
            mask = np.asarray(_digit_mask(scan, 30.0 * turn, 1.3**turn, side=side))
            assert mask.shape[0] == mask.shape[1]
            tall, wide = (int(np.ptp(mask.any(axis=a).nonzero()[0])) + 1 for a in (1, 0))
            assert 0.85 * side <= max(tall, wide) <= side  # sharpening may take the rim
            assert len(mask) == max(tall, wide)
            assert mask.max() > 200
            assert mask[mask > 0].min() >= VISIBLE


def test_digits_keep_the_asked_number_height_and_distance() -> None:
    options = SceneOptions(min_digits=2, max_digits=5, min_side=16, max_side=40)
    counts: Counter[int] = Counter()
    for number in range(100):
        boxes = [d.box for d in draw_scene(options, "train", number=number).digits]
        counts[len(boxes)] += 1
        for i, (x1, y1, x2, y2) in enumerate(boxes):
            assert 0 <= x1 < x2 <= 128
            assert 0 <= y1 < y2 <= 128
            assert 14 <= y2 - y1 <= 40  # sharpening may take the rim
            assert all(_overlap(boxes[i], other) <= MAX_OVERLAP for other in boxes[:i])
    assert set(counts) == {2, 3, 4, 5}


def test_overlap_is_a_share_of_the_smaller_box() -> None:
    assert _overlap((0, 0, 10, 10), (5, 0, 7, 20)) == 0.5
    assert _overlap((0, 0, 10, 10), (2, 2, 4, 4)) == 1.0
    assert _overlap((0, 0, 10, 10), (10, 0, 20, 10)) == 0.0
    assert _overlap((0, 0, 10, 10), (12, 12, 20, 20)) == 0.0


def test_digits_without_room_are_left_out() -> None:
    options = SceneOptions(size=64, min_digits=60, max_digits=60, min_side=20, max_side=32)
    digits = draw_scene(options, "train", number=0).digits
    assert 3 <= len(digits) < 60


def class_counts(imbalance: float) -> list[int]:
    options = SceneOptions(imbalance=imbalance)
    scenes = [draw_scene(options, "train", number=number) for number in range(150)]
    counts = Counter(d.label for scene in scenes for d in scene.digits)
    return [counts[label] for label in range(10)]


def test_classes_are_balanced_unless_asked_otherwise() -> None:
    counts = np.array(class_counts(0))
    assert counts.min() > 0.6 * counts.mean()
    assert counts.max() < 1.4 * counts.mean()


def test_imbalance_follows_the_power_law() -> None:
    counts = np.array(class_counts(1))
    weights = 1 / np.arange(1, 11)
    expected = counts.sum() * weights / weights.sum()
    assert np.all(np.abs(counts - expected) < 4 * np.sqrt(expected))  # four standard deviations
    assert counts[0] > 5 * counts[9]


def test_clutter_adds_noise_and_lines() -> None:
    def roughness(clutter: float) -> float:
        pixels = draw_scene(SceneOptions(clutter=clutter), "train", number=0).pixels
        return float(np.abs(np.diff(pixels.astype(int), axis=1)).mean())

    assert roughness(0) < 0.5 * roughness(1) < 0.25 * roughness(4)


def test_the_files_are_coco_and_match_the_images(written: Path) -> None:
    for split, count in zip(SPLITS, (12, 5, 7), strict=True):
        content = read_split(written, split)
        assert content["categories"] == [{"id": k + 1, "name": str(k)} for k in range(10)]
        assert [image["id"] for image in content["images"]] == list(range(1, count + 1))
        assert len(list((written / "images" / split).iterdir())) == count
        expected = []
        for number, image in enumerate(content["images"]):
            scene = draw_scene(SceneOptions(), split, number=number)
            with Image.open(written / image["file_name"]) as file:
                assert (image["width"], image["height"]) == file.size == (128, 128)
                assert np.array_equal(np.asarray(file), scene.pixels)
            for digit in scene.digits:
                x1, y1, x2, y2 = digit.box
                expected.append((image["id"], digit.label + 1, [x1, y1, x2 - x1, y2 - y1]))
        found = content["annotations"]
        assert [(a["image_id"], a["category_id"], a["bbox"]) for a in found] == expected
        assert [a["id"] for a in found] == list(range(1, len(found) + 1))
        assert all(a["area"] == a["bbox"][2] * a["bbox"][3] for a in found)
        assert all(a["iscrowd"] == 0 for a in found)
        assert all(isinstance(v, float) for a in found for v in (*a["bbox"], a["area"]))


def test_progress_counts_over_all_splits(tmp_path: Path) -> None:
    seen: list[int] = []
    write_scenes(
        tmp_path / "out", SceneOptions(size=64, max_side=32), train=2, val=0, test=1,
        progress=seen.append,
    )  # fmt: skip
    assert seen == [1, 2, 3]
    assert read_split(tmp_path / "out", "val")["images"] == []


def test_it_refuses_to_overwrite(written: Path, tmp_path: Path) -> None:
    before = read_tree(written)
    with pytest.raises(UserError, match="digits exists and is not an empty folder"):
        write_scenes(written, SceneOptions(seed=1), train=1, val=1, test=1)
    assert read_tree(written) == before

    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="file exists"):
        write_scenes(tmp_path / "file", SceneOptions(), train=1, val=0, test=0)
    assert (tmp_path / "file").read_text() == "mine"


def test_an_empty_folder_and_missing_parents_are_fine(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for out in (tmp_path / "empty", tmp_path / "a" / "b"):
        write_scenes(out, SceneOptions(), train=1, val=0, test=0)
        assert (out / "images" / "train" / "000000.png").is_file()
        assert sorted(p.name for p in out.iterdir()) == [
            "images", "test.json", "train.json", "val.json",
        ]  # fmt: skip


def test_a_folder_that_cannot_be_made_is_a_user_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="out: cannot write"):
        write_scenes(tmp_path / "file" / "out", SceneOptions(), train=1, val=0, test=0)


def test_an_interrupted_run_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(done: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_scenes(tmp_path / "out", SceneOptions(), train=3, val=0, test=0, progress=interrupt)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 8}, "size: 8 .* from 32 to 4096"),
        ({"min_digits": 0}, "min_digits: 0 .* from 1 to 7"),
        ({"min_digits": 8}, "min_digits: 8 .* from 1 to 7"),
        ({"max_digits": 101}, "max_digits: 101 .* from 1 to 100"),
        ({"min_side": 4}, "min_side: 4 .* from 8 to 52"),
        ({"min_side": 53}, "min_side: 53 .* from 8 to 52"),
        ({"max_side": 65}, "max_side: 65 .* from 8 to 64"),
        ({"clutter": -0.1}, "clutter: -0.1 .* from 0 to 5"),
        ({"clutter": float("nan")}, "clutter: nan .* from 0 to 5"),
        ({"imbalance": 6.0}, "imbalance: 6.0 .* from 0 to 5"),
        ({"seed": -1}, "seed: -1 .* from 0"),
    ],
)
def test_bad_options_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        SceneOptions(**options)


def test_a_negative_count_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"val: -1 .* from 0"):
        write_scenes(tmp_path / "out", SceneOptions(), val=-1)
    assert not (tmp_path / "out").exists()


def test_training_images_can_be_parted_into_labeled_and_unlabeled(tmp_path: Path) -> None:
    write_scenes(tmp_path / "out", SceneOptions(), train=10, val=1, test=1, labeled=3)
    train, few, rest = (read_split(tmp_path / "out", n) for n in ("train", "labeled", "unlabeled"))
    assert len(few["images"]) == 3
    assert few["images"] + rest["images"] == train["images"]
    assert few["annotations"] + rest["annotations"] == train["annotations"]
    assert {a["image_id"] for a in few["annotations"]} <= {i["id"] for i in few["images"]}


@pytest.mark.parametrize("labeled", [0, 10, 11])
def test_both_parts_must_hold_images(tmp_path: Path, labeled: int) -> None:
    with pytest.raises(UserError, match="labeled"):
        write_scenes(tmp_path / "out", SceneOptions(), train=10, val=1, test=1, labeled=labeled)
    assert not (tmp_path / "out").exists()
