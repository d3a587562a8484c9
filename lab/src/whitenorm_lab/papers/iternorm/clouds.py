"""IterNorm figure 1: correlated points in the plane after BN, DBN and IterNorm.

Paper: BN scales along the axes, so that each has variance 1; DBN scales along the eigenvectors, so that the covariance
is the identity; IterNorm approaches this step by step, and directions with larger eigenvalues converge sooner (section
3.1).

Not stated in the paper: the points. Here 500 points of a Gaussian with standard deviations 3 and 1 along axes rotated
by 30°, centered.

Cost: 1 s; the default scale is the full one. Command: ``whitenorm-lab reproduce iternorm-clouds``.
"""

from __future__ import annotations

import math
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from whitenorm import solvers
from whitenorm.diagnostics import whiteness_error
from whitenorm_lab.claims.evidence import Evidence, every, exactly, lower, rising
from whitenorm_lab.claims.experiment import Claim, Context, Experiment, Settings
from whitenorm_lab.claims.results import Results

_ANGLE = math.radians(30)
_DEVIATIONS = (3.0, 1.0)
_STEPS = (0, 1, 2, 3, 5, 7)
_METHODS = ("none", "BN", "DBN", *(f"IterNorm T={steps}" for steps in _STEPS))
# Well above the rounding of float32.
_EXACT = 1e-3


def plan(scale: Settings) -> list[Settings]:
    """Plan a run with each method."""
    return [{"method": method, **scale} for method in _METHODS]


def run(settings: Settings, context: Context) -> dict[str, Any]:
    """Measure the variances along the axes and along the eigenvectors (largest first), and the whiteness error."""
    points = make_cloud(settings["points"], context.seed)
    outputs = normalize(points, settings["method"])
    directions = _compute_directions(points)
    return {
        "axes": outputs.var(0, correction=0).tolist(),
        "eigen": (outputs @ directions).var(0, correction=0).tolist(),
        "whiteness_error": whiteness_error(outputs),
    }


def make_cloud(points: int, seed: int) -> Tensor:
    """Make centered points ``(N, 2)``."""
    axes = torch.tensor([[math.cos(_ANGLE), math.sin(_ANGLE)], [-math.sin(_ANGLE), math.cos(_ANGLE)]])
    x = torch.randn(points, 2, generator=torch.Generator().manual_seed(seed)) * torch.tensor(_DEVIATIONS) @ axes
    return x - x.mean(0)


def _compute_directions(points: Tensor) -> Tensor:
    """Return the eigenvectors of the covariance as columns, the largest eigenvalue first."""
    return torch.linalg.eigh(points.T @ points).eigenvectors.flip(1)


def normalize(x: Tensor, method: str) -> Tensor:
    """Normalize centered points by a method; T is the number of Newton steps."""
    cov = x.T @ x / len(x)
    if method == "none":
        return x
    if method == "BN":
        return x / cov.diagonal().sqrt()
    solver = solvers.ZCA() if method == "DBN" else solvers.Newton(int(method.removeprefix("IterNorm T=")))
    return x @ solvers.inverse_sqrt(cov, solver).T


def _check_bn_standardizes(results: Results) -> Evidence:
    variances = [variance for axes in results.values("axes", method="BN") for variance in axes]
    return exactly(
        all(abs(variance - 1) < _EXACT for variance in variances),
        f"variances along the axes {min(variances):.4f} to {max(variances):.4f}",
    )


def _check_dbn_whitens(results: Results) -> Evidence:
    errors = {method: results.values("whiteness_error", method=method) for method in ("BN", "DBN")}
    return exactly(
        max(errors["DBN"]) < _EXACT < min(errors["BN"]),
        f"‖Σ - I‖/√d at most {max(errors['DBN']):.1e}; of BN at least {min(errors['BN']):.2f}",
    )


def _check_more_white_each_step(results: Results) -> Evidence:
    names = [f"IterNorm T={steps}" for steps in reversed(_STEPS)]
    return rising(names, [results.values("whiteness_error", method=name) for name in names])


def _check_larger_first(results: Results) -> Evidence:
    """Compare the distances of the variances from 1, for the steps where they are above rounding."""
    parts = []
    for steps in _STEPS[:-2]:
        pairs = results.values("eigen", method=f"IterNorm T={steps}")
        large, small = ([abs(1 - variance) for variance in variances] for variances in zip(*pairs, strict=True))
        parts.append(lower(large, small, (f"|1 - variance|, T={steps}, large eigenvalue", "small")))
    return every(*parts)


def draw(results: Results) -> Figure:
    """Draw the first seed's points after each method, with deviations along the eigenvectors of the input."""
    figure, axes = plt.subplots(3, 3, figsize=(9, 9.2), layout="constrained")
    for panel, method in zip(axes.flat, _METHODS, strict=True):
        run = results.where(method=method)[0]
        points = make_cloud(run.settings["points"], run.seed)
        panel.plot(*normalize(points, method).T, ".", markersize=2.5, color="tab:blue", label="outputs")
        for variance, direction in zip(run.values["eigen"], _compute_directions(points).T, strict=True):
            x, y = (direction * math.sqrt(variance)).tolist()
            panel.plot([-x, x], [-y, y], color="red", label="± deviation along the input's eigenvectors")
        title, limit = ("centred input", 9) if method == "none" else (method, 3.5)
        panel.set(xlabel="first coordinate", ylabel="second coordinate", xlim=(-limit, limit), ylim=(-limit, limit))
        panel.set_title(f"{title}: ‖Σ - I‖/√d = {run.values['whiteness_error']:.3f}", fontsize=10)
    handles = dict(zip(*reversed(axes.flat[0].get_legend_handles_labels()), strict=True))
    figure.legend(handles.values(), handles, loc="outside upper center", ncols=2, fontsize=8)
    return figure


EXPERIMENT = Experiment(
    id="iternorm-clouds",
    paper="IterNorm",
    where="fig. 1",
    title="Points in the plane after BN, DBN and IterNorm",
    cost="1 s",
    claims=(
        Claim(
            "BN gives each axis variance 1", "each dimension has a unit variance", _check_bn_standardizes, exact=True
        ),
        Claim("DBN makes the covariance the identity, BN does not", "a picture", _check_dbn_whitens, exact=True),
        Claim(
            "IterNorm whitens more with every step",
            "a picture: progressively, along the eigenvectors",
            _check_more_white_each_step,
        ),
        Claim("The direction of the larger eigenvalue is there first", "the larger, the faster", _check_larger_first),
    ),
    scales={"smoke": {"points": 100}, "default": {"points": 500}, "paper": {"points": 500}},
    seeds={"smoke": 2, "default": 10, "paper": 10},
    plan=plan,
    run=run,
    draw=draw,
)
