"""COCO's annotation files: boxes and masks, and errors for damaged entries."""

import json
import math

import numpy as np
import pytest
import torch

from lab.tests.helpers.coco_files import SIDE, build_content, build_square, write_coco
from whitenorm_lab.tasks.detection.annotations import read_annotations


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_coco(tmp_path_factory.mktemp("coco"))


def test_read_annotations(folder):
    coco = read_annotations(folder / "instances.json", folder / "images")
    assert coco.names == ("background", "red", "green"), "in the order of ids"
    assert [image.labels for image in coco.images] == [[2], [1], [2], [1]]
    target = coco.images[1].target(masks=True)
    assert target["boxes"].tolist() == [[8, 8, 32, 28]]
    assert target["masks"].shape == (1, SIDE, SIDE)
    assert target["masks"].sum() == 24 * 20 == target["area"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content["annotations"].append(build_square(9, 99)), "annotation 9 of .* image_id 99"),
        (
            lambda content: content["annotations"].append(build_square(9, 10, category=3)),
            "annotation 9 of .*category_id 3",
        ),
        (
            lambda content: content["annotations"].append(build_square(9, 10, box=(40, 8, 16, 16))),
            "annotation 9 .*inside .*0.png",
        ),
        (lambda content: content["annotations"].append(build_square(9, 10) | {"bbox": [1, 2]}), "bbox of annotation 9"),
        (lambda content: content["annotations"].append({"id": 9}), "id, image_id, category_id, bbox"),
        (lambda content: content["images"].append(content["images"][0]), "10 twice"),
        (lambda content: content["images"][0].update(file_name="gone.png"), "gone.png, image 10 of"),
        (lambda content: content["images"][0].update(width=0), "width of image 10 of"),
        (lambda content: content.pop("categories"), "got no categories"),
        (lambda content: content["categories"].clear(), "expected categories"),
    ],
)
def test_damaged_annotations_are_errors(folder, tmp_path, change, message):
    content = build_content()
    change(content)
    file = tmp_path / "instances.json"
    file.write_text(json.dumps(content))
    with pytest.raises((ValueError, OSError), match=message) as error:
        read_annotations(file, folder / "images")
    assert str(file) in str(error.value)


OUTLINES = [
    ([[1, 2]], "expected polygons of x and y, or run lengths as the segmentation"),
    ([[0, 0, 9, 9]], "expected polygons"),
    ([[0, 0, 9, 0, 9, 9, 1]], "expected polygons"),
    ([[0, 0, 9, 0, 9, math.nan]], "expected polygons"),
    ([[0, 0, 9, 0, 9, "9"]], "expected polygons"),
    ([[0, 0, 9, 0, 9, 10**400]], "expected polygons"),
    ([[0, 0, 9, 0, 9, 9], None], "expected polygons"),
    ("a polygon", "expected polygons"),
    ({}, "expected polygons"),
    ({"size": [SIDE, SIDE], "counts": [0.5]}, "expected polygons"),
    ({"size": SIDE, "counts": [SIDE * SIDE]}, "expected polygons"),
    ([[0, 0, 9, 0, 1e9, 9]], r"polygons from 0 to 1000000000.0 and from 0 to 9, outside of 48×48 pixels"),
    ([[0, 0, 9, 0, 9, -3]], r"and from -3 to 0, outside"),
    ({"size": [SIDE, 20], "counts": [SIDE * SIDE]}, r"of size \[48, 20\] for an image of \[48, 48\]"),
    ({"size": [SIDE, SIDE], "counts": []}, "run lengths of 0 pixels for an image of 48×48"),
    ({"size": [SIDE, SIDE], "counts": [SIDE * SIDE - 1]}, "run lengths of 2303 pixels"),
    ({"size": [SIDE, SIDE], "counts": [-1, SIDE * SIDE + 1]}, "run lengths of 2304 pixels"),
    ({"size": [SIDE, SIDE], "counts": ""}, "run lengths of 0 pixels"),
    ({"size": [SIDE, SIDE], "counts": "5"}, "run lengths of 5 pixels"),
    ({"size": [SIDE, SIDE], "counts": "é"}, "run lengths that contain the invalid character 'é'"),
    ({"size": [SIDE, SIDE], "counts": "`"}, "run lengths that end in the middle of a number"),
]


@pytest.mark.parametrize(("outline", "message"), OUTLINES)
def test_damaged_outlines_are_errors(folder, tmp_path, outline, message):
    content = build_content()
    content["annotations"][1]["segmentation"] = outline
    file = tmp_path / "instances.json"
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message) as error:
        read_annotations(file, folder / "images")
    assert f"segmentation of annotation 101 of {file}" in str(error.value)


@pytest.mark.parametrize("outline", [None, [], "missing"])
def test_boxes_without_masks(folder, tmp_path, outline):
    """They train without masks; a request for masks raises an error that names the annotation."""
    content = build_content()
    for annotation in content["annotations"]:
        annotation["segmentation"] = outline
        if outline == "missing":
            del annotation["segmentation"]
    file = tmp_path / "instances.json"
    file.write_text(json.dumps(content))
    image = read_annotations(file, folder / "images").images[0]
    assert image.target(masks=False)["boxes"].shape == (1, 4)
    with pytest.raises(OSError, match=r"segmentation of annotation 100 of .*0\.png .*train without masks"):
        image.target(masks=True)


def test_compressed_run_lengths(folder, tmp_path):
    mask = pytest.importorskip("pycocotools.mask")
    content, generator = build_content(), torch.Generator().manual_seed(0)
    masks = [torch.rand(SIDE, SIDE, generator=generator) < share for share in (0.0, 0.01, 0.5, 1.0)]
    for annotation, pixels in zip(content["annotations"], masks, strict=True):
        runs = mask.encode(np.asfortranarray(pixels.numpy().astype(np.uint8)))
        annotation["segmentation"] = {"size": runs["size"], "counts": runs["counts"].decode()}
    file = tmp_path / "instances.json"
    file.write_text(json.dumps(content))
    for image, pixels in zip(read_annotations(file, folder / "images").images, masks, strict=True):
        assert torch.equal(image.target(masks=True)["masks"][0].bool(), pixels)


WRONG = [None, True, 1.5, -0.5, "1", "", [], [1], {}, 10**400, math.nan, math.inf]
# The values of WRONG that each field accepts.
ACCEPTED = {
    ("images", "id"): [],
    ("images", "file_name"): [],
    ("images", "width"): [],
    ("images", "height"): [],
    ("categories", "id"): [],
    ("categories", "name"): ["1", ""],
    ("annotations", "id"): [],
    ("annotations", "image_id"): [],
    ("annotations", "category_id"): [],
    ("annotations", "bbox"): [],
    ("annotations", "area"): [1.5],
    ("annotations", "iscrowd"): [True],
    ("annotations", "segmentation"): [None, []],
}
SINGULAR = {"images": "image", "categories": "category", "annotations": "annotation"}


@pytest.mark.parametrize(("part", "name"), ACCEPTED)
def test_wrong_values_are_errors(folder, tmp_path, part, name):
    """The errors name file, entry and field; none is a KeyError or TypeError."""
    file = tmp_path / "instances.json"
    for value in WRONG:
        if any(
            value is accepted or (type(value) is type(accepted) and value == accepted)
            for accepted in ACCEPTED[part, name]
        ):
            continue
        content = build_content()
        content[part][1][name] = value
        entry = f"the {SINGULAR[part]} at index 1" if name == "id" else f"{SINGULAR[part]} {content[part][1]['id']}"
        file.write_text(json.dumps(content))
        # There is no file of this name.
        errors = (ValueError, OSError) if (name, value) == ("file_name", "1") else ValueError
        with pytest.raises(errors) as error:
            read_annotations(file, folder / "images")
        assert str(file) in str(error.value)
        assert errors is not ValueError or f"as the {name} of {entry} of" in str(error.value), value


@pytest.mark.parametrize("part", SINGULAR)
def test_wrong_lists_are_errors(folder, tmp_path, part):
    file = tmp_path / "instances.json"
    for value in (None, 3, "all", {"id": 1}):
        file.write_text(json.dumps({**build_content(), part: value}))
        with pytest.raises(OSError, match=f"got no {part}"):
            read_annotations(file, folder / "images")
        file.write_text(json.dumps({**build_content(), part: [value]}))
        with pytest.raises(
            ValueError, match=rf"expected id, .* of every {SINGULAR[part]} in .*instances.json \(got .* at index 0"
        ):
            read_annotations(file, folder / "images")


@pytest.mark.parametrize("name", ["../0.png", "a/../../images/0.png", "/0.png", ".", "..", "0.png\0", "absolute"])
def test_images_outside_of_their_folder_are_errors(folder, tmp_path, name):
    content = build_content()
    content["images"][1]["file_name"] = str(folder / "images" / "0.png") if name == "absolute" else name
    file = tmp_path / "instances.json"
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"a path inside the folder of images as the file_name of image 11 of .*json"):
        read_annotations(file, folder / "images")


def test_images_in_subfolders(folder, tmp_path):
    content = build_content()
    for image in content["images"]:
        image["file_name"] = f"images/./{image['file_name']}"
    file = tmp_path / "instances.json"
    file.write_text(json.dumps(content))
    assert [image.file.name for image in read_annotations(file, folder).images] == [
        "0.png",
        "1.png",
        "2.png",
        "3.png",
    ]
