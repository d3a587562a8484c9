"""Whitening over the batch: the general layer, and the two papers' own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from whitenorm.core.mode import is_transformed
from whitenorm.core.ranks import Group
from whitenorm.functional import batch_whitening, check_population, population_whitening
from whitenorm.layers.base import PopulationWhitening
from whitenorm.solvers import Newton, SolverLike


class BatchWhitening(PopulationWhitening):
    r"""Whiten groups of channels over the batch, with any solver: what BatchNorm does, and decorrelated.

    `Decorrelated Batch Normalization <https://arxiv.org/abs/1804.08450>`_ (``solver="zca"``), `Iterative Normalization
    <https://arxiv.org/abs/1904.03441>`_ (``solver="newton"``).

    .. math:: y = \gamma\, W(\Sigma + \epsilon I)\, (x - \mu) + \beta, \qquad
              \Sigma = \frac1m \sum_i (x_i - \mu)(x_i - \mu)^T

    over the m = N·H·W values of each channel; the covariance is the biased one, also in the running statistics. At
    inference the layer is a fixed grouped 1×1 convolution. With ``group_size=1`` it is BatchNorm.

    Args:
        num_features: C.
        group_size: channels whitened together; all of them if None or larger than C, otherwise a divisor of C.
        solver: ``"newton"``, ``"zca"``, ``"pca"``, ``"cholesky"``, a solver object such as ``Newton(steps=7)``, or a
            function from covariance ``(..., K, K)`` to whitening matrix.
        eps: added to the diagonal of the covariance.
        momentum: weight of the new batch in the running statistics; None for their cumulative average.
        affine: learn γ and β.
        track_running_stats: keep population statistics; without them, batch statistics are used at inference too.
        population: ``"whitening"`` keeps a running whitening matrix, as the papers do; ``"covariance"`` a running
            covariance (BW_Σ), from which the matrix is computed when the statistics have changed.
        process_group: in training, the ranks whose batches count as one; see :func:`whitenorm.synchronize_`.
        bias: with ``affine``, learn β; without it γ alone, as in DBN-scale.
        device, dtype: of parameters and buffers.

    Shape:
        ``(N, C)``, ``(N, C, L)``, ``(N, C, H, W)`` or ``(N, C, D, H, W)``, and the output the same. ``mask``, if given,
        is boolean ``(N, ...)``, such as ``(N, L)``, and False at padding: such positions enter no statistic, give 0 and
        get no gradient. In training, statistics over time let each position see all others, later ones too.

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
        self._cached: tuple[Tensor, tuple[Any, ...], Tensor] | None = None
        self.reset_parameters()

    def forward(self, input: Tensor, mask: Tensor | None = None) -> Tensor:
        self._check_input(input)
        mean, matrix = self._population()
        population = self.population
        if matrix is not None and not self.training and population == "covariance":
            matrix, population = self._population_whitening(matrix), "whitening"
        output = batch_whitening(
            input,
            mean,
            matrix,
            self.weight,
            self.bias,
            self._uses_batch(),
            self._batch_weight(),
            self.eps,
            group_size=self.group_size,
            solver=self.solver,
            population=population,
            process_group=self.process_group if self.training else None,
            mask=mask,
        )
        self._count_batch()
        return output

    def _population_whitening(self, cov: Tensor) -> Tensor:
        """The matrix of the running covariance, solved again only when something it depends on has changed.

        Writing through ``running_cov.data`` or its numpy array is not noticed before the next call of ``train`` or
        ``eval``, as PyTorch does not count such changes.
        """
        if is_transformed() or cov.is_inference() or cov.requires_grad:
            return population_whitening(cov, self.eps, self.solver)
        key = (cov.data_ptr(), cov._version, self.eps, self.solver)
        if self._cached is None or self._cached[0] is not cov or self._cached[1] != key:
            with torch.inference_mode(False), torch.no_grad():
                self._cached = cov, key, population_whitening(cov, self.eps, self.solver)
        return self._cached[2]

    def train(self, mode: bool = True) -> BatchWhitening:
        self._cached = None
        return super().train(mode)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_cached": None}

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, population={self.population!r}"


class IterNorm(BatchWhitening):
    r"""Whiten over the batch by Newton's iteration: whitening without an eigendecomposition, and not all the way.

    `Iterative Normalization: Beyond Standardization towards Efficient Whitening <https://arxiv.org/abs/1904.03441>`_

    .. math:: y = \gamma\, \frac{P_T}{\sqrt{\operatorname{tr}\Sigma}}\, (x - \mu) + \beta, \qquad P_0 = I, \qquad
              P_k = \tfrac12 \big(3 P_{k-1} - P_{k-1}^3 \tfrac{\Sigma}{\operatorname{tr}\Sigma}\big)

    The number of steps T controls how far directions of small variance are stretched. Five is the paper's choice;
    there the output's covariance is *not* I, by design.

    Args:
        num_features: C.
        group_size: channels whitened together; all of them if None or larger than C, otherwise a divisor of C.
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
        group_size: int | None = 64,
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
    r"""Whiten over the batch by eigendecomposition (ZCA): zero mean, unit covariance, least distortion.

    `Decorrelated Batch Normalization <https://arxiv.org/abs/1804.08450>`_. The paper's "DBN" is
    ``affine=False``, its "DBN-scale" ``bias=False``, which has γ alone.

    .. math:: y = \gamma\, D \Lambda^{-1/2} D^T (x - \mu) + \beta, \qquad
              D \Lambda D^T = \frac1m \sum_i (x_i - \mu)(x_i - \mu)^T + \epsilon I

    Args:
        num_features: C.
        group_size: channels whitened together, 16 in the paper; all of them if None or larger than C, otherwise a
            divisor of C.
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
        group_size: int | None = 16,
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
