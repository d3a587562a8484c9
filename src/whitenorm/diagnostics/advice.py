"""How a norm's batch stands to its population, and what is off in a set-up."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch import Tensor, nn

from whitenorm.diagnostics.constraints import feasible_range
from whitenorm.diagnostics.disturbance import stochastic_disturbance
from whitenorm.diagnostics.reports import LayerReport
from whitenorm.layers import BatchWhitening, GroupWhitening, LayerWhitening
from whitenorm.layers.base import PopulationWhitening
from whitenorm.solvers import inverse_sqrt

_BATCH = nn.modules.batchnorm._BatchNorm


# The kind of advice that is about the measures, and not about the layer.
FEW = "few"


def advice_for(layer: nn.Module, shape: torch.Size, report: LayerReport) -> dict[str, str]:
    """What is off in the set-up, by kind, and what to do."""
    words = {}
    values, sample = shape.numel() // shape[1], shape[1:].numel()
    if isinstance(layer, PopulationWhitening) and layer.process_group is not None:
        values *= dist.get_world_size(layer.process_group)
    # Centring takes one: as many values as channels are too few.
    if isinstance(layer, PopulationWhitening) and layer.training and values <= layer.group_size:
        words["singular"] = (
            f"{values} values a channel for a covariance of {layer.group_size} channels, which is singular; use a "
            "larger batch, smaller groups, synchronize_, or GroupWhitening"
        )
    if isinstance(layer, (GroupWhitening, LayerWhitening, nn.GroupNorm)):
        most = feasible_range("gn" if isinstance(layer, nn.GroupNorm) else "gw", sample).most
        if most is not None and layer.num_groups > most:
            words["infeasible"] = (
                f"{layer.num_groups} groups of {sample} values leave no freedom; at most {most} are feasible"
            )
    looked_at, dead = len(report.spectrum_before), report.dead_before or 0
    # At most 4096 rows are looked at, of no more than 2048 features.
    found = shape.numel() // shape[1]
    if dead == looked_at:
        words["constant"] = "its input is the same for all of the batch; look for a layer before it that has died"
    elif found <= looked_at:
        words[FEW] = (
            f"{found} values of {looked_at} features vary in {found - 1} directions at most, which is too few to tell "
            f"condition numbers by; use a batch that is {math.ceil(4 * looked_at / found)} times as large"
        )
    if report.drift is not None and math.isnan(report.drift):
        words["drift"] = "population statistics are not finite, and so is inference; use recalibrate_"
    elif report.drift is not None and report.drift > 1:
        words["drift"] = (
            f"population statistics are {report.drift:.1f} standard deviations from this batch's; train longer, raise "
            "momentum, or recalibrate_"
        )
    return words


def disturbance(layer: nn.Module, rows: Tensor, values: int) -> float | None:
    if not isinstance(layer, (BatchWhitening, _BATCH)) or len(rows) < 2 or layer.num_features > rows.shape[1]:
        return None
    size = min(len(rows), max(2, values))
    generator = torch.Generator().manual_seed(0)
    found = stochastic_disturbance(layer, rows, size, samples=32, repeats=16, generator=generator).operation
    # Of more values than are looked at, statistics are less noisy, as the root of their number.
    return found * math.sqrt(size / max(size, values))


def drift(layer: nn.Module, batch_mean: Tensor, cov: Tensor) -> float | None:
    """The distance of the batch's mean and spread from the population's, in the latter's standard deviations."""
    if not isinstance(layer, (PopulationWhitening, _BATCH)) or not layer.track_running_stats:
        return None
    mean = layer._buffers.get("running_mean")
    if mean is None or _never_updated(layer):
        return None
    size = layer.group_size if isinstance(layer, PopulationWhitening) else 1
    groups = len(batch_mean) // size
    cov = cov.view(groups, size, groups, size).diagonal(dim1=0, dim2=2).movedim(-1, 0)
    matrix, own = _population_matrix(layer)[:groups], _batch_matrix(layer, cov)
    shift = (matrix @ (batch_mean - mean.double()[: len(batch_mean)]).view(groups, size, 1)).squeeze(-1)
    # Of what the layer makes of this batch by its own statistics: five steps of Newton do not whiten it wholly either.
    spread = matrix @ cov @ matrix.mT - own @ cov @ own.mT
    return math.sqrt(((shift.square().sum() + spread.square().sum()) / len(batch_mean)).item())


def _never_updated(layer: nn.Module) -> bool:
    """Whether the population is the initial one; files of old do not count batches, but have means."""
    batches, mean = layer._buffers.get("num_batches_tracked"), layer._buffers["running_mean"]
    return batches is not None and int(batches) == 0 and mean is not None and not bool(mean.any())


def _population_matrix(layer: nn.Module) -> Tensor:
    """The matrix of the population, ``(G, K, K)``: the layer's own, or by exact inverse roots."""
    buffers = {name: buffer.double() for name, buffer in layer.named_buffers() if name != "num_batches_tracked"}
    if "running_whitening" in buffers:
        return buffers["running_whitening"]
    if "running_var" in buffers:
        return _exact(layer, buffers["running_var"].view(-1, 1, 1))
    return _exact(layer, buffers["running_cov"])


def _batch_matrix(layer: nn.Module, cov: Tensor) -> Tensor:
    """What covariances of a batch would become in the same way, ``(G, K, K)``."""
    if not (isinstance(layer, PopulationWhitening) and "running_whitening" in layer._buffers):
        return _exact(layer, cov)
    if not cov.isfinite().all():
        return torch.full_like(cov, math.nan)
    return inverse_sqrt(cov + layer.eps * torch.eye(cov.shape[-1], dtype=cov.dtype, device=cov.device), layer.solver)


def _exact(layer: nn.Module, cov: Tensor) -> Tensor:
    if not cov.isfinite().all():
        return torch.full_like(cov, math.nan)
    values, vectors = torch.linalg.eigh(cov)
    return vectors @ ((values.clamp_min(0) + float(layer.eps)).rsqrt().unsqueeze(-1) * vectors.mT)  # type: ignore[arg-type]
