"""Write a set for Label Studio: tasks.json, label_config.xml and images/.

Boxes are predictions in percent of the image, as its import wants them; those to be ignored carry
the note "uncertain". The tasks name the images as Label Studio serves local files, with this folder
as its document root.
"""

import json
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

from dsl.data.index import Index
from dsl.data.label_studio import CONFIG, UNCERTAIN
from dsl.data.write_folder import Request, Written, names_below_images
from dsl.data.xml_tree import NOT_IN_XML
from dsl.errors import UserError
from dsl.image import Size

ENTRY = "tasks.json"
_CONTROL, _OBJECT = "label", "image"  # names in the labeling interface, and in every region


def write_label_studio(request: Request) -> Written:
    """One task per image, in the order of the set."""
    index = request.index
    names = names_below_images(index)
    (request.folder / CONFIG).write_bytes(_config(index))
    tasks = []
    for position, name in enumerate(names):
        request.place(position, f"images/{name}")
        height, width = size = request.size(position)
        served = quote(f"images/{name}", errors="surrogateescape")
        tasks.append({
            "data": {
                "image": f"/data/local-files/?d={served}",
                "width": width, "height": height, "rank": position + 1,
            },
            "predictions": [_prediction(request, position, size=size)],
        })  # fmt: skip
    (request.folder / ENTRY).write_text(json.dumps(tasks, indent=1) + "\n", encoding="ascii")
    return Written(ENTRY)


def _prediction(request: Request, position: int, *, size: Size) -> dict[str, Any]:
    found = request.index.annotations
    if found is None:
        return {"model_version": "dsl", "result": []}
    rows = range(int(found.offsets[position]), int(found.offsets[position + 1]))
    result = [_region(request, row, size=size) for row in rows]
    prediction: dict[str, Any] = {"model_version": "dsl", "result": result}
    if request.scores is not None and result:
        prediction["score"] = sum(region["score"] for region in result) / len(result)
    return prediction


def _region(request: Request, row: int, *, size: Size) -> dict[str, Any]:
    index, found = request.index, request.index.annotations
    if found is None:
        raise ValueError("a region needs annotations")
    height, width = size
    left, top, right, bottom = found.boxes[row].tolist()
    region: dict[str, Any] = {
        "id": f"box{row}", "type": "rectanglelabels", "from_name": _CONTROL, "to_name": _OBJECT,
        "original_width": width, "original_height": height, "image_rotation": 0,
        "value": {
            "x": 100 * left / width, "y": 100 * top / height,
            "width": 100 * (right - left) / width, "height": 100 * (bottom - top) / height,
            "rotation": 0, "rectanglelabels": [index.classes[int(found.labels[row])]],
        },
    }  # fmt: skip
    if request.scores is not None:
        region["score"] = round(float(request.scores[row]), 4)
    if found.ignored[row]:
        region["meta"] = {"text": [UNCERTAIN]}
    return region


def _config(index: Index) -> bytes:
    """The labeling interface to paste into the project's settings."""
    view = ElementTree.Element("View")
    ElementTree.SubElement(view, "Image", name=_OBJECT, value="$image", zoom="true")
    labels = ElementTree.SubElement(view, "RectangleLabels", name=_CONTROL, toName=_OBJECT)
    for name in index.classes:
        if NOT_IN_XML.search(name):
            raise UserError(f"{index.source}: class {name!r}: Label Studio cannot hold it; rename")
        ElementTree.SubElement(labels, "Label", value=name)
    ElementTree.indent(view)
    return bytes(ElementTree.tostring(view, encoding="utf-8")) + b"\n"
