"""IterNorm section 3.3: what IterNorm costs by formula, against multiplications that are counted.

Paper: covariance and output of d channels cost as much as a 1×1 convolution each, the iteration Td³; together
2hwmd² + Td³, against 9hwmd² of a 3×3 convolution, "2/9 + Td/mhw" of it. At inference it merges into the convolution
beside it and costs nothing. Counted are matrix products and convolutions of the forward pass in training. Two things of
the text are rough: a step P³Σ_N takes three products of d×d matrices where P = I is not known, so that the count is
3(T - 1)d³; and Td³ over 9hwmd² is Td/(9mhw), of which the text has nine times as much. So the claims are read as an
order and as a bound, which was decided when the counts were known; they are the same at every seed. Command:
``whitenorm-lab reproduce iternorm-complexity``. Cost: seconds, as nothing is computed; all scales but smoke are the
same.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import nn

import whitenorm
from whitenorm.diagnostics import flops
from whitenorm_lab.claims.evidence import Evidence, exactly
from whitenorm_lab.claims.experiment import Claim, Context, Experiment, Settings
from whitenorm_lab.claims.results import Results, Run
from whitenorm_lab.costs import count_products
from whitenorm_lab.papers.shared.overheads import one_legend


def plan(scale: Settings) -> list[Settings]:
    """Every width and number of images with every number of steps."""
    return [
        {"width": d, "images": m, "resolution": scale["resolution"], "T": steps}
        for d in scale["widths"]
        for m in scale["images"]
        for steps in scale["steps"]
    ]


def run(settings: Settings, context: Context) -> dict[str, Any]:
    """Multiplications in training, of the layer, without its steps, and of convolutions; and those of inference."""
    d, resolution = settings["width"], settings["resolution"]
    shape = settings["images"], d, resolution, resolution
    return {
        "iternorm": count_products(lambda: whitenorm.IterNorm(d, d, settings["T"]), *shape),
        "without_steps": count_products(lambda: whitenorm.IterNorm(d, d, 0), *shape),
        **{f"convolution_{size}": count_products(partial(_convolution, d, size), *shape) for size in (1, 3)},
        "inference": _inference(d, settings["T"], folded=True),
        "inference_alone": _inference(d, settings["T"], folded=False),
        "inference_without": _inference(d, None, folded=False),
    }


def _convolution(width: int, size: int) -> nn.Conv2d:
    return nn.Conv2d(width, width, size, padding=size // 2, bias=False)


def _inference(width: int, steps: int | None, folded: bool) -> int:
    """Of a 3×3 convolution on one small image, alone, with an IterNorm after it, or with that merged into it."""
    net = nn.Sequential(_convolution(width, 3))
    if steps is not None:
        net.append(whitenorm.IterNorm(width, width, steps))
    net.eval()
    return flops(whitenorm.fold_(net) if folded else net, torch.zeros(1, width, 2, 2)) // 2


def _values(run: Run) -> int:
    return int(run.settings["images"] * run.settings["resolution"] ** 2)


def _as_convolutions(results: Results) -> Evidence:
    ratios = [run.values["without_steps"] / run.values["convolution_1"] for run in results]
    return exactly({*ratios} == {2.0}, f"{min(ratios):.3f} to {max(ratios):.3f} times a 1×1 convolution's")


def _iteration(results: Results) -> Evidence:
    ratios = [
        (run.values["iternorm"] - run.values["without_steps"]) / (run.settings["T"] * run.settings["width"] ** 3)
        for run in results
    ]
    return exactly(
        all(1 <= ratio <= 3 for ratio in ratios), f"{min(ratios):.2f} to {max(ratios):.2f} times Td³, 3(T - 1)d³ in all"
    )


def _share(run: Run) -> float:
    return float(run.values["iternorm"] / run.values["convolution_3"])


def _printed(run: Run) -> float:
    return float(2 / 9 + run.settings["T"] * run.settings["width"] / _values(run))


def _relative(results: Results) -> Evidence:
    ratios = [_share(run) / _printed(run) for run in results]
    words = f"{min(map(_share, results)):.4f} to {max(map(_share, results)):.4f} of the convolution's, "
    return exactly(max(ratios) <= 1, f"{words}{min(ratios):.3f} to {max(ratios):.3f} times the formula")


def _merges(results: Results) -> Evidence:
    merged, alone = (
        max(100 * (run.values[name] / run.values["inference_without"] - 1) for run in results)
        for name in ("inference", "inference_alone")
    )
    return exactly(merged == 0, f"{merged:.0f} % more, {alone:.0f} % where it is not merged")


def draw(results: Results) -> Figure:
    """The share of a 3×3 convolution, counted and by formula, over T, a panel a batch size."""
    batches = results.levels("images")
    figure, axes = plt.subplots(
        1, len(batches), figsize=(3.6 * len(batches), 4), layout="constrained", sharey=True, squeeze=False
    )
    for panel, images in zip(axes[0], batches, strict=True):
        for width in results.levels("width"):
            found = results.where(width=width, images=images)
            found = Results(run for run in found if run.seed == found[0].seed)
            steps = found.levels("T")
            (line,) = panel.plot(steps, [_share(run) for run in found], "o-", label=f"d = {width}, counted")
            panel.plot(
                steps, [_printed(run) for run in found], ":", color=line.get_color(), label=f"d = {width}, formula"
            )
        panel.axhline(2 / 9, color="grey", linewidth=0.8)
        panel.set(xlabel="steps T", xticks=steps, title=f"batch {images}, {found[0].settings['resolution']}²")
        panel.grid(alpha=0.3)
    axes[0, 0].set(ylabel="times a 3×3 convolution's multiplications", yscale="log")
    one_legend(figure)
    return figure


EXPERIMENT = Experiment(
    id="iternorm-complexity",
    paper="IterNorm",
    where="sec. 3.3",
    title="Multiplications of IterNorm against its formulas",
    cost="12 s",
    claims=(
        Claim("Covariance and output cost two 1×1 convolutions", "2hwmd²", _as_convolutions, exact=True),
        Claim("The iteration is of the order of Td³", "Td³; here one to three times that", _iteration, exact=True),
        Claim("Of a 3×3 convolution it is at most 2/9 + Td/mhw", "2/9 + Td/mhw", _relative, exact=True),
        Claim("At inference it merges into a convolution at no cost", "no extra cost", _merges, exact=True),
    ),
    scales={
        "smoke": {"widths": [64], "images": [64], "resolution": 32, "steps": [3, 5]},
        **{
            name: {"widths": [64, 128, 512], "images": [1, 16, 64], "resolution": 32, "steps": [3, 5, 7]}
            for name in ("default", "paper")
        },
    },
    # Counts are the same for every seed.
    seeds={"smoke": 1, "default": 3, "paper": 3},
    plan=plan,
    run=run,
    draw=draw,
)
