"""Time the solvers, forward and backward, and compare them with float64."""

from __future__ import annotations

import functools
from typing import Any

import torch

from whitenorm.solvers import PCA, ZCA, Cholesky, Newton, Solver, inverse_sqrt
from whitenorm_lab.timing import summarise, time_interleaved

SOLVERS: dict[str, Solver] = {"newton": Newton(5), "zca": ZCA(), "pca": PCA(), "cholesky": Cholesky()}
SIZES = [(16, 1), (16, 32), (16, 512), (64, 1), (64, 8), (64, 64), (128, 1), (256, 1), (512, 1)]
QUICK = [(16, 32), (64, 8), (128, 1)]


def measure(size: int, batch: int, rounds: int, budget: float) -> dict[str, Any]:
    """Measure each solver on random covariances of 4·K samples."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch, size, 4 * size, generator=generator, dtype=torch.float64)
    exact = x @ x.mT / (4 * size)
    cov = exact.float().requires_grad_()
    grad = torch.randn(cov.shape, generator=generator)

    def step(solver: Solver) -> None:
        inverse_sqrt(cov, solver).backward(grad)
        cov.grad = None

    times = time_interleaved(
        {name: functools.partial(step, solver) for name, solver in SOLVERS.items()}, rounds, budget
    )
    rows = {}
    for name, solver in SOLVERS.items():
        truth = inverse_sqrt(exact, solver)
        error = (inverse_sqrt(cov.detach(), solver) - truth).abs().max() / truth.abs().max()
        rows[name] = {**summarise(times[name])._asdict(), "error": error.item()}
    return {"size": size, "batch": batch, "solvers": rows}
