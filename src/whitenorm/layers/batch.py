"""Whitening over the batch: the general layer, IterNorm and DBN."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor

from whitenorm._runtime import is_transformed
from whitenorm.functional import batch_whitening, check_population, population_whitening
from whitenorm.layers.base import PopulationWhitening
from whitenorm.ops.check import Wish
from whitenorm.ops.distributed import Group
from whitenorm.solvers import Newton, Solver, SolverLike


class _CachedMatrix(NamedTuple):
    """A whitening matrix and everything that it was computed from."""

    cov: Tensor
    eps: float
    solver: Solver
    whitening: Tensor

    def is_valid_for(self, cov: Tensor, eps: float, solver: Solver) -> bool:
        has_same_options = (self.cov.dtype, self.eps, self.solver) == (cov.dtype, eps, solver)
        return has_same_options and torch.equal(self.cov, cov)


class BatchWhitening(PopulationWhitening):
    r"""Whitening of groups of channels over the batch, with any solver: BatchNorm with decorrelation.

    `Decorrelated Batch Normalization <https://arxiv.org/abs/1804.08450>`_ (``solver="zca"``), `Iterative Normalization
    <https://arxiv.org/abs/1904.03441>`_ (``solver="newton"``).

    .. math:: y = \gamma\, W(\Sigma + \epsilon I)\, (x - \mu) + \beta, \qquad
              \Sigma = \frac1m \sum_i (x_i - \mu)(x_i - \mu)^T

    over the m = N·H·W values of each channel; the covariance is the biased one, also in the running statistics. At
    inference the layer is a fixed grouped 1×1 convolution. With ``group_size=1`` it is BatchNorm.

    Args:
        num_features: C.
        group_size: channels whitened together; all of them if None or larger than C, otherwise a divisor of C.
        solver: ``"newton"``, ``"zca"``, ``"pca"``, ``"cholesky"``, ``"minimax"``, a solver object, or a
            function from covariance ``(..., K, K)`` to whitening matrix.
        eps: added to the diagonal of the covariance.
        momentum: weight of the new batch in the running statistics; None for their cumulative average.
        affine: learn γ and β.
        track_running_stats: keep population statistics; without them, batch statistics are used at inference too.
        population: ``"whitening"`` keeps a running whitening matrix, as the papers do; ``"covariance"`` a running
            covariance (BW_Σ), from which the matrix is computed at inference: on a CPU when the statistics have
            changed, elsewhere in every call.
        process_group: the ranks that share batch statistics in training; see :func:`whitenorm.synchronize_`.
        bias: with ``affine``, learn β; if False, learn only γ, as in DBN-scale.
        device, dtype: of parameters and buffers. Running statistics stay in float32 or higher, also after a cast.

    Shape:
        ``(N, C)``, ``(N, C, L)``, ``(N, C, H, W)`` or ``(N, C, D, H, W)``; the output has the same shape. ``mask``, if
        given, is boolean ``(N, ...)``, such as ``(N, L)``, and False at padding: such positions are excluded from the
        statistics, give 0 and get no gradient. In training, every output depends on all positions, later ones too.

    Examples::

        >>> layer = BatchWhitening(32, group_size=16, solver="zca")
        >>> layer(torch.randn(8, 32, 14, 14)).shape
        torch.Size([8, 32, 14, 14])
        >>> lengths = torch.tensor([5, 9])
        >>> tokens = torch.randn(2, 9, 32)
        >>> layer(tokens.mT, mask=torch.arange(9) < lengths.unsqueeze(1)).mT.shape
        torch.Size([2, 9, 32])
        >>> list(BatchWhitening(32, population="covariance").state_dict())
        ['weight', 'bias', 'running_mean', 'running_cov', 'num_batches_tracked']
    """

    def __init__(
        self,
        num_features: int,
        group_size: int | None = None,
        solver: SolverLike = "newton",
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        population: str = "whitening",
        process_group: Group = None,
        *,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        check_population(population)
        matrix_name = "running_whitening" if population == "whitening" else "running_cov"
        super().__init__(
            num_features,
            group_size,
            solver,
            eps,
            momentum,
            affine,
            track_running_stats,
            matrix_name,
            process_group,
            bias,
            device,
            dtype,
        )
        self.population = population
        self._cached_matrix: _CachedMatrix | None = None
        self.reset_parameters()

    def forward(self, input: Tensor, mask: Tensor | None = None) -> Tensor:
        self._check_input(input)
        return self._whiten(input, mask, self.weight, self.bias)

    def _whiten(self, input: Tensor, mask: Tensor | None, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        mean, matrix = self._population()
        population = self.population
        if matrix is not None and not self.training and population == "covariance":
            matrix, population = self._population_whitening(matrix), "whitening"
        return batch_whitening(
            input,
            mean,
            matrix,
            weight,
            bias,
            self._uses_batch(),
            self._batch_weight(),
            self.eps,
            group_size=self.group_size,
            solver=self.solver,
            population=population,
            process_group=self.process_group if self.training else None,
            mask=mask,
            num_batches_tracked=self._counter(),
        )

    def _population_whitening(self, cov: Tensor) -> Tensor:
        """Return the whitening matrix of the running covariance, recomputed when the buffer changes.

        On a CPU, the matrix is cached with a copy of the covariance, which is compared by value, so that any write to
        the buffer is noticed: by hand, through ``.data``, by a broadcast or in another thread. Comparing reads K²
        numbers, like mapping one position. On other devices it would stall the host, so that the matrix is solved for
        in every call, as in training; ``fold_`` or a running whitening matrix avoid this.
        """
        if not cov.is_cpu or type(cov) is not Tensor or cov.requires_grad or is_transformed():
            return population_whitening(cov, self.eps, self.solver)
        # Read once and replaced as a whole, because threads may share the layer.
        cached = self._cached_matrix
        if cached is None or not cached.is_valid_for(cov, self.eps, self.solver):
            with torch.inference_mode(False), torch.no_grad():
                cov, solver = cov.clone(), copy.copy(self.solver)
                cached = _CachedMatrix(cov, self.eps, solver, population_whitening(cov, self.eps, solver))
                self._cached_matrix = cached
        return cached.whitening

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cached_matrix": None}

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, population={self.population!r}"


class IterNorm(BatchWhitening):
    r"""Approximate whitening over the batch by T Newton iterations, without an eigendecomposition.

    `Iterative Normalization: Beyond Standardization towards Efficient Whitening <https://arxiv.org/abs/1904.03441>`_

    .. math:: y = \gamma\, \frac{P_T}{\sqrt{\operatorname{tr}\Sigma}}\, (x - \mu) + \beta, \qquad P_0 = I, \qquad
              P_k = \tfrac12 \big(3 P_{k-1} - P_{k-1}^3 \tfrac{\Sigma}{\operatorname{tr}\Sigma}\big)

    The number of steps T controls how much directions of small variance are amplified. With the paper's T = 5 the
    covariance of the output is *not* I, by design.

    Args:
        num_features: C.
        group_size: channels whitened together; all of them if None or larger than C, otherwise a divisor of C. The
            default becomes the largest divisor of C up to 64, with a warning where that is below 16.
        steps: T.

    The other arguments are :class:`BatchWhitening`'s.

    Examples::

        >>> layer = IterNorm(128)
        >>> layer.group_size, layer(torch.randn(8, 128, 7, 7)).shape
        (64, torch.Size([8, 128, 7, 7]))
    """

    def __init__(
        self,
        num_features: int,
        group_size: int | None = Wish(64),
        steps: int = 5,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        population: str = "whitening",
        process_group: Group = None,
        *,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            num_features,
            group_size,
            Newton(steps),
            eps,
            momentum,
            affine,
            track_running_stats,
            population=population,
            process_group=process_group,
            bias=bias,
            device=device,
            dtype=dtype,
        )


class DecorrelatedBatchNorm(BatchWhitening):
    r"""Whitening over the batch by eigendecomposition (ZCA): zero mean, unit covariance, least distortion.

    `Decorrelated Batch Normalization <https://arxiv.org/abs/1804.08450>`_. The paper's "DBN" is
    ``affine=False``, its "DBN-scale" ``bias=False``, which has γ alone.

    .. math:: y = \gamma\, D \Lambda^{-1/2} D^T (x - \mu) + \beta, \qquad
              D \Lambda D^T = \frac1m \sum_i (x_i - \mu)(x_i - \mu)^T + \epsilon I

    Args:
        num_features: C.
        group_size: channels whitened together, 16 in the paper; all of them if None or larger than C, otherwise a
            divisor of C. The default becomes the largest divisor of C up to 16, with a warning where that is below 4.
        eps: added to the diagonal of the covariance.
        solver: ``"pca"`` makes the paper's negative control, DBN-PCA.

    The other arguments are :class:`BatchWhitening`'s.

    Examples::

        >>> y = DecorrelatedBatchNorm(32, eps=1e-6)(torch.randn(512, 32) * 5 + 3)
        >>> group = y[:, :16]
        >>> torch.allclose(group.T @ group / 512, torch.eye(16), atol=1e-3)
        True
    """

    def __init__(
        self,
        num_features: int,
        group_size: int | None = Wish(16),
        eps: float = 1e-3,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        solver: SolverLike = "zca",
        population: str = "whitening",
        process_group: Group = None,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            num_features,
            group_size,
            solver,
            eps,
            momentum,
            affine,
            track_running_stats,
            population=population,
            process_group=process_group,
            bias=bias,
            device=device,
            dtype=dtype,
        )
