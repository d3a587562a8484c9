"""Pooling of feature maps by the square root of their covariance."""

from __future__ import annotations

from torch import Tensor

from whitenorm.functional import covariance_pooling
from whitenorm.layers.base import LeafModule
from whitenorm.ops.check import check_eps
from whitenorm.solvers import SolverLike, as_solver


class CovariancePooling(LeafModule):
    r"""Pool a feature map to the square root of the covariance of its channels (iSQRT-COV).

    `Towards Faster Training of Global Covariance Pooling Networks by Iterative Matrix Square Root Normalization
    <https://arxiv.org/abs/1712.01034>`_ (Li et al., 2018)

    .. math:: y_n = \operatorname{triu}\big((\Sigma_n + \epsilon I)^{1/2}\big), \qquad
              \Sigma_n = \tfrac{1}{HW} X_n X_n^T, \quad X_n \text{ centred}

    It takes the place of global average pooling before the classifier and has no parameters. With the default solver,
    the root is the paper's: five steps of the coupled Newton-Schulz iteration on :math:`\Sigma / \operatorname{tr}
    \Sigma`, multiplied by :math:`\sqrt{\operatorname{tr} \Sigma}`. The output has C(C + 1)/2 features, 32,896 for the
    256 channels to which the paper first reduces a ResNet's by a 1×1 convolution.

    Args:
        solver: ``"newton"``, ``"zca"`` for the exact root, or a solver object such as ``Newton(steps=7)``. Cholesky's
            and PCA's roots are not symmetric; for these the output is not the paper's.
        eps: added to the diagonal of the covariance; 0 in the paper.

    Shape:
        - Input: ``(N, C, L)``, ``(N, C, H, W)`` or ``(N, C, D, H, W)`` with more than one position.
        - Output: ``(N, C(C + 1)/2)``, the rows of the upper triangle one after the other.

    Examples::

        >>> CovariancePooling()(torch.randn(2, 32, 14, 14)).shape
        torch.Size([2, 528])
    """

    def __init__(self, solver: SolverLike = "newton", eps: float = 0.0) -> None:
        super().__init__()
        check_eps(eps)
        self.solver = as_solver(solver)
        self.eps = eps

    def forward(self, input: Tensor) -> Tensor:
        return covariance_pooling(input, self.eps, solver=self.solver)

    def extra_repr(self) -> str:
        return f"solver={self.solver!r}, eps={self.eps}"
