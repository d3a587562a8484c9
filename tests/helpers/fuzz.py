"""Random layers on random inputs, compared with the papers' formulas in float64: ``make fuzz MINUTES=10``.

A quarter of the time goes to training steps over ranks (``fuzz_ranks.py``), another to layers that are compiled,
exported or traced with an operation in place behind them (``fuzz_compiled.py``).

A case is a function of its seed: layer, solver, mode, dtype, shape, strides, scale, offset, condition, ε, degeneracy.
Outputs, every gradient and the running statistics are compared with ``reference.py``, given the same rounded input.

How far apart they may be is not guessed. A layer that computes in a dtype of unit roundoff u cannot know its covariance
better than to u times its size, nor its mean better than to u times its own, nor what parts' means that are so rounded
add to the covariance. The reference is run again with such perturbations: what the result moves by is the error that a
perfect algorithm makes, here called the response. An error is a deviation if it exceeds ``SLACK`` times the response,
plus the rounding of sums and of the result itself.

Each seed is also a random conversion of a norm; ``conversion_cases.py`` says what must hold of its result.
"""

import argparse
import collections
import contextlib
import copy
import math
import tempfile
import time
from typing import NamedTuple

import torch

from tests.helpers import fuzz_compiled, fuzz_ranks, reference
from tests.helpers.cases import gradients_by_name, twin
from tests.helpers.conversion_cases import Conversion, draw_conversion, run_conversion
from tests.helpers.fuzz_cases import HALVES, Case, draw, make_input, make_layer
from whitenorm.ops.torch import passes
from whitenorm.solvers import PCA, ZCA

# A random perturbation misses the worst direction, and K-term sums round K times.
SLACK = 16
# Two are enough for most cases. Where an error exceeds what they allow, more are drawn before it counts as a deviation:
# in one of some ten thousand cases both directions happen to be insensitive ones.
PERTURBATIONS = (2, 30)
# float64 has only float64 to be compared with: the roundoff of a formula that is not arranged to be stable.
ROUNDOFF = {torch.float32: 2.0**-24, torch.float64: 2.0**-40}


class Deviation(NamedTuple):
    """A wrong result, with its error as a multiple of the allowed error."""

    seed: int
    what: str
    ratio: float
    case: Case | Conversion


def results_of(layer, forward, x, grad):
    """Return the output, the gradients by name and, in training, the running statistics."""
    x = x.detach().requires_grad_()
    y = forward(layer, x)
    y.backward(grad.to(y.dtype))
    return {"output": y.detach(), **gradients_by_name(layer, x)}


class ReferenceRecord:
    """Largest matrices and condition numbers that the reference has computed."""

    def __init__(self):
        self.matrix, self.condition, self.gap, self.offset = 0.0, 1.0, 1.0, 0.0

    def is_well_posed(self, roundoff):
        """Return whether a covariance with rounding errors is still positive definite."""
        return self.condition * (1 + self.offset) * roundoff * SLACK < 1

    def record_moments(self, mean, cov):
        deviation = cov.detach().diagonal().max().sqrt().item()
        self.offset = max(self.offset, mean.detach().abs().max().item() / deviation if deviation > 0 else 0.0)

    def record_solve(self, cov, whitening):
        values = torch.linalg.eigvalsh(cov.detach())
        self.matrix = max(self.matrix, whitening.detach().abs().sum(-2).max().item())
        self.condition = max(self.condition, (values[-1] / values[0].clamp_min(1e-300)).item())
        gaps = values.diff() / values[-1]
        self.gap = min(self.gap, gaps.min().item() if len(gaps) else 1.0)


@contextlib.contextmanager
def patch_reference(seen, roundoff=0.0, generator=None):
    """Use a reference with a smooth inverse root, whose means and covariances have errors of the size of roundoff."""
    moments, matrix_of = reference.mean_and_cov, reference.whitening_matrix

    def perturb_moments(columns):
        mean, cov = moments(columns)
        seen.record_moments(mean, cov)
        if not roundoff:
            return mean, cov
        mean = mean * (1 + roundoff * noise(mean, generator))
        # The gradient, too, is centred by the mean that is known.
        centred = columns - mean.detach()[:, None]
        cov = centred @ centred.T / columns.shape[1]
        return mean, add_roundoff(cov, roundoff, generator, mean.detach().abs().max())

    def smooth_matrix(cov, solver):
        cov = add_roundoff(cov, roundoff, generator) if roundoff else cov
        whitening = matrix_of(cov, reference.inverse_root if solver == ZCA() else solver)
        seen.record_solve(cov, whitening)
        return whitening

    reference.mean_and_cov, reference.whitening_matrix = perturb_moments, smooth_matrix
    try:
        yield
    finally:
        reference.mean_and_cov, reference.whitening_matrix = moments, matrix_of


def noise(tensor, generator):
    return torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)


def add_roundoff(cov, roundoff, generator, mean=0.0):
    """Return the covariance with an error of the size of its roundoff and that of the mean's products."""
    s, largest = noise(cov, generator), cov.detach().diagonal().max()
    return cov + roundoff * (largest + mean * largest.sqrt()) * (s + s.T) / 2


def perturb_statistics(layer, roundoff, generator):
    """Return a copy whose running statistics have errors of the size of roundoff."""
    layer = copy.deepcopy(layer)
    with torch.no_grad():
        for name, buffer in layer.named_buffers():
            if name.startswith("running"):
                buffer.mul_(1 + roundoff * noise(buffer, generator))
    return layer


def run(seed):
    """Run a case; return its deviations and the kind of comparison: full, or of finiteness alone."""
    case = draw(seed)
    generator = torch.Generator().manual_seed(seed)
    x = make_input(case, generator)
    layer = make_layer(case, seed)
    naive = twin(layer)
    grad = torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.dtype)
    before = {name: buffer.clone() for name, buffer in layer.named_buffers()}
    actual = results_of(layer, lambda layer, x: layer(x), x, grad)
    bad = [name for name, result in actual.items() if result is not None and not result.isfinite().all()]
    x64, grad64 = x.double(), grad.double()
    roundoff = ROUNDOFF[torch.float32 if case.dtype in HALVES else case.dtype]
    seen = ReferenceRecord()
    with patch_reference(seen):
        exact = results_of(twin(naive), reference.forward, x64, grad64)
    exact |= running(naive, before, x64, case)
    actual |= {name: buffer for name, buffer in layer.named_buffers() if name in exact}
    overflow = any(result is not None and result.abs().max() > torch.finfo(case.dtype).max for result in exact.values())
    if bad and not overflow:
        return [Deviation(seed, f"{name} is not finite", float("inf"), case) for name in bad], "finite"
    posed = seen.is_well_posed(roundoff) and not (layer.solver == PCA() and seen.gap < 1e-3)
    if overflow or not posed:
        return [], "finite"
    for perturbations in PERTURBATIONS:
        response = responses(naive, before, x64, grad64, exact, roundoff, case, generator, perturbations)
        deviations = []
        for name, result in exact.items():
            allowed = SLACK * (response[name].item() + roundoff * size_of(name, exact, layer, seen, grad64))
            allowed += own_rounding(case, name) * result.abs().max().item()
            error = (actual[name].double() - result).abs().max().item()
            if not error <= allowed:
                deviations.append(Deviation(seed, name, error / allowed, case))
        if not deviations:
            break
    return deviations, "compared"


def responses(naive, before, x, grad, exact, roundoff, case, generator, perturbations):
    """Return the largest change of each result under several perturbations of the size of roundoff."""
    response = {name: torch.zeros(()) for name in exact}
    for _ in range(perturbations):
        with patch_reference(ReferenceRecord(), roundoff, generator):
            moved = results_of(perturb_statistics(naive, roundoff, generator), reference.forward, x, grad)
            moved |= running(naive, before, x, case)
        for name, result in moved.items():
            response[name] = torch.maximum(response[name], (result - exact[name]).abs().max())
    return response


def running(layer, before, x, case):
    """Return the running statistics after a training step of a batch method, by their definition."""
    if not case.training or not case.name.startswith("bw") or not layer.track_running_stats:
        return {}
    statistics = reference.batch_whitening(x, layer)[1]
    means, covs, matrices = [torch.stack(tensors).detach() for tensors in zip(*statistics, strict=True)]
    new = {"running_mean": means.flatten(), "running_cov": covs, "running_whitening": matrices}
    return {
        name: (1 - layer.momentum) * before[name].double() + layer.momentum * value
        for name, value in new.items()
        if name in before
    }


def size_of(name, exact, layer, seen, grad):
    """Return the size of the terms whose sum is a result, because they may cancel."""
    if name in ("output", "running_mean", "running_cov", "running_whitening"):
        return exact[name].abs().max().item()
    # Each term has the gradient of y for a factor, and most the whitened x, which at inference may lie far from zero.
    product = grad.abs().max().item() * max(1.0, exact["output"].abs().max().item())
    if name == "input":
        return product * seen.matrix * (1.0 if layer.weight is None else layer.weight.abs().max().item())
    return product * grad.numel() ** (1 if "logits" in name else 0.5)


def own_rounding(case, name):
    """Return the relative error of rounding a result to its dtype."""
    return torch.finfo(case.dtype).eps if name in ("output", "input") and case.dtype in HALVES else 0.0


@contextlib.contextmanager
def blocks_of(size):
    """Cut inputs into blocks of this size, also small ones."""
    defaults = passes.BLOCK_BYTES, passes.BUFFER_BYTES, passes.FOLDING_BYTES
    if size < passes.BLOCK_BYTES:
        passes.BLOCK_BYTES, passes.BUFFER_BYTES, passes.FOLDING_BYTES = size, 1, 1
    try:
        yield
    finally:
        passes.BLOCK_BYTES, passes.BUFFER_BYTES, passes.FOLDING_BYTES = defaults


def fuzz(first, cases=None, seconds=None):
    """Run cases from a first seed on until a number or a time is reached; return the tally and all deviations."""
    tally, deviations = collections.Counter(), []
    end = None if seconds is None else time.monotonic() + seconds
    seed = first
    while (cases is None or seed < first + cases) and (end is None or time.monotonic() < end):
        case = draw(seed)
        with blocks_of(case.block_bytes):
            found, kind = run(seed)
        found = found + [Deviation(seed, what, math.inf, draw_conversion(seed)) for what in run_conversion(seed)]
        deviations += found
        tally[kind] += 1
        tally["deviating"] += bool(found)
        solver = case.solver if isinstance(case.solver, str) else str(case.solver)
        tally.update([f"layer {case.name}", f"solver {solver}", f"{case.dtype}", case.degenerate or "not degenerate"])
        seed += 1
    return tally, deviations


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, help="for how long; a minute if no number of cases is given")
    parser.add_argument("--cases", type=int, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="of the first case; one case is --seed S --cases 1")
    parser.add_argument("--kind", choices=list(KINDS), help="run cases of one kind only")
    options = parser.parse_args()
    minutes = 1 if options.minutes is None and options.cases is None else options.minutes
    failed = False
    for kind, (share, run_kind) in KINDS.items():
        if options.kind in (None, kind):
            seconds = None if minutes is None else 60 * minutes * (share if options.kind is None else 1)
            failed |= run_kind(options.seed, options.cases, seconds)
    raise SystemExit(failed)


def fuzz_layers(first, cases, seconds):
    """Run cases of layers, print the deviations, and return whether there are any."""
    tally, deviations = fuzz(first, cases, seconds)
    for deviation in deviations:
        print(f"seed {deviation.seed}: {deviation.what}, {deviation.ratio:.3g} times what is allowed; {deviation.case}")
    for what, count in sorted(tally.items()):
        print(f"{count:7} {what}")
    return bool(deviations)


def fuzz_over_ranks(first, cases, seconds):
    """Run cases over ranks, print the deviations, and return whether there are any."""
    with tempfile.TemporaryDirectory() as folder:
        number, deviations, worst = fuzz_ranks.fuzz(first, cases, seconds, f"{folder}/store")
    for deviation in deviations:
        print(deviation)
    print(f"{number:7} cases of {fuzz_ranks.WORLD} ranks, {len(deviations)} deviations, largest error {worst:.1e}")
    return bool(deviations)


def fuzz_compiled_layers(first, cases, seconds):
    """Run cases of compiled layers, print the deviations, and return whether there are any."""
    number, deviations = fuzz_compiled.fuzz(first, cases, seconds)
    for deviation in deviations:
        print(deviation)
    print(f"{number:7} cases of compiled layers, {len(deviations)} deviations")
    return bool(deviations)


# Each with its share of the time.
KINDS = {"layers": (0.5, fuzz_layers), "ranks": (0.25, fuzz_over_ranks), "compiled": (0.25, fuzz_compiled_layers)}


if __name__ == "__main__":
    main()
