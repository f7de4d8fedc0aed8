"""Write a set for CVAT: annotations.xml ("CVAT for images 1.1"), labels.json and images/.

Every box has the attributes `uncertain` and, where a detector found it, `score`. CVAT takes boxes
only for labels that the task has, so labels.json is what to paste into its raw label editor.
"""

import json
from typing import Any
from xml.etree import ElementTree

from dsl.data.cvat import UNCERTAIN
from dsl.data.index import Index
from dsl.data.write_folder import Request, Written, names_below_images
from dsl.data.xml_tree import NOT_IN_XML
from dsl.errors import UserError

ENTRY = "annotations.xml"


def write_cvat(request: Request) -> Written:
    """The images in the order of the set; CVAT finds them by name."""
    index = request.index
    names = names_below_images(index)
    for text in (*index.classes, *names):
        if NOT_IN_XML.search(text):
            raise UserError(f"{index.source}: {text!r} has characters that XML cannot hold; rename")
    top = ElementTree.Element("annotations")
    ElementTree.SubElement(top, "version").text = "1.1"
    top.append(_meta(index))
    for position, name in enumerate(names):
        request.place(position, f"images/{name}")
        height, width = request.size(position)
        image = ElementTree.SubElement(
            top, "image", id=str(position), name=name, width=str(width), height=str(height)
        )
        _add_boxes(image, request, position)
    ElementTree.indent(top)
    data = ElementTree.tostring(top, encoding="utf-8", xml_declaration=True)
    (request.folder / ENTRY).write_bytes(data + b"\n")
    labels = json.dumps(_labels(index), indent=1, ensure_ascii=False)
    (request.folder / "labels.json").write_text(labels + "\n", encoding="utf-8")
    return Written(ENTRY)


def _add_boxes(image: ElementTree.Element, request: Request, position: int) -> None:
    index, found = request.index, request.index.annotations
    if found is None:
        return
    for row in range(int(found.offsets[position]), int(found.offsets[position + 1])):
        box = ElementTree.SubElement(image, "box", label=index.classes[int(found.labels[row])])
        box.set("source", "auto")
        box.set("occluded", "0")
        for key, value in zip(("xtl", "ytl", "xbr", "ybr"), found.boxes[row].tolist(), strict=True):
            box.set(key, f"{value:.4f}")
        box.set("z_order", "0")
        ignored = "true" if found.ignored[row] else "false"
        ElementTree.SubElement(box, "attribute", name=UNCERTAIN).text = ignored
        if request.scores is not None:
            score = f"{float(request.scores[row]):.4f}"
            ElementTree.SubElement(box, "attribute", name="score").text = score


def _meta(index: Index) -> ElementTree.Element:
    meta = ElementTree.Element("meta")
    task = ElementTree.SubElement(meta, "task")
    for key, text in (("name", "dsl"), ("size", str(len(index))), ("mode", "annotation")):
        ElementTree.SubElement(task, key).text = text
    labels = ElementTree.SubElement(task, "labels")
    for record in _labels(index):
        label = ElementTree.SubElement(labels, "label")
        ElementTree.SubElement(label, "name").text = record["name"]
        ElementTree.SubElement(label, "type").text = record["type"]
        attributes = ElementTree.SubElement(label, "attributes")
        for each in record["attributes"]:
            attribute = ElementTree.SubElement(attributes, "attribute")
            for key in ("name", "mutable", "input_type", "default_value"):
                ElementTree.SubElement(attribute, key).text = str(each[key])
            ElementTree.SubElement(attribute, "values").text = "\n".join(each["values"])
    return meta


def _labels(index: Index) -> list[dict[str, Any]]:
    attributes = [
        {"name": UNCERTAIN, "mutable": True, "input_type": "checkbox", "default_value": "false",
         "values": ["false"]},
        {"name": "score", "mutable": False, "input_type": "text", "default_value": "",
         "values": [""]},
    ]  # fmt: skip
    return [{"name": name, "type": "rectangle", "attributes": attributes} for name in index.classes]
