"""Whitening with a learned mix of batch, instance and layer statistics."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from whitenorm.functional import switchable_whitening
from whitenorm.layers.base import PopulationWhitening
from whitenorm.ops.check import Wish, check_statistics
from whitenorm.ops.distributed import Group
from whitenorm.ops.types import BATCH_STATISTICS
from whitenorm.solvers import SolverLike


class SwitchableWhitening(PopulationWhitening):
    r"""Whitening of each sample with a learned mix of statistics.

    `Switchable Whitening for Deep Representation Learning <https://arxiv.org/abs/1904.09739>`_

    .. math:: \hat\mu_n = \sum_k \omega_k \mu_{k,n}, \qquad \hat\Sigma_n = \sum_k \omega'_k \Sigma_{k,n}, \qquad
              y_n = \gamma\, W(\hat\Sigma_n + \epsilon I)\, (x_n - \hat\mu_n) + \beta

    where ω and ω' are the softmax of learned logits, equal at the start. ``("bw", "iw")`` is the paper's SW^a,
    ``("bw", "iw", "bn", "in", "ln")`` its SW^b. At inference, running statistics replace those of the batch. The paper
    uses ZCA, which it calls the bottleneck on GPUs. The default here is Newton's iteration; pass ``solver="zca"`` for
    the paper's solver.

    A sample with a single position, such as a 1×1 map, has neither an instance covariance nor an instance variance.
    Only the statistics that exist (``"bw"``, ``"bn"``, ``"ln"``) are mixed then, with their weights scaled to sum to 1.

    Args:
        num_features: C.
        group_size: channels whitened together, 16 in the paper; all of them if None or larger than C, otherwise a
            divisor of C. The default becomes the largest divisor of C up to 16, with a warning where that is below 4.
        statistics: the statistics to mix: batch whitening ``"bw"``, instance whitening ``"iw"``, and the diagonal or
            scalar statistics of batch, instance and layer normalization, ``"bn"``, ``"in"``, ``"ln"``.
        tie_weights: mix means and covariances with the same weights.
        solver: computes the whitening matrix from the covariance, as in :class:`BatchWhitening`.
        eps: added to the diagonal of the mixed covariance.
        momentum: weight of the new batch in the running statistics; None for their cumulative average.
        affine: learn γ and β.
        track_running_stats: keep population statistics; without them, batch statistics are used at inference too.
        process_group: the ranks that share batch statistics in training; see :func:`whitenorm.synchronize_`.
        bias: with ``affine``, learn β; if False, learn only γ, as in DBN-scale.
        device, dtype: of parameters and buffers. Running statistics stay in float32 or higher, also after a cast.

    Shape:
        ``(N, C)``, ``(N, C, L)``, ``(N, C, H, W)`` or ``(N, C, D, H, W)``; the output has the same shape.

    Examples::

        >>> layer = SwitchableWhitening(32, statistics=("bw", "iw", "bn", "in", "ln"))
        >>> layer(torch.randn(4, 32, 14, 14)).shape
        torch.Size([4, 32, 14, 14])
        >>> layer.mixing()["bw"]
        (0.2, 0.2)
    """

    mean_logits: nn.Parameter
    cov_logits: nn.Parameter | None

    def __init__(
        self,
        num_features: int,
        group_size: int | None = Wish(16),
        statistics: tuple[str, ...] = ("bw", "iw"),
        tie_weights: bool = False,
        solver: SolverLike = "newton",
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Group = None,
        *,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        check_statistics(statistics)
        keeps_population = track_running_stats and any(name in BATCH_STATISTICS for name in statistics)
        super().__init__(
            num_features,
            group_size,
            solver,
            eps,
            momentum,
            affine,
            keeps_population,
            "running_cov",
            process_group,
            bias,
            device,
            dtype,
        )
        self.statistics = tuple(statistics)
        self.tie_weights = tie_weights
        for name, learned in (("mean_logits", True), ("cov_logits", not tie_weights)):
            empty = torch.empty(len(statistics), device=device, dtype=dtype)
            self.register_parameter(name, nn.Parameter(empty) if learned else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set equal weights for all statistics, γ to one and β to zero, and reset the population."""
        nn.init.zeros_(self.mean_logits)
        if self.cov_logits is not None:
            nn.init.zeros_(self.cov_logits)
        super().reset_parameters()

    def mixing(self) -> dict[str, tuple[float, float]]:
        """Return the current weight of each statistic in the mean and in the covariance."""
        mean, cov = (logits.double().softmax(0).tolist() for logits in self._logits())
        return {name: (round(m, 6), round(c, 6)) for name, m, c in zip(self.statistics, mean, cov, strict=True)}

    def _logits(self) -> tuple[Tensor, Tensor]:
        # A clone, because the compiler does not take one tensor twice.
        return self.mean_logits, self.mean_logits.clone() if self.cov_logits is None else self.cov_logits

    def forward(self, input: Tensor) -> Tensor:
        self._check_input(input)
        return switchable_whitening(
            input,
            *self._logits(),
            *self._population(),
            self.weight,
            self.bias,
            self._uses_batch(),
            self._batch_weight(),
            self.eps,
            statistics=self.statistics,
            group_size=self.group_size,
            solver=self.solver,
            process_group=self.process_group if self.training else None,
            num_batches_tracked=self._counter(),
        )

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, statistics={self.statistics}, tie_weights={self.tie_weights}"
