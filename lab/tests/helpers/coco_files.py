"""A set in COCO's form: images with coloured squares on them."""

import json

import torch
from torchvision.io import write_png

SIDE = 48


def square(number, image, category=1, box=(8, 8, 16, 16), **others):
    x, y, w, h = box
    outline = [[x, y, x + w, y, x + w, y + h, x, y + h]]
    return {"id": number, "image_id": image, "category_id": category, "bbox": list(box), **others} | {
        "segmentation": others.get("segmentation", outline)
    }


def content(images=4):
    """Categories 1 and 7; each image has a red or a green square."""
    return {
        "images": [{"id": 10 + i, "file_name": f"{i}.png", "width": SIDE, "height": SIDE} for i in range(images)],
        "annotations": [square(100 + i, 10 + i, 1 if i % 2 else 7, (4 + 4 * i, 8, 24, 20)) for i in range(images)],
        "categories": [{"id": 7, "name": "green"}, {"id": 1, "name": "red"}],
    }


def written(folder, what=None):
    """A set of one file, and its images."""
    what = content() if what is None else what
    (folder / "images").mkdir(parents=True, exist_ok=True)
    for entry in what["images"]:
        image = torch.randint(0, 80, (3, entry["height"], entry["width"]), dtype=torch.uint8)
        for one in what["annotations"]:
            if one["image_id"] == entry["id"]:
                x, y, w, h = map(int, one["bbox"])
                image[0 if one["category_id"] == 1 else 1, y : y + h, x : x + w] = 250
        write_png(image, str(folder / "images" / entry["file_name"]))
    (folder / "instances.json").write_text(json.dumps(what))
    return folder
