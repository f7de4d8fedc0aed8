"""Tell the format of a data set from its path, and read it.

The one list of formats: a new format is one reader file and one line here.
"""

from pathlib import Path

from dsl.data.coco import read_coco
from dsl.data.cvat import is_cvat, read_cvat
from dsl.data.folder import read_folder, read_list
from dsl.data.index import Index
from dsl.data.json_stream import stream_object
from dsl.data.label_studio import CONFIG, is_label_studio, read_label_studio
from dsl.data.voc import read_voc
from dsl.data.yolo import find_yaml, read_yolo
from dsl.errors import UserError, show

_ACCEPTED = (
    "COCO or Label Studio .json, YOLO .yaml, CVAT .xml, VOC split or list of images .txt,"
    " or a folder"
)


def open_dataset(path: str | Path, *, split: str | None = None) -> Index:
    """The data set at this path, labeled where its format and files say so.

    `split` ("train" or "val") chooses a part where one path describes several, as data.yaml does;
    other formats have no parts and ignore it.
    """
    path = Path(path)
    if path.is_dir():
        return _open_folder(path, split)
    if not path.exists():
        raise UserError(f"{path}: does not exist; expected {_ACCEPTED}")
    suffix = path.suffix.lower()
    if suffix == ".json":
        return _open_json(path)
    if suffix == ".xml":
        return read_cvat(path)
    if suffix in (".yaml", ".yml"):
        return read_yolo(path, split)
    if suffix == ".txt":
        return read_voc(path) if "ImageSets" in path.absolute().parts else read_list(path)
    raise UserError(f"{path}: unknown kind of file {show(path.suffix)}; expected {_ACCEPTED}")


def _open_json(path: Path) -> Index:
    return read_label_studio(path) if is_label_studio(path) else read_coco(path)


def _open_folder(path: Path, split: str | None) -> Index:
    if is_cvat(path / "annotations.xml"):
        return read_cvat(path / "annotations.xml")
    if (path / CONFIG).is_file():  # before VOC, which is told by any .xml
        return _open_json(_only(path, _label_studio_files(path)))
    if (path / "Annotations").is_dir() or _any(path, ".xml"):
        return read_voc(path)
    if find_yaml(path) or (path / "classes.txt").is_file():
        return read_yolo(path, split)
    if (path / "images").is_dir() and (path / "labels").is_dir():
        return read_yolo(path, split)
    files = [file for folder in (path, path / "annotations") for file in _coco_files(folder)]
    return _open_json(_only(path, files)) if files else read_folder(path)


def _only(folder: Path, files: list[Path]) -> Path:
    if len(files) == 1:
        return files[0]
    listed = ", ".join(str(file.relative_to(folder)) for file in files) or "none"
    raise UserError(f"{folder}: expected one annotation file, found {listed}; name one of them")


def _any(folder: Path, suffix: str) -> bool:
    return any(file.suffix.lower() == suffix for file in folder.iterdir())


def _coco_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return [f for f in sorted(folder.iterdir()) if f.suffix.lower() == ".json" and _is_coco(f)]


def _label_studio_files(folder: Path) -> list[Path]:
    found = sorted(folder.iterdir())
    return [f for f in found if f.suffix.lower() == ".json" and is_label_studio(f)]


def _is_coco(path: Path) -> bool:
    try:
        return any(key == "images" for key, _ in stream_object(path))
    except UserError:  # some other file that happens to lie there
        return False
