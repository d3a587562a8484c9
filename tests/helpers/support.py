"""The table of docs/compatibility.md: which layers work inside which tools. ``make support`` updates it.

Every cell is the outcome of a check that compares the tool with plain eager execution, with an in-place activation
behind the layer. ``test_support.py`` runs the same checks and compares their outcomes with the page.
"""

import copy
import io
import re
import tempfile
import warnings
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from torch.func import functional_call, jvp, stack_module_state
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import whitenorm
from tests.helpers import ranks
from tests.helpers.cases import randomise

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"
MARKS = "<!-- support: written by `make support` -->", "<!-- end of support -->"
FIVE = ("bw", "iw", "bn", "in", "ln")
LAYERS = {
    "IterNorm": lambda: whitenorm.IterNorm(6, 3),
    "DBN": lambda: whitenorm.DecorrelatedBatchNorm(6, 3),
    "BW_Σ": lambda: whitenorm.BatchWhitening(6, 3, "zca", population="covariance"),
    "SW": lambda: whitenorm.SwitchableWhitening(6, 3),
    "SW⁵": lambda: whitenorm.SwitchableWhitening(6, 3, FIVE),
    "GW": lambda: whitenorm.GroupWhitening(3, 6),
    "IW": lambda: whitenorm.InstanceWhitening(6, 3),
    "LW": lambda: whitenorm.LayerWhitening(6, 2),
}
BOTH = ("train", "eval")


def network(name, training):
    """Return a layer between two others, followed by an in-place activation."""
    torch.manual_seed(0)
    tokens = name == "LW"
    first, last = (nn.Linear(3, 6), nn.Linear(6, 4)) if tokens else (nn.Conv2d(3, 6, 3), nn.Conv2d(6, 4, 1))
    return nn.Sequential(first, randomise(LAYERS[name]()), nn.ReLU(inplace=True), last).train(training)


def batch(name, size=8, dtype=torch.float32):
    generator = torch.Generator().manual_seed(size)
    shape = (size, 7, 3) if name == "LW" else (size, 3, 6, 6)
    return torch.randn(shape, generator=generator, dtype=dtype)


def results(model, x, of=None):
    """Return output, gradients by name, and buffers of a training step; the tensors are those ``of`` another module."""
    of = model if of is None else of
    x = x.clone().requires_grad_()
    y = model(x)
    y.square().mean().backward()
    grads = {f"gradient of {key}": parameter.grad for key, parameter in of.named_parameters()}
    return {"output": y.detach(), "gradient of the input": x.grad, **grads, **dict(of.named_buffers())}


def assert_same(actual, expected, tolerance=1e-4):
    assert actual.keys() == expected.keys()
    for key, value in expected.items():
        error, scale = (actual[key] - value).abs().max(), value.abs().max()
        assert error <= tolerance * (1 + scale), f"{key}: error {error:.1e} at scale {scale:.1e}"


def check_compile(name, training):
    torch._dynamo.reset()
    model = network(name, training)
    plain, x = copy.deepcopy(model), batch(name)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert_same(results(compiled, x, model), results(plain, x))


def check_export(name, training):
    model = network(name, training)
    plain, x = copy.deepcopy(model), batch(name)
    size = torch.export.Dim("batch", min=2)
    exported = torch.export.export(model, (x,), dynamic_shapes=({0: size},)).module()
    for other in (x, batch(name, 5)):
        assert_same({"output": exported(other)}, {"output": plain(other)})


def check_onnx(name, training):
    import onnxruntime

    model, x = network(name, training), batch(name)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        size = torch.export.Dim("batch", min=2)
        torch.onnx.export(model, (x,), path, dynamo=True, dynamic_shapes=({0: size},), verbose=False)
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        other = batch(name, 5)
        (actual,) = session.run(None, {session.get_inputs()[0].name: other.numpy()})
    assert_same({"output": torch.from_numpy(actual)}, {"output": model(other)})


def check_fx(name, training):
    model = network(name, training)
    plain, x = copy.deepcopy(model), batch(name)
    assert_same(results(torch.fx.symbolic_trace(model), x), results(plain, x))


def check_jit_trace(name, training):
    model, x = network(name, training), batch(name)
    traced = torch.jit.trace(copy.deepcopy(model), (x,), check_trace=False)
    other = batch(name, 5)
    assert_same({"output": traced(other)}, {"output": model(other)})


def check_jvp(name, training):
    model, x = network(name, training).double(), batch(name, dtype=torch.float64)
    parameters = {key: parameter.detach() for key, parameter in model.named_parameters()}
    buffers = {key: buffer.clone() for key, buffer in model.named_buffers()}

    def function(x, *values):
        own = {key: buffer.clone() for key, buffer in buffers.items()}
        return functional_call(model, {**dict(zip(parameters, values, strict=True)), **own}, (x,))

    primals = (x, *parameters.values())
    tangents = tuple(torch.randn_like(primal) for primal in primals)
    y, tangent = jvp(function, primals, tangents)
    expected = torch.autograd.functional.jvp(function, primals, tangents)
    assert_same({"output": y, "tangent": tangent}, {"output": expected[0], "tangent": expected[1]})


def check_vmap(name, training):
    models = [network(name, training), network(name, training)]
    with torch.no_grad():
        models[1][0].weight.mul_(1.5)
    parameters, buffers = stack_module_state(copy.deepcopy(models))
    x = torch.stack([batch(name), batch(name) + 1])

    def call(parameters, buffers, x):
        return functional_call(models[0], {**parameters, **buffers}, (x,))

    actual = torch.vmap(call, randomness="different")(parameters, buffers, x)
    expected = [copy.deepcopy(model)(one) for model, one in zip(models, x, strict=True)]
    assert_same({"output": actual}, {"output": torch.stack(expected)})


def check_double_backward(name, training):
    model = network(name, training).double()
    model[2] = nn.Tanh()  # A second derivative that is not zero.
    x = batch(name, 3, torch.float64)[..., :4, :] if name != "LW" else batch(name, 3, torch.float64)
    buffers = {key: buffer.clone() for key, buffer in model.named_buffers()}

    def function(x):
        return functional_call(model, {key: buffer.clone() for key, buffer in buffers.items()}, (x,))

    assert torch.autograd.gradgradcheck(function, x.requires_grad_(), fast_mode=True, atol=1e-4)


def check_amp(name, training):
    model = network(name, training)
    plain, x = copy.deepcopy(model), batch(name)
    with torch.autocast("cpu", torch.bfloat16):
        actual = results(lambda x: model(x).float(), x, model)
    assert_same(actual, results(plain, x), 0.1)
    assert all(buffer.dtype in (torch.float32, torch.long) for buffer in model.buffers())


def check_checkpointing(name, training):
    model = network(name, training)
    plain, x = copy.deepcopy(model), batch(name)
    actual = results(lambda x: checkpoint(model, x, use_reentrant=False), x, model)
    expected = results(plain, x)
    # The forward that is run again takes the batch into the running statistics again, as BatchNorm's does.
    recorded = dict(model.named_buffers())
    assert_same(*[{key: value for key, value in found.items() if key not in recorded} for found in (actual, expected)])


def inside_ddp(rank, world, name):
    inside(lambda model: DistributedDataParallel(model), rank, world, name)


def inside_fsdp(rank, world, name):
    inside(lambda model: ranks.shard(model, world), rank, world, name)


def inside(wrap, rank, world, name):
    """Check that a training step over two ranks equals one of a single process on the joined batch."""
    alone, model = network(name, True).double(), network(name, True).double()
    if any(isinstance(module, whitenorm.layers.base.PopulationWhitening) for module in model):
        whitenorm.synchronize_(model)
    wrapped, x = wrap(model), batch(name, 2 * world, torch.float64)
    alone(x).square().mean().backward()
    wrapped(x[2 * rank : 2 * rank + 2]).square().mean().backward()
    for parameter, other in zip(wrapped.parameters(), alone.parameters(), strict=True):
        grad = parameter.grad
        grad = grad.full_tensor() if isinstance(grad, ranks.DTensor) else grad
        ranks.close(grad, other.grad, "gradient")
    for buffer, other in zip(wrapped.buffers(), alone.buffers(), strict=True):
        ranks.close(buffer, other, "buffer")


def run_rank(rank, world, path, function, name):
    ranks.start(rank, world, path, lambda rank, world: function(rank, world, name))


def spawn(function, name):
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(run_rank, (2, Path(folder) / "store", function, name), nprocs=2)


class Tool(NamedTuple):
    """A tool by its name in the table: the check of a layer in a mode, and the modes that it has."""

    check: object
    modes: tuple[str, ...] = BOTH


TOOLS = {
    "`torch.compile`": Tool(check_compile),
    "`torch.export`": Tool(check_export),
    "ONNX": Tool(check_onnx, ("eval",)),
    "fx": Tool(check_fx),
    "`jit.trace`": Tool(check_jit_trace),
    "`func.jvp`": Tool(check_jvp),
    "`vmap`": Tool(check_vmap),
    "double backward": Tool(check_double_backward),
    "autocast": Tool(check_amp),
    "DDP": Tool(lambda name, _: spawn(inside_ddp, name), ("train",)),
    "FSDP2": Tool(lambda name, _: spawn(inside_fsdp, name), ("train",)),
    "checkpointing": Tool(check_checkpointing),
}


def outcome(tool, name):
    """Return the table's cell (yes, no, or the only mode that passes), and the errors of the other modes."""
    passed, errors = [], {}
    for mode in TOOLS[tool].modes:
        try:
            # Exporters print their progress.
            with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                warnings.simplefilter("ignore")
                TOOLS[tool].check(name, mode == "train")
            passed.append(mode)
        # Whatever a tool raises means that it does not work.
        except Exception as error:
            errors[mode] = f"{type(error).__name__}: {error}"
    if len(passed) == len(TOOLS[tool].modes):
        return "yes", errors
    return (passed[0] if passed else "no"), errors


def read_table(page):
    """Return the cells of the page's table by tool and layer."""
    table = page.split(MARKS[0])[1].split(MARKS[1])[0].strip().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    header, _, *body = rows
    return {row[0]: dict(zip(header[1:], row[1:], strict=True)) for row in body}


def main():
    header = ["", *LAYERS]
    lines = ["| " + " | ".join(header) + " |", "| --- |" + " :---: |" * len(LAYERS)]
    for tool in TOOLS:
        found = {name: outcome(tool, name) for name in LAYERS}
        lines.append("| " + " | ".join([tool, *(cell for cell, _ in found.values())]) + " |")
        for name, (_, errors) in found.items():
            for mode, error in errors.items():
                print(f"{name}, {tool}, {mode}: {error[:200]}")
    page = PAGE.read_text(encoding="utf-8")
    inner = re.escape(MARKS[0]) + ".*" + re.escape(MARKS[1])
    table = "\n".join([MARKS[0], "", *lines, "", MARKS[1]])
    PAGE.write_text(re.sub(inner, lambda _: table, page, flags=re.DOTALL), encoding="utf-8")


if __name__ == "__main__":
    main()
