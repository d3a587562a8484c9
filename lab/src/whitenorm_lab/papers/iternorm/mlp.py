"""IterNorm figure 3a and supplement figure 1: full-batch training of a perceptron, by norm and by Newton steps T.

Paper: MNIST, a 4-layer MLP with 100 units in each hidden layer, full-batch gradient descent, the best of the learning
rates {0.2, 0.5, 1, 2, 5} by training loss. All norms are far better than none; IterNorm trains better than full
whitening, whose test error suffers; of T in {1, 3, 5, 7, 9}, 1 and 9 train worst, and 9 has a clearly worse test error.
The classifier counts as a layer.

Not stated in the paper: the number of steps, ε (here 1e-3 for DBN, else 1e-5), γ and β (here in all norms), and the
scaling of the images (here [0, 1], minus the mean image). Training is judged by the training loss, because it still
differs where errors are zero. Tests use population statistics of all training images, because running averages of so
few steps lag behind.

Default scale: 3,000 images, 2,000 test images, 80 steps, 10 seeds. With the first three seeds (0 to 2) the training
losses of DBN and of T = 9 differed by half their mean between seeds.
Cost: 30 min. Command: ``whitenorm-lab reproduce iternorm-mlp --data ROOT``.
"""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from whitenorm_lab.claims.evidence import every
from whitenorm_lab.claims.experiment import Claim, Experiment, Settings
from whitenorm_lab.claims.plots import add_line_styles, add_shared_legend
from whitenorm_lab.claims.results import Results
from whitenorm_lab.papers.shared.perceptrons import Judge, draw_best_curve, expect_lower, run

_PLAIN: Settings = {"norm": "plain"}
_BN: Settings = {"norm": "BN", "eps": 1e-5}
_DBN: Settings = {"norm": "DBN", "eps": 1e-3}
_ITER: dict[int, Settings] = {steps: {"norm": "IterNorm", "T": steps, "eps": 1e-5} for steps in (1, 3, 5, 7, 9)}
_ALL = (_PLAIN, _BN, _DBN, *_ITER.values())
_LRS = [0.2, 0.5, 1, 2, 5]
_STYLES = {"error": "-", "test": "--"}


def plan(scale: Settings) -> list[Settings]:
    """Plan a run for every norm and learning rate."""
    network = {"hidden": 3, "width": 100, "points": 20, "recalibrate": True}
    network |= {name: value for name, value in scale.items() if name != "lrs"}
    return [{**norm, **network, "lr": lr} for norm in _ALL for lr in scale["lrs"]]


def _expect_all_lower(value: str, *pairs: tuple[Settings, Settings]) -> Judge:
    return lambda results: every(*(expect_lower(value, *pair)(results) for pair in pairs))


def draw(results: Results) -> Figure:
    """Draw training and test errors by norm, then by T with BN and DBN."""
    figure, axes = plt.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
    _draw_errors(axes[0], results, (_PLAIN, _BN, _DBN, _ITER[5]), _STYLES)
    axes[0].set_title("norms")
    for panel, name, title in ((axes[1], "error", "training"), (axes[2], "test", "test")):
        _draw_errors(panel, results, (_BN, _DBN, *_ITER.values()), {name: _STYLES[name]})
        panel.set_title(f"{title} errors, by T")
    add_line_styles(axes[0], {"training": _STYLES["error"], "test": _STYLES["test"]})
    add_shared_legend(figure, axes, columns=5)
    return figure


def _draw_errors(panel: Axes, results: Results, norms: Sequence[Settings], styles: dict[str, str]) -> None:
    for norm in norms:
        for i, (value, style) in enumerate(styles.items()):
            # Only the first curve of a norm has an entry in the legend.
            label = {"label": "_"} if i else {}
            draw_best_curve(panel, results, norm, value, color=f"C{_ALL.index(norm)}", linestyle=style, **label)
    panel.set(xlabel="step", ylabel="error in %", yscale="symlog" if "error" in styles else "log")
    if "error" in styles:
        panel.set_ylim(bottom=0)


EXPERIMENT = Experiment(
    id="iternorm-mlp",
    paper="IterNorm",
    where="fig. 3a, supplement fig. 1",
    title="Norms and Newton steps in full-batch training",
    cost="30 min",
    data=("mnist",),
    reduction="3,000 images of 60,000 as the full batch; 80 steps, of which the paper prints no number.",
    claims=(
        Claim(
            "Every norm trains better than none",
            "all significantly better",
            _expect_all_lower("final_loss", (_BN, _PLAIN), (_DBN, _PLAIN), (_ITER[5], _PLAIN)),
        ),
        Claim("IterNorm trains better than DBN", "lower training error", expect_lower("final_loss", _ITER[5], _DBN)),
        Claim("IterNorm trains better than BN", "lower training error", expect_lower("final_loss", _ITER[5], _BN)),
        Claim(
            "The test error of DBN suffers",
            "above those of IterNorm and BN",
            _expect_all_lower("final_test", (_ITER[5], _DBN), (_BN, _DBN)),
        ),
        *(
            Claim(
                f"T = {end} trains worse than T = 3, 5 and 7",
                "T = 1 and 9 are the worst",
                _expect_all_lower("final_loss", *((_ITER[middle], _ITER[end]) for middle in (3, 5, 7))),
            )
            for end in (1, 9)
        ),
        Claim("T = 9 has a worse test error", "significantly worse", expect_lower("final_test", _ITER[5], _ITER[9])),
    ),
    scales={
        "smoke": {"images": 200, "test_images": 50, "steps": 2, "lrs": [0.5]},
        "default": {"images": 3000, "test_images": 2000, "steps": 80, "lrs": _LRS},
        "paper": {"images": 60000, "test_images": 10000, "steps": 200, "lrs": _LRS},
    },
    seeds={"smoke": 1, "default": 10, "paper": 5},
    first_seed=20,
    plan=plan,
    run=run,
    draw=draw,
)
