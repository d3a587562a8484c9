"""The papers' measures, as plain functions on tensors: conditioning, noise, constraints, diversity."""

from whitenorm.diagnostics.conditioning import condition_number, correlation, spectrum, whiteness_error
from whitenorm.diagnostics.constraints import constraint_number, feasible_range, measured_constraint_number
from whitenorm.diagnostics.cost import flops, saved_bytes
from whitenorm.diagnostics.disturbance import Disturbance, stochastic_disturbance
from whitenorm.diagnostics.diversity import diversity
from whitenorm.diagnostics.fisher import fisher_condition_number

__all__ = [
    "Disturbance",
    "condition_number",
    "constraint_number",
    "correlation",
    "diversity",
    "feasible_range",
    "fisher_condition_number",
    "flops",
    "measured_constraint_number",
    "saved_bytes",
    "spectrum",
    "stochastic_disturbance",
    "whiteness_error",
]
