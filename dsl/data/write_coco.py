"""Write a set as COCO: annotations.json and images/.

COCO holds all that an index has: ids, sizes, class order, areas, ignored boxes (as crowds), and the
scores of a detector. Equal sets give equal bytes.
"""

import json
from typing import Any

from dsl.data.index import Index
from dsl.data.write_folder import Request, Written, relative_names
from dsl.errors import UserError

ENTRY = "annotations.json"


def write_coco(request: Request) -> Written:
    """images/ as the names say, and one JSON file; without labels, it has no `annotations`."""
    index = request.index
    if index.annotations is not None and not index.classes:
        raise UserError(f"{index.source}: has no classes; COCO needs at least one")
    names = relative_names(index)
    # With some names that say images/ themselves, one more such folder would be ambiguous.
    prefix = "" if any(name.startswith("images/") for name in names) else "images/"
    image_ids, category_ids = _image_ids(index), _category_ids(index)
    images = []
    for position, name in enumerate(names):
        height, width = request.size(position)
        images.append(
            {"id": image_ids[position], "file_name": name, "width": width, "height": height}
        )
        request.place(position, prefix + name)
    content: dict[str, Any] = {"images": images}
    if index.annotations is not None:
        content["annotations"] = _annotations(request, image_ids, category_ids)
    content["categories"] = [
        {"id": number, "name": name}
        for number, name in zip(category_ids, index.classes, strict=True)
    ]
    # ASCII with escapes: a file name need not be valid Unicode, and JSON can say so.
    (request.folder / ENTRY).write_text(json.dumps(content) + "\n", encoding="ascii")
    return Written(ENTRY)


def _annotations(
    request: Request, image_ids: list[int], category_ids: list[int]
) -> list[dict[str, Any]]:
    found = request.index.annotations
    if found is None:
        return []
    owners = [
        image_ids[position]
        for position, count in enumerate(found.offsets.diff().tolist())
        for _ in range(count)
    ]
    rows = zip(
        owners, found.boxes.tolist(), found.labels.tolist(), found.ignored.tolist(),
        found.areas.tolist(), strict=True,
    )  # fmt: skip
    records: list[dict[str, Any]] = [
        {
            "id": number, "image_id": image, "category_id": category_ids[label],
            "bbox": [left, top, right - left, bottom - top], "area": area, "iscrowd": int(ignored),
        }
        for number, (image, (left, top, right, bottom), label, ignored, area) in enumerate(rows, 1)
    ]  # fmt: skip
    if request.scores is not None:
        for record, score in zip(records, request.scores.tolist(), strict=True):
            # iscrowd keeps an unsure box out of training; `uncertain` says why it is there.
            record |= {"score": round(score, 4), "uncertain": bool(record["iscrowd"])}
    return records


def _image_ids(index: Index) -> list[int]:
    ids: list[int] = index.ids.tolist()
    return ids if len(set(ids)) == len(ids) else list(range(1, len(ids) + 1))


def _category_ids(index: Index) -> list[int]:
    """The set's own ids where they are in the order of the classes: readers sort by id."""
    ids = list(index.category_ids)
    return ids if ids == sorted(set(ids)) else list(range(1, len(ids) + 1))
