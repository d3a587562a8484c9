"""The check that ``whitenorm gpu`` runs, in Triton's interpreter: that it passes, and that it sees what is wrong."""

import json
import sys

import pytest
import torch

from whitenorm.cli.gpu import agreement

CPU = torch.device("cpu")
# Each layer in one way; on a card each goes all ways.
WAYS = {
    ("float32", "contiguous"): ["IterNorm, K = 64", "GroupWhitening", "LayerWhitening, 96 features"],
    ("float32", "channels-last"): ["IterNorm, K = 16", "InstanceWhitening", "IterNorm, K = 128"],
    ("bfloat16", "contiguous"): ["SwitchableWhitening, 5 statistics", "LayerWhitening, 768 features"],
    ("bfloat16", "channels-last"): ["IterNorm, K = 48", "DecorrelatedBatchNorm"],
    ("float16", "contiguous"): ["BatchWhitening, running covariance"],
    ("float16", "channels-last"): ["SwitchableWhitening"],
}


def only(monkeypatch, names, far=()):
    monkeypatch.setattr(agreement, "LAYERS", {name: agreement.LAYERS[name] for name in names})
    monkeypatch.setattr(agreement, "_FAR_LAYERS", far)


def test_every_layer_is_met():
    assert sorted(name for names in WAYS.values() for name in names) == sorted(agreement.LAYERS)


@pytest.mark.parametrize(("dtype", "layout"), WAYS)
def test_agreement(dtype, layout, monkeypatch):
    only(monkeypatch, WAYS[dtype, layout], far=WAYS[dtype, layout][:1])
    rows = list(agreement.compare_layers(CPU, agreement.DTYPES[dtype], layout, small=True))
    assert rows
    assert [row for row in rows if not row.agrees] == []
    quantities = {row.quantity for row in rows}
    assert {"output", "gradient of the input", "gradient of weight", "output at inference"} <= quantities
    assert any("1000 deviations" in row.case for row in rows) == (dtype == "float32")


def test_the_program(monkeypatch, capsys):
    only(monkeypatch, ["IterNorm, K = 16"])
    args = ["agreement", "cpu", "--small", "--dtype", "float32", "--layout", "contiguous"]
    monkeypatch.setattr(sys, "argv", args)
    assert agreement.main() == 0
    rows = [agreement.Row(*row) for row in json.loads(capsys.readouterr().out)]
    assert {"running_mean", "running_whitening", "num_batches_tracked"} <= {row.quantity for row in rows}
    monkeypatch.setitem(agreement.ALLOWED, torch.float32, 0.0)
    assert agreement.main() == 1


def test_wrong_numbers_and_kernels_that_did_not_run_are_seen(monkeypatch):
    only(monkeypatch, ["IterNorm, K = 16"])
    with monkeypatch.context() as torch_alone:
        torch_alone.setattr("whitenorm.ops.dispatch._takes_triton", lambda x: False)
        rows = list(agreement.compare_layers(CPU, torch.float32, "contiguous", small=True))
        assert [row.quantity for row in rows if not row.agrees] == ["kernels of Triton's launched"]
    real = agreement.run_step
    monkeypatch.setattr(agreement, "run_step", lambda layer, x, grad: real(layer, x + (x.dtype == torch.float32), grad))
    rows = list(agreement.compare_layers(CPU, torch.float32, "contiguous", small=True))
    assert "running_mean" in {row.quantity for row in rows if not row.agrees}
