"""Compiled layers: the same results, with the steps as operators in the graph, few operations beside them."""

import collections
import copy
import re

import pytest
import torch
from torch._functorch.aot_autograd import aot_module_simplified, make_boxed_func

import whitenorm
from whitenorm.cli.gpu.use_kernels import use_kernels
from whitenorm.ops import dispatch

LAYERS = {
    "batch": (lambda: whitenorm.IterNorm(8, 4), (4, 8, 4, 4)),
    "group": (lambda: whitenorm.GroupWhitening(4, 8), (2, 8, 10, 10)),
    "switchable": (lambda: whitenorm.SwitchableWhitening(8, 4), (4, 8, 4, 4)),
    "tokens": (lambda: whitenorm.LayerWhitening(12), (4, 12)),
    "tokens without β": (lambda: whitenorm.LayerWhitening(12, bias=False), (4, 12)),
    "no parameters": (lambda: whitenorm.IterNorm(8, 4, affine=False), (4, 8, 4, 4)),
    "solved by torch": (lambda: whitenorm.DecorrelatedBatchNorm(8, 4), (4, 8, 4, 4)),
    "inference": (lambda: whitenorm.IterNorm(8, 4).eval(), (4, 8, 4, 4)),
    "population": (lambda: whitenorm.SwitchableWhitening(8, 4).eval(), (4, 8, 4, 4)),
}
# Operators, and other operations that are not views, in the graphs of forward and backward; running statistics are
# updated by three operations, which a compiler fuses.
OPERATIONS = {"batch": (3, 3, 3, 0), "group": (3, 0, 3, 1), "switchable": (3, 3, 3, 1), "tokens": (1, 0, 1, 0)}
FREE = ("view", "transpose", "squeeze", "expand", "permute", "getitem", "split", "new_empty", "select", "slice")


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()


class Graphs:
    """A backend of torch.compile that counts the operations of forward and backward, and runs them as they are."""

    def __init__(self):
        self.operations = []

    def __call__(self, graph, inputs):
        return aot_module_simplified(graph, inputs, fw_compiler=self._count, bw_compiler=self._count)

    def _count(self, graph, inputs):
        names = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
        kinds = collections.Counter(
            name.startswith("whitenorm.") for name in names if not any(word in name for word in FREE)
        )
        self.operations += [kinds[True], kinds[False]]
        return make_boxed_func(graph.forward)


def run_step(function, layer, x, grad):
    x = x.detach().clone().requires_grad_()
    y = function(x)
    # In place, as activations may be.
    torch.nn.functional.relu_(y)
    y.backward(grad)
    return [y, x.grad, *[parameter.grad for parameter in layer.parameters()], *layer.buffers()]


def compare(build, shapes, **options):
    layer = build()
    reference = copy.deepcopy(layer)
    compiled = torch.compile(layer, fullgraph=True, **options)
    for shape in shapes:
        x, grad = torch.randn(shape), torch.randn(shape)
        actual = run_step(compiled, layer, x, grad)
        with use_kernels("torch"):
            expected = run_step(reference, reference, x, grad)
        for one, other in zip(actual, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
        assert actual[0].stride() == expected[0].stride()


@pytest.mark.parametrize("name", LAYERS)
def test_a_compiled_layer(name):
    build, shape = LAYERS[name]
    graphs = Graphs()
    with use_kernels("triton"):
        compare(build, [shape], backend=graphs)
    assert graphs.operations[0] > 0
    if name in OPERATIONS:
        assert tuple(graphs.operations) == OPERATIONS[name]


@pytest.mark.parametrize("name", ["batch", "tokens"])
def test_dynamic_shapes(name):
    build, shape = LAYERS[name]
    graphs = Graphs()
    with use_kernels("triton"):
        compare(build, [shape, (5, *shape[1:]), (7, *shape[1:])], backend=graphs, dynamic=True)


def test_transforms_inside_a_compiled_function():
    """Operators have no rules for vmap, so that torch's kernels are used there."""

    def double_if_triton(x):
        return x * 2 if dispatch._takes_triton(x) else x

    x = torch.ones(2, 3)
    with use_kernels("triton"):
        assert torch.equal(torch.compile(double_if_triton, backend="eager", fullgraph=True)(x), 2 * x)
        vmap = torch.func.vmap(double_if_triton)
        assert torch.equal(torch.compile(vmap, backend="eager", fullgraph=True)(x), x)


@pytest.mark.parametrize(
    "arguments",
    [
        ("moments", (torch.randn(3, 2, 4, 1, 9), True, True)),
        ("moments", (torch.randn(3, 1, 4, 2, 9), False, True)),
        ("map_gradients", (*torch.randn(2, 3, 1, 4, 2, 9), torch.randn(3, 1, 4, 4), torch.randn(3, 1, 4), None, True)),
    ],
    ids=["both", "batch", "channels"],
)
def test_what_the_compiler_is_told(arguments):
    from whitenorm.ops.triton import operators  # noqa: F401

    name, values = arguments
    torch.library.opcheck(getattr(torch.ops.whitenorm, name).default, values)


def test_a_compiler_copies_no_input():
    """After a convolution that it computes in channels-last format, x goes to the operators as it is."""
    from torch._inductor.utils import run_and_get_code

    layers = torch.nn.Conv2d(3, 8, 3), whitenorm.IterNorm(8, 4), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3)
    compiled = torch.compile(torch.nn.Sequential(*layers), fullgraph=True)
    x = torch.randn(2, 3, 8, 8)
    with use_kernels("triton"), torch._inductor.config.patch(fx_graph_cache=False):
        _, codes = run_and_get_code(lambda: compiled(x).sum().backward())
    calls = [line for code in codes for line in code.splitlines() if "= torch.ops.whitenorm" in line]
    assert len(calls) == 6
    views = r"\(reinterpret_tensor\(\w+, \(2, 2, 4, 1, 36\)"
    assert all(re.search(views, line) for line in calls if "solve" not in line)
