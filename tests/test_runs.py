"""What is done with a run's folder: the model loaded, its numbers taken again."""

import pytest
import torch
from lightning.pytorch import Callback
from torch import nn

import whitenorm
from whitenorm.lab.training import Train, fit, load

OPTIONS = {"net": "cnn-1", "norm": "iternorm", "dataset": "digits", "train_images": 200, "test_images": 100}
OPTIONS |= {"epochs": 2, "batch_size": 50, "progress": False}


class Stop(Callback):
    """Fails before the sixth step."""

    def on_train_batch_start(self, trainer, module, batch, i):
        if trainer.global_step == 6:
            raise InterruptedError("stopped here")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    return folder, fit(Train(**OPTIONS, folder=folder))


def test_load(run):
    folder, outcome = run
    torch.manual_seed(3)
    model = load(str(folder))
    assert torch.rand(()) == torch.rand((), generator=torch.Generator().manual_seed(3)), "no draw is noticed"
    assert isinstance(model[1], whitenorm.IterNorm)
    assert not model.training
    kept = torch.load(folder / "weights.pt")
    assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())
    assert sum(p.numel() for p in model.parameters()) == outcome.parameters


def test_load_from_a_checkpoint(tmp_path):
    with pytest.raises(InterruptedError):
        fit(Train(**OPTIONS, folder=tmp_path), callbacks=[Stop()])
    model = load(tmp_path)
    state = torch.load(tmp_path / "checkpoints/step-000000004.ckpt", weights_only=True)["state_dict"]
    assert all(torch.equal(value, state[f"model.{name}"]) for name, value in model.state_dict().items())


def test_load_double(tmp_path):
    fit(Train(**OPTIONS, precision="64", folder=tmp_path))
    assert load(tmp_path)[0].weight.dtype == torch.float64


def test_nothing_to_load(tmp_path, run):
    with pytest.raises(OSError, match=r"expected a folder of whitenorm train .* no config\.json"):
        load(tmp_path)
    (tmp_path / "config.json").write_bytes((run[0] / "config.json").read_bytes())
    with pytest.raises(OSError, match=r"expected weights\.pt or a checkpoint"):
        load(tmp_path)
    for content in ("[]", "{}", '{"net": "x", "colour": 1}', "{"):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(OSError, match="expected"):
            load(tmp_path)


def test_load_a_model_of_ones_own(tmp_path):
    fit(Train(**OPTIONS, folder=tmp_path), model=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    with pytest.raises(ValueError, match="handed to fit"):
        load(tmp_path)
