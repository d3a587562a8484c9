"""GW table A1: one more norm, of the features before the classifier, in nets with GW, BW and BW_Σ at five placements.

Paper: ResNet-50 on ImageNet, 100 epochs, batch 256, top-1 accuracy. The extra layer follows the last average pooling
("+df", decorrelated features), where the baseline has an extra BN. All nets are above the baseline. Compared with table
2, without the extra layer, it adds 0.10 points to GW on average over the placements, 0.22 to BW and 0.43 to BW_Σ; the
extra BN changes nothing (76.23 and 76.24 %). Both tables are run here, as the text is about these gains. Not stated in
the paper: the groups of the extra GW (here 64, as elsewhere).

Default scale: a ResNet of 11 layers with bottlenecks (three blocks of width 16, 32 and 64, with four times as many
output channels) on CIFAR-10 at 16²: 1,500 training images, 8 epochs of batches of 32, 2,000 test images. GW has 16
groups and BW_Σ groups of 16 channels, a quarter of the paper's, because the net has a quarter of the channels. BW runs
only at the paper scale. Tests use population statistics of the training images. Runs of the same seed share weights,
images and their order, so the differences of pairs are judged. Batch size, images and epochs were chosen by the time
per step. Images are not augmented: in a pilot with seed 7 (BN, and GW at S1-B2, with the extra layer), training errors
were as high as test errors.

Cost: 45 minutes on one core. Command: ``whitenorm-lab reproduce gw-df --data ROOT``.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from whitenorm_lab.claims.evidence import Evidence, alike, lower, not_run
from whitenorm_lab.claims.experiment import Claim
from whitenorm_lab.claims.plots import add_grid_and_legend, plot_spread
from whitenorm_lab.claims.results import Results
from whitenorm_lab.papers.gw.imagenet import BN, PLACED, TABLE_2
from whitenorm_lab.papers.shared.classification import build_experiment, get_final_values
from whitenorm_lab.tasks.classification.presets.gw import GwImagenet

_BN_DF = 76.24
_TABLE_A1 = {
    "S1": {"BW": 76.91, "BW_Σ": 77.09, "GW": 76.86},
    "S1-B1": {"BW": 76.94, "BW_Σ": 77.04, "GW": 77.63},
    "S1-B2": {"BW": 76.93, "BW_Σ": 77.21, "GW": 77.80},
    "S1-B3": {"BW": 76.78, "BW_Σ": 77.10, "GW": 77.75},
    "S1-B12": {"BW": 76.79, "BW_Σ": 77.11, "GW": 77.48},
}
_EXTRA = "+df"
# Points within which two errors count as alike; the paper prints no spread.
_MARGIN = 1.0
_PANELS = {
    "BN": {f"BN{extra}": dataclasses.replace(GwImagenet(), norm="bn", where=f"all{extra}") for extra in ("", _EXTRA)},
    **{
        norm: {
            f"{norm}, {place}{extra}": dataclasses.replace(GwImagenet(), **options, where=f"{place.lower()}{extra}")
            for place in _TABLE_A1
            for extra in ("", _EXTRA)
        }
        for norm, options in PLACED.items()
    },
}


def _average_errors(results: Results, *variants: str) -> list[float] | None:
    """Return each seed's final test error, averaged over some variants; None if they were not run."""
    if not set(variants) <= set(results.levels("variant")):
        return None
    by_variant = [get_final_values(results, "test_error", variant) for variant in variants]
    return [statistics.fmean(errors) for errors in zip(*by_variant, strict=True)]


def _average_over_placements(results: Results, norm: str, extra: str) -> list[float] | None:
    return _average_errors(results, *(f"{norm}, {place}{extra}" for place in _TABLE_A1))


def _compute_gains(results: Results, norm: str) -> list[float] | None:
    """Return how much the extra layer lowers each seed's error, averaged over the placements; None if not run."""
    without, extra = (_average_over_placements(results, norm, extra) for extra in ("", _EXTRA))
    return None if without is None or extra is None else [a - b for a, b in zip(without, extra, strict=True)]


def _judge_pair(
    select: Callable[[Results], Sequence[list[float] | None]], names: tuple[str, str], margin: float | None = None
) -> Callable[[Results], Evidence]:
    """Judge whether the first numbers are lower than the second or, with a margin, whether they are alike."""

    def judge(results: Results) -> Evidence:
        one, other = select(results)
        if one is None or other is None:
            return not_run()
        evidence = lower(one, other, names) if margin is None else alike(one, other, names, margin)
        settings = results[0].settings
        return dataclasses.replace(evidence, prefix=f"{settings['net']}, {settings.get('dataset', 'cifar10')}: ")

    return judge


def _compute_printed_gain(norm: str) -> float:
    """Return the mean difference of the paper's tables A1 and 2.

    Example::

        >>> [round(_compute_printed_gain(norm), 2) for norm in ("GW", "BW", "BW_Σ")]
        [0.1, 0.22, 0.43]
    """
    return statistics.fmean(_TABLE_A1[place][norm] - TABLE_2[place][norm] for place in _TABLE_A1)


def _claim_below_bn(norm: str, place: str) -> Claim:
    return Claim(
        f"{norm} at {place} has a lower test error than BN, both with the extra layer",
        f"accuracy: BN {_BN_DF} %, {norm} {_TABLE_A1[place][norm]} %",
        _judge_pair(
            lambda results: [_average_errors(results, f"{name}{_EXTRA}") for name in (f"{norm}, {place}", "BN")],
            (norm, "BN"),
        ),
    )


def _claim_gain(norm: str) -> Claim:
    return Claim(
        f"{norm}: the extra layer lowers the test error, on average over the placements",
        f"by {_compute_printed_gain(norm):.2f} points",
        _judge_pair(
            lambda results: [_average_over_placements(results, norm, extra) for extra in (_EXTRA, "")],
            ("with it", "without"),
        ),
    )


def _claim_larger_gain(norm: str, other: str) -> Claim:
    return Claim(
        f"The extra layer helps {norm} more than {other}, on average over the placements",
        f"by {_compute_printed_gain(norm):.2f} and {_compute_printed_gain(other):.2f} points",
        _judge_pair(
            lambda results: [_compute_gains(results, name) for name in (other, norm)],
            (f"{other} gains", f"{norm} gains"),
        ),
    )


def draw(results: Results) -> Figure:
    """Draw the test error by placement, with and without the extra layer, and that of BN."""
    norms = [norm for norm in PLACED if _compute_gains(results, norm) is not None]
    figure, axes = plt.subplots(
        1, len(norms), figsize=(4.2 * len(norms), 3.6), layout="constrained", squeeze=False, sharey=True
    )
    for panel, norm in zip(axes.flat, norms, strict=True):
        for i, (extra, label) in enumerate((("", "without"), (_EXTRA, "with the extra layer"))):
            columns = [get_final_values(results, "test_error", f"{norm}, {place}{extra}") for place in _TABLE_A1]
            curves = [list(curve) for curve in zip(*columns, strict=True)]
            plot_spread(panel, range(len(_TABLE_A1)), curves, f"{norm}, {label}", color=f"C{i}", marker=".")
            bn = statistics.fmean(get_final_values(results, "test_error", f"BN{extra}"))
            panel.axhline(bn, color=f"C{i}", linestyle=":", label=f"BN, {label}")
        panel.set_xticks(range(len(_TABLE_A1)), list(_TABLE_A1))
        panel.set(ylabel="test error (%)", title=norm)
        add_grid_and_legend(panel)
    return figure


EXPERIMENT = dataclasses.replace(
    build_experiment(
        "gw-df",
        _PANELS,
        (
            *(_claim_below_bn(norm, place) for norm in PLACED for place in _TABLE_A1),
            *(_claim_gain(norm) for norm in PLACED),
            *(_claim_larger_gain(*pair) for pair in (("BW_Σ", "GW"), ("BW", "GW"), ("BW_Σ", "BW"))),
            Claim(
                f"The baseline with an extra BN is within {_MARGIN:g} point of the one without",
                f"accuracy: {BN} and {_BN_DF} %",
                _judge_pair(
                    lambda results: [_average_errors(results, f"BN{extra}") for extra in (_EXTRA, "")],
                    ("with it", "without"),
                    _MARGIN,
                ),
            ),
        ),
        reduced={
            "cases": ["BN", "BW_Σ", "GW"],
            "dataset": "cifar10",
            "nets": {"resnet50": "bottleneck-11"},
            "norms": {"gw": {"num_groups": 16}, "bw-sigma": {"group_size": 16}},
            "augment": False,
            "resize": 16,
            "train_images": 1500,
            "test_images": 2000,
            "batch_size": 32,
            "epochs": 8,
            "test_every": 8,
        },
        smoke={
            "cases": ["BN", "GW"],
            "dataset": "cifar10",
            "nets": {"resnet50": "bottleneck-11"},
            "norms": {"gw": {"num_groups": 4}},
            "width": 4,
            "resize": 8,
            "train_images": 64,
            "test_images": 20,
            "batch_size": 32,
            "epochs": 1,
        },
        paper="GW",
        where="table A1",
        title="One more norm before the classifier, by placement",
        cost="45 min of one core",
        data=("cifar10",),
    ),
    draw=draw,
    reduction=(
        "Run here with a residual net of 11 layers on 1,500 images of CIFAR-10 at 16², for 8 epochs, where the paper "
        "has ResNet-50 on ImageNet for 100."
    ),
)
