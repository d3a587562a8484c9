"""Measures of one norm from its recorded features, with advice on its set-up."""

from __future__ import annotations

import math
import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn

from whitenorm.diagnostics.conditioning import (
    correlation_matrix,
    count_dead,
    covariance,
    eigenvalue_ratio,
    eigenvalues,
    flatten_features,
    mean_correlation,
    rounding_variance,
)
from whitenorm.diagnostics.constraints import feasible_range
from whitenorm.diagnostics.disturbance import stochastic_disturbance
from whitenorm.diagnostics.recording import FeatureRows, Recorder
from whitenorm.diagnostics.reports import LayerReport
from whitenorm.layers import BatchWhitening, GroupWhitening, LayerWhitening
from whitenorm.layers.base import PopulationWhitening
from whitenorm.solvers import inverse_sqrt

_BATCH_NORM = nn.modules.batchnorm._BatchNorm
# Channels in the reported correlation matrices, the first ones, because groups consist of neighbours.
_CORRELATION_CHANNELS = 64
# Kind of the advice for a norm whose features could not be measured.
UNMEASURED = "unmeasured"
# Kind of the advice for a batch too small for the measures, which says nothing about the model's set-up.
FEW_VALUES = "few values"


def measure_layer(recorder: Recorder, layer: nn.Module) -> tuple[LayerReport, dict[str, str]]:
    """Return a norm's report and its advice by kind.

    Features without a covariance, such as one value per channel, or NaN, give a report without measures and advice that
    says why.
    """
    shape = recorder.inputs[layer].shape
    width = shape[-1 if len(shape) < 2 else 1]
    report = LayerReport(recorder.layers[layer], type(layer).__name__, width, _count_groups(layer, width))
    gradients = {which: norm.item() for which, norm in recorder.gradients[layer].items()}
    if len(gradients) == 2 and gradients["output"] > 0:
        report.gradient_ratio = gradients["input"] / gradients["output"]
    if recorder.total_seconds:
        report.time_share = recorder.seconds.get(layer, 0.0) / recorder.total_seconds
    if recorder.saved_bytes:
        report.memory_share = recorder.saved_bytes.get(layer, 0) / sum(recorder.saved_bytes.values())
    try:
        _measure_features(report, layer, recorder.inputs[layer], recorder.outputs[layer])
        advice = _advise(layer, shape, report)
    except ValueError as error:
        advice = {UNMEASURED: str(error)}
    report.advice = list(advice.values())
    return report, advice


def _count_groups(layer: nn.Module, width: int) -> int:
    size = getattr(layer, "group_size", None)
    default = width // size if size else width if isinstance(layer, _BATCH_NORM) else 1
    return int(getattr(layer, "num_groups", None) or default)


def _measure_features(report: LayerReport, layer: nn.Module, x: FeatureRows, y: FeatureRows) -> None:
    before, after = flatten_features(x.rows), flatten_features(y.rows)
    cov, cov_after = covariance(before), covariance(after)
    report.spectrum_before, report.spectrum_after = eigenvalues(cov).tolist(), eigenvalues(cov_after).tolist()
    report.dead_before, report.dead_after = _count_dead_directions(
        report,
        rounding_variance(before, x.rows.dtype),
        rounding_variance(after, y.rows.dtype),
        is_affine=isinstance(layer, (BatchWhitening, _BATCH_NORM)),
    )
    report.condition_before = eigenvalue_ratio(report.spectrum_before, num_dead=report.dead_before)
    report.condition_after = eigenvalue_ratio(report.spectrum_after, num_dead=report.dead_after)
    report.condition90_before = eigenvalue_ratio(report.spectrum_before, 90, report.dead_before)
    report.condition90_after = eigenvalue_ratio(report.spectrum_after, 90, report.dead_after)
    matrix, matrix_after = correlation_matrix(cov), correlation_matrix(cov_after)
    report.correlation_before, report.correlation_after = mean_correlation(matrix), mean_correlation(matrix_after)
    first = slice(_CORRELATION_CHANNELS)
    report.correlations_before = matrix[first, first].float().cpu()
    report.correlations_after = matrix_after[first, first].float().cpu()
    report.disturbance = _measure_disturbance(layer, before, x.shape.numel() // x.shape[1])
    report.drift = _measure_drift(layer, before.mean(0), cov)


def _count_dead_directions(
    report: LayerReport, rounding: float, rounding_after: float, is_affine: bool
) -> tuple[int, int]:
    """Return the numbers of dead directions of the norm's input and output."""
    values, values_after = report.spectrum_before, report.spectrum_after
    dead = count_dead(values, rounding)
    # The norm scales the rounding errors of its input as it scales the variance.
    scaled = rounding * sum(values_after) / max(sum(values), sys.float_info.min)
    dead_after = count_dead(values_after, max(rounding_after, scaled))
    # An affine map revives no direction: where one seems alive, noise was amplified.
    return dead, max(dead, dead_after) if is_affine else dead_after


def _measure_disturbance(layer: nn.Module, rows: Tensor, num_values: int) -> float | None:
    """Return the SND of a batch norm for batches of ``num_values`` values per channel."""
    if not isinstance(layer, (BatchWhitening, _BATCH_NORM)) or len(rows) < 2 or layer.num_features > rows.shape[1]:
        return None
    size = min(len(rows), max(2, num_values))
    generator = torch.Generator().manual_seed(0)
    result = stochastic_disturbance(layer, rows, size, samples=32, repeats=16, generator=generator)
    # If only some of the values were sampled: noise falls with the square root of their number.
    return result.operation * math.sqrt(size / max(size, num_values))


def _measure_drift(layer: nn.Module, batch_mean: Tensor, cov: Tensor) -> float | None:
    """Return the distance of a batch's mean and spread from the population's, in standard deviations of the latter."""
    if not isinstance(layer, (PopulationWhitening, _BATCH_NORM)) or not layer.track_running_stats:
        return None
    mean = layer._population()[0] if isinstance(layer, PopulationWhitening) else layer._buffers.get("running_mean")
    if mean is None or _is_population_initial(layer, mean):
        return None
    size = layer.group_size if isinstance(layer, PopulationWhitening) else 1
    groups = len(batch_mean) // size
    cov = cov.view(groups, size, groups, size).diagonal(dim1=0, dim2=2).movedim(-1, 0)
    matrix, batch_matrix = _population_matrix(layer)[:groups], _batch_matrix(layer, cov)
    shift = (matrix @ (batch_mean - mean.double()[: len(batch_mean)]).view(groups, size, 1)).squeeze(-1)
    # Compare with the batch as whitened by its own statistics, because five Newton steps do not whiten fully either.
    spread = matrix @ cov @ matrix.mT - batch_matrix @ cov @ batch_matrix.mT
    return math.sqrt(((shift.square().sum() + spread.square().sum()) / len(batch_mean)).item())


def _is_population_initial(layer: nn.Module, mean: Tensor) -> bool:
    """Return whether running statistics were never updated; those of old checkpoints have means but no batch count."""
    batches = layer._buffers.get("num_batches_tracked")
    return batches is not None and int(batches.max()) == 0 and not bool(mean.any())


def _population_matrix(layer: nn.Module) -> Tensor:
    """Return the whitening matrix of the population, ``(G, K, K)``: stored, or the exact inverse root."""
    if not isinstance(layer, PopulationWhitening):
        return _exact_inverse_root(layer, layer.get_buffer("running_var").double().view(-1, 1, 1))
    matrix = layer._population()[1]
    assert matrix is not None
    is_whitening = "running_whitening" in layer._buffers
    return matrix.double() if is_whitening else _exact_inverse_root(layer, matrix.double())


def _batch_matrix(layer: nn.Module, cov: Tensor) -> Tensor:
    """Return the whitening matrix of a batch's covariances, computed as the population's was, ``(G, K, K)``."""
    if not (isinstance(layer, PopulationWhitening) and "running_whitening" in layer._buffers):
        return _exact_inverse_root(layer, cov)
    if not cov.isfinite().all():
        return torch.full_like(cov, math.nan)
    return inverse_sqrt(cov + layer.eps * torch.eye(cov.shape[-1], dtype=cov.dtype, device=cov.device), layer.solver)


def _exact_inverse_root(layer: nn.Module, cov: Tensor) -> Tensor:
    if not cov.isfinite().all():
        return torch.full_like(cov, math.nan)
    values, vectors = torch.linalg.eigh(cov)
    return vectors @ ((values.clamp_min(0) + float(layer.eps)).rsqrt().unsqueeze(-1) * vectors.mT)  # type: ignore[arg-type]


def _advise(layer: nn.Module, shape: torch.Size, report: LayerReport) -> dict[str, str]:
    """Return what is wrong with a norm's set-up and what to do about it, by kind."""
    advice = {}
    num_values, sample_size = shape.numel() // shape[1], shape[1:].numel()
    total_values = num_values
    if isinstance(layer, PopulationWhitening) and layer.process_group is not None:
        total_values *= dist.get_world_size(layer.process_group)
    # Centring takes one degree of freedom, so that as many values as channels are too few.
    if isinstance(layer, PopulationWhitening) and layer.training and total_values <= layer.group_size:
        advice["singular"] = (
            f"{total_values} values per channel for a covariance of {layer.group_size} channels, which is singular; "
            "use a larger batch, smaller groups, synchronize_, or GroupWhitening"
        )
    if isinstance(layer, (GroupWhitening, LayerWhitening, nn.GroupNorm)):
        most = feasible_range("gn" if isinstance(layer, nn.GroupNorm) else "gw", sample_size).most
        if most is not None and layer.num_groups > most:
            advice["infeasible"] = (
                f"{layer.num_groups} groups of {sample_size} values leave no freedom; at most {most} are feasible"
            )
    # At most 2048 channels are measured.
    num_measured = len(report.spectrum_before)
    if report.dead_before == num_measured:
        advice["constant"] = "its input is the same for all of the batch; look for a dead layer before it"
    elif num_values <= num_measured:
        advice[FEW_VALUES] = (
            f"{num_values} values of {num_measured} features vary in {num_values - 1} directions at most, which is too "
            f"few for condition numbers; use a batch that is {math.ceil(4 * num_measured / num_values)} times as large"
        )
    if report.drift is not None and math.isnan(report.drift):
        advice["drift"] = "population statistics are not finite, and so is the output in eval mode; use recalibrate_"
    elif report.drift is not None and report.drift > 1:
        advice["drift"] = (
            f"population statistics are {report.drift:.1f} standard deviations from this batch's; train longer, raise "
            "momentum, or recalibrate_"
        )
    return advice
