"""Argument and result types of the six steps, shared by all backends.

Inputs are seen as ``x[N, G, K, J, P]``: N samples, G groups, K features whitened together, each of J channels of P
positions. A statistic has one entry per sample (B = N) or one for the batch (B = 1).
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from whitenorm.solvers.base import Solver

STATISTICS = ("bw", "iw", "bn", "in", "ln")
BATCH_STATISTICS = ("bw", "bn")
SAMPLE_STATISTICS = ("iw", "in", "ln")
# These do not exist for a single position.
OVER_POSITIONS = ("iw", "in")


class Method(NamedTuple):
    """How moments become a matrix.

    The ``statistics`` are pooled, the covariance becomes ``scale``·Σ + ``eps``·I, and ``solver`` solves for its matrix.
    ``uses_sample`` and ``uses_batch`` say whether they need the moments of each sample and of the batch.
    """

    statistics: tuple[str, ...]
    solver: Solver
    eps: float
    scale: float = 1.0
    uses_sample: bool = False
    uses_batch: bool = False


class Moments(NamedTuple):
    """Mean ``(B, G, K)`` and biased covariance ``(B, G, K, K)``, each over ``num_values`` values."""

    mean: Tensor
    cov: Tensor
    num_values: int | Tensor


class Statistics(NamedTuple):
    """Moments of each sample and of the batch; None where a method does not use them."""

    sample: Moments | None
    batch: Moments | None


class Mixing(NamedTuple):
    """Logits, one per statistic; their softmax weights the statistics in the pooled mean and covariance."""

    mean: Tensor
    cov: Tensor


class Running(NamedTuple):
    """Running statistics to update in place: mean ``(C,)``, matrix ``(G, K, K)`` of a kind, number of batches."""

    mean: Tensor | None
    matrix: Tensor | None
    kind: str
    momentum: float | Tensor
    counter: Tensor | None


class Solution(NamedTuple):
    """Whitening matrices ``(B, G, K, K)``, pooled means ``(B, G, K)`` and the covariances that were solved for.

    ``residuals`` are the tensors that the solver's backward starts from, beside the covariances.
    """

    whitening: Tensor
    mean: Tensor
    cov: Tensor
    residuals: tuple[Tensor, ...] = ()


class MapGradients(NamedTuple):
    """Gradients of y = A(x - mean) + b: of A as ``matrix`` ``(B, G, K, K)``, of b as ``offset`` ``(B, G, K)``.

    With one channel per feature, A is γ·W. With several, γ and β come after the map: A is W, and ``weight`` and
    ``bias`` are the gradients ``(G, K, J)`` of γ and β.
    """

    matrix: Tensor
    offset: Tensor
    weight: Tensor | None = None
    bias: Tensor | None = None


class AffineGrad(NamedTuple):
    """Gradient that reaches x through statistics: ``(2·matrix @ (x - mean) + offset) / num_values``.

    ``matrix`` is the gradient of the covariance and ``offset`` that of the mean.
    """

    matrix: Tensor
    offset: Tensor
    mean: Tensor
    num_values: int | Tensor


class StatisticsGrads(NamedTuple):
    """Gradients that reach x through the statistics of each sample and of the batch, and those of the parameters.

    ``weight`` and ``bias`` are ``(G, K, J)``; ``mixing`` has the gradients of the logits.
    """

    sample: AffineGrad | None
    batch: AffineGrad | None
    weight: Tensor | None
    bias: Tensor | None
    mixing: Mixing | None


class MomentsStep(Protocol):
    """Compute the moments of each sample if ``sample`` is True, and of the whole batch if ``batch`` is True."""

    def __call__(self, x: Tensor, sample: bool, batch: bool) -> Statistics: ...


class SolveStep(Protocol):
    """Pool the statistics, solve for the matrices, and update the running statistics, if given, with the batch."""

    def __call__(
        self, statistics: Statistics, method: Method, mixing: Mixing | None, running: Running | None
    ) -> Solution: ...


class ApplyStep(Protocol):
    """Compute γ·W(x - mean) + β, written to ``out`` if that is given."""

    def __call__(
        self,
        x: Tensor,
        whitening: Tensor,
        mean: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        out: Tensor | None,
    ) -> Tensor: ...


class MapGradientsStep(Protocol):
    """Sum grad·(x - mean)ᵀ and grad over the values that share a matrix; see :class:`MapGradients`."""

    def __call__(
        self, grad: Tensor, x: Tensor, whitening: Tensor, mean: Tensor, weight: Tensor | None, bias: Tensor | None
    ) -> MapGradients: ...


class SolveBackwardStep(Protocol):
    """Compute the gradients of γ, β and the logits, and those that reach x through the statistics.

    With ``batch_is_constant``, the batch statistics are a population's, and nothing reaches x through them.
    """

    def __call__(
        self,
        grads: MapGradients,
        solution: Solution,
        statistics: Statistics,
        method: Method,
        weight: Tensor | None,
        bias: Tensor | None,
        mixing: Mixing | None,
        batch_is_constant: bool,
    ) -> StatisticsGrads: ...


class InputGradientStep(Protocol):
    """Compute (γ·W)ᵀ @ grad plus the gradients through the statistics, written to ``out`` if that is given."""

    def __call__(
        self,
        grad: Tensor,
        x: Tensor,
        whitening: Tensor,
        weight: Tensor | None,
        sample: AffineGrad | None,
        batch: AffineGrad | None,
        out: Tensor | None,
    ) -> Tensor: ...


class Supports(Protocol):
    """Return whether fused kernels are for ``x[N, G, K, J, P]`` of a shape, and a number of Newton's steps."""

    def __call__(self, shape: tuple[int, ...], steps: int) -> bool: ...


class WhitenStep(Protocol):
    """Write γ·W(x - mean) + β to ``out``, and return tensors for :class:`WhitenBackwardStep`."""

    def __call__(
        self, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, steps: int, out: Tensor
    ) -> tuple[Tensor, ...]: ...


class WhitenBackwardStep(Protocol):
    """Write the gradient of x to ``out``, and return those of γ and β ``(G, K, J)``."""

    def __call__(
        self,
        grad: Tensor,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        steps: int,
        saved: tuple[Tensor, ...],
        out: Tensor,
    ) -> tuple[Tensor | None, Tensor | None]: ...


class FusedKernels(NamedTuple):
    """All steps at once, for one statistic and Newton's iteration.

    Kernels for the batch return mean, covariance and whitening matrix, with which running statistics are updated.
    """

    is_supported: Supports
    whiten: WhitenStep
    backward: WhitenBackwardStep


class MessageKernels(Protocol):
    """Pack what ranks add up into one tensor, and unpack their sum; a module of a backend.

    All ranks must send the same message, whatever kernels each uses. That of the moments is in float64: the number of
    values, the sums ``(G, K)`` of x, and the upper triangles ``(G, K(K + 1)/2)`` of the sums of x·xᵀ. That of the
    gradients is in their dtype: the upper triangles of the covariance's, the mean's, and the number of values.
    """

    def pack_moments(self, local: Moments) -> Tensor: ...

    def unpack_moments(self, message: Tensor, local: Moments) -> Moments: ...

    def pack_gradient(self, local: AffineGrad) -> Tensor: ...

    def unpack_gradient(self, message: Tensor, local: AffineGrad) -> AffineGrad: ...


class Kernels(NamedTuple):
    """The six steps of a backend, those that pack messages between ranks, and its fused kernels for one statistic.

    With ``handles_strides`` they take x as it lies in memory; otherwise :mod:`whitenorm.ops.layout` copies it where
    another order is faster. With ``saves_mixed_cov`` the covariance of a mix is saved for backward rather than pooled
    again. With ``are_operators`` a compiler keeps each step as one operation.
    """

    moments: MomentsStep
    solve: SolveStep
    apply: ApplyStep
    map_gradients: MapGradientsStep
    solve_backward: SolveBackwardStep
    input_gradient: InputGradientStep
    messages: MessageKernels
    fused_samples: FusedKernels | None = None
    fused_batch: FusedKernels | None = None
    handles_strides: bool = False
    saves_mixed_cov: bool = False
    are_operators: bool = False
