"""DBN figure 1: PCA whitening swaps the axes between two batches that share most points; ZCA whitening does not.

Paper: points in the plane, a few of which (red) differ between two iterations. The eigenvectors stay the same, but the
order of the eigenvalues changes. PCA sorts by eigenvalue, so the shared points (blue) come out with swapped axes.

Not stated in the paper: the points. Here 200 shared points of a Gaussian have standard deviations of exactly 1 and 0.9
along axes rotated by 30°, and two points move from far out on one axis to far out on the other, which leaves the
eigenvectors unchanged. An axis counts as kept if its coordinates correlate between the batches. In pilots (seeds of
100 and above) the deviations were those of the random points, and not all pairs of batches had swapped eigenvalues.

Cost: 1 s; the default scale is the full one. Command: ``whitenorm-lab reproduce dbn-axes``.
"""

from __future__ import annotations

import math
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from whitenorm import solvers
from whitenorm_lab.claims.evidence import Evidence, lower
from whitenorm_lab.claims.experiment import Claim, Context, Experiment, Settings
from whitenorm_lab.claims.results import Results

_ANGLE = math.radians(30)
_DEVIATIONS = (1.0, 0.9)
_FAR = 6.0
_NAMES = {"pca": "PCA", "zca": "ZCA"}


def plan(scale: Settings) -> list[Settings]:
    """Plan a run with each solver."""
    return [{"solver": solver, **scale} for solver in _NAMES]


def run(settings: Settings, context: Context) -> dict[str, Any]:
    """Measure how far the shared points move between the batches, and how their coordinates correlate."""
    batches = make_batches(settings["points"], context.seed)
    first, second = (whiten(batch, settings["solver"])[:-2] for batch in batches)
    correlations = torch.corrcoef(torch.cat([first, second], 1).T)[:2, 2:].abs()
    return {
        "moved": (first - second).norm(dim=1).mean().item(),
        "same_axis": correlations.diagonal().mean().item(),
        "other_axis": correlations.flip(1).diagonal().mean().item(),
    }


def make_batches(points: int, seed: int) -> tuple[Tensor, Tensor]:
    """Make two batches ``(points + 2, 2)`` that differ in the last two points."""
    generator = torch.Generator().manual_seed(seed)
    axes = torch.tensor([[math.cos(_ANGLE), math.sin(_ANGLE)], [-math.sin(_ANGLE), math.cos(_ANGLE)]])
    shared = whiten(torch.randn(points, 2, generator=generator), "zca") * torch.tensor(_DEVIATIONS) @ axes
    # Far enough that the axis they lie on is the longer one, for any number of shared points.
    far = _FAR * math.sqrt(points / 200)
    return tuple(torch.cat([shared, far * axis, -far * axis]) for axis in axes.unsqueeze(1))  # type: ignore[return-value]


def whiten(batch: Tensor, solver: str) -> Tensor:
    """Whiten a batch with its own statistics."""
    centered = batch - batch.mean(0)
    return centered @ solvers.inverse_sqrt(centered.T @ centered / len(batch), solver).T


def _check_pca_swaps(results: Results) -> Evidence:
    pca = results.where(solver="pca")
    return lower(pca.values("same_axis"), pca.values("other_axis"), ("correlation with the same axis", "the other"))


def _check_zca_keeps(results: Results) -> Evidence:
    zca = results.where(solver="zca")
    return lower(zca.values("other_axis"), zca.values("same_axis"), ("correlation with the other axis", "the same"))


def _check_zca_moves_less(results: Results) -> Evidence:
    zca, pca = (results.values("moved", solver=solver) for solver in ("zca", "pca"))
    return lower(zca, pca, ("ZCA moves points by", "PCA by"))


def draw(results: Results) -> Figure:
    """Draw the batches of the first seed, one per row: the points, and after PCA and ZCA whitening."""
    figure, axes = plt.subplots(2, 3, figsize=(9, 6.6), layout="constrained")
    run = results[0]
    batches = make_batches(run.settings["points"], run.seed)
    for row, which, batch in zip(axes, ("first", "second"), batches, strict=True):
        outputs = {f"{name} of it": whiten(batch, solver) for solver, name in _NAMES.items()}
        for panel, (name, points) in zip(row, {f"{which} batch": batch, **outputs}.items(), strict=True):
            # The colour is the first coordinate of the input, to show how points move.
            panel.scatter(*points[:-2].T, c=batch[:-2, 0], cmap="viridis", s=8, label="in both batches")
            panel.plot(*points[-2:].T, "o", color="red", markersize=5, label="in this batch only")
            panel.set(xlabel="first coordinate", ylabel="second coordinate", title=name, xlim=(-7, 7), ylim=(-7, 7))
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=2, fontsize=8)
    return figure


EXPERIMENT = Experiment(
    id="dbn-axes",
    paper="DBN",
    where="fig. 1",
    title="Axes that PCA whitening swaps between two batches",
    cost="1 s",
    claims=(
        Claim("PCA gives the shared points with axes swapped", "a picture: axes swapped", _check_pca_swaps),
        Claim("ZCA keeps their axes", "scales along the eigenvectors, under the original axes", _check_zca_keeps),
        Claim("ZCA moves the shared points less than PCA", "the least distortion", _check_zca_moves_less),
    ),
    scales={"smoke": {"points": 50}, "default": {"points": 200}, "paper": {"points": 200}},
    seeds={"smoke": 2, "default": 10, "paper": 10},
    plan=plan,
    run=run,
    draw=draw,
)
