"""GW figure 5: how well perceptrons with GN and GW fit random labels, over the group number.

Paper: MNIST with random labels, batches of 16, 1,000 epochs, the best training accuracy among the learning rates
{0.001, 0.005, 0.01, 0.05, 0.1}. A linear classifier with a norm after its linear layer is below the one without
('Base'), and falls with the number of groups. A one-layer MLP of 256 units is below Base too, far below with too many
groups. A four-layer MLP of 1,280 units is above Base unless there are too many, and GW's best is above GN's. GW is more
sensitive to the number. What is normalised in the linear classifier are its ten outputs, in 1, 2 or 5 groups. Not
stated there: the group numbers, and GW's matrix (here Newton's, T = 5). Default scale: 2,000 images, more than a linear
classifier can fit, 40 epochs, learning rates {0.01, 0.1}, and networks whose weights are to the images about as the
paper's are: 30 units in one layer, 120 in four. The middle one of their group numbers is the largest below √d, up to
which the paper advises GW. With more groups than values in a group nothing can be white: GW then only comes near it,
while GN in groups of two leaves signs alone. What does not fit the labels after so few epochs may be slow as well as
unable to. The paper's CNNs are ``gw-capacity-cnn``. Command: ``whitenorm reproduce gw-capacity --data ROOT``.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import nn

from whitenorm.lab.data import Split
from whitenorm.lab.experiments.shared.perceptrons import (
    Judge,
    accuracy_line,
    mnist,
    norm,
    over_levels,
    rest_below,
    trained,
    tuned,
)
from whitenorm.lab.nets.mlp import mlp
from whitenorm.lab.reproduce.evidence import Evidence, every, lower
from whitenorm.lab.reproduce.experiment import Claim, Context, Experiment, Settings
from whitenorm.lab.reproduce.plots import finish, spread_line
from whitenorm.lab.reproduce.results import Results

_LINEAR, _ONE, _FOUR = 0, 1, 4
_TITLES = {_LINEAR: "linear classifier", _ONE: "one-layer MLP", _FOUR: "four-layer MLP"}
_VALUE = "final_error"
_SIGNS = "Of two values a group GN leaves a sign. GW cannot whiten so many groups, and leaves a direction of them all."


def plan(scale: Settings) -> list[Settings]:
    """Every network, norm, group number and learning rate."""
    shared = {"images": scale["images"], "batch_size": 16, "points": scale["epochs"]}
    shared["steps"] = scale["epochs"] * (scale["images"] // 16)
    return [
        {**kind, "hidden": hidden, "width": width, **shared, "lr": lr}
        for hidden, (width, groups) in zip(_TITLES, scale["networks"], strict=True)
        for kind in _kinds(groups)
        for lr in scale["lrs"]
    ]


def _kinds(groups: list[int]) -> list[Settings]:
    return [{"norm": "plain"}, *({"norm": name, "groups": g, "eps": 1e-5} for name in ("GN", "GW") for g in groups)]


def run(settings: Settings, context: Context) -> dict[str, Any]:
    """A network fitted to labels drawn at random by the seed."""
    whole, none = mnist(context, settings["images"], 0)
    labels = torch.randint(10, (len(whole.labels),), generator=torch.Generator().manual_seed(context.seed))
    return trained(_network(settings), Split(whole.images, labels), none, settings, context)


def _network(settings: Settings) -> nn.Module:
    hidden = [settings["width"]] * settings["hidden"]
    model = mlp(10, (1, 28, 28), hidden=hidden, norm=lambda width: norm(settings, width))
    return model if hidden else model.append(norm(settings, 10))


def _over_groups(results: Results, hidden: int, name: str) -> Results:
    """A norm's runs at the best learning rate of each group number."""
    return over_levels(results.where(hidden=hidden, norm=name), "groups", _VALUE)


def _errors(results: Results, hidden: int, name: str) -> list[float]:
    """The training errors of the best learning rate, and the best group number if there are groups."""
    if name == "plain":
        return tuned(results, _VALUE, hidden=hidden, norm=name).values(_VALUE)
    return _over_groups(results, hidden, name).best("groups", _VALUE).values(_VALUE)


def _below(hidden: int, *pairs: tuple[str, str]) -> Judge:
    """Each first norm, at its best, has a lower training error than the second."""

    def part(results: Results, one: str, other: str) -> Evidence:
        names = f"error in % of {one}", other
        return lower(_errors(results, hidden, one), _errors(results, hidden, other), names)

    return lambda results: every(*(part(results, *pair) for pair in pairs))


def _falls_steadily(name: str) -> Judge:
    def judge(results: Results) -> Evidence:
        found = _over_groups(results, _LINEAR, name)
        errors = {g: found.values(_VALUE, groups=g) for g in found.levels("groups")}
        pairs = pairwise(errors.items())
        return every(*(lower(one, other, (f"error in %, g = {g}", f"g = {h}")) for (g, one), (h, other) in pairs))

    return judge


def _falls(hidden: int) -> Judge:
    """With the most groups the error is above that of the best other number, for GN and for GW."""

    def part(results: Results, name: str) -> Evidence:
        found = _over_groups(results, hidden, name)
        return rest_below(found, "groups", max(found.levels("groups")), _VALUE, f"error in % of {name}")

    return lambda results: every(*(part(results, name) for name in ("GN", "GW")))


def _more_sensitive(hidden: int) -> Judge:
    def judge(results: Results) -> Evidence:
        gn, gw = (_over_groups(results, hidden, name) for name in ("GN", "GW"))
        most = max(gn.levels("groups"))
        names = f"error in % of GN, g = {most}", "GW"
        return lower(gn.values(_VALUE, groups=most), gw.values(_VALUE, groups=most), names)

    return judge


def _rises_more(hidden: int) -> Judge:
    """From the fewest groups to the most below √d, GW's error rises more than GN's."""

    def judge(results: Results) -> Evidence:
        gn, gw = (_rise(_over_groups(results, hidden, name)) for name in ("GN", "GW"))
        return lower(gn, gw, ("rise of the error in points, GN", "GW"))

    return judge


def _rise(found: Results) -> list[float]:
    inside = [g for g in found.levels("groups") if g**2 <= found[0].settings["width"]]
    few, most = (found.values(_VALUE, groups=g) for g in (min(inside), max(inside)))
    return [high - low for low, high in zip(few, most, strict=True)]


def draw(results: Results) -> Figure:
    """Training accuracy over the group number, one panel a network."""
    figure, axes = plt.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
    for panel, hidden in zip(axes, _TITLES, strict=True):
        groups = results.where(hidden=hidden).levels("groups")
        for name in ("GN", "GW"):
            accuracy_line(panel, _over_groups(results, hidden, name), "groups", _VALUE, name)
        base = [[100 - error] * len(groups) for error in _errors(results, hidden, "plain")]
        spread_line(panel, groups, base, "Base", color="grey", linestyle="--")
        panel.set(title=_TITLES[hidden], xlabel="groups", ylabel="training accuracy in %")
        finish(panel)
    return figure


EXPERIMENT = Experiment(
    id="gw-capacity",
    paper="GW",
    where="fig. 5",
    title="Fitting random labels",
    cost="21 min",
    data=("mnist",),
    claims=(
        Claim("Linear: GN and GW are below Base", "lower accuracy", _below(_LINEAR, ("plain", "GN"), ("plain", "GW"))),
        Claim("Linear: GN falls with more groups", "decreases with the group number", _falls_steadily("GN")),
        Claim("Linear: GW falls with more groups", "decreases with the group number", _falls_steadily("GW")),
        Claim("One layer: GN and GW are below Base", "lower accuracy", _below(_ONE, ("plain", "GN"), ("plain", "GW"))),
        Claim("One layer: both fall with too many groups", "significantly degenerated", _falls(_ONE)),
        Claim(
            "One layer: GW falls more than GN",
            "more sensitive to the number",
            _more_sensitive(_ONE),
            otherwise=_SIGNS,
        ),
        Claim("One layer: GW falls more than GN up to √d groups", "more sensitive to the number", _rises_more(_ONE)),
        Claim("Four layers: both are above Base", "higher accuracy", _below(_FOUR, ("GN", "plain"), ("GW", "plain"))),
        Claim("Four layers: both fall with too many groups", "significantly degenerated", _falls(_FOUR)),
        Claim(
            "Four layers: GW falls more than GN",
            "more sensitive to the number",
            _more_sensitive(_FOUR),
            otherwise=_SIGNS,
        ),
        Claim("Four layers: GW falls more than GN up to √d groups", "more sensitive to the number", _rises_more(_FOUR)),
        Claim("Four layers: the best of GW is above that of GN", "higher accuracy", _below(_FOUR, ("GW", "GN"))),
    ),
    scales={
        "smoke": {
            "images": 48,
            "epochs": 1,
            "networks": [[10, [1, 5]], [16, [2, 8]], [16, [2, 8]]],
            "lrs": [0.1],
        },
        "default": {
            "images": 2000,
            "epochs": 40,
            "networks": [[10, [1, 2, 5]], [30, [2, 5, 15]], [120, [2, 10, 60]]],
            "lrs": [0.01, 0.1],
        },
        "paper": {
            "images": 60000,
            "epochs": 1000,
            "networks": [
                [10, [1, 2, 5]],
                [256, [2, 4, 8, 16, 32, 64, 128]],
                [1280, [2, 4, 8, 16, 32, 64, 128, 320, 640]],
            ],
            "lrs": [0.001, 0.005, 0.01, 0.05, 0.1],
        },
    },
    seeds={"smoke": 1, "default": 3, "paper": 3},
    plan=plan,
    run=run,
    draw=draw,
)
