"""Each step of the C++ kernels against torch's steps in float64, given the same, already rounded, input."""

import itertools
from typing import NamedTuple

import pytest
import torch

from tests.helpers.cases import assert_close, contiguous, stride_two
from whitenorm.ops import dispatch
from whitenorm.ops.native import steps
from whitenorm.ops.types import MapGradients, Method, Mixing, Moments, Solution, Statistics
from whitenorm.solvers import Newton


def channels_last(x):
    return x.permute(0, 4, 1, 2, 3).contiguous().permute(0, 2, 3, 4, 1)


def repeat_first_position(x):
    """Return the first position of x as that of all, with stride 0."""
    return x[..., :1].expand(x.shape)


FEATURES, CHANNELS, POSITIONS = (1, 2, 3, 5, 8, 12, 17, 33, 64), (1, 3, 8), (1, 7, 49, 200)
LAYOUTS = [contiguous, channels_last, stride_two]
GRAD_LAYOUTS = [contiguous, repeat_first_position, channels_last, stride_two, contiguous]
DTYPES = [torch.float32, torch.bfloat16, torch.float32, torch.float16]
# γ, β and the mean, each present or not.
PRESENT = ["γβμ", "γβ", "", "γ", "βμ", "β", "γμ", "μ"]


class Case(NamedTuple):
    shape: tuple[int, ...]
    layout: object
    grad_layout: object
    dtype: torch.dtype
    present: str

    def __str__(self):
        names = self.layout.__name__, self.grad_layout.__name__, str(self.dtype).removeprefix("torch.")
        return "-".join(["x".join(map(str, self.shape)), *names, self.present or "none"])


def list_cases():
    """Return all pairs of K and J; the other choices take turns, at periods without a common divisor where possible."""
    cases = []
    for i, (features, channels) in enumerate(itertools.product(FEATURES, CHANNELS)):
        for j, positions in enumerate(POSITIONS[i % 2 :: 2]):
            turn = 2 * i + j
            shape = (1, 2, 5)[turn % 3], (1, 3)[turn // 3 % 2], features, channels, positions
            if features * channels * positions > 60000:
                shape = (shape[0], 1, *shape[2:])
            cases.append(
                Case(
                    shape,
                    LAYOUTS[turn % 3],
                    GRAD_LAYOUTS[turn % 5],
                    DTYPES[turn // 2 % 4],
                    PRESENT[(turn + turn // 8) % 8],
                )
            )
    return cases


CASES = list_cases()


class Inputs(NamedTuple):
    """Inputs of all steps, in float32 but x and its gradient."""

    x: torch.Tensor
    grad: torch.Tensor
    weight: torch.Tensor | None
    bias: torch.Tensor | None
    mean: torch.Tensor | None

    def double(self):
        return Inputs(*[None if tensor is None else tensor.double() for tensor in self])


def make_inputs(case, entries):
    torch.manual_seed(sum(case.shape))
    n, groups, features, channels, positions = case.shape
    mix = torch.eye(features) + 0.3 * torch.randn(groups, features, features) / features**0.5
    x = (mix @ torch.randn(n, groups, features, channels * positions)).view(case.shape) + 2
    weight, bias = 1 + 0.3 * torch.randn(2, groups, features, channels)
    return Inputs(
        case.layout(x.to(case.dtype)),
        case.grad_layout(torch.randn(case.shape).to(case.dtype)),
        weight if "γ" in case.present else None,
        bias if "β" in case.present else None,
        2 + 0.1 * torch.randn(entries, groups, features),
    )


def reference(case):
    """Return torch's steps for features of one or several channels. The latter take one group at a time."""
    return dispatch.TORCH if case.shape[3] == 1 else dispatch.SCALED


def join_groups(case, function):
    """Return the results of a function of a group's slice, for all groups or, where it is needed, one after another."""
    if case.shape[3] == 1:
        return function(slice(None))
    parts = [function(slice(g, g + 1)) for g in range(case.shape[1])]
    return torch.cat(parts, 1) if isinstance(parts[0], torch.Tensor) else parts


def slice_group(group, *tensors):
    """Return parts of x and statistics, whose second dimension is that of groups."""
    return [None if tensor is None else tensor[:, group] for tensor in tensors]


def slice_parameters(group, *tensors):
    return [None if tensor is None else tensor[group] for tensor in tensors]


def list_modes(cases):
    """Return each case with statistics of each sample, and of the batch where a feature has one channel."""
    return [(case, pooled) for case in cases for pooled in ((False, True) if case.shape[3] == 1 else (False,))]


each_mode = pytest.mark.parametrize(("case", "pooled"), list_modes(CASES), ids=str)


@each_mode
def test_moments(case, pooled):
    x = make_inputs(case, 1).x
    actual = steps.moments(x, sample=not pooled, batch=pooled)
    exact = dispatch.TORCH.moments(x.double(), not pooled, pooled)
    assert (actual.sample is None, actual.batch is None) == (pooled, not pooled)
    actual, exact = (statistics.batch if pooled else statistics.sample for statistics in (actual, exact))
    assert actual.num_values == exact.num_values
    for name in ("mean", "cov"):
        assert getattr(actual, name).shape == getattr(exact, name).shape
        assert_close(getattr(actual, name), getattr(exact, name), torch.float32, name)
    assert torch.equal(actual.cov, actual.cov.mT)


def test_moments_of_samples_and_batch():
    x = torch.randn(5, 2, 3, 1, 49) + 2
    actual, exact = steps.moments(x, True, True), dispatch.TORCH.moments(x.double(), True, True)
    for part, exact_part in zip(actual, exact, strict=True):
        assert part.num_values == exact_part.num_values
        assert_close(part.mean, exact_part.mean, torch.float32)
        assert_close(part.cov, exact_part.cov, torch.float32)


@each_mode
def test_apply(case, pooled):
    entries = 1 if pooled else case.shape[0]
    inputs = make_inputs(case, entries)
    whitening = torch.randn(entries, case.shape[1], case.shape[2], case.shape[2]) / case.shape[2] ** 0.5
    mean = inputs.mean if "μ" in case.present else None
    out = torch.empty_like(case.layout(inputs.x))
    assert steps.apply(inputs.x, whitening, mean, inputs.weight, inputs.bias, out) is out
    x, _, weight, bias, _ = inputs.double()
    mean = None if mean is None else mean.double()

    def apply_group(group):
        arguments = slice_group(group, x, whitening.double(), mean) + slice_parameters(group, weight, bias)
        return reference(case).apply(*arguments, None)

    assert_close(out, join_groups(case, apply_group), case.dtype, "output")


@each_mode
def test_map_gradients(case, pooled):
    entries = 1 if pooled else case.shape[0]
    inputs = make_inputs(case, entries)
    x, grad, weight, bias, mean = inputs
    whitening = torch.randn(entries, case.shape[1], case.shape[2], case.shape[2]) / case.shape[2] ** 0.5
    actual = steps.map_gradients(grad, x, whitening, mean, weight, bias)
    x, grad, weight, bias, mean = inputs.double()

    def differentiate_group(group):
        tensors = slice_group(group, grad, x, whitening.double(), mean)
        return reference(case).map_gradients(*tensors, *slice_parameters(group, weight, bias))

    exact = join_groups(case, differentiate_group)
    if not isinstance(exact, MapGradients):
        matrices, offsets, weights, biases = zip(*exact, strict=True)
        small = [None if parts[0] is None else torch.cat(parts) for parts in (weights, biases)]
        exact = MapGradients(torch.cat(matrices, 1), torch.cat(offsets, 1), *small)
    for name, tensor, expected in zip(MapGradients._fields, actual, exact, strict=True):
        assert (tensor is None) == (expected is None), name
        if expected is not None:
            assert tensor.shape == expected.shape, name
            assert_close(tensor, expected, torch.float32, name)


def list_statistics(case, pooled):
    """Return the statistics through which gradients may reach x. A mix of both has matrices of samples."""
    if pooled:
        return ["batch", "none"]
    return ["sample", "none"] if case.shape[3] > 1 else ["sample", "batch", "both", "none"]


@pytest.mark.parametrize(
    ("case", "pooled", "through"),
    [(*mode, through) for mode in list_modes(CASES) for through in list_statistics(*mode)],
    ids=str,
)
def test_input_gradient(case, pooled, through):
    n, groups, features, channels, positions = case.shape
    entries = 1 if pooled else n
    inputs = make_inputs(case, entries)
    whitening = torch.randn(entries, groups, features, features) / features**0.5

    def affine_grad(count):
        matrix = torch.randn(count, groups, features, features)
        size = channels * positions * (n if count == 1 else 1)
        return steps.AffineGrad(
            matrix + matrix.mT, torch.randn(count, groups, features), inputs.mean[:count] + 0.1, size
        )

    sample = affine_grad(n) if through in ("sample", "both") else None
    batch = affine_grad(1) if through in ("batch", "both") else None
    out = torch.empty_like(case.layout(inputs.x))
    assert steps.input_gradient(inputs.grad, inputs.x, whitening, inputs.weight, sample, batch, out) is out
    x, grad, weight, _, _ = inputs.double()

    def compute_group(group):
        parts = [
            None
            if part is None
            else part._replace(
                **{name: getattr(part, name)[:, group].double() for name in ("matrix", "offset", "mean")}
            )
            for part in (sample, batch)
        ]
        tensors = slice_group(group, grad, x, whitening.double())
        return reference(case).input_gradient(*tensors, *slice_parameters(group, weight), *parts, None)

    assert_close(out, join_groups(case, compute_group), case.dtype, "gradient of the input")


def make_covariances(*shape):
    factor = torch.randn(*shape[:-1], 2 * shape[-1])
    return factor @ factor.mT / factor.shape[-1]


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("num_steps", [0, 1, 2, 5, 7, steps.MOST_STEPS])
@pytest.mark.parametrize("features", [*FEATURES, 4, 16, 63])
def test_newton(features, num_steps, count):
    torch.manual_seed(features)
    cov = make_covariances(count, 2, features, features)
    native, exact = steps._NativeNewton(num_steps), Newton(num_steps)
    whitening, residuals = native.solve(cov)
    expected, expected_residuals = exact.solve(cov.double())
    assert_close(whitening, expected, torch.float32, "W")
    assert_close(whitening, whitening.mT, torch.float32, "symmetry")
    grad = torch.randn_like(cov)
    grad_cov = native.backward(grad, cov, whitening, residuals)
    expected_grad = exact.backward(grad.double(), cov.double(), expected, expected_residuals)
    assert_close(grad_cov, expected_grad, torch.float32, "gradient of the covariance")


MIXES = [("bw",), ("iw",), ("bw", "iw"), ("bw", "iw", "bn", "in", "ln")]


@pytest.mark.parametrize("present", ["γβ", "γ", "β", ""])
@pytest.mark.parametrize("features", [1, 3, 17, 64])
@pytest.mark.parametrize("statistics", MIXES, ids="-".join)
def test_solve(statistics, features, present):
    torch.manual_seed(0)
    n, groups = 3, 2
    method = Method(statistics, Newton(), 1e-3, 0.9, uses_sample=statistics != ("bw",), uses_batch="bw" in statistics)
    mixing = Mixing(*torch.randn(2, len(statistics))) if len(statistics) > 1 else None
    sizes = {"sample": n if method.uses_sample else 0, "batch": 1 if method.uses_batch else 0}
    moments = {
        name: Moments(torch.randn(size, groups, features), make_covariances(size, groups, features, features), 49)
        for name, size in sizes.items()
        if size
    }
    given = Statistics(moments.get("sample"), moments.get("batch"))
    weight, bias = (torch.randn(groups, features, 1) if letter in present else None for letter in "γβ")

    def to_double(value):
        if isinstance(value, torch.Tensor):
            return value.double()
        return type(value)(*map(to_double, value)) if isinstance(value, tuple) else value

    solution = steps.solve(given, method, mixing, None)
    exact = dispatch.TORCH.solve(to_double(given), method, to_double(mixing), None)
    for name in ("whitening", "mean", "cov"):
        assert_close(getattr(solution, name), getattr(exact, name), torch.float32, name)
    grads = MapGradients(torch.randn_like(solution.whitening), torch.randn_like(solution.mean))
    actual = steps.solve_backward(grads, solution, given, method, weight, bias, mixing, False)
    exact_solution = Solution(*map(to_double, solution[:3]))
    expected = dispatch.TORCH.solve_backward(
        to_double(grads), exact_solution, to_double(given), method, to_double(weight), to_double(bias),
        to_double(mixing), False,
    )  # fmt: skip

    def flatten(value, name):
        if isinstance(value, tuple):
            parts = zip(type(value)._fields, value, strict=True)
            return [item for field, part in parts for item in flatten(part, f"{name}.{field}")]
        return [(name, value)]

    for (name, tensor), (_, correct) in zip(flatten(actual, ""), flatten(expected, ""), strict=True):
        if isinstance(correct, torch.Tensor):
            assert_close(tensor, correct, torch.float32, name)
        else:
            assert tensor == correct, name


def whiten_by_torch(case, x, grad, weight, bias, eps, num_steps, pooled):
    """Return output and gradients of whitening by the six steps in float64, one group at a time."""
    kernels, results = reference(case), []
    method = Method(("bw" if pooled else "iw",), Newton(num_steps), eps, uses_sample=not pooled, uses_batch=pooled)
    for g in range(case.shape[1]):
        group = slice(g, g + 1)
        (x_part, grad_part), parameters = slice_group(group, x, grad), slice_parameters(group, weight, bias)
        statistics = kernels.moments(x_part, not pooled, pooled)
        solution = kernels.solve(statistics, method, None, None)
        y = kernels.apply(x_part, solution.whitening, solution.mean, *parameters, None)
        grads = kernels.map_gradients(grad_part, x_part, solution.whitening, solution.mean, *parameters)
        back = kernels.solve_backward(grads, solution, statistics, method, *parameters, None, False)
        dx = kernels.input_gradient(grad_part, x_part, solution.whitening, parameters[0], back.sample, back.batch, None)
        results.append((y, dx, back.weight, back.bias))
    y, dx, grad_weight, grad_bias = zip(*results, strict=True)
    small = [None if parts[0] is None else torch.cat(parts) for parts in (grad_weight, grad_bias)]
    return torch.cat(y, 1), torch.cat(dx, 1), *small


def list_fused_cases():
    samples = [(False, case) for case in CASES if case.shape[3] * case.shape[4] > 1]
    batches = [(True, case) for case in CASES if case.shape[3] == 1 and case.shape[0] * case.shape[4] > 1]
    return [pytest.param(*pair, id=f"{'batch' if pair[0] else 'samples'}-{pair[1]}") for pair in samples + batches]


@pytest.mark.parametrize("num_steps", [0, 1, 5])
@pytest.mark.parametrize(("pooled", "case"), list_fused_cases())
def test_fused(pooled, case, num_steps):
    x, grad, weight, bias, _ = inputs = make_inputs(case, 1)
    out, dx = (torch.empty_like(case.layout(x)) for _ in range(2))
    kernels = dispatch.NATIVE.fused_batch if pooled else dispatch.NATIVE.fused_samples
    saved = kernels.whiten(x, weight, bias, 1e-2, num_steps, out)
    small = kernels.backward(grad, x, weight, bias, 1e-2, num_steps, saved, dx)
    expected = whiten_by_torch(case, *inputs.double()[:2], *inputs.double()[2:4], 1e-2, num_steps, pooled)
    names = [("output", case.dtype), ("input", case.dtype), ("γ", torch.float32), ("β", torch.float32)]
    for (name, dtype), tensor, correct in zip(names, (out, dx, *small), expected, strict=True):
        assert (tensor is None) == (correct is None), name
        if correct is not None:
            assert_close(tensor, correct, dtype, name)


HALVES = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("shape", [(2, 2, 5, 1, 49), (3, 1, 17, 3, 7), (5, 1, 8, 1, 1), (2, 1, 12, 8, 1)], ids=str)
def test_half_precision_is_float32_rounded_once(shape, dtype, layout):
    case = Case(shape, layout, contiguous, dtype, "γβ")
    x, grad, weight, bias, mean = make_inputs(case, shape[0])
    whitening = torch.randn(*shape[:3], shape[2])
    through = steps.AffineGrad(torch.randn_like(whitening), torch.randn_like(mean), mean, 49)
    results = []
    for compute in (dtype, torch.float32):
        wide, wide_grad = layout(x.to(compute)), grad.to(compute)
        y, dx = torch.empty_like(wide), torch.empty_like(wide)
        steps.apply(wide, whitening, mean, weight, bias, y)
        steps.input_gradient(wide_grad, wide, whitening, weight, through, None, dx)
        grads = steps.map_gradients(wide_grad, wide, whitening, mean, weight, bias)
        results.append([y.to(dtype), dx.to(dtype), *steps.moments(wide, True, False).sample[:2], *grads])
    for half, rounded in zip(*results, strict=True):
        assert (half is None and rounded is None) or torch.equal(half, rounded)


@pytest.mark.parametrize("positions", [1, 8])
# A factor of 1.5 gives numbers halfway between two of half precision.
@pytest.mark.parametrize("factor", [1.0, 1 / 3, 1.5])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_conversion_of_every_value(dtype, factor, positions):
    """All bit patterns, also of infinities, NaN and numbers too small to be normal, as torch converts them."""
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int16)
    x = bits.view(dtype).view(-1, 1, 1, 1, positions)
    y = steps.apply(x, torch.full((1, 1, 1, 1), factor), None, None, None, torch.empty_like(x))
    torch.testing.assert_close(y, (x.float() * factor).to(dtype), atol=0, rtol=0, equal_nan=True)
