"""The six kernels in Triton."""

from whitenorm.kernels.triton.apply import apply
from whitenorm.kernels.triton.input_gradient import input_gradient
from whitenorm.kernels.triton.map_gradients import map_gradients
from whitenorm.kernels.triton.moments import moments
from whitenorm.kernels.triton.solve import solve
from whitenorm.kernels.triton.solve_backward import solve_backward

__all__ = ["apply", "input_gradient", "map_gradients", "moments", "solve", "solve_backward"]
