"""docs/tutorials: their code runs at a small size, and their numbers are those of their own code."""

import pytest
from image_sets import write_root

from benchmarks import finetuning
from whitenorm.lab.data import ROOT_VARIABLE
from whitenorm.lab.nets import pretrained


def test_finetuning_runs(tmp_path, monkeypatch):
    pytest.importorskip("timm")
    pytest.importorskip(pretrained.PACKAGE)
    monkeypatch.setenv(ROOT_VARIABLE, str(write_root(tmp_path)))
    history = finetuning.ran((32, 40, 1))
    assert {name: len(curve) for name, curve in history.items()} == {
        "GW, not calibrated": 1,
        "BN": 2,
        "IterNorm": 2,
        "BW_Σ": 2,
        "GW": 2,
    }
    assert history["IterNorm"][0] == history["BW_Σ"][0] == history["BN"][0]


def test_finetuning_is_of_its_code():
    """Else: python -m benchmarks.finetuning, or, where the code did not change, with --tables."""
    results = finetuning.stored()
    assert results["code"] == finetuning.digest()
    assert finetuning.table(results) in finetuning.PAGE.read_text()
    assert finetuning.PICTURE.is_file()


def test_other_sizes_need_their_line(monkeypatch):
    monkeypatch.setattr(finetuning, "code", lambda: "history = {}")
    with pytest.raises(ValueError, match="expected one line of sizes"):
        finetuning.ran((32, 40, 1))
