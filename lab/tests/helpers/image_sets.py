"""Small image sets that look like the real ones on disk: random pixels with a little of the class in them."""

import hashlib
import pickle
import struct
import zlib

import numpy as np
from PIL import Image
from scipy.io import savemat
from torchvision import datasets

from lab.tests.helpers import coco_files
from lab.tests.helpers.text_sets import CHARACTERS, write_multi30k

SIZES = {"mnist": (300, 100), "cifar10": (250, 50), "yaleb": (80, 0), "pie": (136, 0)}


def make_images(count, classes, shape, seed):
    """Return random images with one bright byte, whose position is the class, and their labels."""
    generator = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    pixels = generator.integers(0, 160, (count, int(np.prod(shape))), dtype=np.uint8)
    pixels[np.arange(count), labels] = 255
    return pixels.reshape(count, *shape), labels


def encode_idx(array):
    """Return the bytes of an IDX file."""
    return b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def make_png_header(width, height):
    """Return a PNG file whose header states a size, without pixels."""
    chunks = [b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0), b"IDAT"]
    sized = [struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) for chunk in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(sized)


def write_mnist(folder, train, test):
    folder.mkdir(parents=True)
    for prefix, count in (("train", train), ("t10k", test)):
        pixels, labels = make_images(count, 10, (28, 28), seed=count)
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(encode_idx(pixels))
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(encode_idx(labels.astype(np.uint8)))


def make_scene(classes, size, seed, void=255):
    """Return an image (H, W, 3) of random fields, colored by class, and its label map with a void border."""
    generator = np.random.default_rng(seed)
    height, width = size
    fields = generator.integers(0, classes, (-(-height // 12), -(-width // 12)), dtype=np.uint8)
    labels = fields.repeat(12, 0).repeat(12, 1)[:height, :width]
    colors = np.stack([labels.astype(int) * step % 256 for step in (23, 57, 101)], 2)
    image = np.clip(colors + generator.integers(-8, 9, colors.shape), 0, 255).astype(np.uint8)
    return image, np.pad(labels[1:-1, 1:-1], 1, constant_values=void)


def write_scenes(folder, splits, classes, size=(36, 48), void=255):
    """Write images to folders by split, such as ``{"train": 6}``, and their label maps to folders beside them."""
    for split, count in splits.items():
        for name in (split, f"{split}_labels"):
            (folder / name).mkdir(parents=True)
        for i in range(count):
            image, labels = make_scene(classes, size, [len(split), i], void)
            Image.fromarray(image).save(folder / split / f"{i:03}.png")
            Image.fromarray(labels).save(folder / f"{split}_labels" / f"{i:03}.png")


def write_root(root):
    """Write small versions of all data sets of the experiments; CIFAR-10 loads after :func:`accept_root`."""
    write_scenes(root / "camvid", {"train": 8, "val": 2, "test": 4}, 11, void=11)
    write_mnist(root / "MNIST" / "raw", *SIZES["mnist"])
    cifar = root / "cifar-10-batches-py"
    cifar.mkdir()
    train, test = SIZES["cifar10"]
    for name, count in [*((f"data_batch_{i}", train // 5) for i in range(1, 6)), ("test_batch", test)]:
        pixels, labels = make_images(count, 10, (3072,), seed=len(name) + count)
        (cifar / name).write_bytes(pickle.dumps({b"data": pixels, b"labels": labels.tolist()}))
    faces, people = make_images(SIZES["yaleb"][0], 38, (1024,), seed=1)
    (root / "yaleb").mkdir()
    savemat(root / "yaleb" / "YaleB_32x32.mat", {"fea": faces, "gnd": people[:, None] + 1})
    faces, people = make_images(SIZES["pie"][0], 68, (32, 32), seed=2)
    (root / "pie").mkdir()
    np.savez(root / "pie" / "pie_32x32.npz", X=faces, y=people)
    for split in ("train", "val"):
        for label in ("cat", "dog"):
            folder = root / "imagenet" / split / label
            folder.mkdir(parents=True)
            pixels, _ = make_images(10, 2, (40, 36, 3), seed=len(split + label))
            for i, image in enumerate(pixels):
                Image.fromarray(image).save(folder / f"{i}.png")
    write_multi30k(root, rare=CHARACTERS)
    coco_files.write_coco(root / "coco128")
    write_style(root / "style")
    return root


def accept_pickles(monkeypatch, dataset, folder):
    """Make the pickles of a folder the official ones of a torchvision data set, by their MD5 checksums."""
    for attribute in ("train_list", "test_list"):
        names = [name for name, _ in getattr(dataset, attribute)]
        checksums = [[name, hashlib.md5((folder / name).read_bytes()).hexdigest()] for name in names]
        monkeypatch.setattr(dataset, attribute, checksums)


def accept_root(monkeypatch, root):
    """Make the CIFAR-10 files of :func:`write_root` count as the official ones."""
    accept_pickles(monkeypatch, datasets.CIFAR10, root / "cifar-10-batches-py")


def write_style(folder):
    """Write content images and one style image."""
    for kind, names in (("content", "abcd"), ("style", ["candy"])):
        (folder / kind).mkdir(parents=True)
        pixels, _ = make_images(len(names), 2, (40, 44, 3), seed=len(names))
        for name, image in zip(names, pixels, strict=True):
            Image.fromarray(image).save(folder / kind / f"{name}.jpg")
