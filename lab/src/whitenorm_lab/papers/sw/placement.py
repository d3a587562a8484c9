"""SW appendix B: norms of a ResNet that Switchable Whitening replaces.

Paper: on CIFAR, those after the 1st and every 4th convolution, in ResNet-20 {1, 4, 8, 12, 16}; in ResNet-50 for
segmentation {1, 3, 6, …, 39}, 14 layers, the second norm of each bottleneck except in blocks of 2048 channels; for
ImageNet {1, 6, 12, …, 36}, 7 layers. Here the norms are numbered in the order in which they run, without those of
shortcuts, and not as the recipes number them.

Cost: seconds. Command: ``whitenorm-lab reproduce sw-placement``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import nn

import whitenorm
from whitenorm_lab.claims.evidence import Evidence, exactly
from whitenorm_lab.claims.experiment import Claim, Context, Experiment, Settings
from whitenorm_lab.claims.results import Results
from whitenorm_lab.nets import build


class Case(NamedTuple):
    """A net and the numbers of its replaced norms in the paper."""

    title: str
    net: str
    printed: list[int]


CASES = {
    "sw-cifar": Case("ResNet-20, CIFAR", "resnet20", [1, 4, 8, 12, 16]),
    "sw-7": Case("ResNet-50, ImageNet", "resnet50", [1, 6, 12, 18, 24, 30, 36]),
    "sw-14": Case("ResNet-50, segmentation", "resnet50", [1, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 33, 36, 39]),
}


def plan(scale: Settings) -> list[Settings]:
    """Return one setting per recipe."""
    return [{"recipe": recipe} for recipe in CASES]


def run(settings: Settings, context: Context) -> dict[str, Any]:
    """Return the number of norms, and the number, name and channels of each norm that the recipe replaces."""
    net = build(CASES[settings["recipe"]].net, 10)
    chosen = {change.name for change in whitenorm.recipes.plan(net, whitenorm.SwitchableWhitening, settings["recipe"])}
    order = list_norms_in_order(net)
    numbers = [number for number, name in enumerate(order, 1) if name in chosen]
    return {
        "norms": len(order),
        "numbers": numbers,
        "names": [order[number - 1] for number in numbers],
        "unnumbered": sorted(chosen - set(order)),
        "channels": [net.get_submodule(order[number - 1]).num_features for number in numbers],
    }


def list_norms_in_order(net: nn.Module) -> list[str]:
    """Return the names of the BatchNorms in the order in which they run, without those of shortcuts."""
    order: list[str] = []

    hooks = [
        module.register_forward_pre_hook(lambda module, inputs, name=name: order.append(name))
        for name, module in net.named_modules()
        if isinstance(module, nn.BatchNorm2d) and "downsample" not in name
    ]
    with torch.no_grad():
        net.eval()(torch.zeros(1, 3, 32, 32))
    for hook in hooks:
        hook.remove()
    return order


def _judge_numbers(recipe: str) -> Callable[[Results], Evidence]:
    def judge(results: Results) -> Evidence:
        values = results.values("numbers", recipe=recipe)
        holds = all(numbers == CASES[recipe].printed for numbers in values)
        holds &= not any(results.values("unnumbered", recipe=recipe))
        return exactly(holds, f"{', '.join(map(str, values[0]))}, {len(values[0])} layers")

    return judge


def _judge_second_norms(results: Results) -> Evidence:
    names = [name for recipe in ("sw-7", "sw-14") for name in results.values("names", recipe=recipe)[0][1:]]
    second = sum(name.endswith(".bn2") for name in names)
    return exactly(second == len(names), f"{second} of {len(names)} after the first")


def _judge_widest_blocks(results: Results) -> Evidence:
    names = [name for recipe in ("sw-7", "sw-14") for name in results.values("names", recipe=recipe)[0]]
    inside = [name for name in names if name.startswith("layer4")]
    return exactly(not inside, f"{len(inside)} of {len(names)} in blocks of 2048 channels")


def draw(results: Results) -> Figure:
    """Draw the norms of each net by number, with those that are replaced in color."""
    recipes = results.levels("recipe")
    figure, axes = plt.subplots(figsize=(12, 0.9 + 0.7 * len(recipes)), layout="constrained")
    for row, recipe in enumerate(recipes):
        values = results.where(recipe=recipe)[0].values
        for number in range(1, values["norms"] + 1):
            chosen = number in values["numbers"]
            axes.plot(number, row, "s", markersize=12, color="tab:blue" if chosen else "whitesmoke", mec="grey")
            axes.annotate(
                str(number), (number, row), ha="center", va="center", fontsize=6, color="white" if chosen else "grey"
            )
    axes.set(
        yticks=range(len(recipes)),
        yticklabels=[f"{CASES[recipe].title}\n{recipe}" for recipe in recipes],
        ylim=(len(recipes) - 0.5, -0.5),
        xlabel="norm, by its convolution's number",
    )
    return figure


EXPERIMENT = Experiment(
    id="sw-placement",
    paper="SW",
    where="appendix B",
    title="Which norms SW takes the place of",
    cost="5 s",
    claims=(
        *(
            Claim(f"Layers of {case.title}", ", ".join(map(str, case.printed)), _judge_numbers(recipe), exact=True)
            for recipe, case in CASES.items()
        ),
        Claim("In ResNet-50, the second norm of a bottleneck", "all but the 1st", _judge_second_norms, exact=True),
        Claim("None in the blocks with 2048 channels", "none", _judge_widest_blocks, exact=True),
    ),
    scales={"smoke": {}, "default": {}, "paper": {}},
    seeds={"smoke": 1, "default": 3, "paper": 3},
    plan=plan,
    run=run,
    draw=draw,
)
