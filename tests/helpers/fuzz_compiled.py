"""Random layers followed by an in-place operation, compiled, exported and traced, compared with eager execution.

A case is a function of its seed: layer, solver, mode, shape, memory layout, what is done in place, and the tool that
takes the graph. In float64 the same operations run in another order at most, so results are equal but for rounding.
"""

import copy
import random
import time
import warnings
from typing import NamedTuple

import torch
from torch import fx, nn

from tests.helpers.cases import CHANNEL_LAYERS, TOKEN_LAYERS, channel_layers, channels_last, randomise, token_layers

TOLERANCE = 1e-8
IN_PLACE = {
    "relu": lambda y, x: torch.relu_(y),
    "silu": lambda y, x: nn.functional.silu(y, inplace=True),
    "hardswish": lambda y, x: nn.functional.hardswish(y, inplace=True),
    "leaky_relu": lambda y, x: nn.functional.leaky_relu(y, 0.1, inplace=True),
    "add": lambda y, x: y.add_(x),
    "mul": lambda y, x: y.mul_(2),
    "a slice": lambda y, x: y[..., :1].mul_(0.5),
    "twice": lambda y, x: torch.relu_(y.add_(x)),
}
# torch 2.6 does not tell an export from a compilation, and its graph has no gradients.
TOOLS = ("compile", "compile", "fx", *(["export"] if hasattr(torch.compiler, "is_exporting") else []))


class Case(NamedTuple):
    """The layer, tool and input that a seed determines."""

    seed: int
    layer: str
    solver: str
    training: bool
    shape: tuple[int, ...]
    channels_last: bool
    in_place: str
    tool: str


class Net(nn.Module):
    """A layer followed by an in-place operation, and a result that depends on it."""

    def __init__(self, layer, in_place):
        super().__init__()
        self.layer = layer
        self.in_place = in_place

    def forward(self, x):
        y = self.layer(x)
        IN_PLACE[self.in_place](y, x)
        return y * 3


def draw(seed):
    """Draw the case of a seed."""
    rng = random.Random(seed)
    tokens = rng.random() < 0.15
    name = rng.choice(TOKEN_LAYERS if tokens else CHANNEL_LAYERS)
    if tokens:
        shape = (*[rng.randint(2, 5) for _ in range(rng.randint(1, 2))], 8)
    else:
        positions = [rng.randint(2, 5) for _ in range(rng.randint(0 if name.startswith("bw") else 1, 3))]
        shape = (rng.randint(2, 6) if positions else rng.randint(8, 40), 6, *positions)
    last = len(shape) > 2 and not tokens and rng.random() < 0.4
    solver = rng.choice(["newton", "newton", "zca", "cholesky"])
    training = rng.random() < 0.6
    return Case(seed, name, solver, training, shape, last, rng.choice(list(IN_PLACE)), rng.choice(TOOLS))


def results(function, net, x):
    """Return the output, the gradients and the buffers after a step."""
    x = x.clone().requires_grad_()
    y = function(x)
    y.square().sum().backward()
    tensors = {"output": y.detach(), "gradient of the input": x.grad}
    tensors |= {f"gradient of {name}": parameter.grad for name, parameter in net.named_parameters()}
    return {**tensors, **dict(net.named_buffers())}


def run(seed):
    """Describe how a case deviates; empty if it does not."""
    case = draw(seed)
    torch.manual_seed(seed)
    make = token_layers if case.layer in TOKEN_LAYERS else channel_layers
    features = case.shape[-1] if case.layer in TOKEN_LAYERS else case.shape[1]
    layer = randomise(make(features, case.solver, eps=1e-2, dtype=torch.float64)[case.layer], seed)
    net = Net(layer, case.in_place).train(case.training)
    plain = copy.deepcopy(net)
    x = torch.randn(case.shape, dtype=torch.float64)
    x = channels_last(x) if case.channels_last else x
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            actual = results(take(case.tool, net, x), net, x)
        # A tool that fails is a deviation, whatever it raises.
        except Exception as error:
            return f"{case}: {type(error).__name__}: {str(error)[:200]}"
    for name, expected in results(plain, plain, x).items():
        error = (actual[name] - expected).abs().max().item()
        if not error <= TOLERANCE * (1 + expected.abs().max().item()):
            return f"{case}: {name} is {error:.1e} off"
    return ""


def take(tool, net, x):
    """Return the net as the tool runs it; its parameters and buffers are those of the net."""
    if tool == "compile":
        torch._dynamo.reset()
        return torch.compile(net, fullgraph=True, backend="aot_eager")
    if tool == "fx":
        return fx.symbolic_trace(net)
    exported = torch.export.export(net, (x,)).module()
    # Export copies nothing, but registers the tensors under the same names.
    for name, parameter in net.named_parameters():
        assert exported.get_parameter(name) is parameter
    for name, buffer in exported.named_buffers():
        net.get_submodule(name.rpartition(".")[0])._buffers[name.rpartition(".")[2]] = buffer
    return exported


def fuzz(first, cases, seconds):
    """Run cases from a first seed on until a number or a time is reached; return their number and the deviations."""
    end = None if seconds is None else time.monotonic() + seconds
    seed, deviations = first, []
    while (cases is None or seed < first + cases) and (end is None or time.monotonic() < end):
        deviation = run(seed)
        if deviation:
            deviations.append(deviation)
        seed += 1
    return seed - first, deviations
