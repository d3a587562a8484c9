"""DBN figure 1: two batches that share most points, whose axes PCA whitening swaps, and ZCA whitening does not.

Paper: points in the plane, of which a few (red) differ from one iteration to another. The eigenvectors stay and the
eigenvalues change places, so that PCA, which has the largest first, gives the other points (blue) with swapped axes.
Not stated: which points. Here 200 shared ones of a Gaussian, with deviations of exactly 1 and 0.9 along axes turned by
30°, and two that are moved from far out on one axis to far out on the other, so that the eigenvectors stay. Axes are
kept where coordinates correlate with themselves in both batches. In pilots with seeds of 100 and above the deviations
were the Gaussian's own: not all pairs of batches had eigenvalues that change places. Command:
``whitenorm-lab reproduce dbn-axes``. Cost: seconds; the paper gives no scale of its own.
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
    """Both solvers."""
    return [{"solver": solver, **scale} for solver in _NAMES]


def run(settings: Settings, context: Context) -> dict[str, Any]:
    """How far the shared points move from one batch to the other, and how their coordinates correlate."""
    first, second = (whitened(batch, settings["solver"])[:-2] for batch in batches(settings["points"], context.seed))
    correlations = torch.corrcoef(torch.cat([first, second], 1).T)[:2, 2:].abs()
    return {
        "moved": (first - second).norm(dim=1).mean().item(),
        "same_axis": correlations.diagonal().mean().item(),
        "other_axis": correlations.flip(1).diagonal().mean().item(),
    }


def batches(points: int, seed: int) -> tuple[Tensor, Tensor]:
    """Both, ``(points + 2, 2)``, which differ in the last two."""
    generator = torch.Generator().manual_seed(seed)
    axes = torch.tensor([[math.cos(_ANGLE), math.sin(_ANGLE)], [-math.sin(_ANGLE), math.cos(_ANGLE)]])
    shared = whitened(torch.randn(points, 2, generator=generator), "zca") * torch.tensor(_DEVIATIONS) @ axes
    # As far as to make the axis that they lie on the longer one, at any number of shared points.
    far = _FAR * math.sqrt(points / 200)
    return tuple(torch.cat([shared, far * axis, -far * axis]) for axis in axes.unsqueeze(1))  # type: ignore[return-value]


def whitened(batch: Tensor, solver: str) -> Tensor:
    """A batch by its own statistics."""
    centred = batch - batch.mean(0)
    return centred @ solvers.inverse_sqrt(centred.T @ centred / len(batch), solver).T


def _swapped(results: Results) -> Evidence:
    found = results.where(solver="pca")
    return lower(found.values("same_axis"), found.values("other_axis"), ("correlation with the same axis", "the other"))


def _kept(results: Results) -> Evidence:
    found = results.where(solver="zca")
    return lower(found.values("other_axis"), found.values("same_axis"), ("correlation with the other axis", "the same"))


def _moved(results: Results) -> Evidence:
    zca, pca = (results.values("moved", solver=solver) for solver in ("zca", "pca"))
    return lower(zca, pca, ("ZCA moves points by", "PCA by"))


def draw(results: Results) -> Figure:
    """Both batches of the first seed, a row each: the points, after PCA, after ZCA."""
    figure, axes = plt.subplots(2, 3, figsize=(9, 6.6), layout="constrained")
    one = results[0]
    both = batches(one.settings["points"], one.seed)
    for row, which, batch in zip(axes, ("first", "second"), both, strict=True):
        shown = {f"{which} batch": batch, **{f"{name} of it": whitened(batch, by) for by, name in _NAMES.items()}}
        for panel, (name, points) in zip(row, shown.items(), strict=True):
            # Coloured by place in the first picture, so that what moves is seen.
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
        Claim("PCA gives the shared points with axes swapped", "a picture: axes swapped", _swapped),
        Claim("ZCA keeps their axes", "scales along the eigenvectors, under the original axes", _kept),
        Claim("ZCA moves the shared points less than PCA", "the least distortion", _moved),
    ),
    scales={"smoke": {"points": 50}, "default": {"points": 200}, "paper": {"points": 200}},
    seeds={"smoke": 2, "default": 10, "paper": 10},
    plan=plan,
    run=run,
    draw=draw,
)
