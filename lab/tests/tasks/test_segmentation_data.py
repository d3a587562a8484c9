"""Segmentation data: readers of every layout, damaged files, augmentation, batches."""

import numpy as np
import pytest
import torch
from PIL import Image

from lab.tests.helpers.image_sets import make_scene, write_scenes
from lab.tests.helpers.scenes import CLASSES, TINY, write_folder
from whitenorm_lab.tasks.segmentation import datasets
from whitenorm_lab.tasks.segmentation.classes import IGNORE
from whitenorm_lab.tasks.segmentation.config import Segment
from whitenorm_lab.tasks.segmentation.scenes import Augment, CenterCrop, Scene, collate, read_scene
from whitenorm_lab.tasks.segmentation.task import Segmentation
from whitenorm_lab.training import fit


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("scenes"), 8, 3)


@pytest.fixture
def private_folder(tmp_path):
    """A folder of its own, which a test may damage."""
    return write_folder(tmp_path, 4, 2)


def test_folder(folder):
    scene_set = datasets.load(f"folder:{folder}")
    assert [category.name for category in scene_set.categories] == list(CLASSES)
    assert len(scene_set.train) == 8
    assert {name: len(pairs) for name, pairs in scene_set.tests.items()} == {"test": 3}
    image, labels = read_scene(scene_set.train[0], scene_set)
    expected, classes = make_scene(len(CLASSES), (36, 48), [len("train"), 0])
    assert torch.equal(image, torch.from_numpy(expected).permute(2, 0, 1))
    assert torch.equal(labels, torch.from_numpy(classes))


def test_camvid(tmp_path):
    write_scenes(tmp_path / "camvid", {"train": 2, "val": 1, "test": 1}, 11, void=11)
    scene_set = datasets.load("camvid", tmp_path)
    assert {name: len(pairs) for name, pairs in scene_set.tests.items()} == {"test": 1, "validation": 1}
    labels = read_scene(scene_set.train[0], scene_set).labels
    assert (labels[0] == IGNORE).all()
    assert labels[1:-1, 1:-1].max() < 11


def save(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(pixels, np.uint8)).save(path)


def test_ade20k(tmp_path):
    root = tmp_path / "ADEChallengeData2016"
    for split in ("training", "validation"):
        save(root / "images" / split / "a.jpg", np.zeros((2, 2, 3)))
        save(root / "annotations" / split / "a.png", [[0, 1], [2, 150]])
    scene_set = datasets.load("ade20k", tmp_path)
    assert len(scene_set.categories) == 150
    assert read_scene(scene_set.train[0], scene_set).labels.tolist() == [[IGNORE, 0], [1, 149]]
    rows = "\n".join(f"{i}\t0.1\t1\t1\tthing {i}, matter" for i in range(1, 151))
    (root / "objectInfo150.txt").write_text(f"Idx\tRatio\tTrain\tVal\tName\n{rows}\n")
    assert datasets.load("ade20k", tmp_path).categories[1].name == "2 thing 2"
    (root / "objectInfo150.txt").write_text("Idx\n1\tsky\n")
    with pytest.raises(OSError, match=r"objectInfo150.txt .got 1 classes"):
        datasets.load("ade20k", tmp_path)


def test_cityscapes(tmp_path):
    root = tmp_path / "cityscapes"
    for split in ("train", "val"):
        save(root / "leftImg8bit" / split / "ulm" / "ulm_0_leftImg8bit.png", np.zeros((2, 2, 3)))
        save(root / "gtFine" / split / "ulm" / "ulm_0_gtFine_labelIds.png", [[7, 8], [0, 33]])
    scene_set = datasets.load("cityscapes", tmp_path)
    assert len(scene_set.categories) == 19
    assert read_scene(scene_set.train[0], scene_set).labels.tolist() == [[0, 1], [IGNORE, 18]]
    (root / "gtFine/val/ulm/ulm_0_gtFine_labelIds.png").unlink()
    with pytest.raises(OSError, match=r"needs .*ulm_0_gtFine_labelIds.png"):
        datasets.load("cityscapes", tmp_path)


def test_missing_sets(tmp_path, monkeypatch):
    monkeypatch.delenv("WHITENORM_DATA", raising=False)
    with pytest.raises(OSError, match="camvid needs a data root"):
        datasets.load("camvid")
    with pytest.raises(OSError, match=r"camvid is not in .* 367, 101 and 233"):
        datasets.load("camvid", tmp_path)
    with pytest.raises(ValueError, match="did you mean camvid"):
        datasets.load("camvit", tmp_path)
    with pytest.raises(OSError, match=r"classes.txt with one class name per line"):
        datasets.load(f"folder:{tmp_path}")
    (tmp_path / "classes.txt").write_text("sky\nsky\n")
    with pytest.raises(OSError, match=r"different names in .*classes.txt"):
        datasets.load(f"folder:{tmp_path}")
    (tmp_path / "classes.txt").write_text("sky\nroad\n")
    with pytest.raises(OSError, match=r"images in .*train .got none"):
        datasets.load(f"folder:{tmp_path}")


def write(pixels):
    def damage(path):
        save(path, pixels)

    return damage


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (write(np.full((36, 48), 255)), "nothing but void in .*train_labels/000.png"),
        (write(np.zeros((36, 40))), "size, 48×36 .got 40×36 in .*train_labels/000.png"),
        (write(np.full((36, 48), 3)), "3 classes of folder:.* .got also 3 in .*train_labels/000.png"),
        (write(np.zeros((36, 48, 3))), "one byte per pixel in .*train_labels/000.png .got an image of mode RGB"),
        (lambda path: path.write_bytes(path.read_bytes()[:60]), "complete image in .*train_labels/000.png"),
        (lambda path: path.write_bytes(b"no image"), "complete image in .*train_labels/000.png"),
    ],
)
def test_bad_label_maps(private_folder, damage, words):
    damage(private_folder / "train_labels" / "000.png")
    scene_set = datasets.load(f"folder:{private_folder}")
    with pytest.raises(OSError, match=words):
        read_scene(scene_set.train[0], scene_set)


def test_bad_files_end_a_run(private_folder):
    config = Segment(**TINY, dataset=f"folder:{private_folder}", epochs=1)
    (private_folder / "train" / "002.png").write_bytes(b"no image")
    with pytest.raises(OSError, match=r"complete image in .*train/002.png"):
        fit(config)
    (private_folder / "train_labels" / "001.png").unlink()
    with pytest.raises(OSError, match=r"label map for every image .got none for 1 of 4: .*001.png needs .*001.png"):
        fit(config)


def test_augmentation_moves_labels_with_the_image():
    labels = torch.randint(0, 200, (40, 50), dtype=torch.uint8)
    image = labels.expand(3, 40, 50)
    augment = Augment(32, (1, 2, 3), (1.0, 1.0), flip=True)
    counts = {True: 0, False: 0}
    for seed in range(20):
        torch.manual_seed(seed)
        crop = augment(Scene(image, labels))
        assert crop.labels.shape == (32, 32)
        assert torch.equal(crop.image[0], crop.labels)
        windows = labels.unfold(0, 32, 1).unfold(1, 32, 1)
        flipped = not (windows == crop.labels).flatten(2).all(2).any()
        assert (windows == crop.labels.flip(-1)).flatten(2).all(2).any() or not flipped
        counts[flipped] += 1
    assert min(counts.values()) > 3, "some are flipped and some are not"


def test_augmentation_scales():
    image, labels = (torch.from_numpy(part) for part in make_scene(3, (60, 60), 0))
    whole = Scene(image.permute(2, 0, 1), labels)
    small = Augment(60, (9, 8, 7), (0.5, 0.5), flip=False)(whole)
    assert (small.labels[30:] == IGNORE).all()
    assert (small.labels[:30, 30:] == IGNORE).all()
    assert small.image[:, 40, 40].tolist() == [9, 8, 7]
    # Squares of 12 pixels become 6 pixels wide, and the center keeps its class.
    assert torch.equal(small.labels[3:30:6, 3:30:6], labels[6::12, 6::12])
    large = Augment(120, (9, 8, 7), (2.0, 2.0), flip=False)(whole)
    assert torch.equal(large.labels[12::24, 12::24], labels[6::12, 6::12])


def test_center_crop():
    labels = torch.arange(25, dtype=torch.uint8).view(5, 5)
    crop = CenterCrop(3, (0, 0, 0))(Scene(labels.expand(3, 5, 5), labels))
    assert torch.equal(crop.labels, labels[1:4, 1:4])


def build_loaders(folder, step=0, rank=0, world=1, **options):
    config = Segment(**{**TINY, **options}, dataset=f"folder:{folder}")
    return Segmentation(config).build_loaders(None, lambda: step, rank, world)


def test_batches_follow_from_the_step(folder):
    steps = 2
    batches = list(build_loaders(folder).train)
    assert len(batches) == steps
    again = list(build_loaders(folder, step=1).train)
    assert len(again) == 1
    assert torch.equal(again[0][0], batches[1][0])
    later = list(build_loaders(folder, step=steps).train)
    assert not torch.equal(later[0][0], batches[0][0])
    shares = [list(build_loaders(folder, rank=rank, world=2).train) for rank in range(2)]
    assert torch.equal(shares[0][0].image, batches[0].image[::2])
    assert torch.equal(shares[1][1].labels, batches[1].labels[1::2])


def test_tests_are_whole_and_once(folder):
    loaders = build_loaders(folder, test_batch=2)
    sizes = [tuple(batch.labels.shape) for batch in loaders.tests["test"]]
    assert sizes == [(2, 36, 48), (1, 36, 48)]
    assert sum(len(batch.labels) for batch in build_loaders(folder, test_images=2).tests["test"]) == 2
    assert [tuple(batch.labels.shape) for batch in loaders.build_calibration(6)] == [(3, 32, 32), (3, 32, 32)]
    with pytest.raises(ValueError, match="leave --validate out"):
        build_loaders(folder, validate=True)
    with pytest.raises(ValueError, match="up to the 8 there are"):
        build_loaders(folder, train_images=9)
    assert len(build_loaders(folder, train_images=4).train) == 1


def test_collate():
    small, large = (Scene(torch.zeros(3, side, side), torch.zeros(side, side)) for side in (2, 3))
    with pytest.raises(ValueError, match="--test-batch 1"):
        collate([small, large])
    assert len(collate([]).labels) == 0
