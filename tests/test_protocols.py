"""Every protocol recipe runs, in small, on the folder layouts of COCO and Pascal VOC.

Splits are made by `dsl data split`, the joined list by `dsl data join`, as a user would.
"""

import sys
from pathlib import Path

import pytest
from miniature import write_coco, write_voc

from dsl import cli
from dsl.config import shipped_recipes

PROTOCOLS = [name for name in shipped_recipes() if name.startswith("protocols/")]


def call(*arguments: object) -> int:
    before, sys.argv = sys.argv, ["dsl", *(str(argument) for argument in arguments)]
    try:
        cli.main()
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        sys.argv = before
    raise AssertionError("the command line always exits")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("benchmarks")
    write_coco(root / "coco")
    write_voc(root)
    train, val = (root / f"coco/annotations/instances_{part}2017.json" for part in ("train", "val"))
    voc = root / "VOCdevkit"
    assert not call(
        "data", "split", train, "--percent", "1", "2", "5", "10", "--folds", 3,
        "--out", root / "splits",
    )  # fmt: skip
    assert not call(
        "data", "join", voc / "VOC2012/ImageSets/Main/trainval.txt", train, "--classes-of",
        voc / "VOC2007/ImageSets/Main/trainval.txt", "--without", val,
        "--out", root / "voc12-coco20.txt",
    )  # fmt: skip
    return root


def data_of(recipe: str, root: Path) -> list[Path | str]:
    """What a user names for this protocol."""
    name = recipe.removeprefix("protocols/").removesuffix("-supervised")
    coco, voc = root / "coco" / "annotations", root / "VOCdevkit"
    if name.startswith("voc"):
        labeled = voc / "VOC2007/ImageSets/Main/trainval.txt"
        val = voc / "VOC2007/ImageSets/Main/test.txt"
        unlabeled = voc / "VOC2012/ImageSets/Main/trainval.txt"
        if name == "voc-coco20":
            unlabeled = root / "voc12-coco20.txt"
    elif name == "coco-full":
        labeled, val = coco / "instances_train2017.json", coco / "instances_val2017.json"
        unlabeled = coco / "image_info_unlabeled2017.json"
    else:
        stem = root / "splits" / f"instances_train2017.2@{name.removeprefix('coco-')}"
        labeled, val = Path(f"{stem}.json"), coco / "instances_val2017.json"
        unlabeled = Path(f"{stem}-unlabeled.json")
    chosen: list[Path | str] = ["--labeled", labeled, "--val", val]
    return chosen if recipe.endswith("-supervised") else [*chosen, "--unlabeled", unlabeled]


@pytest.mark.parametrize("recipe", PROTOCOLS)
def test_every_protocol_runs(
    recipe: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    out = root / "run"
    monkeypatch.chdir(tmp_path)
    code = call(
        "train", *data_of(recipe, root), "--preset", recipe, "--out", out, "--device", "cpu",
        "--dry-run",
    )  # fmt: skip
    assert not list(tmp_path.iterdir())  # nothing is left behind
    shown = capsys.readouterr()
    assert code == 0, shown.err
    assert not out.exists()
    phases = ["step, train"] if "supervised" in recipe else ["step, burn-in", "step, semi-superv"]
    for part in ("resnet50", "evaluation", "not checked: memory", *phases):
        assert part in shown.out, shown.out


def test_a_dry_run_refuses_what_the_run_would_refuse(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = data_of("protocols/coco-10", root)
    for extra, mention in (
        (["--out", root / "coco"], "exists already"),
        (["--set", "optim.accumulate=3"], "optim.batch"),
        (["--resume", root], "--resume"),
        (["--labeled", root / "absent.json"], "does not exist"),
    ):
        assert call("train", *given, "--preset", "protocols/coco-10", "--dry-run", *extra) == 2
        assert mention in capsys.readouterr().err


def test_unlabeled_coco_from_the_bare_folder(root: Path) -> None:
    from dsl.data.formats import open_dataset

    folder = open_dataset(root / "coco" / "unlabeled2017")
    listed = open_dataset(root / "coco/annotations/image_info_unlabeled2017.json")
    assert folder.annotations is listed.annotations is None
    assert {folder.path(i) for i in range(6)} == {listed.path(i) for i in range(6)}


def test_a_split_of_others_becomes_ours(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = root / "coco/annotations/instances_train2017.json"
    theirs = root / "COCO_supervision.txt"
    theirs.write_text('{"2.0": {"0": [5, 6], "1": [0, 99]}, "1.0": {"1": [7]}}')
    code = call(
        "data", "split", train, "--from", theirs, "--percent", "2,1", "--fold", 1,
        "--out", root / "from",
    )  # fmt: skip
    shown = capsys.readouterr()
    assert code == 0, shown.err
    assert "found: Unbiased Teacher" in shown.out
    names = {file.name for file in (root / "from").iterdir()}
    assert {"instances_train2017.1@2.json", "instances_train2017.1@1-unlabeled.json"} < names


@pytest.mark.parametrize(
    ("arguments", "mention"),
    [
        ([], "--percent is missing"),
        (["--percent", "x"], "expected numbers"),
        (["--percent", "5", "5"], "asked for twice"),
        (["--percent", "5", "--fold", "1"], "--fold goes with --from"),
        (["--percent", "0"], "above 0"),
        (["--from", "absent.txt"], "does not exist"),
        (["--from", "absent.txt", "--stratified"], "leave out"),
    ],
)
def test_bad_splits(
    root: Path, arguments: list[str], mention: str, capsys: pytest.CaptureFixture[str]
) -> None:
    train = root / "coco/annotations/instances_train2017.json"
    assert call("data", "split", train, "--out", root / "bad", *arguments) == 2
    assert mention in capsys.readouterr().err
    assert not (root / "bad").exists()


def test_a_dry_run_warns_about_the_real_run(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of nine steps, as asked for; the rehearsal itself takes two."""
    recipe = "protocols/voc"
    options = ["--preset", recipe, "--steps", 9, "--device", "cpu", "--dry-run"]
    assert call("train", *data_of(recipe, root), *options) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "of 9: its beginning weighs in" in said
    assert "of 2: its beginning weighs in" not in said
