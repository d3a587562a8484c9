"""Whitening within each sample, without batch statistics: the same in training and eval mode."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from whitenorm._runtime import is_tracing
from whitenorm.functional import group_whitening, instance_whitening
from whitenorm.layers.base import ChannelWhitening, Whitening
from whitenorm.ops.check import check_divides, check_positive, root_divisor
from whitenorm.ops.masking import zero_masked
from whitenorm.solvers import SolverLike


class InstanceWhitening(ChannelWhitening):
    r"""Whiten groups of channels over the positions of each sample.

    The instance part of `Switchable Whitening <https://arxiv.org/abs/1904.09739>`_.

    .. math:: y_n = \gamma\, W(\Sigma_n + \epsilon I)\, (x_n - \mu_n) + \beta

    Args:
        num_features: C.
        group_size: channels whitened together; all of them if None or larger than C, otherwise a divisor of C.
        solver: computes the whitening matrix from the covariance, as in :class:`BatchWhitening`.
        eps: added to the diagonal of the covariance.
        affine: learn γ and β (unlike in ``torch.nn.InstanceNorm2d``, by default).
        bias: with ``affine``, learn β; if False, learn only γ, as in DBN-scale.
        device, dtype: of parameters.

    Shape:
        ``(N, C, L)``, ``(N, C, H, W)`` or ``(N, C, D, H, W)`` with more than one position; the output has the same
        shape.

    Examples::

        >>> InstanceWhitening(32, 16)(torch.randn(2, 32, 14, 14)).shape
        torch.Size([2, 32, 14, 14])
    """

    def __init__(
        self,
        num_features: int,
        group_size: int | None = None,
        solver: SolverLike = "newton",
        eps: float = 1e-5,
        affine: bool = True,
        *,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(num_features, group_size, solver, eps, affine, bias, device, dtype)
        self.reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        self._check_input(input)
        self._check_positions(input, "channel", self.num_features)
        return instance_whitening(
            input, self.weight, self.bias, self.eps, group_size=self.group_size, solver=self.solver
        )


class GroupWhitening(ChannelWhitening):
    r"""Whiten the groups of each sample against each other. Replaces GroupNorm and takes its argument order.

    `Group Whitening: Balancing Learning Efficiency and Representational Capacity <https://arxiv.org/abs/2009.13333>`_

    .. math:: X_G = \Pi(x) \in R^{g \times c}, \qquad
              \hat X_G = W(\tfrac1c X_C X_C^T + \epsilon I)\, X_C, \qquad y = \gamma\, \Pi^{-1}(\hat X_G) + \beta

    A group of channels with all its positions is *one* feature, as GroupNorm has one variance per group. One group is
    GroupNorm with one group. The paper finds g at most √(C·H·W) numerically safe.

    Args:
        num_groups: g, the number of features whitened; a divisor of C.
        num_channels: C.
        solver: computes the whitening matrix from the covariance, as in :class:`BatchWhitening`.
        eps: added to the diagonal of the covariance.
        affine: learn γ and β.
        bias: with ``affine``, learn β; if False, learn only γ, as in DBN-scale.
        device, dtype: of parameters.

    Shape:
        ``(N, C)`` to ``(N, C, D, H, W)`` with more than one value per group; the output has the same shape.

    Examples::

        >>> GroupWhitening(16, 64)(torch.randn(2, 64, 14, 14)).shape
        torch.Size([2, 64, 14, 14])
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        solver: SolverLike = "newton",
        eps: float = 1e-5,
        affine: bool = True,
        *,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(num_channels, None, solver, eps, affine, bias, device, dtype)
        check_divides("num_groups", num_groups, "channels", num_channels)
        self.num_groups = num_groups
        self.reset_parameters()

    @property
    def num_channels(self) -> int:
        """C, under GroupNorm's name."""
        return self.num_features

    def forward(self, input: Tensor) -> Tensor:
        self._check_input(input)
        self._check_positions(input, "group", self.num_groups)
        return group_whitening(input, self.num_groups, self.weight, self.bias, self.eps, solver=self.solver)

    def extra_repr(self) -> str:
        return (
            f"{self.num_groups}, {self.num_channels}, solver={self.solver!r}, eps={self.eps}, affine={self.affine}, "
            f"bias={self.bias is not None}"
        )


def _choose_num_groups(features: int) -> int:
    groups = root_divisor(features)
    if groups == 1 < features:
        warnings.warn(
            f"{features} features have no divisor near their square root: LayerWhitening({features}) has one group, "
            "which is LayerNorm; choose a width with divisors, or num_groups",
            stacklevel=3,
        )
    return groups


def _reshape_without_view(tensor: Tensor, like: Tensor) -> Tensor:
    """Reshape a tensor that nothing else uses, without a view that autograd sees.

    FSDP2 loses its hooks where a module returns a view that is then changed in place.
    """
    # TorchScript's tracer would record the sizes as constants.
    if is_tracing() or tensor.shape == like.shape:
        return tensor.reshape(like.shape)
    return torch.ops.aten._unsafe_view.default(tensor, like.shape)


class LayerWhitening(Whitening):
    r"""Group Whitening of each token's features. Replaces LayerNorm and takes its arguments.

    `Group Whitening <https://arxiv.org/abs/2009.13333>`_, appendix G. The C features of a token form ``num_groups``
    rows of C/num_groups values, which are whitened against each other. One group is LayerNorm.

    Args:
        normalized_shape: the last dimensions of the input, as in ``torch.nn.LayerNorm``.
        num_groups: g; a divisor of their product C. The paper finds g at most √C numerically safe; None selects the
            divisor nearest to √C.
        solver: computes the whitening matrix from the covariance, as in :class:`BatchWhitening`.
        eps: added to the diagonal of the covariance.
        elementwise_affine: learn γ and β of ``normalized_shape``.
        bias: with ``elementwise_affine``, learn β.
        device, dtype: of parameters.

    Shape:
        ``(..., *normalized_shape)``; the output has the same shape. Jagged nested tensors ``(N, *, C)`` are supported.
        Each token is normalized by itself, so padding does not change other tokens. ``mask``, if given, is boolean
        ``(...)`` and False at padding, which then gives 0 and does not contribute to any gradient.

    Examples::

        >>> LayerWhitening(64, num_groups=4)(torch.randn(2, 10, 64)).shape
        torch.Size([2, 10, 64])
        >>> LayerWhitening(768).num_groups
        24
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        num_groups: int | None = None,
        solver: SolverLike = "newton",
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        *,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        shape = tuple(normalized_shape) if isinstance(normalized_shape, Sequence) else (normalized_shape,)
        for size in shape or (0,):
            check_positive("every size of normalized_shape", size)
        if num_groups is None:
            num_groups = _choose_num_groups(math.prod(shape))
        check_divides("num_groups", num_groups, "features", math.prod(shape))
        super().__init__(shape, solver, eps, elementwise_affine, bias, device, dtype)
        self.normalized_shape = shape
        self.num_groups = num_groups
        self.elementwise_affine = elementwise_affine
        self.reset_parameters()

    def forward(self, input: Tensor, mask: Tensor | None = None) -> Tensor:
        if input.is_nested:
            return self._whiten_jagged(input, mask)
        dims = len(self.normalized_shape)
        if tuple(input.shape[-dims:]) != self.normalized_shape:
            raise ValueError(
                f"expected input of shape (..., {', '.join(map(str, self.normalized_shape))}) "
                f"(got {tuple(input.shape)}); the features come last, as in LayerNorm; for (N, C, H, W) "
                "use GroupWhitening"
            )
        tokens = input.reshape(math.prod(input.shape[:-dims]), math.prod(self.normalized_shape))
        weight, bias = (None if tensor is None else tensor.flatten() for tensor in (self.weight, self.bias))
        if mask is not None:
            mask = self._flatten_mask(mask, input.shape[:-dims])
            tokens = zero_masked(tokens, mask)
        output = group_whitening(tokens, self.num_groups, weight, bias, self.eps, solver=self.solver)
        return _reshape_without_view(output if mask is None else zero_masked(output, mask), input)

    def _flatten_mask(self, mask: Tensor, shape: torch.Size) -> Tensor:
        if mask.dtype != torch.bool or mask.shape != shape:
            raise ValueError(
                f"expected a boolean mask of shape {tuple(shape)}, one entry per token (got {mask.dtype} of shape "
                f"{tuple(mask.shape)})"
            )
        return mask.flatten()

    def _whiten_jagged(self, input: Tensor, mask: Tensor | None) -> Tensor:
        """Whiten the tokens of a nested tensor ``(N, *, C)``, which lie one after the other."""
        if input.layout != torch.jagged or len(self.normalized_shape) != 1 or input.ndim != 3 or mask is not None:
            raise ValueError(
                f"expected a dense tensor, or a jagged nested one (N, *, {self.normalized_shape[-1]}) without a mask "
                f"(got a nested tensor of {input.ndim} dimensions and layout {input.layout}); pad it: "
                "x.to_padded_tensor(0)"
            )
        nested: Any = input
        return torch.nested.nested_tensor_from_jagged(self(nested.values()), nested.offsets(), nested.lengths())

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, num_groups={self.num_groups}, solver={self.solver!r}, eps={self.eps}, "
            f"elementwise_affine={self.elementwise_affine}, bias={self.bias is not None}"
        )
