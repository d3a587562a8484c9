"""Devices, dtypes with their tolerances, layers and layouts that the tests run over."""

import copy

import torch

import whitenorm
from whitenorm.solvers import Newton

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]

# Absolute and relative tolerance against a float64 reference given the same, already rounded, input.
TOLERANCE = {
    torch.float64: 1e-8,
    torch.float32: 2e-4,
    torch.float16: 2e-2,
    torch.bfloat16: 8e-2,
}

SOLVERS = ["newton", Newton(steps=1), Newton(steps=7), "zca", "pca", "cholesky", "minimax"]
MIX = ("bw", "iw", "bn", "in", "ln")


def batch_layers(channels, solver="newton", **options):
    """Return layers with population statistics by name."""
    return {
        "bw": whitenorm.BatchWhitening(channels, solver=solver, **options),
        "bw-grouped": whitenorm.BatchWhitening(channels, channels // 3, solver, **options),
        "bw-sigma": whitenorm.BatchWhitening(channels, channels // 3, solver, population="covariance", **options),
        "bw-plain": whitenorm.BatchWhitening(channels, channels // 2, solver, affine=False, **options),
        "bw-untracked": whitenorm.BatchWhitening(channels, channels // 3, solver, track_running_stats=False, **options),
    }


def switchable_layers(channels, solver="newton", **options):
    size = channels // 2
    return {
        "sw": whitenorm.SwitchableWhitening(channels, size, solver=solver, **options),
        "sw-tied": whitenorm.SwitchableWhitening(channels, size, tie_weights=True, solver=solver, **options),
        "sw5": whitenorm.SwitchableWhitening(channels, size, MIX, solver=solver, **options),
        "sw-no-batch": whitenorm.SwitchableWhitening(channels, size, ("iw", "ln"), solver=solver, **options),
        "sw-untracked": whitenorm.SwitchableWhitening(
            channels, size, solver=solver, track_running_stats=False, **options
        ),
    }


def sample_layers(channels, solver="newton", **options):
    return {
        "iw": whitenorm.InstanceWhitening(channels, channels // 3, solver, **options),
        "iw-plain": whitenorm.InstanceWhitening(channels, solver=solver, affine=False, **options),
        "gw": whitenorm.GroupWhitening(channels // 2, channels, solver, **options),
        "gw-plain": whitenorm.GroupWhitening(channels // 3, channels, solver, affine=False, **options),
    }


def token_layers(features, solver="newton", **options):
    return {
        "lw": whitenorm.LayerWhitening(features, features // 4, solver, **options),
        "lw-no-bias": whitenorm.LayerWhitening(features, 2, solver, bias=False, **options),
        "lw-plain": whitenorm.LayerWhitening(features, 2, solver, elementwise_affine=False, **options),
    }


def channel_layers(channels, solver="newton", **options):
    """Return every layer for (N, C, ...) by name."""
    return {
        **batch_layers(channels, solver, **options),
        **switchable_layers(channels, solver, **options),
        **sample_layers(channels, solver, **options),
    }


CHANNEL_LAYERS = list(channel_layers(12))
BATCH_LAYERS = list(batch_layers(12))
TOKEN_LAYERS = list(token_layers(12))


def randomise(layer, seed=0):
    """Set random parameters and running statistics, with a positive definite running matrix."""
    generator = torch.Generator().manual_seed(seed)

    def noise(tensor):
        return torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor)

    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(noise(parameter))
        for name, buffer in layer.named_buffers():
            if name == "running_mean":
                buffer.copy_(noise(buffer))
            elif name in ("running_whitening", "running_cov"):
                factor = noise(buffer)
                identity = torch.eye(buffer.shape[-1], dtype=buffer.dtype, device=buffer.device)
                buffer.copy_(factor @ factor.mT / buffer.shape[-1] + identity)
    return layer


def twin(layer, dtype=torch.float64):
    """Return a copy of a layer for the reference, on the CPU and in float64."""
    return copy.deepcopy(layer).to(device="cpu", dtype=dtype)


def gradients_by_name(layer, x):
    """Return the gradients of the input and of every parameter by name."""
    return {"input": x.grad, **{name: parameter.grad for name, parameter in layer.named_parameters()}}


def assert_close(actual, expected, dtype, what=""):
    """Assert closeness within the tolerance of the dtype, relative to the size of the expected tensor."""
    assert actual is not None, f"{what}: got None"
    expected = expected.detach().to(torch.float64).cpu()
    scale = max(1.0, expected.abs().max().item())
    error = (actual.detach().to(torch.float64).cpu() - expected).abs().max().item()
    assert error <= TOLERANCE[dtype] * scale, f"{what}: error {error:.2e} at scale {scale:.2e}"


def contiguous(x):
    return x.contiguous()


def channels_last(x):
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


def stride_two(x):
    """Return x as every second element of a larger tensor."""
    large = torch.zeros(*(2 * size for size in x.shape), dtype=x.dtype, device=x.device)
    view = large[tuple(slice(None, None, 2) for _ in x.shape)]
    view.copy_(x)
    return view


def transpose_memory(x):
    return x.transpose(0, -1).contiguous().transpose(0, -1)


LAYOUTS = [contiguous, channels_last, stride_two, transpose_memory]
# Odd sizes, and for each rank enough values to whiten 12 channels.
SHAPES = [(63, 12), (5, 12, 31), (3, 12, 5, 7), (2, 12, 3, 5, 3)]
# No more than half as many positions as the smallest group of these layers has channels.
FEW_POSITIONS = (31, 12, 1, 2)
