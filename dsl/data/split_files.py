"""Read the split files of others: which images of a set are labeled.

STAC, Soft Teacher and the DSL authors share names but not contents (METHOD 8); Unbiased Teacher
has one JSON of indices. It only chooses images: the pair is written from the set's own records.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import torch

from dsl.data.coco_records import Source
from dsl.data.json_stream import Elements, stream_object
from dsl.data.manifest import stated_root
from dsl.data.split_pairs import Choice
from dsl.errors import UserError, show

_NAME = re.compile(r"(?P<stem>.+)\.(?P<seed>\d+)@(?P<percent>\d+(\.\d+)?)(-unlabel(ed)?)?")
_ACCEPTED = (
    "expected a COCO file of the labeled images, Unbiased Teacher's {percent: {seed: [indices]}}, "
    "a text file of image names, or a folder of NAME.json files"
)


@dataclass(frozen=True)
class FoundSplit:
    """What a split file turned out to be."""

    kind: str  # who writes such files
    choices: tuple[Choice, ...]
    notes: tuple[str, ...]  # counts, and what is remarkable about them


@dataclass(frozen=True)
class Wanted:
    """Which of several splits of one file; where the file holds one, how it shall be called."""

    percents: tuple[float, ...] = ()
    fold: int | None = None


def read_split(path: Path, source: Source, wanted: Wanted) -> FoundSplit:
    """Recognise the kind of the file or folder, and find its images in the set."""
    if path.is_dir():
        names = sorted(file.name[:-5] for file in path.glob("*.json"))
        if not names:
            raise UserError(f"{path}: holds no NAME.json files; {_ACCEPTED}")
        kind = "DSL authors' folder of one annotation file per image"
        return _of_names(path, names, source=source, wanted=wanted, kind=kind)
    if not path.is_file():
        raise UserError(f"{path}: does not exist; {_ACCEPTED}")
    if _starts_with_brace(path):
        table = _index_table(path)
        if table is not None:
            return _of_indices(path, table, source=source, wanted=wanted)
        return _of_coco(path, source, wanted=wanted)
    kind = "text file of image names, as the DSL authors' lists are"
    return _of_names(path, _lines(path), source=source, wanted=wanted, kind=kind)


# COCO files of the labeled images


def _of_coco(path: Path, source: Source, *, wanted: Wanted) -> FoundSplit:
    match = _NAME.fullmatch(path.stem)
    if match and "-unlabel" in path.stem:
        path = path.with_name(f"{path.stem.rpartition('-')[0]}.json")
        if not path.is_file():
            raise UserError(f"{path}: the labeled file of this pair is absent; --from needs it")
    listed = list(_image_names(path))
    if not listed:
        raise UserError(f"{path}: key 'images' is absent or empty; {_ACCEPTED}")
    if match is None:
        kind = "COCO file of the labeled images"
        return _of_names(path, listed, source=source, wanted=wanted, kind=kind)
    places = _places(path, listed, source)
    percent, unique, total = float(match["percent"]), len(set(places)), len(source.names)
    choice = Choice(int(match["seed"]), percent, _mask(places, total))
    asked = int(percent / 100 * total)
    kind = _kind_of_pair(path, unique, asked)
    notes = [f"{unique:,} unique images of {total:,}; {percent:g} % would be {asked:,}"]
    if len(listed) > unique:
        notes.append(
            f"the file lists {len(listed):,} images, {len(listed) - unique:,} of them again"
        )
    if unique < asked:
        notes.append("fewer unique images than asked for: drawn with replacement")
    return FoundSplit(kind, (choice,), (*notes, *_note_on_rest(path, places, source)))


def _kind_of_pair(path: Path, unique: int, asked: int) -> str:
    """The names are shared, so the counts and the neighbours have to tell."""
    if stated_root(path) is not None:
        return "dsl data split"
    if unique < asked:
        return "STAC (drawn with replacement)"
    if unique > asked:
        return "COCO pair of an unknown writer"
    whole = path.stem.partition(".")[0]
    beside = [path.parent / f"{name}.json" for name in (whole, whole.replace("train", "val"))]
    # The authors' script leaves copies of the whole annotation files beside its splits.
    return "DSL authors" if all(file.is_file() for file in beside) else "Soft Teacher"


def _note_on_rest(path: Path, places: Sequence[int], source: Source) -> Iterator[str]:
    for ending in ("-unlabeled", "-unlabel"):
        other = path.with_name(f"{path.stem}{ending}.json")
        if not other.is_file():
            continue
        rest = set(_places(other, list(_image_names(other)), source))
        both, neither = rest & set(places), len(source.names) - len(rest | set(places))
        if both or neither:
            yield (
                f"{other.name}: {len(both):,} of its images are labeled too, {neither:,} images are"
                " in neither file; ours holds all that are not labeled"
            )


def _image_names(path: Path) -> Iterator[str]:
    for key, value in stream_object(path, skip="segmentation"):
        if key == "images" and isinstance(value, Elements):
            for place, record in enumerate(value):
                name = record.get("file_name") if isinstance(record, dict) else None
                if not isinstance(name, str):
                    raise UserError(f"{path}: images[{place}]: 'file_name' must be a text")
                yield name
            return


# Unbiased Teacher: {percent: {seed: [indices]}}

Table = dict[float, dict[int, list[int]]]


def _index_table(path: Path) -> Table | None:
    """None: the file is something else."""
    first = next(stream_object(path), None)
    if first is None or not isinstance(first[1], dict) or not _is_number(first[0]):
        return None
    content = json.loads(path.read_text(encoding="utf-8-sig"))
    table: Table = {}
    for percent, seeds in content.items():
        if not _is_number(percent) or not isinstance(seeds, dict):
            raise UserError(f"{path}: key {show(percent)}: expected {{seed: [indices]}}")
        for seed, indices in seeds.items():
            if not seed.isdecimal() or not isinstance(indices, list):
                raise UserError(f"{path}: {show(percent)}: {show(seed)}: expected seed: [indices]")
            if not all(type(place) is int and place >= 0 for place in indices):
                raise UserError(f"{path}: {percent}: {seed}: indices must be whole numbers from 0")
            table.setdefault(float(percent), {})[int(seed)] = indices
    return table


def _of_indices(path: Path, table: Table, *, source: Source, wanted: Wanted) -> FoundSplit:
    choices, notes = [], []
    percents = wanted.percents or (tuple(table) if len(table) == 1 else ())
    if not percents:
        raise UserError(f"{path}: holds several splits; choose --percent from {_listed(table)}")
    for percent in percents:
        if percent not in table:
            raise UserError(f"--percent {percent:g}: {path} has {_listed(table)}")
        seeds = table[percent]
        fold = next(iter(seeds)) if wanted.fold is None and len(seeds) == 1 else wanted.fold
        if fold is None or fold not in seeds:
            raise UserError(f"--fold: {path} has {_listed(seeds)} at {percent:g} %; choose one")
        base, meaning = _base(path, len(seeds[fold]), percent=percent, source=source)
        if max(seeds[fold], default=0) >= len(base):
            raise UserError(
                f"{path}: {percent:g}: {fold}: an index is beyond the {len(base)} images"
            )
        places = base[np.asarray(seeds[fold], np.int64)].tolist()
        choices.append(Choice(fold, percent, _mask(places, len(source.names))))
        notes.append(f"{len(set(places)):,} unique images of {len(base):,}; indices into {meaning}")
    return FoundSplit("Unbiased Teacher (JSON of indices)", tuple(choices), tuple(notes))


def _base(
    path: Path, count: int, *, percent: float, source: Source
) -> tuple["np.ndarray[tuple[int], np.dtype[np.int64]]", str]:
    """The list that the indices count in. Theirs is sorted by id and leaves out images without a
    box; the number of indices tells whether that is so here."""
    order = np.argsort(source.index.ids.numpy(), kind="stable")
    filled = order[source.with_objects()[order]]
    for base, meaning in (
        (filled, "the images that have a box, by id"),
        (order, "all images, by id"),
    ):
        if int(percent / 100 * len(base)) == count:
            return base, meaning
    raise UserError(
        f"{path}: {count} indices at {percent:g} % do not fit the {len(order)} images"
        f" ({len(filled)} with boxes) of {source.index.source}; name the set that it was made for"
    )


# Names of images


def _of_names(
    path: Path, names: Sequence[str], *, source: Source, wanted: Wanted, kind: str
) -> FoundSplit:
    places, total = _places(path, names, source), len(source.names)
    share = round(100 * len(set(places)) / total, 4)
    if len(wanted.percents) > 1:
        raise UserError(f"--percent: {path} holds one split; name at most one percent for it")
    percent = wanted.percents[0] if wanted.percents else share
    choice = Choice(wanted.fold or 1, percent, _mask(places, total))
    notes = (f"{len(set(places)):,} unique images of {total:,}, {share:g} %",)
    return FoundSplit(kind, (choice,), notes)


def _places(path: Path, names: Iterable[str], source: Source) -> list[int]:
    """Where these images stand in the set: by name, else by the last part of it, with or without
    its suffix. A last part that several images share decides nothing."""
    known: dict[str, int] = {}
    for place, name in enumerate(source.names):
        base = PurePosixPath(name)
        for short in {base.name, base.stem}:
            known[short] = place if known.get(short, place) == place else -1
    known |= {name: place for place, name in enumerate(source.names)}
    found = []
    for name in names:
        place = known.get(name, known.get(PurePosixPath(name).name, -1))
        if place < 0:
            raise UserError(
                f"{path}: image {show(name)} is not in {source.index.source}, or several have that"
                " name; name the set that the split was made for"
            )
        found.append(place)
    return found


def _mask(places: Sequence[int], total: int) -> torch.Tensor:
    mask = torch.zeros(total, dtype=torch.bool)
    mask[list(places)] = True
    return mask


def _lines(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is no text; {_ACCEPTED}") from error
    names = [line.strip() for line in lines if line.strip()]
    if not names:
        raise UserError(f"{path}: is empty; {_ACCEPTED}")
    return names


def _starts_with_brace(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(64).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{")


def _is_number(text: str) -> bool:
    return re.fullmatch(r"\d+(\.\d+)?", text) is not None


def _listed(keys: Iterable[float]) -> str:
    return ", ".join(f"{key:g}" for key in keys)
