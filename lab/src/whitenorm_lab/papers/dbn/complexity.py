"""DBN sections 1 and 3.4, appendix B: the cost of whitening by formula and by counted multiplications.

Paper: whitening d features of m values costs O(d² max(m, d)), and O(mdK) in groups of K ≤ m. Beside a convolution with
filters of F×F on images of h×w, which costs O(d²mhwF²), a DBN adds O(dKmhw + dK²), a share of K/(dF²) + K²/(dmhwF²),
"negligible when K is small (e.g. 16)".

Here the multiplications in matrix products of the forward pass in training are counted. The covariance and the output
take dKmhw each, and building the matrices from their eigenvectors takes K³ for each of d/K groups: the constants of the
formula are 2 for its first term and 1 for its second. The eigendecomposition, also of order K³, is not a matrix product
and is not counted. The paper gives orders and no bounds; the bounds of the claims were set when the counts were known.

Cost: 5 s, since nothing is computed. Command: ``whitenorm-lab reproduce dbn-complexity``.
"""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from torch import nn

import whitenorm
from whitenorm_lab.claims.evidence import Evidence, exactly
from whitenorm_lab.claims.experiment import Claim, Context, Experiment, Settings
from whitenorm_lab.claims.plots import add_grid_and_legend
from whitenorm_lab.claims.results import Results, Run
from whitenorm_lab.costs import count_products

# The paper's "negligible" is taken as less than a tenth.
_NEGLIGIBLE = 0.1
_FILTER = 3


def plan(scale: Settings) -> list[Settings]:
    """Plan a run for every width, number of images and group size up to the width."""
    return [
        {"width": d, "images": m, "resolution": scale["resolution"], "group": size}
        for d in scale["widths"]
        for m in scale["images"]
        for size in scale["groups"]
        if size <= d
    ]


def run(settings: Settings, context: Context) -> dict[str, Any]:
    """Count the multiplications of a DBN in groups, a DBN over all channels, and a 3×3 convolution."""
    d, resolution = settings["width"], settings["resolution"]
    shape = settings["images"], d, resolution, resolution
    return {
        "groups": count_products(lambda: whitenorm.DecorrelatedBatchNorm(d, settings["group"]), *shape),
        "full": count_products(lambda: whitenorm.DecorrelatedBatchNorm(d, d), *shape),
        "convolution": count_products(lambda: nn.Conv2d(d, d, _FILTER, padding=1, bias=False), *shape),
    }


def _count_positions(run: Run) -> int:
    """Count the values per channel, mhw."""
    return int(run.settings["images"] * run.settings["resolution"] ** 2)


def _evaluate_formula(run: Run) -> int:
    """Evaluate dKmhw + dK²."""
    d, size = run.settings["width"], run.settings["group"]
    return int(d * size * _count_positions(run) + d * size**2)


def _compute_formula_share(run: Run) -> float:
    return float(_evaluate_formula(run) / run.values["convolution"])


def _compute_share(run: Run) -> float:
    return float(run.values["groups"] / run.values["convolution"])


def _check_order(results: Results) -> Evidence:
    ratios = [run.values["groups"] / _evaluate_formula(run) for run in results]
    words = f"{min(ratios):.3f} to {max(ratios):.3f} times dKmhw + dK²"
    return exactly(all(1 <= ratio <= 2 for ratio in ratios), words)


def _check_groups(results: Results) -> Evidence:
    """Check that groups take K/d of the products of full whitening, within 5 %: the second term takes K²/d²."""
    ratios = [
        run.values["groups"] / run.values["full"] * run.settings["width"] / run.settings["group"] for run in results
    ]
    words = f"{min(ratios):.3f} to {max(ratios):.3f} times K/d of full whitening's"
    return exactly(all(abs(ratio - 1) <= 0.05 for ratio in ratios), words)


def _check_negligible(results: Results) -> Evidence:
    runs = results.where(group=min(16, max(results.levels("group"))))
    shares = [_compute_share(run) for run in runs]
    words = f"{100 * min(shares):.2f} to {100 * max(shares):.2f} % of the convolution's"
    return exactly(max(shares) < _NEGLIGIBLE, words)


def draw(results: Results) -> Figure:
    """Draw the share of a 3×3 convolution that a DBN adds over group sizes, counted and by formula."""
    figure, axes = plt.subplots(figsize=(6.5, 4.2), layout="constrained")
    images = max(results.levels("images"))
    for width in results.levels("width"):
        runs = results.where(width=width, images=images)
        runs = Results(run for run in runs if run.seed == runs[0].seed)
        sizes = [run.settings["group"] for run in runs]
        (line,) = axes.plot(sizes, [100 * _compute_share(run) for run in runs], "o-", label=f"d = {width}, counted")
        axes.plot(
            sizes,
            [100 * _compute_formula_share(run) for run in runs],
            ":",
            color=line.get_color(),
            label=f"d = {width}, formula",
        )
    axes.axhline(100 * _NEGLIGIBLE, color="grey", linewidth=0.8)
    axes.set(
        xlabel="group size K",
        ylabel="DBN in % of a 3×3 convolution",
        xscale="log",
        yscale="log",
        title=f"multiplications, batch {images}, {results[0].settings['resolution']}²",
    )
    axes.set_xticks(results.levels("group"), [str(size) for size in results.levels("group")])
    axes.minorticks_off()
    add_grid_and_legend(axes)
    return figure


EXPERIMENT = Experiment(
    id="dbn-complexity",
    paper="DBN",
    where="sec. 3.4, app. B",
    title="Multiplications of DBN against its formulas",
    cost="5 s",
    claims=(
        Claim(
            "A DBN adds in the order of dKmhw + dK²", "O(dKmhw + dK²), K/(dF²) + K²/(dmhwF²)", _check_order, exact=True
        ),
        Claim("Groups of K cost K/d of full whitening", "O(d² max(m, d)) down to O(mdK)", _check_groups, exact=True),
        Claim(
            "Beside a 3×3 convolution a DBN in groups of 16 is negligible",
            "negligible when K is small (e.g. 16); here below 10 %",
            _check_negligible,
            exact=True,
        ),
    ),
    scales={
        "smoke": {"widths": [64], "images": [64], "resolution": 32, "groups": [8, 16]},
        **{
            name: {"widths": [64, 128, 512], "images": [16, 64, 256], "resolution": 32, "groups": [8, 16, 64, 256, 512]}
            for name in ("default", "paper")
        },
    },
    # The counts are the same for every seed.
    seeds={"smoke": 1, "default": 3, "paper": 3},
    plan=plan,
    run=run,
    draw=draw,
)
