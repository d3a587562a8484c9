"""Whitening with statistics of each domain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from whitenorm.layers.batch import BatchWhitening
from whitenorm.ops.check import Wish, check_positive
from whitenorm.ops.distributed import Group
from whitenorm.solvers import SolverLike

Domain = int | Sequence[int]
"""A domain, or the domain of each sample of a batch."""


class DomainWhitening(BatchWhitening):
    r"""Whitening over the batch with statistics of each domain, and shared γ and β (DWT).

    `Unsupervised Domain Adaptation using Feature-Whitening and Consensus Loss <https://arxiv.org/abs/1903.03215>`_
    (Roy et al., 2019)

    .. math:: y_n = \gamma\, W(\Sigma_{d(n)} + \epsilon I)\, (x_n - \mu_{d(n)}) + \beta

    where d(n) is the domain of sample n. Each domain is brought to the same mean and covariance, so that the layers
    that follow can be shared. The domain is an argument of the call, or is chosen for all layers of a model by
    :func:`whitenorm.use_domain`. There is no default, as statistics of the wrong domain would go unnoticed.

    State dicts of a BatchNorm or of a :class:`BatchWhitening` with the same groups can be loaded, into all domains.
    :func:`recalibrate_` and :func:`fold_` act on the chosen domain.

    Args:
        num_features: C.
        num_domains: number of domains, D.
        group_size: channels whitened together; all of them if None or larger than C, otherwise a divisor of C. The
            default becomes the largest divisor of C up to 4, with a warning where that is 1.
        solver: computes the whitening matrix from the covariance, as in :class:`BatchWhitening`; Cholesky in the paper.
        population: ``"covariance"``, as in the paper, or ``"whitening"``.

    The other arguments are :class:`BatchWhitening`'s.

    Shape:
        As :class:`BatchWhitening`'s. ``domain`` is an integer, or a list of one per sample; running statistics have a
        leading dimension D.

    Examples::

        >>> layer = DomainWhitening(8, num_domains=2)
        >>> source, target = torch.randn(2, 16, 8, 5, 5)
        >>> layer(source, domain=0).shape
        torch.Size([16, 8, 5, 5])
        >>> layer(torch.cat([source, target]), domain=[0] * 16 + [1] * 16).shape
        torch.Size([32, 8, 5, 5])
        >>> layer.num_batches_tracked
        tensor([2, 1])
    """

    # Chosen by use_domain.
    domain: Domain | None = None

    def __init__(
        self,
        num_features: int,
        num_domains: int,
        group_size: int | None = Wish(4),
        solver: SolverLike = "cholesky",
        eps: float = 1e-3,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        population: str = "covariance",
        process_group: Group = None,
        *,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        check_positive("num_domains", num_domains)
        super().__init__(
            num_features,
            group_size,
            solver,
            eps,
            momentum,
            affine,
            track_running_stats,
            population,
            process_group,
            bias=bias,
            device=device,
            dtype=dtype,
        )
        self.num_domains = num_domains
        for name, buffer in self._buffers.items():
            if buffer is not None:
                self._buffers[name] = buffer.expand(num_domains, *buffer.shape).clone()

    def forward(self, input: Tensor, mask: Tensor | None = None, domain: Domain | None = None) -> Tensor:
        self._check_input(input)
        domain = self.domain if domain is None else domain
        if domain is None:
            raise ValueError(
                "expected a domain (got None); call layer(x, domain=0), or the model inside `with "
                "whitenorm.use_domain(model, 0):`"
            )
        if isinstance(domain, int):
            return self._whiten_domain(input, mask, domain)
        if isinstance(domain, Tensor):
            raise ValueError(
                "expected domains as an integer or a list (got a tensor, whose values a GPU would have to be asked "
                "for); pass domain.tolist()"
            )
        if len(domain) != len(input):
            raise ValueError(f"expected a domain, or one for each of {len(input)} samples (got {len(domain)} of them)")
        return self._whiten_mixed(input, mask, domain)

    def _whiten_domain(self, input: Tensor, mask: Tensor | None, domain: int) -> Tensor:
        check_domain(domain, self.num_domains)
        before, self.domain = self.domain, domain
        try:
            return self._whiten(input, mask, self.weight, self.bias)
        finally:
            self.domain = before

    def _whiten_mixed(self, input: Tensor, mask: Tensor | None, domains: Sequence[int]) -> Tensor:
        """Whiten the samples of each domain, and put them back in order."""
        check_domain(min(domains, default=0), self.num_domains)
        check_domain(max(domains, default=0), self.num_domains)
        # Other ranks may have samples of domains that this one has none of, and wait for its part of their statistics.
        is_shared = self.training and self.process_group is not None
        present = range(self.num_domains) if is_shared else sorted(set(domains))
        rows = [[i for i, domain in enumerate(domains) if domain == each] for each in present]
        outputs = []
        for domain, indices in zip(present, rows, strict=True):
            index = torch.tensor(indices, dtype=torch.long, device=input.device)
            outputs.append(self._whiten_domain(input[index], None if mask is None else mask[index], domain))
        place = {row: i for i, row in enumerate(row for indices in rows for row in indices)}
        order = torch.tensor([place[row] for row in range(len(input))], dtype=torch.long, device=input.device)
        return torch.cat(outputs)[order] if outputs else input

    def _population(self) -> tuple[Tensor | None, Tensor | None]:
        """Return the running mean and matrix of the chosen domain, as views; of the first one if none is chosen."""
        mean, matrix = super()._population()
        domain = self.domain if isinstance(self.domain, int) else 0
        return (None, None) if mean is None or matrix is None else (mean[domain], matrix[domain])

    def _counter(self) -> Tensor | None:
        counter = super()._counter()
        return counter[self.domain] if counter is not None and isinstance(self.domain, int) else counter

    def _write_population(self, mean: Tensor, matrix: Tensor) -> None:
        """Copy a mean and a matrix to the chosen domain; to all domains if none is chosen, as in a conversion."""
        if isinstance(self.domain, int):
            super()._write_population(mean, matrix)
        elif self.track_running_stats:
            self.get_buffer("running_mean").copy_(mean)
            self.get_buffer(self._matrix_name).copy_(matrix)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name, buffer in self._buffers.items():
            given = state_dict.get(prefix + name)
            if buffer is not None and isinstance(given, Tensor) and given.shape == buffer.shape[1:]:
                state_dict[prefix + name] = given.expand_as(buffer)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _convert_batchnorm_state(self, state: dict[str, Any], prefix: str) -> None:
        super()._convert_batchnorm_state(state, prefix)
        matrix = state.get(prefix + self._matrix_name)
        if isinstance(matrix, Tensor):
            state[prefix + self._matrix_name] = matrix.expand(self.num_domains, *matrix.shape)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, num_domains={self.num_domains}"


def check_domain(domain: int, num_domains: int) -> None:
    if isinstance(domain, bool) or not isinstance(domain, int) or not 0 <= domain < num_domains:
        raise ValueError(f"expected a domain from 0 to {num_domains - 1} (got {domain!r})")


@contextmanager
def use_domain(model: nn.Module, domain: Domain) -> Iterator[nn.Module]:
    """Choose the domain of all :class:`DomainWhitening` layers of a model within a context.

    Args:
        model: with such layers.
        domain: an integer, or a list of the domain of each sample of a batch.

    Example::

        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), DomainWhitening(8, num_domains=2), nn.ReLU())
        >>> with use_domain(model, 1):
        ...     model(torch.randn(4, 3, 8, 8)).shape
        torch.Size([4, 8, 6, 6])
    """
    layers = [module for module in model.modules() if isinstance(module, DomainWhitening)]
    if not layers:
        raise ValueError(
            f"expected a model with DomainWhitening layers (got {type(model).__name__} without any); convert it first: "
            "convert_(model, lambda width: whitenorm.DomainWhitening(width, num_domains))"
        )
    for layer in layers:
        for each in [domain] if isinstance(domain, int) else domain:
            check_domain(each, layer.num_domains)
    before = [layer.domain for layer in layers]
    try:
        for layer in layers:
            layer.domain = domain
        yield model
    finally:
        for layer, chosen in zip(layers, before, strict=True):
            layer.domain = chosen
