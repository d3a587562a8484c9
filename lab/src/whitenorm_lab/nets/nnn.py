"""Natural neural networks (NNN): layers that are reparameterized at intervals so that their inputs are white.

`Natural Neural Networks <https://arxiv.org/abs/1507.00210>`_ (Desjardins et al., 2015), a baseline of the DBN paper.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class NaturalLinear(nn.Module):
    r"""A linear layer whose input is whitened by a fixed mean and matrix.

    .. math:: y = V U (x - c) + d, \qquad U = (\Sigma + \epsilon I)^{-1/2}

    V and d, in ``linear``, are learned; c and U change only in :meth:`refresh`. U is the symmetric (ZCA) root; gradient
    descent on V gives the same function with any other root, as they differ by a rotation.

    Args:
        linear: the initial layer; U is the identity and c zero until the first refresh.
        damping: ε.
    """

    mean: Tensor
    whitening: Tensor

    def __init__(self, linear: nn.Linear, damping: float) -> None:
        super().__init__()
        self.linear = linear
        self.damping = damping
        self.register_buffer("mean", torch.zeros_like(linear.weight[0]))
        self.register_buffer("whitening", torch.eye(linear.in_features).to(linear.weight))

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(N, in_features)`` to ``(N, out_features)``."""
        return self.linear((x - self.mean) @ self.whitening)

    @torch.no_grad()
    def refresh(self, inputs: Tensor) -> None:
        """Set c and U from inputs ``(N, in_features)``, and V and d so that the layer computes the same function.

        If the inputs are not finite, the layer does not change; the loss has diverged then.
        """
        rows = inputs.double()
        mean = rows.mean(0)
        centered = rows - mean
        cov = centered.T @ centered / len(rows)
        if not cov.isfinite().all():
            return
        values, vectors = torch.linalg.eigh(cov)
        scale = (values.clamp_min(0) + self.damping).sqrt()
        # The layer's function as weight and bias: V U and d - V U c.
        weight = self.linear.weight.double() @ self.whitening.double()
        self.linear.bias.add_(weight @ (mean - self.mean))
        self.linear.weight.copy_(weight @ (vectors * scale) @ vectors.T)
        self.mean.copy_(mean)
        self.whitening.copy_((vectors / scale) @ vectors.T)


class NaturalNetwork(nn.Module):
    """A chain of layers whose linear layers, except the first, are :class:`NaturalLinear`, with periodic refreshes.

    The first layer's input is the data, which the other methods do not whiten either. A training step is a call in
    training mode with gradients; the first step begins with a refresh.

    Args:
        layers: the chain; its linear layers are used, not copied.
        data: inputs of the network, for the statistics.
        damping: ε.
        interval: training steps between refreshes, T.
        samples: number of rows of ``data`` drawn for a refresh; all by default.

    Example::

        >>> layers = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> network = NaturalNetwork(layers, torch.randn(50, 3), damping=0.1, interval=20)
        >>> network(torch.randn(5, 3)).shape
        torch.Size([5, 2])
    """

    data: Tensor

    def __init__(
        self, layers: nn.Sequential, data: Tensor, *, damping: float, interval: int, samples: int | None = None
    ) -> None:
        super().__init__()
        linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
        self.layers = nn.Sequential(
            *(NaturalLinear(layer, damping) if layer in linear[1:] else layer for layer in layers)
        )
        self.register_buffer("data", data, persistent=False)
        self.interval = interval
        self.samples = samples
        self.steps = 0

    def forward(self, x: Tensor) -> Tensor:
        """Refresh if it is due, then apply the layers."""
        if self.training and torch.is_grad_enabled():
            if self.steps % self.interval == 0:
                self.refresh()
            self.steps += 1
        return self.layers(x)

    @torch.no_grad()
    def refresh(self) -> None:
        """Whiten the input of each natural layer; the network's function does not change."""
        x = self.data
        if self.samples is not None:
            x = x[torch.randperm(len(x), device=x.device)[: self.samples]]
        for layer in self.layers:
            if isinstance(layer, NaturalLinear):
                layer.refresh(x)
            x = layer(x)
