"""Semantic segmentation, whole: runs, resuming, evaluation, the command."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from PIL import Image
from torch import nn

from lab.tests.helpers.scenes import TINY, list_sw_layers, write_folder, write_weights
from whitenorm_lab.cli import main
from whitenorm_lab.tasks import segmentation
from whitenorm_lab.tasks.segmentation.config import Segment, SwAde20k
from whitenorm_lab.tasks.segmentation.task import SHEET
from whitenorm_lab.training import fit, load
from whitenorm_lab.training.evaluation import Evaluate, evaluate


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("scenes"), 8, 3)


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    config = Segment(**TINY, norm="sw", where="l1", dataset=f"folder:{folder}", epochs=2, test="sliding", folder=path)
    return path, fit(config)


def test_run(run):
    path, outcome = run
    assert {"miou", "accuracy", "loss", "iou_sky"} <= set(outcome.epochs[-1].tests["test"])
    assert 0 <= outcome.latest("test_miou") <= 1
    picture = np.asarray(Image.open(path / SHEET).convert("RGB"))
    assert picture.std() > 20
    assert len(list_sw_layers(load(path))) == 1
    assert evaluate(Evaluate(path))["test"] == outcome.epochs[-1].tests["test"]


def test_evaluate_takes_several_images_at_once(run):
    path, _ = run
    assert Segment(batch_size=16).with_batch_size(2) == Segment(batch_size=16, test_batch=2)
    one, two = (evaluate(Evaluate(path, batch_size=number))["test"] for number in (1, 2))
    assert two == pytest.approx(one, rel=1e-5)


def test_learns(folder):
    """Classes that are colours are told apart; by chance it would be 0.2."""
    options = {**TINY, "auxiliary": 0.0, "scales": (1.0, 1.0), "epochs": 15, "lr": 0.1, "test_every": 15}
    outcome = fit(Segment(**options, dataset=f"folder:{folder}"))
    assert outcome.latest("test_miou") > 0.45
    assert outcome.epochs[-1].train_loss < 0.7 * outcome.epochs[0].train_loss


def test_begins_from_weights_that_may_then_go(folder, tmp_path):
    write_weights(tmp_path / "trained.pt")
    config = Segment(
        **TINY, dataset=f"folder:{folder}", epochs=1, steps=1, lr=0.0, weights=str(tmp_path / "trained.pt")
    )
    with torch.no_grad():
        fit(replace(config, folder=tmp_path / "run", weight_decay=0.0))
    kept = torch.load(tmp_path / "trained.pt")["conv1.weight"]
    (tmp_path / "trained.pt").unlink()
    assert torch.equal(load(tmp_path / "run").backbone.state_dict()["conv1.weight"], kept)


class Stop(Callback):
    def on_train_batch_start(self, trainer, module, batch, i):
        if trainer.global_step == 3:
            raise InterruptedError("stopped here")


def test_resumes_with_the_same_bits(folder, tmp_path):
    config = Segment(
        **TINY, norm="sw", where="l1", dataset=f"folder:{folder}", epochs=2, test_every=2, checkpoint_steps=1
    )
    straight = fit(config)
    config = replace(config, folder=tmp_path / "run")
    with pytest.raises(InterruptedError):
        fit(config, callbacks=[Stop()])
    resumed = fit(config)
    assert resumed.epochs[-1].scores() == straight.epochs[-1].scores()


def test_other_models_are_checked(folder):
    config = Segment(**TINY, dataset=f"folder:{folder}", epochs=1)
    with pytest.raises(ValueError, match=r"shape \(2, 3, 64, 64\) in eval mode .got \(2, 5, 64, 64\)"):
        fit(config, model=nn.Conv2d(3, 5, 1))
    assert fit(config, model=nn.Conv2d(3, 3, 1)).latest("test_miou") >= 0


def test_presets():
    assert list(segmentation.COMMANDS) == ["segmentation", "sw-ade20k", "sw-cityscapes"]
    assert SwAde20k.from_dict(SwAde20k().to_dict()) == SwAde20k()
    with pytest.raises(ValueError, match="rising order"):
        Segment(scales=(2.0, 1.0))
    with pytest.raises(ValueError, match="crop to be at least 1"):
        Segment(crop=0)


def test_command(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = "--net timm:resnet18 --width 4 --crop 32 --batch-size 4 --workers 0 --epochs 1 --head fcn"
    main(["train", "segmentation", "--dataset", f"folder:{folder}", *options.split()])
    said = capsys.readouterr().out
    assert "mIoU" in said
    assert list((tmp_path / "runs").glob("*/predictions.png"))
