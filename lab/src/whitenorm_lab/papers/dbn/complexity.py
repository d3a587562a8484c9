"""DBN sections 1 and 3.4, and appendix B: what whitening costs by formula, against multiplications that are counted.

Paper: whitening d features of m values costs O(d² max(m, d)), in groups of K ≤ m O(mdK); beside a convolution with
filters of F×F on images of h×w, O(d²mhwF²), a DBN adds O(dKmhw + dK²), the share K/(dF²) + K²/(dmhwF²), "negligible
when K is small (e.g. 16)". Counted are the matrix products of the forward pass in training: covariance and output take
dKmhw each, and putting a matrix together from its eigenvectors K³ for each of d/K groups. So a formula's constant is 2
for its first term and 1 for its second; the eigendecomposition itself, of the order of K³, is in no product. The text
has orders and no bounds: those of the claims were set when the counts were known. Command:
``whitenorm-lab reproduce dbn-complexity``. Cost: seconds, as nothing is computed; all scales but smoke are the same.
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

# "Negligible" is no number in the text: here less than a tenth.
_NEGLIGIBLE = 0.1
_FILTER = 3


def plan(scale: Settings) -> list[Settings]:
    """Every width and number of images with every group size up to the width."""
    return [
        {"width": d, "images": m, "resolution": scale["resolution"], "group": size}
        for d in scale["widths"]
        for m in scale["images"]
        for size in scale["groups"]
        if size <= d
    ]


def run(settings: Settings, context: Context) -> dict[str, Any]:
    """Multiplications of a DBN, of one over all channels, and of a 3×3 convolution."""
    d, resolution = settings["width"], settings["resolution"]
    shape = settings["images"], d, resolution, resolution
    return {
        "groups": count_products(lambda: whitenorm.DecorrelatedBatchNorm(d, settings["group"]), *shape),
        "full": count_products(lambda: whitenorm.DecorrelatedBatchNorm(d, d), *shape),
        "convolution": count_products(lambda: nn.Conv2d(d, d, _FILTER, padding=1, bias=False), *shape),
    }


def _values(run: Run) -> int:
    return int(run.settings["images"] * run.settings["resolution"] ** 2)


def _formula(run: Run) -> int:
    """The two terms of what a DBN adds, without constants."""
    d, size = run.settings["width"], run.settings["group"]
    return int(d * size * _values(run) + d * size**2)


def _printed_share(run: Run) -> float:
    return float(_formula(run) / run.values["convolution"])


def _share(run: Run) -> float:
    return float(run.values["groups"] / run.values["convolution"])


def _in_order(results: Results) -> Evidence:
    ratios = [run.values["groups"] / _formula(run) for run in results]
    words = f"{min(ratios):.3f} to {max(ratios):.3f} times dKmhw + dK²"
    return exactly(all(1 <= ratio <= 2 for ratio in ratios), words)


def _by_groups(results: Results) -> Evidence:
    """Of full whitening's products, groups take K/d; the second term alone, K²/d², is a part less."""
    saved = [
        run.values["groups"] / run.values["full"] * run.settings["width"] / run.settings["group"] for run in results
    ]
    words = f"{min(saved):.3f} to {max(saved):.3f} times K/d of full whitening's"
    return exactly(all(abs(ratio - 1) <= 0.05 for ratio in saved), words)


def _small(results: Results) -> Evidence:
    found = results.where(group=min(16, max(results.levels("group"))))
    shares = [_share(run) for run in found]
    words = f"{100 * min(shares):.2f} to {100 * max(shares):.2f} % of the convolution's"
    return exactly(max(shares) < _NEGLIGIBLE, words)


def draw(results: Results) -> Figure:
    """The share of a 3×3 convolution that a DBN adds, counted, and by formula, over group sizes."""
    figure, axes = plt.subplots(figsize=(6.5, 4.2), layout="constrained")
    most = max(results.levels("images"))
    for width in results.levels("width"):
        found = results.where(width=width, images=most)
        seed = found[0].seed
        found = Results(run for run in found if run.seed == seed)
        sizes = [run.settings["group"] for run in found]
        (line,) = axes.plot(sizes, [100 * _share(run) for run in found], "o-", label=f"d = {width}, counted")
        axes.plot(
            sizes,
            [100 * _printed_share(run) for run in found],
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
        title=f"multiplications, batch {most}, {results[0].settings['resolution']}²",
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
        Claim("A DBN adds in the order of dKmhw + dK²", "O(dKmhw + dK²), K/(dF²) + K²/(dmhwF²)", _in_order, exact=True),
        Claim("Groups of K cost K/d of full whitening", "O(d² max(m, d)) down to O(mdK)", _by_groups, exact=True),
        Claim(
            "Beside a 3×3 convolution a DBN in groups of 16 is negligible",
            "negligible when K is small (e.g. 16); here below 10 %",
            _small,
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
    # Counts are the same for every seed.
    seeds={"smoke": 1, "default": 3, "paper": 3},
    plan=plan,
    run=run,
    draw=draw,
)
