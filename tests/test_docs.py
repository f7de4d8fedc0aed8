"""Every command and every piece of Python in the documents runs, in a folder as they describe it.

Trainings are cut to a few steps on small images, the paper's protocols to a rehearsal; apart from
that the commands run as they are printed, one after the other, file by file.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from miniature import write_coco, write_voc

from dsl.cli import app
from dsl.config import parse_overrides
from dsl.data.scenes import SceneOptions, write_scenes

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SETTINGS = (
    "run.steps=2", "run.epochs=none", "run.workers=0", "optim.batch=4", "views.short_sides=[64]",
    "views.test_short_side=64", "model.backbone=resnet10t_half", "model.weights=none",
    "model.channels=64", "model.num_convs=1", "teaching.metanet=detector",
)  # fmt: skip
SMALL = ["--device", "cpu", *(word for setting in SETTINGS for word in ("--set", setting))]
# Run by people and by the check of a fresh clone, not from inside a test.
NOT_HERE = ("make ", "source ", "pip ", "git ", "cd ")


def commands(page: Path) -> list[str]:
    """The lines of all ```sh blocks, without comments; a backslash joins lines."""
    blocks = re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    bare = [line.split(" #")[0].strip() for line in lines]
    return [line for line in bare if line and not line.startswith(NOT_HERE)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the documents suppose: photos/, coco/ and VOCdevkit/."""
    root = tmp_path_factory.mktemp("docs")
    scenes = root / "photos"
    write_scenes(scenes, SceneOptions(size=64, max_side=28, seed=3), train=14, val=4, test=3)
    shutil.copytree(scenes / "images" / "test", scenes / "new")
    more = scenes / "more"
    more.mkdir()
    for number, file in enumerate(sorted((scenes / "images" / "test").iterdir())):
        shutil.copy(file, more / f"more{number}.png")
    write_coco(root / "coco", train=20)
    write_voc(root)
    return root


def run(line: str) -> None:
    words = shlex.split(line)
    training = "train" in words and "--resume" not in words
    if training:
        words += ["--dry-run"] if "protocols/" in line else SMALL
    if "--devices" in words:  # starts processes, which must not be copies of this test
        module = {"torchrun": "torch.distributed.run", "dsl": "dsl"}[words[0]]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", module, *words[1:]]
        subprocess.run(command, check=True, timeout=180, env=environment)
        return
    assert words[0] == "dsl", f"the documents have a command that this test cannot run: {line}"
    app(words[1:], standalone_mode=False)


@pytest.mark.parametrize("page", [p for p in PAGES if commands(p)], ids=lambda page: page.name)
def test_the_commands_of_the_documents_run(
    page: Path, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for thing in ("photos", "coco", "VOCdevkit"):
        shutil.copytree(world / thing, tmp_path / thing)
    monkeypatch.chdir(tmp_path)
    for line in commands(page):
        monkeypatch.setattr(sys, "argv", shlex.split(line))
        run(line)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_python_of_the_documents_runs(
    page: Path, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    shutil.copytree(world / "photos", tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    for name in ("a.jpg", "b.jpg"):
        shutil.copy(next((tmp_path / "photos" / "new").iterdir()), name)
    for block in blocks:
        block = block.replace('{"run.steps": 500}', repr(parse_overrides(SETTINGS)))
        exec(compile(block, str(page), "exec"), {"__name__": "documents"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name}: {target}"
