"""Random layers and inputs of the fuzzer, each a function of a seed."""

import random
from typing import NamedTuple

import torch

from tests.helpers.cases import CHANNEL_LAYERS, LAYOUTS, TOKEN_LAYERS, channel_layers, randomise, token_layers
from whitenorm.solvers import Newton

HALVES = (torch.float16, torch.bfloat16)
DEGENERATE = ("zero", "constant", "constant channels", "duplicate channels", "few values", "one sample")


class Case(NamedTuple):
    """The layer and input that a seed determines."""

    name: str
    solver: object
    dtype: torch.dtype
    shape: tuple[int, ...]
    layout: object
    training: bool
    scale: float
    offset: float
    spread: float
    eps: float
    degenerate: str | None
    block_bytes: int

    def __str__(self) -> str:
        values = [getattr(value, "__name__", value) for value in self]
        return ", ".join(f"{name} {value}" for name, value in zip(self._fields, values, strict=True))


def draw(seed):
    """Draw the case of a seed."""
    rng = random.Random(seed)
    dtype = rng.choice([torch.float32, torch.float32, torch.float64, *HALVES])
    tokens = rng.random() < 0.15
    channels = rng.choice([8, 12, 16] if tokens else [6, 12, 18])
    name = rng.choice(TOKEN_LAYERS if tokens else CHANNEL_LAYERS)
    degenerate = rng.choice(DEGENERATE) if rng.random() < 0.2 else None
    if tokens:
        shape = (*[rng.randint(1, 5) for _ in range(rng.randint(1, 2))], channels)
    else:
        # One position a sample has no instance statistics.
        positions = [rng.randint(2, 7) for _ in range(rng.randint(0 if name.startswith("bw") else 1, 3))]
        shape = (rng.randint(2, 6) if positions else rng.randint(2, 60), channels, *positions)
    half = dtype in HALVES
    scale = 10.0 ** rng.uniform(-1, 1) if half else 10.0 ** rng.uniform(*((-6, 12) if rng.random() < 0.3 else (-3, 3)))
    return Case(
        name,
        rng.choice([Newton(), Newton(0), Newton(1), Newton(7), "zca", "zca", "pca", "cholesky"]),
        dtype,
        shape,
        rng.choice(LAYOUTS),
        rng.random() < 0.7,
        scale,
        rng.choice([0.0, 1.0, 10.0] if half else [0.0, 1.0, 10.0, 1000.0]),
        10.0 ** rng.uniform(0, 2),
        scale**2 * 10.0 ** rng.uniform(-6, -1),
        degenerate,
        rng.choice([2**21, 2**21, 1, 3000]),
    )


def make_input(case, generator):
    """Return correlated channels with deviations that differ by ``spread``, and a mean of ``offset`` deviations."""
    features = case.shape[-1] if case.name.startswith("lw") else case.shape[1]
    x = torch.randn(case.shape, generator=generator, dtype=torch.float64)
    moved = x if case.name.startswith("lw") else x.movedim(1, -1)
    mixing = torch.linalg.qr(torch.randn(features, features, generator=generator, dtype=torch.float64))[0]
    deviations = torch.logspace(0, -float(torch.log10(torch.tensor(case.spread))), features, dtype=torch.float64)
    moved = moved * deviations @ mixing
    centre = case.offset * (1 + torch.rand(features, generator=generator, dtype=torch.float64))
    moved = case.scale * (moved + centre)
    x = moved if case.name.startswith("lw") else moved.movedim(-1, 1)
    axis = x.ndim - 1 if case.name.startswith("lw") else 1
    half = features // 2
    if case.degenerate == "zero":
        x = x * 0
    elif case.degenerate == "constant":
        x = torch.full_like(x, 3 * case.scale)
    elif case.degenerate == "constant channels":
        x = torch.cat([x.narrow(axis, 0, half) * 0 + case.scale, x.narrow(axis, half, features - half)], axis)
    elif case.degenerate == "duplicate channels":
        x = torch.cat([x.narrow(axis, 0, half)] * 2, axis)
    elif case.degenerate == "few values" and axis == 1:
        x = x[(slice(2), slice(None), *[slice(2)] * (x.ndim - 2))]
    elif case.degenerate == "one sample" and axis == 1 and x.ndim > 2:
        x = x[:1]
    x = x.to(case.dtype)
    return x if case.name.startswith("lw") else case.layout(x)


def make_layer(case, seed):
    """Build the layer, in float32 for half inputs as in mixed precision, with statistics of the input's size."""
    features = case.shape[-1] if case.name.startswith("lw") else case.shape[1]
    make = token_layers if case.name.startswith("lw") else channel_layers
    dtype = torch.float32 if case.dtype in HALVES else case.dtype
    layer = randomise(make(features, case.solver, eps=case.eps, dtype=dtype)[case.name], seed)
    with torch.no_grad():
        for name, buffer in layer.named_buffers():
            power = {"running_mean": 1, "running_cov": 2, "running_whitening": -1}.get(name, 0)
            buffer.mul_(case.scale**power) if power else None
    return layer.train(case.training)
