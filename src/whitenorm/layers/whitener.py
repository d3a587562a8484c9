"""Whitening of data and embeddings by statistics that are fitted once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from whitenorm._runtime import check_floating, compute_dtype, no_autocast
from whitenorm.layers.base import LeafModule
from whitenorm.ops.check import check_divides, check_eps, check_positive, fit_group_size
from whitenorm.ops.distributed import Group, GroupHandle, reduce_moments
from whitenorm.ops.statistics import channel_moments, combine_moments
from whitenorm.ops.types import Moments
from whitenorm.solvers import Solver, SolverLike, as_solver, inverse_sqrt
from whitenorm.solvers.spectral import eigh_descending

_MOMENTS = ("mean_", "covariance_", "n_samples_seen_")


class Whitener(LeafModule):
    r"""Whitening fitted to data, such as embeddings, with an exact inverse; scikit-learn's names.

    .. math:: y = W(\Sigma + \epsilon I)\, (x - \mu), \qquad x = W^{-1} y + \mu

    μ and Σ are the mean and the biased covariance of all values that :meth:`fit` or :meth:`partial_fit` has seen,
    accumulated in float64: in one pass, batch by batch, with the same result for any batches up to float64's rounding
    errors. The transform is fixed between fits and differentiable by its input; nothing in it is learned.

    With ``n_components``, data is first projected onto as many eigenvectors of Σ with the largest eigenvalues, as in
    ``sklearn.decomposition.PCA(n_components, whiten=True)`` (`Whitening Sentence Representations
    <https://arxiv.org/abs/2103.15316>`_), and whitened there: :math:`W = W(\Lambda + \epsilon I)\, D^T`. The inverse
    then returns the closest point in the span of these components.

    The moments are buffers, named ``mean_``, ``covariance_`` and ``n_samples_seen_``. They stay in float64 when the
    module is cast, so it does not support devices without float64. The output has the input's dtype.

    Args:
        num_features: D.
        n_components: dimensions of the output; None for D without projection. Groups have equal shares of them.
        group_size: features whitened together; all of them if None or larger than D, otherwise a divisor of D.
        solver: computes W from the covariance: a name, a solver object or a function.
        eps: added to the eigenvalues of Σ.
        feature_dim: the dimension of the features: 1 for ``(N, D)`` and ``(N, C, H, W)``, -1 for tokens ``(N, L, D)``.
        process_group: the ranks that fit together. All must call :meth:`fit`, or :meth:`partial_fit` equally often.

    Shape:
        - input: ``(N, D)``, ``(N, D, ...)``, or ``(..., D)`` with ``feature_dim=-1``
        - output: the same with ``n_components`` features

    Example::

        >>> x = torch.randn(1000, 16) @ torch.randn(16, 16) + 5
        >>> whitener = Whitener(16, eps=0).fit(x)
        >>> y = whitener(x)
        >>> torch.allclose(y.T @ y / 1000, torch.eye(16), atol=1e-3)
        True
        >>> torch.allclose(whitener.inverse_transform(y), x, atol=1e-3)
        True
    """

    mean_: Tensor
    covariance_: Tensor
    n_samples_seen_: Tensor
    _whitening: Tensor
    _coloring: Tensor

    def __init__(
        self,
        num_features: int,
        n_components: int | None = None,
        group_size: int | None = None,
        solver: SolverLike = "zca",
        eps: float = 1e-5,
        feature_dim: int = 1,
        process_group: Group = None,
        device: Any = None,
    ) -> None:
        super().__init__()
        check_positive("num_features", num_features)
        check_eps(eps)
        self.num_features = num_features
        self.group_size = fit_group_size(num_features, group_size)
        groups = num_features // self.group_size
        if n_components is not None:
            check_divides("the number of groups", groups, "components", n_components)
            if not 0 < n_components <= num_features:
                raise ValueError(f"expected n_components from 1 to {num_features}, the features (got {n_components})")
        if feature_dim not in (1, -1):
            raise ValueError(f"expected feature_dim to be 1 or -1 (got {feature_dim!r}); -1 is for tokens (N, L, D)")
        self.n_components = n_components
        self.solver: Solver = as_solver(solver)
        self.eps = eps
        self.feature_dim = feature_dim
        self._ranks = GroupHandle(process_group)
        size, kept = self.group_size, (n_components or num_features) // groups
        shapes = {
            "mean_": (num_features,),
            "covariance_": (groups, size, size),
            "_whitening": (groups, kept, size),
            "_coloring": (groups, size, kept),
        }
        for name, shape in shapes.items():
            buffer = torch.zeros(shape, dtype=torch.float64, device=device)
            self.register_buffer(name, buffer, persistent=name in _MOMENTS)
        self.register_buffer("n_samples_seen_", torch.zeros((), dtype=torch.long, device=device))
        self._is_stale = True

    @property
    def process_group(self) -> Group:
        """The ranks that fit together; None for this process only."""
        return self._ranks.group

    @process_group.setter
    def process_group(self, group: Group) -> None:
        self._ranks = GroupHandle(group)

    @torch.no_grad()
    def fit(self, batches: Tensor | Iterable[Any], y: Any = None) -> Whitener:
        """Fit to data, forgetting earlier fits: a tensor, or batches of tensors such as a data loader's.

        Of a batch that is a tuple or list, such as images with labels, the first entry counts. If an error occurs, the
        earlier fit is kept. With a process group, ranks may have different numbers of batches; their moments are joined
        at the end. ``y`` is ignored, as in scikit-learn.
        """
        moments = self._local_moments(self.mean_.new_zeros(0, self.num_features))
        for batch in [batches] if isinstance(batches, Tensor) else batches:
            x = batch[0] if isinstance(batch, (tuple, list)) else batch
            moments = combine_moments(moments, self._local_moments(self._to_rows(x)))
        moments = reduce_moments(moments, self.process_group)
        _check_count(moments.num_values)
        self._set_moments(moments)
        self._solve()
        return self

    @torch.no_grad()
    def partial_fit(self, batch: Tensor, y: Any = None) -> Whitener:
        """Add a batch to the data fitted so far; ``y`` is ignored.

        The matrix is computed again when it is next needed. With a process group, the batches of all ranks are added.
        """
        moments = reduce_moments(self._local_moments(self._to_rows(batch)), self.process_group)
        self._set_moments(combine_moments(self._moments(), moments))
        return self

    @torch.no_grad()
    def merge(self, other: Whitener) -> Whitener:
        """Add the data that another whitener has been fitted to.

        Example::

            >>> x = torch.randn(100, 4)
            >>> merged = Whitener(4).fit(x[:30]).merge(Whitener(4).fit(x[30:]))
            >>> torch.allclose(merged(x), Whitener(4).fit(x)(x))
            True
        """
        if other.covariance_.shape != self.covariance_.shape:
            raise ValueError(
                f"expected a whitener with covariances {tuple(self.covariance_.shape)} (got "
                f"{tuple(other.covariance_.shape)}); num_features and group_size must be equal"
            )
        mean, cov, num_values = other._moments()
        device = self.mean_.device
        moments = Moments(mean.to(device), cov.to(device), torch.as_tensor(num_values, device=device))
        self._set_moments(combine_moments(self._moments(), moments))
        return self

    def forward(self, input: Tensor) -> Tensor:
        """Whiten the input."""
        if self._is_stale:
            self._solve()
        self._check(input, self.num_features)
        mean = self.mean_.view(self.covariance_.shape[:2])
        return self._apply_map(input, lambda x: _multiply(self._whitening, x - mean.to(x.dtype)), len(mean))

    def transform(self, input: Tensor) -> Tensor:
        """Whiten the input: the same as calling the module."""
        whitened: Tensor = self(input)
        return whitened

    def fit_transform(self, input: Tensor, y: Any = None) -> Tensor:
        """Fit to a tensor and whiten it; ``y`` is ignored."""
        return self.fit(input).transform(input)

    def inverse_transform(self, input: Tensor) -> Tensor:
        """Return the data whose whitened form is the input."""
        if self._is_stale:
            self._solve()
        self._check(input, self._whitening.shape[:2].numel())
        mean = self.mean_.view(self.covariance_.shape[:2])
        return self._apply_map(input, lambda y: _multiply(self._coloring, y) + mean.to(y.dtype), len(mean))

    @torch.no_grad()
    def to_linear(self, inverse: bool = False, dtype: torch.dtype | None = None) -> nn.Linear:
        """Return a linear layer, over the last dimension, that does the same as the transform or its inverse.

        Example::

            >>> x = torch.randn(100, 8)
            >>> whitener = Whitener(8, n_components=4).fit(x)
            >>> torch.allclose(whitener.to_linear()(x), whitener(x), atol=1e-5)
            True
        """
        if self._is_stale:
            self._solve()
        whitening = torch.block_diag(*self._whitening)
        weight = torch.block_diag(*self._coloring) if inverse else whitening
        bias = self.mean_ if inverse else -whitening @ self.mean_
        dtype = torch.get_default_dtype() if dtype is None else dtype
        outputs, inputs = weight.shape
        linear = nn.Linear(inputs, outputs, device=weight.device, dtype=dtype)
        linear.weight.copy_(weight)
        linear.bias.copy_(bias)
        return linear

    @torch.no_grad()
    def _solve(self) -> None:
        """Compute the matrices from the moments."""
        _check_count(self.n_samples_seen_)
        cov, axes = self.covariance_, None
        if self.n_components is not None:
            values, vectors = eigh_descending(cov)
            kept = self._whitening.shape[1]
            cov, axes = torch.diag_embed(values[:, :kept]), vectors[..., :kept]
        identity = torch.eye(cov.shape[-1], dtype=cov.dtype, device=cov.device)
        whitening = inverse_sqrt(cov + self.eps * identity, self.solver)
        coloring = torch.linalg.inv_ex(whitening).inverse
        self._whitening.copy_(whitening if axes is None else whitening @ axes.mT)
        self._coloring.copy_(coloring if axes is None else axes @ coloring)
        self._is_stale = False

    def _moments(self) -> Moments:
        mean = self.mean_.view(self.covariance_.shape[:2])
        return Moments(mean.unsqueeze(0), self.covariance_.unsqueeze(0), self.n_samples_seen_.double())

    def _set_moments(self, moments: Moments) -> None:
        self.mean_.copy_(moments.mean.flatten())
        self.covariance_.copy_(moments.cov.squeeze(0))
        self.n_samples_seen_.fill_(moments.num_values)
        self._is_stale = True

    def _local_moments(self, rows: Tensor) -> Moments:
        """Return the moments of rows ``(N, D)`` of this rank; those of no rows are zero."""
        if len(rows) == 0:
            mean = torch.zeros_like(self.mean_).view(1, *self.covariance_.shape[:2])
            return Moments(mean, torch.zeros_like(self.covariance_).unsqueeze(0), 0)
        mean, cov, _ = channel_moments(rows.to(self.mean_), self.group_size)
        return Moments(mean, cov, len(rows))

    def _to_rows(self, x: Any) -> Tensor:
        """Return a batch as ``(N, D)``."""
        if not isinstance(x, Tensor):
            raise ValueError(f"expected batches to be tensors, or tuples that begin with one (got {type(x).__name__})")
        self._check(x, self.num_features)
        return x.movedim(self.feature_dim, -1).reshape(-1, self.num_features)

    def _check(self, x: Tensor, features: int) -> None:
        check_floating("input", x)
        if x.ndim < 2 or x.shape[self.feature_dim] != features:
            raise ValueError(
                f"expected {features} features in dimension {self.feature_dim} (got shape {tuple(x.shape)}); "
                "feature_dim=-1 is for tokens (N, L, D), 1 for (N, D) and (N, C, H, W)"
            )

    def _apply_map(self, x: Tensor, function: Callable[[Tensor], Tensor], groups: int) -> Tensor:
        """Apply a function of ``(..., G, K)`` to the features, in float32 or higher."""
        with no_autocast(x):
            rows = x.movedim(self.feature_dim, -1).to(compute_dtype(x.dtype)).unflatten(-1, (groups, -1))
            return function(rows).flatten(-2).movedim(-1, self.feature_dim).to(x.dtype)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Whitener:
        """Move the module, for ``to``, ``half``, ``cuda`` and so on; buffers keep their dtype."""
        before = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, buffer in before.items():
            after = self._buffers[name]
            assert buffer is not None
            assert after is not None
            if after.dtype != buffer.dtype:
                self._buffers[name] = buffer.to(after.device)
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *rest)
        self._is_stale = True

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, n_components={self.n_components}, group_size={self.group_size}, "
            f"solver={self.solver!r}, eps={self.eps}, feature_dim={self.feature_dim}"
        )


def _multiply(matrix: Tensor, x: Tensor) -> Tensor:
    """Multiply ``(..., G, K)`` by the matrices ``(G, O, K)`` of its groups."""
    return torch.einsum("...gk,gok->...go", x, matrix.to(x.dtype))


def _check_count(count: int | Tensor) -> None:
    if count < 2:
        raise ValueError(
            f"expected a whitener fitted to at least 2 values (got {int(count)}); call fit(batches), "
            "partial_fit(batch) or load_state_dict first"
        )
