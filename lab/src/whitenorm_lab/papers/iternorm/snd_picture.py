"""IterNorm figure 2: the BatchNorm outputs of one sample in many batches concentrate as batches grow.

Paper: 3000 points of a Gaussian, one of them normalized over sets of B = 16 and of B = 64: a wide and a compact cloud.

Not stated in the paper: the dimension and the number of sets. Here two dimensions, standard deviation 1, and 100 sets.

Cost: 1 s; the default scale is that of the paper. Command: ``whitenorm-lab reproduce iternorm-snd-picture``.
"""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from whitenorm_lab.claims.evidence import Evidence, lower
from whitenorm_lab.claims.experiment import Claim, Context, Experiment, Settings
from whitenorm_lab.claims.plots import add_shared_legend
from whitenorm_lab.claims.results import Results

# The default of BatchNorm.
_EPS = 1e-5


def plan(scale: Settings) -> list[Settings]:
    """Plan a run for both batch sizes."""
    return [{"batch": batch, "points": scale["points"], "sets": scale["sets"]} for batch in (16, 64)]


def run(settings: Settings, context: Context) -> dict[str, Any]:
    """Compute the SND of the sample: the mean distance of its outputs from their mean."""
    _, _, outputs = normalize_one_sample(settings, context.seed)
    return {"snd": (outputs - outputs.mean(0)).norm(dim=1).mean().item()}


def normalize_one_sample(settings: Settings, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return all points ``(N, 2)``, the sample ``(2,)``, and its output in each set ``(sets, 2)``.

    Points and sample are the same for every batch size.
    """
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(settings["points"], 2, generator=generator)
    x = points[0]
    rows = torch.randint(len(points), (settings["sets"], settings["batch"]), generator=generator)
    variance, mean = torch.var_mean(points[rows], 1, correction=0)
    return points, x, (x - mean) / (variance + _EPS).sqrt()


def _check_concentrates(results: Results) -> Evidence:
    large, small = (results.values("snd", batch=batch) for batch in (64, 16))
    return lower(large, small, ("B = 64", "B = 16"))


def draw(results: Results) -> Figure:
    """Draw the points, the sample and its outputs of the first seed."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 4.4), layout="constrained", sharex=True, sharey=True)
    for panel, batch in zip(axes, (16, 64), strict=True):
        run = results.where(batch=batch)[0]
        points, x, outputs = normalize_one_sample(run.settings, run.seed)
        panel.plot(*points.T, ".", color="black", markersize=1.5, label="samples")
        panel.plot(*outputs.T, "+", color="tab:blue", markersize=5, label="BN outputs of x")
        panel.plot(*x, "x", color="red", markersize=9, markeredgewidth=2, label="x")
        panel.set(title=f"B = {batch}: SND {run.values['snd']:.3f}", aspect="equal")
        panel.set(xlabel="first feature", ylabel="second feature")
    add_shared_legend(figure, axes)
    return figure


EXPERIMENT = Experiment(
    id="iternorm-snd-picture",
    paper="IterNorm",
    where="fig. 2",
    title="One sample's BatchNorm outputs at two batch sizes",
    cost="1 s",
    claims=(
        Claim(
            "The outputs of one sample gather as the batch grows", "wide at B = 16, compact at 64", _check_concentrates
        ),
    ),
    scales={
        "smoke": {"points": 300, "sets": 10},
        "default": {"points": 3000, "sets": 100},
        "paper": {"points": 3000, "sets": 100},
    },
    seeds={"smoke": 2, "default": 20, "paper": 20},
    plan=plan,
    run=run,
    draw=draw,
)
