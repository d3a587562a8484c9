"""Folding of random small networks, whose code is drawn line by line, keeps the outputs."""

import linecache
import random
import warnings

import pytest
import torch
from torch import nn

import whitenorm
from tests.helpers.models import count_layers, randomize_whitening
from tests.helpers.sampling import mark_slow
from whitenorm import fold_

CHANNELS = 8
# Lines of a forward; i is the number of the line, and each line needs the modules that it names.
LINES = [
    "x = self.norm{i}(self.conv{i}(x))",
    "x = torch.relu(self.norm{i}(self.conv{i}(x)))",
    "x = self.norm{i}(torch.relu(self.conv{i}(x)))",
    "x = x + self.norm{i}(self.conv{i}(x))",
    "y = self.conv{i}(x); x = self.norm{i}(y) + y",
    "y = self.conv{i}(x); y += 1; x = self.norm{i}(y)",
    "y = self.conv{i}(x); y.add_(1); x = self.norm{i}(y)",
    "y = self.conv{i}(x); y = y * y.shape[1]; x = self.norm{i}(y)",
    "x = self.norm{i}(self.conv{i}(x)) + self.norm{i}(self.other{i}(x))",
    "x = self.norm{i}(self.conv{i}(self.conv{i}(x)))",
    "x = self.norm{i}(self.conv{i}(x)) * self.conv{i}.weight.mean()",
    "x = self.norm{i}(self.conv{i}(x)).to(self.conv{i}.weight.dtype)",
    "x = self.norm{i}(self.conv{i}(x)) * self.conv{i}.out_channels / 8",
    "x = self.norm{i}(self.conv{i}(x)) * self.norm{i}.num_features / 8",
    "x = self.norm{i}(self.conv{i}(x)) + self.norm{i}.eps",
    "x = self.norm{i}(self.conv{i}(x)) + self.norm{i}.bias.mean()",
    "x = self.norm{i}(self.conv{i}(x), mask=None)",
    "x = self.norm{i}(input=self.conv{i}(x))",
    "x = self.norm{i}.forward(self.conv{i}(x))",
    "x = self.norm{i}(self.conv{i}.forward(x))",
    "self.last = self.conv{i}(x); x = self.norm{i}(self.last)",
    "y = self.conv{i}(x); self.kept.append(y); x = self.norm{i}(y)",
    "y = self.conv{i}(x); self.kept.append({{'value': (y,)}}); x = self.norm{i}(y)",
    "x = self.block{i}(x)",
    "y = self.block{i}[0](x); x = self.block{i}[1](y) + y",
    "y = self.block{i}[0](x); x = self.block{i}(x) + y",
    "x = self.block{i}(x) + self.block{i}[1](x)",
    "x = self.block{i}(x) * self.block{i}[1].eps * 1e5",
    "body = self.block{i}; y = body[0](x); self.kept.append(y); x = body[1](y)",
    "for part in self.block{i}: x = part(x); self.kept.append(x)",
    "for part in self.blocks{i}: x = part(x)",
    "for name, part in self.blocks{i}.named_children(): x = part(x) + int(name)",
    "for k, block in enumerate(self.blocks{i}): x = block[1](block[0](x)) + k * block[0](x)",
    "for block in self.blocks{i}: x = run(block, x)",
    "x = run(self.block{i}, x)",
    "x = getattr(self, 'block{i}')(x)",
    "x = sum(block(x) for block in self.blocks{i})",
    "x = self.pair{i}(x)",
    "x = self.pair{i}.norm(self.pair{i}.conv(x)) + self.pair{i}.conv(x)",
    "x = self.pair{i}(x) + self.pair{i}.first(x)",
    "x = torch.cat([self.norm{i}(self.conv{i}(x))[:, :4], x[:, 4:]], 1)",
    "x = self.norm{i}(self.depthwise{i}(x))",
]
UNTRACEABLE = "x = x + 0 if x.abs().sum() >= 0 else x"


def run(block, x):
    """Run a block, like a user's helper that also uses its first layer's output."""
    y = block[0](x)
    return block[1](y) + y


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1), whitenorm.IterNorm(CHANNELS, 4)

    def first(self, x):
        return self.conv(x)

    def forward(self, x):
        return self.norm(self.conv(x))


MODULES = {
    "conv": lambda: nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1),
    "other": lambda: nn.Conv2d(CHANNELS, CHANNELS, 1, bias=False),
    "depthwise": lambda: nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, groups=CHANNELS),
    "norm": lambda: whitenorm.IterNorm(CHANNELS, 4),
    "block": lambda: nn.Sequential(nn.Conv2d(CHANNELS, CHANNELS, 1), whitenorm.IterNorm(CHANNELS)),
    "blocks": lambda: nn.ModuleList([MODULES["block"](), MODULES["block"]()]),
    "pair": Pair,
}


def make_network(seed):
    """Make a network of an outer module with an inner one; each may be untraceable."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    inner = _compile(f"Inner{seed}", [*rng.sample(LINES, 3), *rng.choice([[], [UNTRACEABLE]])])()
    lines = [*rng.sample(LINES, 2), "x = self.inner(x)", *rng.choice([[], [UNTRACEABLE]])]
    rng.shuffle(lines)
    outer = _compile(f"Outer{seed}", lines)()
    outer.inner = inner
    for i, module in enumerate(outer.modules()):
        if isinstance(module, whitenorm.BatchWhitening):
            randomize_whitening(module, i)
    return outer.eval()


def _compile(name, lines):
    """Return a function that makes a module whose forward has these lines, with a source that can be read."""
    body = "".join(f"        {line.format(i=i)}\n" for i, line in enumerate(lines))
    text = f"class {name}(nn.Module):\n    def forward(self, x):\n        self.kept = []\n{body}        return x\n"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    scope = {"__name__": __name__, "nn": nn, "torch": torch, "run": run}
    exec(compile(text, name, "exec"), scope)

    def build():
        model = scope[name]()
        for i, line in enumerate(lines):
            for kind, make in MODULES.items():
                if f"{kind}{{i}}" in line:
                    setattr(model, f"{kind}{i}", make())
        return model

    return build


def collect_results(model, x):
    """Return the output, and all tensors that the modules kept."""
    with torch.no_grad():
        output = model(x)
    attributes = [[vars(module).get("kept"), vars(module).get("last")] for module in model.modules()]
    return [output, *(leaf for leaf in torch.utils._pytree.tree_leaves(attributes) if leaf is not None)]


@pytest.mark.parametrize("seed", mark_slow(range(150), sample=range(40)))
def test_no_output_changes(seed):
    model = make_network(seed)
    x = torch.randn(2, CHANNELS, 5, 5, generator=torch.Generator().manual_seed(seed))
    expected = collect_results(model, x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fold_(model)
    for actual, value in zip(collect_results(model, x), expected, strict=True):
        assert (actual - value).abs().max() <= 1e-4 * value.abs().max()


@pytest.mark.slow
def test_many_layers_are_folded():
    """At least half of the networks have merged layers, so that the test above tests folding."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folded = [fold_(make_network(seed)) for seed in range(40)]
    assert sum(count_layers(model, nn.Identity) > 0 for model in folded) >= 20
