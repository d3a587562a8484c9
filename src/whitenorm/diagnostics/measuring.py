"""From what was seen of a norm in a step to its report."""

from __future__ import annotations

import sys

from torch import Tensor, nn

from whitenorm.diagnostics.advice import advice_for, disturbance, drift
from whitenorm.diagnostics.conditioning import (
    condition_of,
    correlations_of,
    covariance_of,
    dead_of,
    features_of,
    mean_correlation,
    rounding_of,
    spectrum_of,
)
from whitenorm.diagnostics.reports import LayerReport
from whitenorm.diagnostics.samples import Seen
from whitenorm.diagnostics.watching import Watch
from whitenorm.layers import BatchWhitening

_BATCH = nn.modules.batchnorm._BatchNorm
# Channels whose correlations are kept, the first ones, as groups of channels are neighbours.
_CHANNELS = 64
# The kind of advice to a report without measures.
UNMEASURED = "unmeasured"


def measured(watch: Watch, layer: nn.Module) -> tuple[LayerReport, dict[str, str]]:
    """A norm's report, and its advice by kind.

    Features without a covariance, such as one value a channel, or NaN, make a report without measures, and advice that
    says why.
    """
    shape = watch.inputs[layer].shape
    width = shape[-1 if len(shape) < 2 else 1]
    report = LayerReport(watch.layers[layer], type(layer).__name__, width, _groups(layer, width))
    gradients = {which: norm.item() for which, norm in watch.gradients[layer].items()}
    if len(gradients) == 2 and gradients["output"] > 0:
        report.gradient_ratio = gradients["input"] / gradients["output"]
    report.time_share = watch.seconds.get(layer, 0.0) / watch.total if watch.total else None
    report.memory_share = watch.saved.get(layer, 0) / sum(watch.saved.values()) if watch.saved else None
    try:
        _measure(report, layer, watch.inputs[layer], watch.outputs[layer])
        advice = advice_for(layer, shape, report)
    except ValueError as error:
        advice = {UNMEASURED: str(error)}
    report.advice = list(advice.values())
    return report, advice


def _measure(report: LayerReport, layer: nn.Module, x: Seen, y: Seen) -> None:
    before, after = features_of(x.rows), features_of(y.rows)
    cov, cov_after = covariance_of(before), covariance_of(after)
    report.spectrum_before, report.spectrum_after = spectrum_of(cov).tolist(), spectrum_of(cov_after).tolist()
    report.dead_before, report.dead_after = _dead(
        report,
        rounding_of(before, x.rows.dtype),
        rounding_of(after, y.rows.dtype),
        is_affine=isinstance(layer, (BatchWhitening, _BATCH)),
    )
    report.condition_before = condition_of(report.spectrum_before, dead=report.dead_before)
    report.condition_after = condition_of(report.spectrum_after, dead=report.dead_after)
    report.condition90_before = condition_of(report.spectrum_before, 90, report.dead_before)
    report.condition90_after = condition_of(report.spectrum_after, 90, report.dead_after)
    matrix, matrix_after = correlations_of(cov), correlations_of(cov_after)
    report.correlation_before, report.correlation_after = mean_correlation(matrix), mean_correlation(matrix_after)
    report.correlations_before, report.correlations_after = _first(matrix), _first(matrix_after)
    report.disturbance = disturbance(layer, before, x.shape.numel() // x.shape[1])
    report.drift = drift(layer, before.mean(0), cov)


def _dead(report: LayerReport, rounding: float, rounding_after: float, is_affine: bool) -> tuple[int, int]:
    """How many directions of the norm's input and output are dead."""
    values, values_after = report.spectrum_before, report.spectrum_after
    dead = dead_of(values, rounding)
    # The input's rounding grows with its variance.
    grown = rounding * sum(values_after) / max(sum(values), sys.float_info.min)
    dead_after = dead_of(values_after, max(rounding_after, grown))
    # An affine map brings no direction to life: what else it seems to is amplified noise.
    return dead, max(dead, dead_after) if is_affine else dead_after


def _first(matrix: Tensor) -> Tensor:
    return matrix[:_CHANNELS, :_CHANNELS].float().cpu()


def _groups(layer: nn.Module, width: int) -> int:
    size = getattr(layer, "group_size", None)
    each_alone = width if isinstance(layer, _BATCH) else 1
    return int(getattr(layer, "num_groups", None) or (width // size if size else each_alone))
