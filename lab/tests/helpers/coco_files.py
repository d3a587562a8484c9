"""A small data set in COCO's format: images with coloured squares."""

import json

import torch
from torchvision.io import write_png

SIDE = 48


def build_square(id_, image_id, category=1, box=(8, 8, 16, 16), **fields):
    x, y, w, h = box
    outline = [[x, y, x + w, y, x + w, y + h, x, y + h]]
    square = {"id": id_, "image_id": image_id, "category_id": category, "bbox": list(box), "segmentation": outline}
    return {**square, **fields}


def build_content(images=4):
    """Return the content of an annotation file: categories 1 and 7, and a red or a green square in each image."""
    return {
        "images": [{"id": 10 + i, "file_name": f"{i}.png", "width": SIDE, "height": SIDE} for i in range(images)],
        "annotations": [
            build_square(100 + i, 10 + i, 1 if i % 2 else 7, (4 + 4 * i, 8, 24, 20)) for i in range(images)
        ],
        "categories": [{"id": 7, "name": "green"}, {"id": 1, "name": "red"}],
    }


def write_coco(folder, content=None):
    """Write ``folder/instances.json`` and its images."""
    content = build_content() if content is None else content
    (folder / "images").mkdir(parents=True, exist_ok=True)
    for entry in content["images"]:
        image = torch.randint(0, 80, (3, entry["height"], entry["width"]), dtype=torch.uint8)
        for annotation in content["annotations"]:
            if annotation["image_id"] == entry["id"]:
                x, y, w, h = map(int, annotation["bbox"])
                image[0 if annotation["category_id"] == 1 else 1, y : y + h, x : x + w] = 250
        write_png(image, str(folder / "images" / entry["file_name"]))
    (folder / "instances.json").write_text(json.dumps(content))
    return folder
