"""Random training steps over ranks, compared with one process on the joined batch, in float64.

A case is a function of its seed: layer, positions, offset, and for each step the ranks' batch sizes and masks. Batches
may be empty, and masks may leave a single position or none, on one rank or on all. Outputs, gradients, running
statistics and the outputs of inference must be equal; a single value must be BatchNorm's error on every rank.
"""

import copy
import random
import time
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.multiprocessing

import whitenorm
from tests.helpers.cases import randomise
from tests.helpers.ranks import LAYERS, all_reduce_sum, gloo

# Far above what rounding makes of these cases in float64: in 3,000 of them, the largest error was 3e-12.
TOLERANCE = 1e-8
WORLD = 3
SIZES = [0, 0, 1, 1, 2, 3, 5]
# The share of positions that count; None is no mask.
DENSITIES = [None, 0.0, 0.1, 0.5, 0.9]


class Step(NamedTuple):
    """The batch size and the density of the mask of each rank."""

    sizes: tuple[int, ...]
    densities: tuple[float | None, ...]


class Case(NamedTuple):
    """A layer and its training batches."""

    seed: int
    layer: str
    positions: tuple[int, ...]
    offset: float
    steps: tuple[Step, ...]
    # A rank whose input needs no gradient.
    constant_input: int | None


def draw(seed, world):
    """Draw the case of a seed."""
    rng = random.Random(seed)
    name = rng.choice(list(LAYERS))
    masked = not name.startswith("sw") and rng.random() < 0.7
    steps = []
    for _ in range(3):
        sizes = tuple(rng.choice(SIZES) for _ in range(world))
        steps.append(Step(sizes, tuple(rng.choice(DENSITIES) if masked else None for _ in range(world))))
    positions = rng.choice([(), (1,), (4,), (2, 3)])
    # Without parameters, such a rank would have no backward, which the others wait for.
    constant_input = rng.randrange(world) if name != "cholesky" and rng.random() < 0.3 else None
    return Case(seed, name, positions, rng.choice([0.0, 1.0, 10.0]), tuple(steps), constant_input)


class Batch(NamedTuple):
    """The joined batch of a step; ``mask`` is None if no rank has one."""

    x: torch.Tensor
    mask: torch.Tensor | None
    grad: torch.Tensor

    def part(self, step, rank):
        start = sum(step.sizes[:rank])
        mine = slice(start, start + step.sizes[rank])
        mask = None if self.mask is None or step.densities[rank] is None else self.mask[mine]
        return Batch(self.x[mine], mask, self.grad[mine])

    def count_valid(self):
        """Return the number of values per channel that the mask selects."""
        return self.x[:, 0].numel() if self.mask is None else int(self.mask.sum())

    def options(self):
        return {} if self.mask is None else {"mask": self.mask}


def make_batch(case, step, generator):
    shape = (sum(step.sizes), 6, *case.positions)
    x, grad = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    masks = []
    for size, density in zip(step.sizes, step.densities, strict=True):
        drawn = torch.rand((size, *case.positions), generator=generator)
        masks.append(drawn < (1.0 if density is None else density))
    unmasked = all(density is None for density in step.densities)
    return Batch(2 * x + case.offset, None if unmasked else torch.cat(masks), grad)


def make_layer(case):
    """Build the layer, with an ε large enough for singular covariances."""
    layer = randomise(LAYERS[case.layer]().double(), case.seed)
    layer.eps = 1e-2
    return layer


class Comparison:
    """Return the deviations of a case on this rank, and the largest error."""

    def __init__(self, case, rank):
        self.what, self.deviations, self.worst = f"seed {case.seed}, rank {rank}", [], 0.0

    def expect(self, condition, what):
        if not condition:
            self.deviations.append(f"{self.what}: {what}")

    def close(self, actual, expected, what):
        if not expected.numel():
            return
        error = ((actual - expected).abs().max() / (1 + expected.abs().max())).item()
        self.worst = max(self.worst, error)
        # NaN is no number below the tolerance.
        self.expect(error <= TOLERANCE, f"{what} is off by {error:.1e}")


def compare(case, rank, world):
    """Train a synchronised layer on this rank's batches, and one on the joined batches, and compare them."""
    comparison = Comparison(case, rank)
    generator = torch.Generator().manual_seed(case.seed)
    alone = make_layer(case)
    layer = whitenorm.synchronize_(copy.deepcopy(alone))
    for i, step in enumerate(case.steps):
        batch = make_batch(case, step, generator)
        part = batch.part(step, rank)
        comparison.what = f"seed {case.seed}, rank {rank} of {world}, step {i + 1}"
        if batch.count_valid() > 1:
            compare_step(alone, layer, batch, part, step, rank, case.constant_input == rank, comparison)
        else:
            compare_few_values(layer, part, batch.count_valid(), comparison)
    return comparison


def compare_step(alone, layer, batch, part, step, rank, constant_input, comparison):
    joined, local = batch.x.clone().requires_grad_(), part.x.clone().requires_grad_(not constant_input)
    expected, y = alone.train()(joined, **batch.options()), layer.train()(local, **part.options())
    expected.backward(batch.grad)
    y.backward(part.grad)
    comparison.close(y, Batch(expected, None, expected).part(step, rank).x, "output")
    if not constant_input:
        comparison.close(local.grad, Batch(joined.grad, None, joined.grad).part(step, rank).x, "gradient of the input")
    with torch.no_grad():
        for (name, parameter), other in zip(layer.named_parameters(), alone.parameters(), strict=True):
            total = all_reduce_sum(parameter.grad)
            comparison.close(total, other.grad, f"gradient of {name}")
            parameter.sub_(0.1 * total)
            other.sub_(0.1 * other.grad)
            parameter.grad = other.grad = None
        for (name, buffer), other in zip(layer.named_buffers(), alone.buffers(), strict=True):
            comparison.close(buffer, other, name)
        inferred = layer.eval()(part.x, **part.options())
        comparison.close(inferred, alone.eval()(part.x, **part.options()), "output of inference")


def compare_few_values(layer, part, number, comparison):
    """Check that one value raises, and that no values give zeros and zero gradients; neither changes the layer."""
    before = {name: buffer.clone() for name, buffer in layer.named_buffers()}
    x = part.x.clone().requires_grad_()
    try:
        y = layer.train()(x, **part.options())
    except ValueError as error:
        comparison.expect(number == 1 and "Expected more than 1 value per channel" in str(error), f"an error: {error}")
    else:
        comparison.expect(number == 0, "no error for a single value")
        y.backward(part.grad)
        comparison.close(y, torch.zeros_like(x), "output of no values")
        comparison.close(x.grad, torch.zeros_like(x), "gradient of no values")
        for name, parameter in layer.named_parameters():
            comparison.close(parameter.grad, torch.zeros_like(parameter), f"gradient of {name} of no values")
            parameter.grad = None
    for name, buffer in layer.named_buffers():
        comparison.expect(torch.equal(buffer, before[name]), f"{name} has changed")


def compare_all(rank, world, first, cases=None, seconds=None):
    """Run cases from a first seed on until a number or a time is reached; return count, deviations and worst error."""
    deviations, worst, seed = [], 0.0, first
    end = None if seconds is None else time.monotonic() + seconds
    while cases is None or seed < first + cases:
        # The first rank's clock counts.
        over = torch.tensor(float(end is not None and time.monotonic() > end))
        dist.broadcast(over, 0)
        if over:
            break
        comparison = compare(draw(seed, world), rank, world)
        deviations += comparison.deviations
        worst = max(worst, comparison.worst)
        seed += 1
    parts = [None] * world
    dist.all_gather_object(parts, (deviations, worst))
    return seed - first, [line for lines, _ in parts for line in lines], max(worst for _, worst in parts)


def run_rank(rank, world, path, results, arguments):
    """Run the cases of :func:`fuzz` in one process."""
    torch.set_num_threads(1)
    with gloo(path, rank, world):
        found = compare_all(rank, world, *arguments)
    if rank == 0:
        results.put(found)


def fuzz(first, cases, seconds, store):
    """Run :func:`compare_all` in processes that meet at a file that does not exist yet."""
    results = torch.multiprocessing.get_context("spawn").SimpleQueue()
    arguments = (WORLD, store, results, (first, cases, seconds))
    torch.multiprocessing.spawn(run_rank, arguments, nprocs=WORLD)
    return results.get()
