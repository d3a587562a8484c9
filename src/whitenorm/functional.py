"""Stateless whitening functions, one per method, like ``torch.nn.functional``."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from whitenorm._runtime import check_floating, compute_dtype, no_autocast, smallest
from whitenorm.ops.check import (
    Wish,
    check_batch,
    check_divides,
    check_eps,
    check_mask,
    check_parameter,
    check_positions,
    check_rank,
    check_running,
    check_statistics,
    fit_group_size,
)
from whitenorm.ops.dispatch import choose_kernels, fused_kernels, torch_kernels
from whitenorm.ops.distributed import Group, sum_over_ranks
from whitenorm.ops.fixed_map import apply_fixed_map
from whitenorm.ops.layout import channel_groups, sample_groups
from whitenorm.ops.masking import zero_masked
from whitenorm.ops.types import BATCH_STATISTICS, OVER_POSITIONS, Method, Mixing, Running
from whitenorm.ops.whiten import Plan, whiten_fused
from whitenorm.ops.whiten import whiten as whiten_groups
from whitenorm.solvers import ZCA, Cholesky, Solver, SolverLike, as_solver, inverse_sqrt, sqrt

__all__ = [
    "batch_whitening",
    "covariance_pooling",
    "group_whitening",
    "instance_whitening",
    "switchable_whitening",
    "wct",
    "whiten",
]

POPULATIONS = ("whitening", "covariance")
# Solvers that turn a diagonal covariance into the inverse roots of its variances.
_ROOT_OF_DIAGONAL = (ZCA, Cholesky)


def batch_whitening(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_matrix: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float | Tensor = 0.1,
    eps: float = 1e-5,
    *,
    group_size: int | None = None,
    solver: SolverLike = "newton",
    population: str = "whitening",
    process_group: Group = None,
    mask: Tensor | None = None,
    num_batches_tracked: Tensor | None = None,
) -> Tensor:
    r"""Whiten groups of channels over the batch: DBN with ``solver="zca"``, IterNorm with ``"newton"``.

    .. math:: y = \gamma\, W(\Sigma + \epsilon I)\, (x - \mu) + \beta

    In training, the mean and biased covariance of the batch are used, and the running statistics, if given, are
    updated in place. Otherwise the running statistics are used, and the map is a fixed grouped 1×1 convolution.

    Args:
        input: ``(N, C)``, ``(N, C, L)``, ``(N, C, H, W)`` or ``(N, C, D, H, W)``.
        running_mean: ``(C,)``.
        running_matrix: ``(C / group_size, group_size, group_size)``, of the kind that ``population`` names.
        weight, bias: γ and β, ``(C,)``.
        training: whether to use and record the statistics of this batch.
        momentum: weight of the new batch in the running statistics.
        eps: added to the diagonal of the covariance.
        group_size: channels whitened together; all of them if None or larger.
        solver: computes the whitening matrix from the covariance; see :func:`whitenorm.solvers.inverse_sqrt`.
        population: kind of ``running_matrix``: an average of ``"whitening"`` matrices, as in the papers, or of
            ``"covariance"`` matrices (without ε).
        process_group: the ranks that share batch statistics in training; see :func:`whitenorm.synchronize_`.
        mask: True at valid positions, boolean ``(N, ...)``, such as ``(N, L)`` for ``(N, C, L)``. The others (padding)
            are excluded from the statistics, do not change other outputs, give 0 and get no gradient.
        num_batches_tracked: incremented in training. A batch with fewer than two valid values (by the mask, over all
            ranks) changes neither this nor the running statistics. A single value is an error on CPUs, as in
            BatchNorm; on other devices the check would need a synchronization.

    Example::

        >>> x = torch.randn(64, 8) @ torch.randn(8, 8)
        >>> y = batch_whitening(x, training=True, solver="zca")
        >>> torch.allclose(y.T @ y / 64, torch.eye(8), atol=1e-2)
        True
    """
    group_size = _check(input, eps, group_size, weight, bias)
    check_population(population)
    check_running("running_matrix", running_mean, running_matrix, input.shape[1], group_size)
    if mask is not None:
        check_mask(input, mask)
    if training:
        check_batch(input, process_group)
        plan = _plan(input, group_size, ("bw",), solver, eps, group=process_group, masked=mask is not None)
        running = Running(running_mean, running_matrix, population, momentum, num_batches_tracked)
        # Between the steps, ranks share their moments.
        if mask is None and process_group is None:
            return _whiten_by_one_statistic(input, plan, weight, bias, running)
        return whiten_groups(input, plan, weight, bias, mask=mask, running=running)
    if running_mean is None or running_matrix is None:
        raise ValueError(
            "expected running_mean and running_matrix when training=False (got None); pass them, or training=True"
        )
    if population == "covariance":
        running_matrix = population_whitening(running_matrix, eps, solver)
    if mask is None:
        return apply_fixed_map(input, running_mean, running_matrix, weight, bias, group_size)
    output = apply_fixed_map(zero_masked(input, mask), running_mean, running_matrix, weight, bias, group_size)
    return zero_masked(output, mask)


def instance_whitening(
    input: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    group_size: int | None = None,
    solver: SolverLike = "newton",
) -> Tensor:
    r"""Whiten groups of channels over the positions of each sample, both in training and at inference.

    .. math:: y_n = \gamma\, W(\Sigma_n + \epsilon I)\, (x_n - \mu_n) + \beta

    Args:
        input: ``(N, C, L)``, ``(N, C, H, W)`` or ``(N, C, D, H, W)`` with more than one position.
        weight, bias: γ and β, ``(C,)``.
        eps: added to the diagonal of the covariance.
        group_size: channels whitened together; all of them if None or larger.
        solver: computes the whitening matrix from the covariance.

    Example::

        >>> y = instance_whitening(torch.randn(2, 4, 32, 32), solver="zca").flatten(2)
        >>> torch.allclose(y @ y.mT / 1024, torch.eye(4).expand(2, 4, 4), atol=1e-2)
        True
    """
    group_size = _check(input, eps, group_size, weight, bias)
    check_positions(input, "channel", math.prod(input.shape[2:]))
    return _whiten_by_one_statistic(input, _plan(input, group_size, ("iw",), solver, eps), weight, bias)


def group_whitening(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    solver: SolverLike = "newton",
) -> Tensor:
    r"""Whiten the groups of each sample against each other (GW, algorithm 1), in training and at inference.

    The channels of a sample form ``num_groups`` groups, as in GroupNorm. Each group is one feature, seen at its
    C/num_groups·H·W values, and the ``num_groups`` features are whitened:

    .. math:: X_G = \Pi(x) \in R^{g \times c}, \qquad
              \hat X_G = W(\tfrac1c X_C X_C^T + \epsilon I)\, X_C, \qquad y = \gamma\, \Pi^{-1}(\hat X_G) + \beta

    Args:
        input: ``(N, C, ...)``.
        num_groups: g; must divide C. One group is GroupNorm with one group.
        weight, bias: γ and β, ``(C,)``.
        eps: added to the diagonal of the covariance.
        solver: computes the whitening matrix from the covariance.

    Example::

        >>> y = group_whitening(torch.randn(2, 64, 8, 8), 4, solver="zca").reshape(2, 4, -1)
        >>> torch.allclose(y @ y.mT / y.shape[-1], torch.eye(4).expand(2, 4, 4), atol=1e-2)
        True
    """
    _check(input, eps, None, weight, bias)
    check_divides("num_groups", num_groups, "channels", input.shape[1])
    check_positions(input, "group", math.prod(input.shape[1:]) // num_groups)
    solver = as_solver(solver)
    if num_groups == input.shape[1]:
        # With one channel in each, the groups are the channels, and γ and β fold into the matrix.
        return _whiten_by_one_statistic(input, _plan(input, num_groups, ("iw",), solver, eps), weight, bias)
    kernels = choose_kernels(input, solver, num_groups, is_per_sample=True)
    if kernels.handles_strides:
        layout = sample_groups(input, num_groups, may_be_dual=False, handles_strides=True)
        plan = Plan(layout, Method(("iw",), solver, eps, uses_sample=True), kernels)
        return _whiten_by_one_statistic(input, plan, weight, bias)
    reduced = solver.reduce(eps, max(0, num_groups - input.shape[1] // num_groups))
    layout = sample_groups(input, num_groups, may_be_dual=reduced is not None)
    if layout.dual and reduced is not None:
        solver = reduced
    return whiten_groups(
        input, Plan(layout, Method(("iw",), solver, eps, uses_sample=True), torch_kernels(layout)), weight, bias
    )


def switchable_whitening(
    input: Tensor,
    mean_logits: Tensor,
    cov_logits: Tensor,
    running_mean: Tensor | None = None,
    running_cov: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float | Tensor = 0.1,
    eps: float = 1e-5,
    *,
    statistics: tuple[str, ...] = ("bw", "iw"),
    group_size: int | None = Wish(16),
    solver: SolverLike = "newton",
    process_group: Group = None,
    num_batches_tracked: Tensor | None = None,
) -> Tensor:
    r"""Whiten each sample with a mix of batch and instance statistics (Switchable Whitening).

    .. math:: \hat\mu_n = \sum_k \omega_k \mu_{k,n}, \qquad \hat\Sigma_n = \sum_k \omega'_k \Sigma_{k,n}, \qquad
              y_n = \gamma\, W(\hat\Sigma_n + \epsilon I)\, (x_n - \hat\mu_n) + \beta

    A sample with a single position has neither an instance covariance nor an instance variance. Only the
    statistics that exist (``"bw"``, ``"bn"``, ``"ln"``) are mixed then, with their weights scaled to sum to 1.

    Args:
        input: ``(N, C, ...)``.
        mean_logits, cov_logits: one entry per statistic; ω and ω' are their softmax.
        running_mean, running_cov: running statistics of the batch, ``(C,)`` and ``(C / group_size, group_size,
            group_size)``; updated in place in training, used instead of the batch statistics otherwise.
        weight, bias: γ and β, ``(C,)``.
        training: whether to use and record the statistics of this batch.
        momentum: weight of the new batch in the running statistics.
        eps: added to the diagonal of the mixed covariance.
        statistics: names among ``"bw"``, ``"iw"`` (whitening over batch and sample), ``"bn"``, ``"in"`` and ``"ln"``.
        group_size: channels whitened together; all of them if None or larger, otherwise a divisor of C. The default
            becomes the largest divisor of C up to 16, with a warning where that is below 4.
        solver: computes the whitening matrix from the covariance.
        process_group: the ranks that share batch statistics in training; see :func:`whitenorm.synchronize_`.
        num_batches_tracked: incremented in training. A batch of fewer than two values over all ranks changes neither
            this nor the running statistics. A single value is an error on CPUs, as in BatchNorm; on other devices the
            check would need a synchronization.

    Example::

        >>> equal = torch.zeros(2)
        >>> switchable_whitening(torch.randn(4, 32, 8, 8), equal, equal, training=True).shape
        torch.Size([4, 32, 8, 8])
    """
    group_size = _check(input, eps, group_size, weight, bias)
    check_statistics(statistics)
    _check_mixing("mean_logits", mean_logits, statistics)
    _check_mixing("cov_logits", cov_logits, statistics)
    check_running("running_cov", running_mean, running_cov, input.shape[1], group_size)
    statistics = tuple(statistics)
    if math.prod(input.shape[2:]) == 1:
        existing = [i for i, name in enumerate(statistics) if name not in OVER_POSITIONS]
        if not existing:
            check_positions(input, "channel", 1)
        statistics = tuple([statistics[i] for i in existing])
        # A softmax over fewer entries is the old one, scaled.
        mean_logits, cov_logits = mean_logits[existing], cov_logits[existing]
    uses_batch = any(name in BATCH_STATISTICS for name in statistics)
    learns = uses_batch and training
    if learns:
        check_batch(input, process_group)
    plan = _plan(input, group_size, statistics, solver, eps, group=process_group if learns else None)
    population = running = None
    if learns:
        running = Running(running_mean, running_cov, "covariance", momentum, num_batches_tracked)
    elif uses_batch:
        if running_mean is None or running_cov is None:
            raise ValueError(
                "expected running_mean and running_cov when training=False (got None); pass them, or training=True"
            )
        # Copies: a later training step may change the buffers before this step's backward.
        population = running_mean.clone().view(running_cov.shape[:2]).unsqueeze(0), running_cov.clone().unsqueeze(0)
    mixing = Mixing(mean_logits, cov_logits)
    return whiten_groups(input, plan, weight, bias, mixing, population, running=running)


def whiten(
    input: Tensor,
    *,
    group_size: int | None = None,
    solver: SolverLike = "zca",
    eps: float = 1e-5,
    correction: int = 0,
    shrinkage: bool = False,
    process_group: Group = None,
) -> Tensor:
    r"""Whiten a plain matrix of N vectors of D features: mean 0 and covariance I, differentiably.

    .. math:: y = W(\Sigma + \epsilon I)\, (x - \mu), \qquad
              \Sigma = \frac{1}{N - \mathrm{correction}} \sum_i (x_i - \mu)(x_i - \mu)^T

    The whitening of W-MSE is ``solver="cholesky", correction=1, shrinkage=True``. In directions whose variance is below
    the dtype's precision times the largest (1e-7 in float32), the covariance and the output consist of rounding errors;
    whiten ``input.double()`` if these directions matter.

    Args:
        input: ``(N, D)`` with N of at least 2.
        group_size: features whitened together; all of them if None or larger.
        solver: computes the whitening matrix from the covariance.
        eps: added to the diagonal of the covariance.
        correction: 0 for the biased covariance, 1 for the unbiased one.
        shrinkage: use (1 - ε)Σ + εI in place of Σ + εI.
        process_group: the ranks whose rows together have this mean and covariance. Each may have any number of rows;
            N is their sum. The gradients are those of the sum of all ranks' losses.

    Example::

        >>> y = whiten(torch.randn(256, 16) @ torch.randn(16, 16), eps=0)
        >>> torch.allclose(y.T @ y / 256, torch.eye(16), atol=1e-3)
        True
    """
    if input.ndim != 2:
        raise ValueError(f"expected a matrix (N, D) (got shape {tuple(input.shape)}); for channels use batch_whitening")
    groups = _check(input, eps, group_size, None, None)
    check_batch(input, process_group)
    if shrinkage:
        check_eps(eps, high=1)
    scale = 1 - eps if shrinkage else 1.0
    if process_group is None:
        size = input.shape[0]
        if not isinstance(correction, int) or not 0 <= correction < size:
            raise ValueError(f"expected a whole correction from 0 to N - 1 = {size - 1} (got {correction!r})")
        scale *= size / (size - correction)
    elif correction:
        solver, scale, eps = _correct_over_ranks(input, solver, eps, scale, correction, process_group), 1.0, 0.0
    return whiten_groups(input, _plan(input, groups, ("bw",), solver, eps, scale, process_group))


def covariance_pooling(input: Tensor, eps: float = 0.0, *, solver: SolverLike = "newton") -> Tensor:
    r"""Pool each sample to the upper triangle of the square root of its channels' covariance (iSQRT-COV).

    .. math:: y_n = \operatorname{triu}\big((\Sigma_n + \epsilon I)^{1/2}\big)

    Args:
        input: ``(N, C, L)``, ``(N, C, H, W)`` or ``(N, C, D, H, W)`` with more than one position.
        eps: added to the diagonal of the covariance.
        solver: computes the root; see :func:`whitenorm.solvers.sqrt`.

    Example::

        >>> covariance_pooling(torch.randn(2, 4, 8, 8)).shape
        torch.Size([2, 10])
    """
    _check(input, eps, None, None, None)
    check_positions(input, "channel", math.prod(input.shape[2:]))
    with no_autocast(input):
        _, _, cov = _covariance_of_samples(input, eps)
        row, column = torch.triu_indices(input.shape[1], input.shape[1], device=input.device)
        return sqrt(cov, solver)[:, row, column].to(input.dtype)


def wct(
    content: Tensor, style: Tensor, alpha: float | Tensor = 1.0, eps: float = 1e-5, *, solver: SolverLike = "zca"
) -> Tensor:
    r"""Give the features of an image the mean and covariance of another's: whitening and colouring transform (WCT).

    `Universal Style Transfer via Feature Transforms <https://arxiv.org/abs/1705.08086>`_ (Li et al., 2017)

    .. math:: y = \alpha \big( \Sigma_s^{1/2}\, \Sigma_c^{-1/2} (x_c - \mu_c) + \mu_s \big) + (1 - \alpha)\, x_c

    with the statistics of each sample over its positions. Applied to features of an encoder and followed by a decoder,
    this transfers the style of an image; applied to the pixels, its colours.

    Args:
        content: :math:`x_c`, ``(N, C, ...)`` with more than one position.
        style: ``(N, C, ...)``, or ``(1, C, ...)`` for all samples, with any number of positions.
        alpha: α, the strength; a number, or a tensor that broadcasts with ``content``.
        eps: added to the diagonal of both covariances.
        solver: computes :math:`\Sigma^{-1/2}` and :math:`\Sigma^{1/2}`; ZCA in the paper. Others rotate the features.

    Example::

        >>> content, style = torch.randn(2, 3, 16, 16), 2 * torch.randn(2, 3, 24, 24) + 1
        >>> y = wct(content, style)
        >>> torch.allclose(y.mean((2, 3)), style.mean((2, 3)), atol=1e-4)
        True
    """
    for name, x in (("content", content), ("style", style)):
        check_floating(name, x)
        check_rank(x)
        check_positions(x, "channel", math.prod(x.shape[2:]))
    check_eps(eps)
    if style.shape[1] != content.shape[1] or style.shape[0] not in (1, content.shape[0]):
        raise ValueError(
            f"expected style of shape ({content.shape[0]}, {content.shape[1]}, ...) or (1, {content.shape[1]}, ...), "
            f"with the samples and channels of content (got {tuple(style.shape)})"
        )
    with no_autocast(content):
        centred, _, cov = _covariance_of_samples(content, eps)
        _, mean, style_cov = _covariance_of_samples(style, eps)
        matrix = sqrt(style_cov, solver) @ inverse_sqrt(cov, solver)
        styled = torch.baddbmm(mean.expand(len(content), -1, -1), matrix, centred).view(content.shape)
        return torch.lerp(content.to(styled.dtype), styled, alpha).to(content.dtype)


def _covariance_of_samples(input: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return centred samples ``(N, C, L)``, their means ``(N, C, 1)``, and covariances with ε ``(N, C, C)``."""
    x = input.flatten(2).to(compute_dtype(input.dtype))
    mean = x.mean(-1, keepdim=True)
    centred = x - mean
    cov = centred @ centred.mT / x.shape[-1]
    return centred, mean, cov + eps * torch.eye(x.shape[1], dtype=x.dtype, device=x.device)


def _correct_over_ranks(
    input: Tensor, solver: SolverLike, eps: float, scale: float, correction: int, group: Group
) -> Solver:
    """Return a solver for the unscaled covariance over all ranks, whose number of rows is known on the device only."""
    if correction != 1:
        raise ValueError(f"expected a correction of 0 or 1 over several ranks (got {correction!r})")
    count = sum_over_ranks(input.new_full((), input.shape[0], dtype=torch.float64), group)
    factor = scale * count / (count - correction).clamp(min=1)

    def solve(cov: Tensor) -> Tensor:
        identity = torch.eye(cov.shape[-1], dtype=cov.dtype, device=cov.device)
        return inverse_sqrt(factor.to(cov.dtype) * cov + eps * identity, solver)

    return as_solver(solve)


def population_whitening(running_cov: Tensor, eps: float, solver: SolverLike) -> Tensor:
    """Return the whitening matrix of a running covariance, which is without ε.

    The variances of a diagonal covariance, such as a trained BatchNorm's, are its eigenvalues. They are exact however
    far apart they are, so ZCA's and Cholesky's floor, for eigenvalues lost in rounding, does not apply to them.
    """
    solver = as_solver(solver)
    cov = running_cov.to(compute_dtype(running_cov.dtype))
    cov = cov + eps * torch.eye(cov.shape[-1], dtype=cov.dtype, device=cov.device)
    whitening = inverse_sqrt(cov, solver)
    if type(solver) not in _ROOT_OF_DIAGONAL:
        return whitening
    variances = cov.diagonal(dim1=-2, dim2=-1)
    is_diagonal = (cov == torch.diag_embed(variances)).all(-1).all(-1) & variances.isfinite().all(-1)
    exact = torch.diag_embed(variances.clamp_min(smallest(cov.dtype)).rsqrt())
    return torch.where(is_diagonal[..., None, None], exact, whitening)


def check_population(population: str) -> None:
    if population not in POPULATIONS:
        known = " or ".join(f'"{name}"' for name in POPULATIONS)
        raise ValueError(f"expected population to be {known} (got {population!r})")


def _plan(
    input: Tensor,
    group_size: int,
    statistics: tuple[str, ...],
    solver: SolverLike,
    eps: float,
    scale: float = 1.0,
    group: Group = None,
    masked: bool = False,
) -> Plan:
    """Return the plan for groups of channels."""
    solver = solver if isinstance(solver, Solver) else as_solver(solver)
    uses_batch = "bw" in statistics or "bn" in statistics
    uses_sample = "iw" in statistics or "in" in statistics or "ln" in statistics
    kernels = choose_kernels(input, solver, group_size, masked, uses_sample)
    layout = channel_groups(input, group_size, not uses_sample, kernels.handles_strides)
    return Plan(layout, Method(statistics, solver, eps, scale, uses_sample, uses_batch), kernels, group)


def _whiten_by_one_statistic(
    input: Tensor, plan: Plan, weight: Tensor | None, bias: Tensor | None, running: Running | None = None
) -> Tensor:
    """Whiten by the statistic of each sample or of the batch, with fused kernels where these exist."""
    fused = fused_kernels(plan.kernels, plan.layout, plan.method, input.shape)
    if fused is None:
        return whiten_groups(input, plan, weight, bias, running=running)
    return whiten_fused(input, plan, fused, weight, bias, running)


def _check(input: Tensor, eps: float, group_size: int | None, weight: Tensor | None, bias: Tensor | None) -> int:
    """Check the arguments that all methods have, and return the group size to use."""
    check_floating("input", input)
    check_eps(eps)
    check_rank(input)
    check_parameter("weight", weight, input.shape[1])
    check_parameter("bias", bias, input.shape[1])
    return fit_group_size(input.shape[1], group_size)


def _check_mixing(name: str, logits: Tensor, statistics: tuple[str, ...]) -> None:
    if logits.shape != (len(statistics),):
        raise ValueError(
            f"expected {name} of shape ({len(statistics)},), one entry for each of {tuple(statistics)} "
            f"(got {tuple(logits.shape)})"
        )
