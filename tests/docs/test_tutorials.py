"""docs/tutorials: their code runs at a small size, and their numbers are those of their own code."""

import pytest
from PIL import Image

from benchmarks.tutorials import TUTORIALS
from benchmarks.tutorials.page import Tutorial, result_digest
from lab.tests.helpers.image_sets import accept_root, write_root
from whitenorm_lab.data import ROOT_VARIABLE
from whitenorm_lab.nets import pretrained


@pytest.fixture
def _images(tmp_path, monkeypatch):
    monkeypatch.setenv(ROOT_VARIABLE, str(write_root(tmp_path)))
    accept_root(monkeypatch, tmp_path)


@pytest.mark.filterwarnings("ignore:this model is trained")
@pytest.mark.usefixtures("_images")
def test_finetuning_runs():
    pytest.importorskip("timm")
    pytest.importorskip(pretrained.PACKAGE)
    history = TUTORIALS["finetuning"].run((32, 40, 1))
    assert {name: len(curve) for name, curve in history.items()} == {
        "GW, not calibrated": 1,
        "BN": 2,
        "IterNorm, first norm": 2,
        "IterNorm": 2,
        "BW_Σ": 2,
        "GW": 2,
    }
    assert history["IterNorm"][0] == history["BW_Σ"][0] == history["BN"][0]


@pytest.mark.usefixtures("_images")
def test_self_supervised_runs():
    history = TUTORIALS["self-supervised"].run((250, 1, 2))
    assert history["tested"] == 50
    lengths = {name: [len(curve) for curve in curves] for name, curves in history["accuracy"].items()}
    assert lengths == {name: [2, 2] for name in ("W-MSE", "INTL", "CW-RGP", "no whitening")}


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_features_run():
    seen = TUTORIALS["features"].run((1, 1))
    batch, iternorm = (seen["numbers"][norm][0] for norm in ("BN", "IterNorm"))
    assert iternorm["condition_after"] < iternorm["condition_before"]
    assert iternorm["condition_after"] < batch["condition_after"]
    assert [len(first["correlations"]) for first in seen["first"].values()] == [32, 32]


@pytest.mark.parametrize("name", TUTORIALS)
def test_numbers_are_of_the_code(name):
    """If this fails, run ``python -m benchmarks.tutorials NAME``, with --tables if the code did not change."""
    tutorial = TUTORIALS[name]
    results = tutorial.load()
    assert results["code"] == tutorial.digest()
    assert tutorial.text(results) in tutorial.page.read_text(encoding="utf-8")
    assert f"]({tutorial.picture.name})" in tutorial.text(results)
    assert Image.open(tutorial.picture).text["Source"] == result_digest(results)


def test_other_sizes_need_their_line(monkeypatch):
    monkeypatch.setattr(Tutorial, "code", lambda self: "history = {}")
    with pytest.raises(ValueError, match="expected one line of size, images, epochs"):
        TUTORIALS["finetuning"].run((32, 40, 1))
