"""Orthogonal weights by Newton's iteration, as a parametrization."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from whitenorm._runtime import compute_dtype, no_autocast, smallest
from whitenorm.ops.check import check_number


class OrthogonalNewton(nn.Module):
    """The parametrization that :func:`whitenorm.orthogonal_newton` registers."""

    def __init__(self, steps: int = 5, center: bool = True, scale: float = 1.0) -> None:
        super().__init__()
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
            raise ValueError(f"expected steps to be a whole number of at least 0 (got {steps!r}); the paper uses 5")
        check_number("scale", scale, 0, math.inf, "1 for an orthogonal matrix, 2 ** 0.5 before ReLU")
        self.steps = steps
        self.center = center
        self.scale = scale

    def forward(self, weight: Tensor) -> Tensor:
        with no_autocast(weight):
            rows = weight.flatten(1).to(compute_dtype(weight.dtype))
            rows = rows - rows.mean(1, keepdim=True) if self.center else rows
            is_tall = rows.shape[0] > rows.shape[1]
            # The same matrix either way, by the smaller of the two products.
            matrix = rows.mT if is_tall else rows
            matrix = self.scale * (_inverse_root(matrix @ matrix.mT, self.steps) @ matrix)
            return (matrix.mT if is_tall else matrix).reshape(weight.shape).to(weight.dtype)

    def right_inverse(self, weight: Tensor) -> Tensor:
        return weight

    def extra_repr(self) -> str:
        return f"steps={self.steps}, center={self.center}, scale={self.scale}"


def orthogonal_newton(
    module: nn.Module, name: str = "weight", steps: int = 5, *, center: bool = True, scale: float = 1.0
) -> nn.Module:
    r"""Parametrize a weight by Newton's iteration towards an orthogonal matrix, in place, and return the module (ONI).

    `Controllable Orthogonalization in Training DNNs <https://arxiv.org/abs/2004.00917>`_ (Huang et al., 2020,
    algorithm 2)

    .. math:: V = \frac{Z_C}{\sqrt{\lVert Z_C Z_C^T \rVert_F}}, \qquad S = V V^T, \qquad B_0 = I, \quad
              B_t = \tfrac12 (3 B_{t-1} - B_{t-1}^3 S), \qquad W = s\, B_T V

    Z is the learned parameter, with one row per output and the kernel's positions among the columns, and
    :math:`Z_C` are its rows without their means. All singular values of V lie in (0, 1] and grow towards 1 with every
    step, so that the number of steps T controls how orthogonal W is. With fewer outputs than columns, the rows of W
    become orthonormal; with more, the columns do, apart from the direction that centring removes.

    ``torch.nn.utils.parametrize.remove_parametrizations(module, name)`` leaves W as a plain parameter for inference.

    Args:
        module: any module with this parameter, such as ``nn.Linear`` or ``nn.Conv2d``.
        name: of a parameter with at least two dimensions. Its present value becomes Z.
        steps: T.
        center: subtract the mean of each row, as in the paper. False for orthonormal columns in every direction.
        scale: s. The paper multiplies by √2 in networks with ReLU.

    Example::

        >>> layer = orthogonal_newton(nn.Linear(64, 16), steps=10)
        >>> torch.allclose(layer.weight @ layer.weight.T, torch.eye(16), atol=1e-4)
        True
        >>> list(layer.state_dict())
        ['bias', 'parametrizations.weight.original']
    """
    weight = getattr(module, name, None)
    if not isinstance(weight, Tensor) or weight.ndim < 2 or not weight.is_floating_point():
        shape = tuple(weight.shape) if isinstance(weight, Tensor) else type(weight).__name__
        raise ValueError(
            f"expected {type(module).__name__}.{name} to be a floating-point parameter of at least two dimensions "
            f"(got {shape}); pass the name of a weight"
        )
    parametrize.register_parametrization(module, name, OrthogonalNewton(steps, center, scale))
    return module


def _inverse_root(gram: Tensor, steps: int) -> Tensor:
    """Return B_T over the root of the Gram matrix's norm, by the coupled iteration, which is stable."""
    identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    # Divided by the largest entry first, because squares of large entries would overflow.
    largest = gram.detach().abs().amax().clamp_min(smallest(gram.dtype))
    bound = largest * torch.linalg.matrix_norm(gram / largest).clamp_min(1)
    y, z = gram / bound, identity
    for _ in range(steps):
        t = 1.5 * identity - 0.5 * z @ y
        y, z = y @ t, t @ z
    return z * bound.rsqrt()
