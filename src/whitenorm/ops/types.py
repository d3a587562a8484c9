"""What the six kernels take and give, in either room; ``x[N, G, K, J, P]`` throughout.

N samples, G groups, K features whitened together; each has J channels of P positions in a sample, L = J·P values.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from whitenorm.solvers.base import Solver

STATISTICS = ("bw", "iw", "bn", "in", "ln")
BATCH_STATISTICS = ("bw", "bn")
SAMPLE_STATISTICS = ("iw", "in", "ln")
# Of a single position these are nothing.
OVER_POSITIONS = ("iw", "in")


class Method(NamedTuple):
    """What is done with the moments: ``statistics`` are pooled, the covariance becomes ``scale``·Σ + ``eps``·I, and
    ``solver`` turns it into a matrix.
    """

    statistics: tuple[str, ...]
    solver: Solver
    eps: float
    scale: float = 1.0

    # No properties: the compilers of older versions do not trace them.
    def uses_sample(self) -> bool:
        """Whether a statistic of each sample takes part."""
        return any(name in SAMPLE_STATISTICS for name in self.statistics)

    def uses_batch(self) -> bool:
        """Whether a statistic of the whole batch takes part."""
        return any(name in BATCH_STATISTICS for name in self.statistics)


class Moments(NamedTuple):
    """Mean ``(B, G, K)`` and biased covariance ``(B, G, K, K)``, each over ``num_values`` values; B is N, or 1."""

    mean: Tensor
    cov: Tensor
    num_values: int | Tensor


class Statistics(NamedTuple):
    """The moments of each sample and those of the batch, where they are needed."""

    sample: Moments | None
    batch: Moments | None


class Mixing(NamedTuple):
    """Logits, one a statistic, whose softmax says how much of each goes into the mean and into the covariance."""

    mean: Tensor
    cov: Tensor


class Running(NamedTuple):
    """Running statistics to update in place: mean ``(C,)``, matrix ``(G, K, K)`` of the named kind, batches seen."""

    mean: Tensor | None
    matrix: Tensor | None
    kind: str
    momentum: float | Tensor
    counter: Tensor | None


class Solved(NamedTuple):
    """The whitening matrices ``(B, G, K, K)``, the pooled means ``(B, G, K)``, and the covariances solved for.

    ``found`` is what else the solver came upon.
    """

    whitening: Tensor
    mean: Tensor
    cov: Tensor
    found: tuple[Tensor, ...] = ()


class Saved(NamedTuple):
    """What is left of it for backward: the matrices, the means, and what the solver's pull-back starts from."""

    whitening: Tensor
    mean: Tensor
    solver: tuple[Tensor, ...]


class MapGradients(NamedTuple):
    """Of y = A(x - mean) + b, ``(B, G, K, K)`` and ``(B, G, K)``.

    Where each feature has one channel, A is γ·W. Where it has several, γ and β come after the map: A is W, and their
    own gradients ``(G, K, J)`` are here too.
    """

    matrix: Tensor
    offset: Tensor
    weight: Tensor | None = None
    bias: Tensor | None = None


class AffineGrad(NamedTuple):
    """What statistics over ``num_values`` values add to dx: ``(2·matrix @ (x - mean) + offset) / number``.

    The matrix is the gradient of the covariance, the offset that of the mean.
    """

    matrix: Tensor
    offset: Tensor
    mean: Tensor
    num_values: int | Tensor


class StatisticsGrads(NamedTuple):
    """What the small gradients come to: through the statistics of each sample and of the batch to dx, and of γ, β
    ``(G, K, J)`` and the mixing's logits.
    """

    sample: AffineGrad | None
    batch: AffineGrad | None
    weight: Tensor | None
    bias: Tensor | None
    mixing: Mixing | None
