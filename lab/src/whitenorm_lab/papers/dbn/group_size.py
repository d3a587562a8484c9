"""DBN figure 4: how many features DBN should whiten together, and DBN against other methods over time.

Paper: PIE (11,554 faces of 68 people, 32×32, in [0, 1] minus the mean image), an MLP with 5 hidden layers of 128, SGD
with batches of 256, the best of the learning rates {0.1, 0.2, 0.5, 1, 2} by training loss; for NNN also ε of {0.001,
0.01, 0.1, 1} and T of {20, 50, 100, 200, 500}; 5 seeds. Groups of 1 and of 128 converge noticeably slower than groups
of 16, and DBN with groups of 16 converges faster in time than the other methods. The paper prints no numbers for the
curves.

Not stated in the paper: the length of training (here 100 epochs), ε of the norms (1e-3 for DBN), and the number of
images from which NNN takes its statistics (2,000). Initial weights are LeCun's. Step times are measured in a separate
minute at the end, when nothing else may run.

Default scale: all images, learning rates and group sizes, 5 seeds, but 4 epochs, and T of {20, 100, 500} for NNN.
Cost: 25 min of one core. Command: ``whitenorm-lab reproduce dbn-group-size --data ROOT``.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from whitenorm_lab.claims.evidence import Evidence, lower
from whitenorm_lab.claims.experiment import Claim, Context, Experiment, Settings
from whitenorm_lab.claims.plots import add_grid_and_legend, plot_spread
from whitenorm_lab.claims.results import Results
from whitenorm_lab.fitting import center_images
from whitenorm_lab.papers.shared import faces

_MIDDLE = 16
_OTHERS = ("plain", "NNN", "LN", "BN")


def plan(scale: Settings) -> list[Settings]:
    """Plan a search for DBN with every group size and for the other methods, and a run that times their steps."""
    sizes = [faces.build_search_settings("DBN", scale, size) for size in scale["group_sizes"]]
    methods = sizes + [faces.build_search_settings(name, scale) for name in _OTHERS]
    return [*methods, faces.build_timing_settings(methods, scale["rounds"])]


def run(settings: Settings, context: Context) -> dict[str, Any]:
    """Search the best learning rate and return its curves; or time the steps."""
    data = context.load("pie")
    train = center_images(data.train)
    if "timed" in settings:
        return faces.measure_step_times(settings, train, data.classes)
    return faces.search(settings, context, train, data.classes)[0]


def _check_middle_is_lower(results: Results, extreme: int) -> Evidence:
    middle, other = (results.values("final", group_size=size) for size in (_MIDDLE, extreme))
    return lower(middle, other, (f"G{_MIDDLE}", f"G{extreme}"))


def draw(results: Results) -> Figure:
    """Draw the training loss over updates for each group size, and over time for each method."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for size in results.levels("group_size"):
        runs = results.where(group_size=size)
        plot_spread(left, runs[0].values["step"], runs.values("loss"), f"G{size}, {faces.format_chosen(runs)}")
    with_seconds = faces.add_seconds(results)
    runs_by_method = {name: with_seconds.where(method=name) for name in _OTHERS}
    runs_by_method[f"DBN G{_MIDDLE}"] = with_seconds.where(method="DBN", group_size=_MIDDLE)
    faces.draw_loss_over_time(right, runs_by_method, "methods over time")
    left.set(xlabel="updates", ylabel="training loss", yscale="log", title="DBN by group size")
    add_grid_and_legend(left)
    add_grid_and_legend(right)
    return figure


_FULL: Settings = {
    "hidden": [128] * 5,
    "group_sizes": [1, 8, 16, 32, 64, 128],
    "lrs": [0.1, 0.2, 0.5, 1, 2],
    "dampings": [0.001, 0.01, 0.1, 1],
    "batch_size": 256,
    "rounds": 50,
}
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
                partial(_check_middle_is_lower, extreme=extreme),
            )
            for extreme, what in ((1, "groups of 1"), (128, "whitening all 128 features together"))
        ),
        *(
            Claim(
                f"DBN with groups of {_MIDDLE} converges faster than {name}",
                f"significantly, in wall-clock time; judged: {_TIME}",
                partial(faces.lower_after_equal_time, quick="DBN", slow=[name], group_size=_MIDDLE),
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
        "default": {**_FULL, "intervals": [20, 100, 500], "steps": 180, "points": 30},
        "paper": {**_FULL, "intervals": [20, 50, 100, 200, 500], "steps": 4500, "points": 100},
    },
    seeds={"smoke": 1, "default": 5, "paper": 5},
    first_seed=20,
    plan=plan,
    run=run,
    draw=draw,
)
