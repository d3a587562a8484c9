"""IterNorm section 3.3: the cost of IterNorm by formula and by counted multiplications.

Paper: the covariance and the output of d channels cost as much as a 1×1 convolution each, the iteration Td³; together
2hwmd² + Td³, against 9hwmd² of a 3×3 convolution, "2/9 + Td/mhw" of it. At inference, IterNorm merges into the adjacent
convolution and costs nothing.

Here the multiplications in matrix products and convolutions of the forward pass in training are counted. Two statements
of the paper are rough. A step with P³Σ_N takes three products of d×d matrices, except for the first, where P = I is
known: the count is 3(T - 1)d³. And Td³ over 9hwmd² is Td/(9mhw), a ninth of the paper's term. The claims therefore read
the formulas as an order and as a bound, which was decided when the counts were known; they are the same at every seed.

Cost: 12 s, since nothing is computed. Command: ``whitenorm-lab reproduce iternorm-complexity``.
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
from whitenorm_lab.papers.shared.overheads import draw_legend_above


def plan(scale: Settings) -> list[Settings]:
    """Plan a run for every width, number of images and number of steps."""
    return [
        {"width": d, "images": m, "resolution": scale["resolution"], "T": steps}
        for d in scale["widths"]
        for m in scale["images"]
        for steps in scale["steps"]
    ]


def run(settings: Settings, context: Context) -> dict[str, Any]:
    """Count the multiplications of IterNorm, with and without its steps, and of convolutions; and of inference."""
    d, resolution = settings["width"], settings["resolution"]
    shape = settings["images"], d, resolution, resolution
    return {
        "iternorm": count_products(lambda: whitenorm.IterNorm(d, d, settings["T"]), *shape),
        "without_steps": count_products(lambda: whitenorm.IterNorm(d, d, 0), *shape),
        **{f"convolution_{size}": count_products(partial(_build_convolution, d, size), *shape) for size in (1, 3)},
        "inference": _count_inference(d, settings["T"], folded=True),
        "inference_alone": _count_inference(d, settings["T"], folded=False),
        "inference_without": _count_inference(d, None, folded=False),
    }


def _build_convolution(width: int, size: int) -> nn.Conv2d:
    return nn.Conv2d(width, width, size, padding=size // 2, bias=False)


def _count_inference(width: int, steps: int | None, folded: bool) -> int:
    """Count a 3×3 convolution on a small image, with an IterNorm after it if ``steps`` is given, optionally folded."""
    net = nn.Sequential(_build_convolution(width, 3))
    if steps is not None:
        net.append(whitenorm.IterNorm(width, width, steps))
    net.eval()
    return flops(whitenorm.fold_(net) if folded else net, torch.zeros(1, width, 2, 2)) // 2


def _count_positions(run: Run) -> int:
    """Count the values per channel, mhw."""
    return int(run.settings["images"] * run.settings["resolution"] ** 2)


def _check_two_convolutions(results: Results) -> Evidence:
    ratios = [run.values["without_steps"] / run.values["convolution_1"] for run in results]
    return exactly({*ratios} == {2.0}, f"{min(ratios):.3f} to {max(ratios):.3f} times a 1×1 convolution's")


def _check_iteration(results: Results) -> Evidence:
    ratios = [
        (run.values["iternorm"] - run.values["without_steps"]) / (run.settings["T"] * run.settings["width"] ** 3)
        for run in results
    ]
    return exactly(
        all(1 <= ratio <= 3 for ratio in ratios), f"{min(ratios):.2f} to {max(ratios):.2f} times Td³, 3(T - 1)d³ in all"
    )


def _compute_share(run: Run) -> float:
    return float(run.values["iternorm"] / run.values["convolution_3"])


def _evaluate_formula(run: Run) -> float:
    return float(2 / 9 + run.settings["T"] * run.settings["width"] / _count_positions(run))


def _check_share(results: Results) -> Evidence:
    ratios = [_compute_share(run) / _evaluate_formula(run) for run in results]
    text = f"{min(map(_compute_share, results)):.4f} to {max(map(_compute_share, results)):.4f} of the convolution's, "
    return exactly(max(ratios) <= 1, f"{text}{min(ratios):.3f} to {max(ratios):.3f} times the formula")


def _check_merges(results: Results) -> Evidence:
    merged, alone = (
        max(100 * (run.values[name] / run.values["inference_without"] - 1) for run in results)
        for name in ("inference", "inference_alone")
    )
    return exactly(merged == 0, f"{merged:.0f} % more, {alone:.0f} % where it is not merged")


def draw(results: Results) -> Figure:
    """Draw the share of a 3×3 convolution over T, counted and by formula, one panel per batch size."""
    batches = results.levels("images")
    figure, axes = plt.subplots(
        1, len(batches), figsize=(3.6 * len(batches), 4), layout="constrained", sharey=True, squeeze=False
    )
    for panel, images in zip(axes[0], batches, strict=True):
        for width in results.levels("width"):
            runs = results.where(width=width, images=images)
            runs = Results(run for run in runs if run.seed == runs[0].seed)
            steps = runs.levels("T")
            (line,) = panel.plot(steps, [_compute_share(run) for run in runs], "o-", label=f"d = {width}, counted")
            panel.plot(
                steps,
                [_evaluate_formula(run) for run in runs],
                ":",
                color=line.get_color(),
                label=f"d = {width}, formula",
            )
        panel.axhline(2 / 9, color="grey", linewidth=0.8)
        panel.set(xlabel="steps T", xticks=steps, title=f"batch {images}, {runs[0].settings['resolution']}²")
        panel.grid(alpha=0.3)
    axes[0, 0].set(ylabel="times a 3×3 convolution's multiplications", yscale="log")
    draw_legend_above(figure)
    return figure


EXPERIMENT = Experiment(
    id="iternorm-complexity",
    paper="IterNorm",
    where="sec. 3.3",
    title="Multiplications of IterNorm against its formulas",
    cost="12 s",
    claims=(
        Claim("Covariance and output cost two 1×1 convolutions", "2hwmd²", _check_two_convolutions, exact=True),
        Claim(
            "The iteration is of the order of Td³", "Td³; here one to three times that", _check_iteration, exact=True
        ),
        Claim("Of a 3×3 convolution it is at most 2/9 + Td/mhw", "2/9 + Td/mhw", _check_share, exact=True),
        Claim("At inference it merges into a convolution at no cost", "no extra cost", _check_merges, exact=True),
    ),
    scales={
        "smoke": {"widths": [64], "images": [64], "resolution": 32, "steps": [3, 5]},
        **{
            name: {"widths": [64, 128, 512], "images": [1, 16, 64], "resolution": 32, "steps": [3, 5, 7]}
            for name in ("default", "paper")
        },
    },
    # The counts are the same for every seed.
    seeds={"smoke": 1, "default": 3, "paper": 3},
    plan=plan,
    run=run,
    draw=draw,
)
