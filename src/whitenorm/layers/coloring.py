"""Colouring: a learned linear map of groups of channels, which may depend on the class."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from whitenorm.layers.base import LeafModule
from whitenorm.ops.check import check_channels, check_positive, fit_group_size


class Coloring(LeafModule):
    r"""Learned colouring of whitened features, with class-conditional matrices for GANs (WC and cWC).

    `Whitening and Coloring Batch Transform for GANs <https://arxiv.org/abs/1806.00420>`_ (Siarohin et al., 2019)

    .. math:: y_n = (\Gamma + \Gamma_{c(n)})\, x_n + \beta + \beta_{c(n)}

    In place of the scale γ of each channel, Γ is a full matrix for each group of channels, so that a network can choose
    covariances and not only variances. Put it behind a whitening layer with ``affine=False``. Γ begins as I, and the
    matrices and shifts of classes c as 0.

    Args:
        num_features: C.
        group_size: channels mixed with each other; all of them if None or larger than C, otherwise a divisor of C.
        num_classes: number of classes with a matrix and shift of their own; None for none.
        bias: learn β, and the shifts of classes.
        device, dtype: of parameters.

    Shape:
        ``(N, C)``, ``(N, C, L)``, ``(N, C, H, W)`` or ``(N, C, D, H, W)``; the output has the same shape. ``labels``
        are integers ``(N,)``.

    Examples::

        >>> norm, color = whitenorm.IterNorm(16, affine=False), Coloring(16, num_classes=10)
        >>> x, labels = torch.randn(8, 16, 4, 4), torch.randint(10, (8,))
        >>> color(norm(x), labels).shape
        torch.Size([8, 16, 4, 4])
    """

    weight: nn.Parameter
    bias: nn.Parameter | None
    class_weight: nn.Parameter | None
    class_bias: nn.Parameter | None

    def __init__(
        self,
        num_features: int,
        group_size: int | None = None,
        num_classes: int | None = None,
        *,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        check_positive("num_features", num_features)
        if num_classes is not None:
            check_positive("num_classes", num_classes)
        self.num_features = num_features
        self.group_size = size = fit_group_size(num_features, group_size)
        self.num_classes = num_classes

        matrices, classes = (num_features // size, size, size), () if num_classes is None else (num_classes,)
        shapes: dict[str, tuple[int, ...] | None] = {"weight": matrices, "bias": (num_features,) if bias else None}
        shapes["class_weight"] = (*classes, *matrices) if classes else None
        shapes["class_bias"] = (*classes, num_features) if classes and bias else None
        for name, shape in shapes.items():
            empty = None if shape is None else torch.empty(shape, device=device, dtype=dtype)
            self.register_parameter(name, None if empty is None else nn.Parameter(empty))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set Γ to I, and all other parameters to zero."""
        for parameter in self.parameters():
            nn.init.zeros_(parameter)
        with torch.no_grad():
            self.weight.diagonal(dim1=-2, dim2=-1).fill_(1)

    def forward(self, input: Tensor, labels: Tensor | None = None) -> Tensor:
        check_channels(input, self.num_features)
        self._check_labels(input, labels)
        matrix, shift = self._map(labels)
        groups = input.unflatten(1, (-1, self.group_size))
        groups = groups.unsqueeze(-1) if input.ndim == 2 else groups.flatten(3)  # N, G, K, L
        output = matrix.to(input.dtype) @ groups
        if shift is not None:
            output = output + shift.to(output.dtype).reshape(*shift.shape[:-1], -1, self.group_size, 1)
        return output.reshape(input.shape)

    @torch.no_grad()
    def to_linear(self, label: int | None = None) -> nn.Linear:
        """Return the map of vectors ``(N, C)``, that of a class where there are classes, as a linear layer."""
        labels = None if label is None else torch.tensor(label, device=self.weight.device)
        self._check_labels(self.weight, labels)
        matrix, shift = self._map(labels)
        linear = nn.Linear(self.num_features, self.num_features, self.bias is not None).to(matrix)
        linear.weight.copy_(torch.block_diag(*matrix))
        if shift is not None:
            linear.bias.copy_(shift)
        return linear

    def _map(self, labels: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return matrices ``(..., G, K, K)`` and shifts ``(..., C)``, with the dimensions of the labels."""
        matrix: Tensor = self.weight
        shift: Tensor | None = self.bias
        if labels is not None and self.class_weight is not None:
            matrix = matrix + self.class_weight[labels]
        if labels is not None and shift is not None and self.class_bias is not None:
            shift = shift + self.class_bias[labels]
        return matrix, shift

    def _check_labels(self, input: Tensor, labels: Tensor | None) -> None:
        if (labels is None) != (self.num_classes is None):
            expected = "no labels" if self.num_classes is None else f"labels of {self.num_classes} classes"
            raise ValueError(
                f"expected {expected} (got {'none' if labels is None else 'some'}); num_classes={self.num_classes}"
            )
        if labels is not None and labels.ndim and labels.shape != input.shape[:1]:
            raise ValueError(
                f"expected labels of shape ({input.shape[0]},), one per sample (got {tuple(labels.shape)})"
            )

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, group_size={self.group_size}, num_classes={self.num_classes}, "
            f"bias={self.bias is not None}"
        )
