"""Float32 errors of a layer at scales and offsets. ``python -m tests.helpers.errors`` prints a table of numerics.md."""

import torch

import whitenorm
from tests.helpers import reference
from tests.helpers.cases import twin
from whitenorm.solvers import ZCA, Newton

SOLVERS = [Newton(), "zca", "pca", "cholesky"]
# Scale of the input, offset in deviations, condition of the covariance.
INPUTS = [
    *[(scale, 0, 10) for scale in (1e-8, 1e-4, 1, 1e4, 1e12, 1e15)],
    *[(1, offset, 10) for offset in (10, 1e3, 1e4)],
    *[(1, offset, 1e4) for offset in (0, 1e3)],
]


def errors(solver, scale, offset, condition, channels=32, number=2048):
    """Return the relative errors of output and input gradient of batch whitening with a negligible ε."""
    torch.manual_seed(0)
    deviations = torch.logspace(0, -0.5 * float(torch.tensor(condition).log10()), channels, dtype=torch.float64)
    turn = torch.linalg.qr(torch.randn(channels, channels, dtype=torch.float64))[0]
    x = torch.randn(number, channels, dtype=torch.float64) * deviations @ turn
    x = (scale * (x + offset)).float().requires_grad_()
    layer = whitenorm.BatchWhitening(channels, solver=solver, eps=1e-8 * scale**2, affine=False)
    naive = twin(layer)
    naive.solver = reference.inverse_root if layer.solver == ZCA() else naive.solver
    x64 = x.detach().double().requires_grad_()
    y, exact = layer(x), reference.forward(naive, x64)
    grad = torch.randn_like(y)
    y.backward(grad)
    exact.backward(grad.double())
    pairs = (y.detach(), exact.detach()), (x.grad, x64.grad)
    return [((actual - right).abs().max() / right.abs().max()).item() for actual, right in pairs]


def main():
    print("| scale | offset | condition |", " | ".join(str(whitenorm.solvers.as_solver(s)) for s in SOLVERS), "|")
    print("| --- " * (3 + len(SOLVERS)) + "|")
    for case in INPUTS:
        cells = ["{:.0e} / {:.0e}".format(*errors(solver, *case)) for solver in SOLVERS]
        print(f"| {case[0]:.0e} | {case[1]:.0f} | {case[2]:.0e} |", " | ".join(cells), "|")


if __name__ == "__main__":
    main()
