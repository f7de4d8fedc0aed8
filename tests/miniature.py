"""The folders of COCO and Pascal VOC in small: real names and layouts, a handful of tiny images."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

WIDTH, HEIGHT = 48, 40
VOC = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train",
    "tvmonitor",
)  # fmt: skip
COCO = (
    (1, "person"), (3, "car"), (4, "motorcycle"), (5, "airplane"), (17, "cat"), (22, "elephant"),
    (63, "couch"), (64, "potted plant"), (67, "dining table"), (72, "tv"), (88, "teddy bear"),
)  # fmt: skip
BOX = (10, 8, 20, 16)  # x, y, width, height


def write_image(path: Path, number: int) -> None:
    pixels = np.full((HEIGHT, WIDTH, 3), number % 60, np.uint8)
    x, y, width, height = BOX
    pixels[y : y + height, x : x + width] = (220, 40 + number % 200, 90)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, quality=90)


def write_coco(root: Path, *, train: int = 100, val: int = 4, unlabeled: int = 6) -> None:
    """annotations/, train2017/, val2017/ and unlabeled2017/ below `root`."""
    (root / "annotations").mkdir(parents=True)
    first = 9
    for folder, count in (("train2017", train), ("val2017", val), ("unlabeled2017", unlabeled)):
        ids = range(first, first + 3 * count, 3)
        first += 3 * count + 1
        for number in ids:
            write_image(root / folder / f"{number:012d}.jpg", number)
        images = [
            {
                "license": 4, "file_name": f"{n:012d}.jpg", "coco_url": f"train2017/{n}",
                "height": HEIGHT, "width": WIDTH, "date_captured": "2013-11-14", "id": n,
            }
            for n in ids
        ]  # fmt: skip
        content = {
            "info": {"description": "COCO 2017 in small", "year": 2017},
            "licenses": [{"id": 4, "name": "Attribution License"}],
            "images": images,
            "annotations": [_box(place, number) for place, number in enumerate(ids)],
            "categories": [{"supercategory": "thing", "id": i, "name": n} for i, n in COCO],
        }
        name = f"instances_{folder}"
        if folder == "unlabeled2017":
            name = f"image_info_{folder}"
            del content["annotations"]
        (root / "annotations" / f"{name}.json").write_text(json.dumps(content))


def _box(place: int, image: int) -> dict[str, object]:
    x, y, width, height = BOX
    return {
        "segmentation": [[x, y, x + width, y, x + width, y + height]], "area": width * height / 2,
        "iscrowd": 0, "image_id": image, "bbox": [x, y, width, height],
        "category_id": COCO[place % len(COCO)][0], "id": 1000 + place,
    }  # fmt: skip


def write_voc(root: Path, *, trainval07: int = 21, test07: int = 5, trainval12: int = 6) -> None:
    """VOCdevkit/VOC2007 and VOCdevkit/VOC2012 below `root`."""
    for year, sets in (
        ("2007", {"trainval": trainval07, "test": test07}),
        ("2012", {"trainval": trainval12}),
    ):
        folder = root / "VOCdevkit" / f"VOC{year}"
        for part in ("Annotations", "ImageSets/Main"):
            (folder / part).mkdir(parents=True)
        number = 0
        for name, count in sets.items():
            ids = []
            for place in range(count):
                number += 1
                ids.append(f"{number:06d}" if year == "2007" else f"2008_{number:06d}")
                write_image(folder / "JPEGImages" / f"{ids[-1]}.jpg", number)
                page = _page(f"{ids[-1]}.jpg", VOC[place % len(VOC)])
                (folder / "Annotations" / f"{ids[-1]}.xml").write_text(page)
            text = "".join(f"{name}\n" for name in ids)
            (folder / "ImageSets" / "Main" / f"{name}.txt").write_text(text)


def _page(image: str, name: str) -> str:
    x, y, width, height = BOX
    return (
        f"<annotation><filename>{image}</filename>"
        f"<size><width>{WIDTH}</width><height>{HEIGHT}</height><depth>3</depth></size>"
        f"<object><name>{name}</name><difficult>0</difficult><bndbox><xmin>{x + 1}</xmin>"
        f"<ymin>{y + 1}</ymin><xmax>{x + width}</xmax><ymax>{y + height}</ymax></bndbox></object>"
        "</annotation>"
    )
