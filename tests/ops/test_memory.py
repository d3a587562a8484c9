"""A layer saves only the input and small matrices for backward."""

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

import whitenorm
from tests.helpers.cases import DEVICES, channel_layers, token_layers


def count_saved_bytes(layer, x):
    """Return the bytes of the distinct storages saved for backward, without the input and the parameters."""
    known = {x.untyped_storage().data_ptr()} | {p.untyped_storage().data_ptr() for p in layer.parameters()}
    storages = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        y = layer(x)
    y.sum().backward()
    return sum(size for pointer, size in storages.items() if pointer not in known)


LAYERS = {
    "IterNorm": lambda: whitenorm.IterNorm(64),
    "DBN": lambda: whitenorm.DecorrelatedBatchNorm(64),
    "BW sigma": lambda: whitenorm.BatchWhitening(64, population="covariance"),
    "SW newton": lambda: whitenorm.SwitchableWhitening(64),
    "SW zca": lambda: whitenorm.SwitchableWhitening(64, solver="zca"),
    "SW five": lambda: whitenorm.SwitchableWhitening(64, statistics=("bw", "iw", "bn", "in", "ln")),
    "IW": lambda: whitenorm.InstanceWhitening(64, 16),
    "GW": lambda: whitenorm.GroupWhitening(16, 64),
    "GW zca": lambda: whitenorm.GroupWhitening(16, 64, "zca"),
    "GW plain": lambda: whitenorm.GroupWhitening(16, 64, affine=False),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_training_saves_few_matrices_besides_the_input(name, memory_format, dtype, device):
    x = torch.randn(16, 64, 16, 16, device=device).to(dtype=dtype, memory_format=memory_format)
    # For each sample, SW keeps the covariance and the matrix; ZCA also keeps the eigenvectors.
    limit = 0.45 if name == "SW zca" else 0.3
    assert count_saved_bytes(LAYERS[name]().to(device), x.requires_grad_()) < limit * x.nbytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["bw", "bw-grouped", "bw-sigma", "bw-plain"])
def test_inference_saves_only_matrices(name, dtype):
    x = torch.randn(16, 12, 16, 16).to(dtype).requires_grad_()
    assert count_saved_bytes(channel_layers(12)[name].eval(), x) < 0.3 * x.nbytes


def test_no_grad_saves_nothing():
    x = torch.randn(4, 12, 5, 5)
    for layer in channel_layers(12).values():
        with torch.no_grad():
            assert layer(x).grad_fn is None
    for layer in token_layers(12).values():
        with torch.no_grad():
            assert layer(torch.randn(2, 3, 12)).grad_fn is None
