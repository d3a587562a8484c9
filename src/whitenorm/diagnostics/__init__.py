"""The papers' measures as functions on tensors, and reports on the norms of a model."""

from whitenorm.diagnostics.conditioning import (
    condition_number,
    correlation,
    dead_directions,
    spectrum,
    whiteness_error,
)
from whitenorm.diagnostics.constraints import (
    constraint_number,
    diversity,
    feasible_range,
    measured_constraint_number,
)
from whitenorm.diagnostics.cost import flops, kernels_used, saved_bytes
from whitenorm.diagnostics.disturbance import Disturbance, stochastic_disturbance
from whitenorm.diagnostics.inspection import inspect
from whitenorm.diagnostics.monitoring import Monitor, monitor
from whitenorm.diagnostics.optimization import fisher_condition_number, jacobian_spectrum
from whitenorm.diagnostics.page import html_page
from whitenorm.diagnostics.reports import Inspection, LayerReport

__all__ = [
    "Disturbance",
    "Inspection",
    "LayerReport",
    "Monitor",
    "condition_number",
    "constraint_number",
    "correlation",
    "dead_directions",
    "diversity",
    "feasible_range",
    "fisher_condition_number",
    "flops",
    "html_page",
    "inspect",
    "jacobian_spectrum",
    "kernels_used",
    "measured_constraint_number",
    "monitor",
    "saved_bytes",
    "spectrum",
    "stochastic_disturbance",
    "whiteness_error",
]
