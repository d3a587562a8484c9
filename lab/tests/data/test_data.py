"""Readers of small image data sets in their usual layouts, and their errors for damaged and hostile files."""

import gzip
import hashlib
import pickle
import random
import tracemalloc
import zlib
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
import torch
from scipy.io import loadmat, savemat
from torchvision import datasets

from lab.tests.helpers.image_sets import accept_pickles, write_mnist
from whitenorm_lab import data
from whitenorm_lab.data import files, mat, sets


@pytest.fixture
def pixels():
    return np.random.default_rng(0)


@pytest.fixture
def mnist(tmp_path):
    write_mnist(tmp_path / "MNIST" / "raw", 30, 20)
    return tmp_path


def test_reads_idx_plain_and_gzipped(mnist):
    plain = data.load("mnist", mnist)
    assert plain.train.images.shape == (30, 1, 28, 28)
    assert plain.test.labels.tolist() == [*range(10), *range(10)]
    for path in (mnist / "MNIST" / "raw").iterdir():
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert torch.equal(data.load("mnist", mnist).train.images, plain.train.images)


def test_reads_root_from_environment(mnist, monkeypatch):
    monkeypatch.setenv(data.ROOT_VARIABLE, str(mnist))
    assert data.load("mnist").classes == 10
    monkeypatch.setenv(data.ROOT_VARIABLE, "")
    monkeypatch.chdir(mnist)
    with pytest.raises(OSError, match="mnist needs a data root"):
        data.load("mnist")


def write_cifar10(root, version, images, labels):
    folder = root / ("cifar-10-batches-bin" if version == "binary" else "cifar-10-batches-py")
    folder.mkdir()
    for i, name in enumerate([f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]):
        rows, classes = images[i], labels[i]
        if version == "binary":
            (folder / f"{name}.bin").write_bytes(np.concatenate([classes[:, None], rows], 1).tobytes())
        else:
            (folder / name).write_bytes(pickle.dumps({b"data": rows, b"labels": classes.tolist()}, protocol=2))


def test_both_versions_of_cifar10_agree(tmp_path, pixels, monkeypatch):
    images = pixels.integers(0, 256, (6, 10000, 3072), dtype=np.uint8)
    labels = pixels.integers(0, 10, (6, 10000), dtype=np.uint8)
    loaded = []
    for version in ("binary", "python"):
        (tmp_path / version).mkdir()
        write_cifar10(tmp_path / version, version, images, labels)
        if version == "python":
            accept_pickles(monkeypatch, datasets.CIFAR10, tmp_path / version / "cifar-10-batches-py")
        loaded.append(data.load("cifar10", tmp_path / version))
    for one, other in zip((*loaded[0].train, *loaded[0].test), (*loaded[1].train, *loaded[1].test), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(loaded[0].train.images[10001].flatten(), torch.from_numpy(images[1, 1]))


def test_both_versions_of_cifar100(tmp_path, pixels, monkeypatch):
    rows = {"train": 50000, "test": 10000}
    labels = {name: np.arange(count) % 100 for name, count in rows.items()}
    binary, python = tmp_path / "cifar-100-binary", tmp_path / "cifar-100-python"
    binary.mkdir()
    python.mkdir()
    for name, count in rows.items():
        images = np.broadcast_to(pixels.integers(0, 256, (1, 3072), dtype=np.uint8), (count, 3072))
        coarse = np.full((count, 1), 3, dtype=np.uint8)
        fine = labels[name].astype(np.uint8)[:, None]
        (binary / f"{name}.bin").write_bytes(np.concatenate([coarse, fine, images], 1).tobytes())
        (python / name).write_bytes(pickle.dumps({b"data": images, b"fine_labels": labels[name].tolist()}, protocol=2))
    accept_pickles(monkeypatch, datasets.CIFAR100, python)
    first = data.load("cifar100", tmp_path)
    binary.rename(tmp_path / "aside")
    for loaded in (first, data.load("cifar100", tmp_path)):
        assert (loaded.classes, loaded.train.labels[:101].tolist()) == (100, [*range(100), 0])


def test_reads_faces(tmp_path, pixels):
    (tmp_path / "yaleb").mkdir()
    fea = pixels.integers(0, 256, (4, 1024), dtype=np.uint8)
    savemat(tmp_path / "yaleb" / "YaleB_32x32.mat", {"fea": fea, "gnd": np.array([[1], [1], [5], [2]])})
    loaded = data.load("yaleb", tmp_path)
    assert loaded.train.labels.tolist() == [0, 0, 2, 1]
    assert torch.equal(loaded.train.images.view(4, 1024), torch.from_numpy(fea))
    assert len(loaded.test.images) == 0
    (tmp_path / "pie").mkdir()
    np.savez(tmp_path / "pie" / "pie_32x32.npz", X=fea.reshape(4, 32, 32), y=[3, 3, 4, 9])
    assert data.load("pie", tmp_path).train.labels.tolist() == [0, 0, 1, 2]


def test_missing_files_are_named(tmp_path, mnist, monkeypatch):
    with pytest.raises(ValueError, match=r"expected a data set of digits, mnist.*got 'svhn'"):
        data.load("svhn", tmp_path)
    with pytest.raises(OSError, match=r"cifar10 is not under .*cifar-10-batches-bin or cifar-10-batches-py"):
        data.load("cifar10", tmp_path)
    (mnist / "MNIST" / "raw" / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(OSError, match="t10k-labels-idx1-ubyte is missing"):
        data.load("mnist", mnist)
    monkeypatch.delenv(data.ROOT_VARIABLE, raising=False)
    with pytest.raises(OSError, match="pass --data or set"):
        data.load("mnist")


def test_truncated_files_are_refused(mnist, tmp_path):
    path = mnist / "MNIST" / "raw" / "train-images-idx3-ubyte"
    whole = path.read_bytes()
    for content in (whole[:-1], whole[:2], b"<html>"):
        path.write_bytes(content)
        with pytest.raises(OSError, match="train-images-idx3-ubyte to be an IDX file"):
            data.load("mnist", mnist)
    path.with_name(path.name + ".gz").write_bytes(gzip.compress(whole)[:-100])
    path.unlink()
    with pytest.raises(OSError, match=r"ubyte.gz to be a complete gzip file"):
        data.load("mnist", mnist)
    for folder, name in (
        ("cifar-10-batches-bin", "data_batch_1.bin"),
        ("pie", "pie_32x32.npz"),
        ("yaleb", "YaleB_32x32.mat"),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_bytes(b"\1" * 100)
    for name in ("cifar10", "pie", "yaleb"):
        with pytest.raises(OSError, match="truncated or another file"):
            data.load(name, tmp_path)


BOMB = 2**26


@contextmanager
def limit_memory():
    """Fail if an eighth of a bomb or more was in memory."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < BOMB / 8


def overwrite_count(path, count):
    """Overwrite the number of items in an IDX file's header."""
    content = path.read_bytes()
    path.write_bytes(content[:4] + count.to_bytes(4, "big") + content[8:])


@pytest.mark.parametrize("name", ["train-images-idx3-ubyte", "train-labels-idx1-ubyte"])
@pytest.mark.parametrize(("count", "words"), [(30, "got more than the 30 in its header"), (60_001, "got the header")])
def test_decompressed_size_of_idx_files_is_limited(mnist, name, count, words):
    path = mnist / "MNIST" / "raw" / name
    overwrite_count(path, count)
    with gzip.open(path.with_name(f"{name}.gz"), "wb") as file:
        file.write(path.read_bytes() + bytes(BOMB))
    path.unlink()
    with limit_memory(), pytest.raises(OSError, match=f"{name}.gz to be an IDX file .*{words}"):
        data.load("mnist", mnist)


def test_idx_files_of_other_images_are_refused(mnist):
    folder = mnist / "MNIST" / "raw"
    images, labels = (folder / f"train-{kind}-ubyte" for kind in ("images-idx3", "labels-idx1"))
    whole = images.read_bytes()
    for content in (labels.read_bytes(), whole[:8] + bytes([0, 0, 0, 14, 0, 0, 0, 56]) + whole[16:]):
        images.write_bytes(content)
        with pytest.raises(OSError, match=r"at most 60,000 items in the shape \(28, 28\) \(got the header"):
            data.load("mnist", mnist)


def test_decompressed_size_of_gzipped_records_is_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_MAX_PICKLE_BYTES", 2**20)
    (tmp_path / "a.gz").write_bytes(gzip.compress(bytes(BOMB)))
    for read in (lambda path: files.read_records(path, 3073, 10), lambda path: files.read_pickle(path, "")):
        with limit_memory(), pytest.raises(OSError, match=r"a\.gz to be a file of at most .* bytes \(got more\)"):
            read(tmp_path / "a")


def build_matlab_file(*sizes):
    """Build a MATLAB file of compressed arrays of zeros with the given sizes in bytes."""
    zipped = [zlib.compress((14).to_bytes(4, "little") + size.to_bytes(4, "little") + bytes(size)) for size in sizes]
    tagged = [(15).to_bytes(4, "little") + len(part).to_bytes(4, "little") + part for part in zipped]
    return bytes(124) + b"\x00\x01IM" + b"".join(tagged)


def test_decompressed_size_of_matlab_files_is_limited(tmp_path, monkeypatch):
    """The limit is on the total of all elements."""
    content = build_matlab_file(BOMB)
    with limit_memory(), pytest.raises(ValueError, match="67,108,864 bytes, more than the 1,048,576 still allowed"):
        mat.read_arrays(content, 2**20)
    assert mat.read_arrays(build_matlab_file(600_000), 2**20) == {}
    with pytest.raises(ValueError, match="has 600,000 bytes, more than the 448,56"):
        mat.read_arrays(build_matlab_file(600_000, 600_000), 2**20)
    monkeypatch.setattr(sets, "_MAX_FACES_BYTES", 2**20)
    (tmp_path / "yaleb").mkdir()
    (tmp_path / "yaleb" / "YaleB_32x32.mat").write_bytes(content)
    with pytest.raises(OSError, match=r"YaleB_32x32.mat to be .*has 67,108,864 bytes"):
        data.load("yaleb", tmp_path)


def test_decompressed_size_of_numpy_archives_is_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(sets, "_MAX_FACES_BYTES", 2**20)
    (tmp_path / "pie").mkdir()
    np.savez_compressed(tmp_path / "pie" / "pie_32x32.npz", X=np.zeros((BOMB // 1024, 1024), np.uint8), y=[0])
    with limit_memory(), pytest.raises(OSError, match=r"pie_32x32.npz to be .*have 67,\d+,\d+ bytes"):
        data.load("pie", tmp_path)


def test_pickles_that_run_code_are_not_loaded(tmp_path, capsys):
    class Harm:
        def __reduce__(self):
            return print, ("harm",)

    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(pickle.dumps(Harm()))
    with pytest.raises(OSError, match=r"data_batch_1 to be the official file with the MD5 checksum c99cafc"):
        data.load("cifar10", tmp_path)
    assert "harm" not in capsys.readouterr().out


def test_labels_of_another_data_set_are_refused():
    images = torch.zeros(3, 1, 2, 2, dtype=torch.uint8)
    with pytest.raises(OSError, match="from 0 to 9"):
        sets.Dataset(
            "mnist", sets.Split(images, torch.tensor([1, 2, 10])), sets.Split(images[:0], torch.tensor([])), 10
        )
    with pytest.raises(OSError, match="got 2 labels for 3 images"):
        sets.Dataset("mnist", sets.Split(images, torch.tensor([1, 2])), sets.Split(images[:0], torch.tensor([])), 10)


@pytest.mark.parametrize("compressed", [False, True])
def test_matlab_files_are_read_as_by_scipy(compressed, pixels, tmp_path):
    values = {
        "fea": pixels.integers(0, 256, (7, 1024), dtype=np.uint8),
        "gnd": np.arange(7.0)[:, None],
        "x": np.float32([[1.5]]),
        "wide": pixels.integers(-5, 5, (2, 3, 4)),
    }
    savemat(
        tmp_path / "a.mat", {**values, "name": "text", "cell": np.array([1, "a"], object)}, do_compression=compressed
    )
    arrays = mat.read_arrays((tmp_path / "a.mat").read_bytes(), 2**20)
    expected = loadmat(tmp_path / "a.mat")
    assert set(arrays) == set(values)
    for name in values:
        assert np.array_equal(arrays[name], expected[name])
        assert arrays[name].shape == expected[name].shape


def mutate(content, draw):
    """Change, insert or delete some bytes."""
    content = bytearray(content)
    for _ in range(draw.choice([1, 1, 3, 10])):
        place = draw.randrange(len(content))
        kind = draw.random()
        if kind < 0.7:
            content[place] = draw.randrange(256)
        elif kind < 0.85:
            del content[place : place + draw.randint(1, 9)]
        else:
            content[place:place] = draw.randbytes(draw.randint(1, 9))
    return bytes(content)


def test_mutated_files_are_read_or_refused(tmp_path, pixels):
    """Pickles and MATLAB files, compressed or not, raise no other errors and never crash; four hundred times each."""
    draw = random.Random(0)
    rows = pixels.integers(0, 256, (5, 3072), dtype=np.uint8)
    batch = {b"data": rows, b"labels": [1, 2, 3, 4, 5], b"filenames": [b"a"] * 5, b"batch_label": b"one"}
    path = tmp_path / "YaleB_32x32.mat"
    cases = []
    for protocol in (2, 4):
        content = pickle.dumps(batch, protocol=protocol)
        cases.append((content, partial(files.read_pickle, path, hashlib.md5(content).hexdigest())))
    for compressed in (True, False):
        arrays = {"fea": rows[:4, :1024], "gnd": np.arange(4)[:, None]}
        savemat(path, arrays, do_compression=compressed)
        cases.append((path.read_bytes(), partial(sets._read_yaleb, tmp_path)))
    for content, read in cases:
        # Mostly outside of the pixels, whose values do not matter.
        ends = content[:200], content[200:-200], content[-200:]
        refused = []
        for _ in range(400):
            damaged = [mutate(ends[0], draw), ends[1], mutate(ends[2], draw)]
            path.write_bytes(b"".join(damaged) if draw.random() < 0.8 else mutate(content, draw))
            try:
                read()
            except OSError as error:
                refused.append(str(error))
        assert len(refused) > 100
        assert all("truncated or another file" in line for line in refused)
