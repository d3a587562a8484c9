"""Classification of image folders: training, resuming, processes, and errors."""

import re

import pytest

from lab.tests.helpers.image_sets import make_png_header
from lab.tests.helpers.runs import Stop, list_numbers
from lab.tests.helpers.torture import write_images
from whitenorm_lab.tasks.classification import imagefolder
from whitenorm_lab.training import Train, fit


@pytest.fixture
def folders(tmp_path):
    write_images(tmp_path)
    options = {"net": "cnn-1", "dataset": f"imagefolder:{tmp_path}", "image_size": 16, "augment": True, "epochs": 2}
    return tmp_path, {**options, "batch_size": 16, "workers": 0, "quiet": True}


def test_image_folder(folders, tmp_path_factory):
    _, options = folders
    outcome = fit(Train(**options))
    assert outcome.description["classes"] == 3
    assert [epoch.step for epoch in outcome.epochs] == [3, 6]
    assert list_numbers(fit(Train(**{**options, "workers": 1}))) == list_numbers(outcome), (
        "independent of the number of workers"
    )
    run = tmp_path_factory.mktemp("run")
    with pytest.raises(InterruptedError):
        fit(Train(**options, folder=run, checkpoint_steps=1), callbacks=[Stop(4)])
    assert list_numbers(fit(Train(**options, folder=run, checkpoint_steps=1))) == list_numbers(outcome)


def test_fewer_test_images_than_processes(folders):
    path, options = folders
    config = Train(**options, test_images=1)
    tests = [imagefolder.build_loaders(config, str(path), lambda: 0, rank, 2).tests["test"] for rank in range(2)]
    assert [[tuple(images.shape) for images, _ in test] for test in tests] == [[(1, 3, 16, 16)], [(0, 3, 16, 16)]]


def test_image_folder_errors(folders):
    path, options = folders
    image = next(path.glob("train/1/*.png"))
    for content in (image.read_bytes()[:70], make_png_header(100_000, 100_000)):
        image.write_bytes(content)
        with pytest.raises(OSError, match=re.escape(f"expected a complete image in {image}")):
            fit(Train(**options))
    image.unlink()
    (path / "val/2").rename(path / "val/two")
    with pytest.raises(ValueError, match="only in one of them: 2, two"):
        fit(Train(**options))
    with pytest.raises(OSError, match="got no nowhere/train"):
        fit(Train(**{**options, "dataset": "imagefolder:nowhere"}))
