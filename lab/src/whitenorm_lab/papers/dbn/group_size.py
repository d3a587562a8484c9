"""DBN figure 4: how many features DBN should whiten together, and DBN against other methods over time.

Paper: PIE (11,554 faces of 68 people, 32×32, in [0, 1] less the mean image), an MLP with 5 hidden layers of 128, SGD on
batches of 256, the best of the learning rates {0.1, 0.2, 0.5, 1, 2} by training loss; for NNN also ε of {0.001, 0.01,
0.1, 1} and T of {20, 50, 100, 200, 500}; 5 seeds. Groups of 1 and of 128 converge noticeably slower than groups of 16,
and DBN with groups of 16 converges faster in time than the other methods. The paper prints no numbers for the curves.
Command: ``whitenorm-lab reproduce dbn-group-size --data ROOT``.

Not stated there: the length of training (here 100 epochs), ε of the norms (1e-3 for DBN), and the images in which NNN
takes its statistics (2,000). Weights begin as LeCun's.

The default scale has all images, learning rates and group sizes and 5 seeds, but 4 epochs, and T of {20, 100, 500} for
NNN. Steps are timed apart, in a minute at the end in which nothing else may run (``shared.faces``).
"""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from whitenorm_lab.claims.evidence import Evidence, lower
from whitenorm_lab.claims.experiment import Claim, Context, Experiment, Settings
from whitenorm_lab.claims.plots import add_grid_and_legend, plot_spread
from whitenorm_lab.claims.results import Results
from whitenorm_lab.fitting import centred
from whitenorm_lab.papers.shared import faces

_MIDDLE = 16
_OTHERS = ("plain", "NNN", "LN", "BN")


def plan(scale: Settings) -> list[Settings]:
    """DBN with every group size, and the other methods; then their times."""
    sizes = [faces.method("DBN", scale, size) for size in scale["group_sizes"]]
    methods = sizes + [faces.method(name, scale) for name in _OTHERS]
    return [*methods, faces.timing(methods, scale["rounds"])]


def run(settings: Settings, context: Context) -> dict[str, Any]:
    """The curve of the best learning rate; or times."""
    data = context.load("pie")
    train = centred(data.train)
    if "timed" in settings:
        return faces.step_times(settings, train, data.classes)
    return faces.search(settings, context, train, data.classes)[0]


def _slower_than_middle(extreme: int) -> Any:
    def judge(results: Results) -> Evidence:
        middle, other = (results.values("final", group_size=size) for size in (_MIDDLE, extreme))
        return lower(middle, other, (f"G{_MIDDLE}", f"G{extreme}"))

    return judge


def _faster_than(name: str) -> Any:
    return lambda results: faces.faster(results, "DBN", [name], group_size=_MIDDLE)


def draw(results: Results) -> Figure:
    """Training loss over updates for each group size, and over time for each method."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for size in results.levels("group_size"):
        found = results.where(group_size=size)
        plot_spread(left, found[0].values["step"], found.values("loss"), f"G{size}, {faces.describe(found)}")
    for name in (*_OTHERS, "DBN"):
        found = faces.over_time(results).where(method=name, **({"group_size": _MIDDLE} if name == "DBN" else {}))
        label = f"{name}{f' G{_MIDDLE}' if name == 'DBN' else ''}, {faces.describe(found)}"
        plot_spread(right, np.mean(found.values("seconds"), 0).tolist(), found.values("loss"), label)
    left.set(xlabel="updates", ylabel="training loss", yscale="log", title="DBN by group size")
    right.set(xlabel="seconds in steps", ylabel="training loss", yscale="log", title="methods over time")
    add_grid_and_legend(left)
    add_grid_and_legend(right)
    return figure


_REACHED = "training loss after the last update"
_TIME = "training loss when the faster of the two has made all its steps"

EXPERIMENT = Experiment(
    id="dbn-group-size",
    paper="DBN",
    where="fig. 4",
    title="Group sizes of DBN, and methods over time",
    cost="25 min of one core",
    data=("pie",),
    reduction="4 epochs, where the paper prints no number; NNN with three intervals of five.",
    claims=(
        *(
            Claim(
                f"Groups of {_MIDDLE} converge faster than {what}",
                f"noticeably; judged: {_REACHED}",
                _slower_than_middle(extreme),
            )
            for extreme, what in ((1, "groups of 1"), (128, "whitening all 128 features together"))
        ),
        *(
            Claim(
                f"DBN with groups of {_MIDDLE} converges faster than {name}",
                f"significantly, in wall-clock time; judged: {_TIME}",
                _faster_than(name),
            )
            for name in _OTHERS
        ),
    ),
    scales={
        "smoke": {
            "hidden": [128],
            "group_sizes": [1, 16, 128],
            "lrs": [0.5],
            "dampings": [0.1],
            "intervals": [2],
            "steps": 4,
            "points": 2,
            "batch_size": 64,
            "rounds": 3,
        },
        "default": {
            "hidden": [128] * 5,
            "group_sizes": [1, 8, 16, 32, 64, 128],
            "lrs": [0.1, 0.2, 0.5, 1, 2],
            "dampings": [0.001, 0.01, 0.1, 1],
            "intervals": [20, 100, 500],
            "steps": 180,
            "points": 30,
            "batch_size": 256,
            "rounds": 50,
        },
        "paper": {
            "hidden": [128] * 5,
            "group_sizes": [1, 8, 16, 32, 64, 128],
            "lrs": [0.1, 0.2, 0.5, 1, 2],
            "dampings": [0.001, 0.01, 0.1, 1],
            "intervals": [20, 50, 100, 200, 500],
            "steps": 4500,
            "points": 100,
            "batch_size": 256,
            "rounds": 50,
        },
    },
    seeds={"smoke": 1, "default": 5, "paper": 5},
    first_seed=20,
    plan=plan,
    run=run,
    draw=draw,
)
