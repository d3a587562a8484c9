"""Image sets in their standard layouts, written small, and what is said when a file is not as it should be."""

import gzip
import pickle
import random
import tracemalloc
import zlib
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from scipy.io import loadmat, savemat

from lab.tests.helpers.image_sets import write_mnist
from whitenorm_lab import data
from whitenorm_lab.data import files, mat, sets


@pytest.fixture
def pixels():
    return np.random.default_rng(0)


@pytest.fixture
def mnist(tmp_path):
    write_mnist(tmp_path / "MNIST" / "raw", 30, 20)
    return tmp_path


def test_idx_plain_and_gzipped(mnist):
    plain = data.load("mnist", mnist)
    assert plain.train.images.shape == (30, 1, 28, 28)
    assert plain.test.labels.tolist() == [*range(10), *range(10)]
    for path in (mnist / "MNIST" / "raw").iterdir():
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert torch.equal(data.load("mnist", mnist).train.images, plain.train.images)


def test_the_root_of_the_environment(mnist, monkeypatch):
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


def test_both_versions_of_cifar10_agree(tmp_path, pixels):
    images = pixels.integers(0, 256, (6, 10000, 3072), dtype=np.uint8)
    labels = pixels.integers(0, 10, (6, 10000), dtype=np.uint8)
    loaded = []
    for version in ("binary", "python"):
        (tmp_path / version).mkdir()
        write_cifar10(tmp_path / version, version, images, labels)
        loaded.append(data.load("cifar10", tmp_path / version))
    for one, other in zip((*loaded[0].train, *loaded[0].test), (*loaded[1].train, *loaded[1].test), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(loaded[0].train.images[10001].flatten(), torch.from_numpy(images[1, 1]))


def test_both_versions_of_cifar100(tmp_path, pixels):
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
    first = data.load("cifar100", tmp_path)
    binary.rename(tmp_path / "aside")
    for loaded in (first, data.load("cifar100", tmp_path)):
        assert (loaded.classes, loaded.train.labels[:101].tolist()) == (100, [*range(100), 0])


def test_faces(tmp_path, pixels):
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


def test_missing(tmp_path, mnist, monkeypatch):
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


def test_cut_off_files(mnist, tmp_path):
    path = mnist / "MNIST" / "raw" / "train-images-idx3-ubyte"
    whole = path.read_bytes()
    for content in (whole[:-1], whole[:2], b"<html>"):
        path.write_bytes(content)
        with pytest.raises(OSError, match="train-images-idx3-ubyte to be an IDX file"):
            data.load("mnist", mnist)
    path.with_name(path.name + ".gz").write_bytes(gzip.compress(whole)[:-100])
    path.unlink()
    with pytest.raises(OSError, match=r"ubyte.gz to be a whole gzip file"):
        data.load("mnist", mnist)
    for folder, name in (
        ("cifar-10-batches-bin", "data_batch_1.bin"),
        ("pie", "pie_32x32.npz"),
        ("yaleb", "YaleB_32x32.mat"),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_bytes(b"\1" * 100)
    for name in ("cifar10", "pie", "yaleb"):
        with pytest.raises(OSError, match="cut off or another file"):
            data.load(name, tmp_path)


BOMB = 2**26


@contextmanager
def little_memory():
    """Fails if as much as an eighth of a bomb was in memory."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < BOMB / 8


def promise(path, count):
    """Write another number of items in an IDX file's header."""
    content = path.read_bytes()
    path.write_bytes(content[:4] + count.to_bytes(4, "big") + content[8:])


@pytest.mark.parametrize("name", ["train-images-idx3-ubyte", "train-labels-idx1-ubyte"])
@pytest.mark.parametrize(("count", "words"), [(30, "got more than the 30 it promises"), (60_001, "got the header")])
def test_idx_files_are_unpacked_as_far_as_they_promise(mnist, name, count, words):
    path = mnist / "MNIST" / "raw" / name
    promise(path, count)
    with gzip.open(path.with_name(f"{name}.gz"), "wb") as file:
        file.write(path.read_bytes() + bytes(BOMB))
    path.unlink()
    with little_memory(), pytest.raises(OSError, match=f"{name}.gz to be an IDX file .*{words}"):
        data.load("mnist", mnist)


def test_idx_files_of_other_images(mnist):
    folder = mnist / "MNIST" / "raw"
    images, labels = (folder / f"train-{kind}-ubyte" for kind in ("images-idx3", "labels-idx1"))
    whole = images.read_bytes()
    for content in (labels.read_bytes(), whole[:8] + bytes([0, 0, 0, 14, 0, 0, 0, 56]) + whole[16:]):
        images.write_bytes(content)
        with pytest.raises(OSError, match=r"at most 60,000 items in the shape \(28, 28\) \(got the header"):
            data.load("mnist", mnist)


def test_gzipped_records_are_unpacked_as_far_as_they_should_go(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_LARGEST_PICKLE", 2**20)
    (tmp_path / "a.gz").write_bytes(gzip.compress(bytes(BOMB)))
    for read in (lambda path: files.rows(path, 3073, 10), files.pickled):
        with little_memory(), pytest.raises(OSError, match=r"a\.gz to be a file of at most .* bytes \(got more\)"):
            read(tmp_path / "a")


def matlab(*parts):
    """A MATLAB file of compressed parts, each with the tag of an array of so many zeros."""
    zipped = [zlib.compress((14).to_bytes(4, "little") + size.to_bytes(4, "little") + bytes(size)) for size in parts]
    tagged = [(15).to_bytes(4, "little") + len(part).to_bytes(4, "little") + part for part in zipped]
    return bytes(124) + b"\x00\x01IM" + b"".join(tagged)


def test_what_matlab_files_unpack_to_is_limited(tmp_path, monkeypatch):
    """In all their parts together."""
    content = matlab(BOMB)
    with (
        little_memory(),
        pytest.raises(ValueError, match="promises 67,108,864 bytes, where at most 1,048,576 are left"),
    ):
        mat.arrays(content, 2**20)
    assert mat.arrays(matlab(600_000), 2**20) == {}
    with pytest.raises(ValueError, match="promises 600,000 bytes, where at most 448,56"):
        mat.arrays(matlab(600_000, 600_000), 2**20)
    monkeypatch.setattr(sets, "_LARGEST_FACES", 2**20)
    (tmp_path / "yaleb").mkdir()
    (tmp_path / "yaleb" / "YaleB_32x32.mat").write_bytes(content)
    with pytest.raises(OSError, match=r"YaleB_32x32.mat to be .*promises 67,108,864 bytes"):
        data.load("yaleb", tmp_path)


def test_what_numpy_archives_unpack_to_is_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(sets, "_LARGEST_FACES", 2**20)
    (tmp_path / "pie").mkdir()
    np.savez_compressed(tmp_path / "pie" / "pie_32x32.npz", X=np.zeros((BOMB // 1024, 1024), np.uint8), y=[0])
    with little_memory(), pytest.raises(OSError, match=r"pie_32x32.npz to be .*promises 67,\d+,\d+ bytes"):
        data.load("pie", tmp_path)


def test_a_pickle_that_runs_code(tmp_path):
    class Harm:
        def __reduce__(self):
            return print, ("harm",)

    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(pickle.dumps(Harm()))
    with pytest.raises(OSError, match=r"builtins\.print, which no batch of images needs"):
        data.load("cifar10", tmp_path)


def test_labels_of_another_set():
    images = torch.zeros(3, 1, 2, 2, dtype=torch.uint8)
    with pytest.raises(OSError, match="from 0 to 9"):
        sets.Dataset(
            "mnist", sets.Split(images, torch.tensor([1, 2, 10])), sets.Split(images[:0], torch.tensor([])), 10
        )
    with pytest.raises(OSError, match="got 2 labels for 3 images"):
        sets.Dataset("mnist", sets.Split(images, torch.tensor([1, 2])), sets.Split(images[:0], torch.tensor([])), 10)


@pytest.mark.parametrize("compressed", [False, True])
def test_matlab_files_as_scipy_reads_them(compressed, pixels, tmp_path):
    values = {
        "fea": pixels.integers(0, 256, (7, 1024), dtype=np.uint8),
        "gnd": np.arange(7.0)[:, None],
        "x": np.float32([[1.5]]),
        "wide": pixels.integers(-5, 5, (2, 3, 4)),
    }
    savemat(
        tmp_path / "a.mat", {**values, "name": "text", "cell": np.array([1, "a"], object)}, do_compression=compressed
    )
    found = mat.arrays((tmp_path / "a.mat").read_bytes(), 2**20)
    expected = loadmat(tmp_path / "a.mat")
    assert set(found) == set(values)
    for name in values:
        assert np.array_equal(found[name], expected[name])
        assert found[name].shape == expected[name].shape


def mutated(content, draw):
    """With some bytes changed, put in, or taken out."""
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
    """Never a traceback, never a crash: a CIFAR pickle and a MATLAB file, four hundred times each."""
    draw = random.Random(0)
    rows = pixels.integers(0, 256, (5, 3072), dtype=np.uint8)
    batch = {b"data": rows, b"labels": [1, 2, 3, 4, 5], b"filenames": [b"a"] * 5, b"batch_label": b"one"}
    savemat(tmp_path / "a.mat", {"fea": rows[:4, :1024], "gnd": np.arange(4)[:, None]}, do_compression=True)
    cases = [(pickle.dumps(batch, protocol=protocol), sets._cifar_batch, b"labels") for protocol in (2, 4)]
    cases.append(((tmp_path / "a.mat").read_bytes(), lambda path, _: sets._yaleb(path.parent), None))
    path = tmp_path / "YaleB_32x32.mat"
    for content, read, labels in cases:
        # Where pixels are not, of which one is like another.
        ends = content[:200], content[200:-200], content[-200:]
        refused = []
        for _ in range(400):
            spoilt = [mutated(ends[0], draw), ends[1], mutated(ends[2], draw)]
            path.write_bytes(b"".join(spoilt) if draw.random() < 0.8 else mutated(content, draw))
            try:
                read(path, labels)
            except OSError as error:
                refused.append(str(error))
        assert len(refused) > 100
        assert all("cut off or another file" in line for line in refused)
