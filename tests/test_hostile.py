"""Hostile input: refused in one line, without executing, waiting or filling the memory."""

import ast
import json
import os
import pickle
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dsl.config import load_config
from dsl.data.check import check_images
from dsl.data.formats import open_dataset
from dsl.engine.checkpoint import load_checkpoint
from dsl.errors import UserError, show
from dsl.image import read_image, read_size
from dsl.models.weights import find_weights, load_tensors

Maker = Callable[[Path], None]


def refused(job: Callable[[], object], *, naming: str) -> str:
    with pytest.raises(UserError) as error:
        job()
    message = str(error.value)
    assert naming in message
    assert "\n" not in message
    return message


# Files that run code.


def evil(marker: Path) -> object:
    class Evil:
        def __reduce__(self) -> tuple:
            return os.system, (f"touch {marker}",)

    return Evil()


@pytest.mark.parametrize("suffix", ["pt", "pth", "safetensors"])
@pytest.mark.parametrize(
    "load",
    [
        load_checkpoint,
        lambda path: load_tensors(path, field="--init"),
        lambda path: find_weights("resnet18", str(path)),
        lambda path: find_weights("resnet10t", str(path)),
    ],
    ids=["checkpoint", "init", "weights", "timm"],
)
def test_no_loader_runs_a_pickle(
    load: Callable[[Path], object], suffix: str, tmp_path: Path
) -> None:
    marker, path = tmp_path / "executed", tmp_path / f"evil.{suffix}"
    for write in (
        lambda: path.write_bytes(pickle.dumps(evil(marker))),
        lambda: torch.save({"format": "dsl-checkpoint", "weights": evil(marker)}, path),
        lambda: torch.save(
            {"state_dict": evil(marker)}, path, _use_new_zipfile_serialization=False
        ),
    ):
        write()
        refused(lambda: load(path), naming=path.name)
        assert not marker.exists()


def test_the_pickle_of_this_test_would_have_run(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(evil(tmp_path / "executed")))
    assert (tmp_path / "executed").exists()


def test_no_loader_is_told_to_trust_and_nothing_reaches_a_shell() -> None:
    """Read off the source: torch.load always says weights_only, and no call takes a shell."""
    for file in (Path(__file__).parents[1] / "dsl").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func)
            given = {word.arg: ast.unparse(word.value) for word in node.keywords}
            assert given.get("shell", "False") == "False", file
            assert name not in {"os.system", "os.popen", "eval", "exec", "pickle.load"}, file
            assert name not in {"pickle.loads", "yaml.load", "subprocess.getoutput"}, file
            if name in {"torch.load", "torch.hub.load_state_dict_from_url"}:
                assert given.get("weights_only") == "True", file


# Images that claim, hide or never end.


def png(*chunks: tuple[bytes, bytes], size: tuple[int, int] = (8, 8)) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)

    width, height = size
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"\0" * (min(height, 8) * (3 * min(width, 8) + 1)))
    parts = [(b"IHDR", header), *chunks, (b"IDAT", pixels), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def tiff(side: int) -> bytes:
    tags = [
        (256, 4, side), (257, 4, side), (258, 3, 8), (259, 3, 1), (262, 3, 1),
        (273, 4, 8), (277, 3, 1), (278, 4, side), (279, 4, side * side % (1 << 32)),
    ]  # fmt: skip
    entries = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in tags)
    return b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", len(tags)) + entries + b"\0" * 4


def test_a_good_png_of_this_test_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png())
    assert read_image(tmp_path / "a.png").pixels.shape == (8, 8, 3)


@pytest.mark.parametrize(
    "content",
    [
        png(size=(50_000, 50_000)),
        tiff(50_000),
        b"BM" + struct.pack("<IIIIiiHHIIIIII", 54, 0, 54, 40, 50_000, 50_000, 1, 24, *[0] * 6),
        png((b"zTXt", b"Comment\0\0" + zlib.compress(b" " * 80_000_000, 1))),
        png(*[(b"zTXt", b"C\0\0" + zlib.compress(b" " * 1_000_000))] * 70),
        png((b"iCCP", b"p\0\0" + zlib.compress(b" " * 80_000_000, 1))),
    ],
    ids=["png", "tiff", "bmp", "long text", "many texts", "profile"],
)
def test_bombs_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bomb.img"
    path.write_bytes(content)
    refused(lambda: read_image(path), naming="bomb.img")


def pipe(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.write(b'{"images": [')
        file.truncate(10 << 30)


@pytest.mark.parametrize("make", [pipe, endless, loop, sparse])
@pytest.mark.parametrize("read", [read_image, read_size])
def test_images_without_end(read: Callable[[Path], object], make: Maker, tmp_path: Path) -> None:
    make(tmp_path / "a.png")
    refused(lambda: read(tmp_path / "a.png"), naming="a.png")


@pytest.mark.parametrize("make", [pipe, endless, loop, sparse])
@pytest.mark.parametrize(
    "name", ["a.json", "a.yaml", "a.txt", "ImageSets/Main/a.txt", "Annotations/a.xml"]
)
def test_annotations_without_end(make: Maker, name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "Annotations").mkdir(exist_ok=True)
    make(path)
    place = tmp_path if path.suffix == ".xml" else path
    refused(lambda: open_dataset(place), naming=path.name)


@pytest.mark.parametrize("make", [pipe, endless, loop, sparse])
@pytest.mark.parametrize("name", ["data.yaml", "classes.txt", "labels/a.txt"])
def test_yolo_files_without_end(make: Maker, name: str, tmp_path: Path) -> None:
    for folder in ("images", "labels"):
        (tmp_path / folder).mkdir()
    (tmp_path / "images" / "a.png").write_bytes(png())
    make(tmp_path / name)
    refused(lambda: open_dataset(tmp_path), naming=str(tmp_path))


@pytest.mark.parametrize("make", [pipe, endless, loop, sparse])
def test_checkpoints_and_recipes_without_end(make: Maker, tmp_path: Path) -> None:
    for name, load in (
        ("a.pt", load_checkpoint),
        ("b.pth", lambda path: load_tensors(path, field="--init")),
        ("c.toml", lambda path: load_config(str(path))),
    ):
        make(tmp_path / name)
        refused(lambda load=load, name=name: load(tmp_path / name), naming=name)


def test_a_value_without_end_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsl.data.json_stream._MAX_VALUE", 1 << 18)
    path = tmp_path / "a.json"
    path.write_text('{"info": "' + "a" * (1 << 20) + '", "images": []}')
    assert "one value" in refused(lambda: open_dataset(path), naming="a.json")


def test_a_short_yaml_that_stands_for_billions_is_shown_short(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 8)}]" for n in range(1, 12)]
    (tmp_path / "a.yaml").write_text("\n".join([*lines, "names: [*a11]", "train: x"]))
    refused(lambda: open_dataset(tmp_path / "a.yaml"), naming="a.yaml")
    assert len(show([["x" * 1000] * 1000] * 1000)) <= 60
    assert show(1 << 20_000) == "a very long int"


def test_entities_of_xml_are_not_unfolded(tmp_path: Path) -> None:
    (tmp_path / "Annotations").mkdir()
    bomb = '<!DOCTYPE a [<!ENTITY x "xx"><!ENTITY y "&x;&x;">]><annotation>&y;</annotation>'
    (tmp_path / "Annotations" / "a.xml").write_text(bomb)
    assert "DOCTYPE" in refused(lambda: open_dataset(tmp_path), naming="a.xml")


# Paths that lead elsewhere.

OUTSIDE = ["../secret.png", "/etc/secret.png", "a/../../secret.png", "C:\\secret.png", "a\0.png"]


@pytest.mark.parametrize("name", OUTSIDE)
def test_coco_names_stay_below_the_image_folder(name: str, tmp_path: Path) -> None:
    image = {"id": 1, "file_name": name, "width": 8, "height": 8}
    (tmp_path / "a.json").write_text(json.dumps({"images": [image]}))
    refused(lambda: open_dataset(tmp_path / "a.json"), naming="file_name")


@pytest.mark.parametrize("name", OUTSIDE[:4])
def test_voc_names_stay_below_the_image_folder(name: str, tmp_path: Path) -> None:
    (tmp_path / "Annotations").mkdir()
    page = f"<annotation><filename>{name}</filename></annotation>"
    (tmp_path / "Annotations" / "a.xml").write_text(page)
    refused(lambda: open_dataset(tmp_path), naming="filename")
    split = tmp_path / "ImageSets" / "Main" / "train.txt"
    split.parent.mkdir(parents=True)
    split.write_text(f"{name}\n")
    refused(lambda: open_dataset(split), naming="train.txt")


@pytest.mark.parametrize("entry", ["../../secret", "{root}/secret", "list.txt", "absolute.txt"])
def test_yolo_entries_stay_in_the_set(entry: str, tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "a.png").write_bytes(png())
    home = tmp_path / "sets" / "mine"
    home.mkdir(parents=True)
    (home / "list.txt").write_text("../../secret/a.png\n")
    (home / "absolute.txt").write_text(f"{tmp_path}/secret/a.png\n")
    described = home / "data.yaml"
    described.write_text(f"train: {entry.format(root=tmp_path)}\nnames: [cat]\n")
    message = refused(lambda: open_dataset(described), naming=str(home))
    assert "leaves the data set" in message


def test_links_inside_the_image_folder_are_followed(tmp_path: Path) -> None:
    """They are the user's own: an annotation file cannot make one."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a.png").write_bytes(png())
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "images").symlink_to(tmp_path / "elsewhere")
    image = {"id": 1, "file_name": "a.png", "width": 8, "height": 8}
    (tmp_path / "set" / "a.json").write_text(json.dumps({"images": [image]}))
    assert len(check_images(open_dataset(tmp_path / "set" / "a.json"))) == 1


def test_links_that_lead_back_end(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png())
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "up").symlink_to(tmp_path)
    (tmp_path / "self").symlink_to("self")
    (tmp_path / "self.png").symlink_to("self.png")
    index = open_dataset(tmp_path)
    assert [index.names[i] for i in range(len(index))] == ["a.png", "self.png"]
    refused(lambda: read_image(index.path(1)), naming="self.png")
    refused(lambda: open_dataset(tmp_path / "self"), naming="self")


@pytest.mark.parametrize("name", ["\ud800", "cat\udfff"])
def test_class_names_that_cannot_be_printed(name: str, tmp_path: Path) -> None:
    image = {"id": 1, "file_name": "a.png"}
    content = {"images": [image], "annotations": [], "categories": [{"id": 1, "name": name}]}
    (tmp_path / "a.json").write_text(json.dumps(content))
    refused(lambda: open_dataset(tmp_path / "a.json"), naming="name")
    written = json.dumps(name)
    (tmp_path / "a.yaml").write_text(f"names: [{written}]\ntrain: images\n")
    refused(lambda: open_dataset(tmp_path / "a.yaml"), naming="a.yaml")
