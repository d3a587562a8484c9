"""GW tables 4 and 5, and the text on small batches: Faster and Mask R-CNN on COCO with BN, GN, GW, and BN and GW mixed.

Paper: maskrcnn-benchmark's set-up, train2017 and val2017. Table 4: ResNet-50, 90,000 steps of 16 images on 8 GPUs, with
a 2fc head and no norm but the backbone's, or a 4conv1fc head with GN or GW in it and in the FPN; BN is frozen (BN†),
also where it stands beside GW, which is at S1-B2. Table 5: Mask R-CNN, ResNeXt-101, 180,000 steps of 8 images. The
text: from scratch, two images a GPU, BN that is not frozen: AP of BN 25.10, BN and GW mixed (S1-B2) 28.37, GN
everywhere 28.19, GW everywhere 28.79. Not stated there: the groups of GN (here 32), which stages are not trained (here
as in the codebase: two with BN†, else none), the head of the nets from scratch (here 2fc), the ResNeXt's width (32×8d).

The default scale has the nets from scratch alone, and shows that they learn, not how well they find what they have not
seen: ResNet-18 with an FPN of 64 channels and images of 96 pixels (the shorter side), trained and tested on the same 24
images of COCO128, which the seed draws, two a step, for 40 epochs. It was set up with seed 7, which is not judged.
Tests are with running statistics: with seed 7, those taken anew from the 24 images changed the AP of BN from 24.9 to
24.5 and that of BN and GW mixed from 31.0 to 30.8.
Command: ``whitenorm-lab reproduce gw-coco --data ROOT``, with ROOT/coco128. The paper's scale needs ROOT/coco, and in
ROOT/weights what the backbones begin from, files or runs of whitenorm-lab train: resnet50-bn, resnet50-gn,
resnet50-gw and the same of resnext101_32x8d.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from whitenorm_lab.claims.evidence import Evidence, every, lower, not_run
from whitenorm_lab.claims.experiment import Claim, Context, Experiment, Settings
from whitenorm_lab.claims.plots import add_grid_and_legend, plot_spread
from whitenorm_lab.claims.results import Results
from whitenorm_lab.data import ROOT_VARIABLE, root_folder
from whitenorm_lab.tasks.detection.config import Detection
from whitenorm_lab.tasks.detection.presets import GwCoco, GwCocoMask, GwCocoScratch
from whitenorm_lab.training import DivergenceError, TrainingResult

_EVERYWHERE: dict[str, Any] = {"where": "all"}
_BN: dict[str, Any] = {"norm": "bn", **_EVERYWHERE}
_GN: dict[str, Any] = {"norm": "gn", **_EVERYWHERE}
_NO_OTHERS: dict[str, Any] = {"fpn_norm": "none", "head_norm": "none"}
_2FC: dict[str, Any] = {"box_head": "2fc", **_NO_OTHERS}
_GN_OTHERS: dict[str, Any] = {"fpn_norm": "gn", "head_norm": "gn"}
_FROZEN: dict[str, Any] = {**_BN, **_NO_OTHERS, "freeze_at": 2}
_TWO, _FOUR, _MASK, _SCRATCH = "2fc head", "4conv1fc head", "Mask R-CNN", "from scratch"


def _cases() -> dict[str, dict[str, Detection]]:
    """By case and norm."""
    base, mask, scratch = GwCoco(), GwCocoMask(), GwCocoScratch()
    changed = dataclasses.replace
    return {
        _SCRATCH: {
            "BN": changed(scratch, **_BN),
            "BN + GW": scratch,
            "GN": changed(scratch, **_GN),
            "GW": changed(scratch, **_EVERYWHERE),
        },
        _TWO: {
            "BN†": changed(base, **{**_FROZEN, **_2FC}),
            "GN": changed(base, **_GN, **_2FC),
            "GW": changed(base, **_2FC),
        },
        _FOUR: {"BN†": changed(base, **_FROZEN), "GN": changed(base, **_GN, **_GN_OTHERS), "GW": base},
        _MASK: {
            "BN†": changed(mask, **_FROZEN, mask_norm="none"),
            "GN": changed(mask, **_GN, **_GN_OTHERS, mask_norm="gn"),
            "GW": mask,
        },
    }


_CASES = _cases()
# AP, AP50 and AP75.
_TABLES: dict[str, dict[str, dict[str, tuple[float, float, float]]]] = {
    _TWO: {"": {"BN†": (36.31, 58.39, 38.83), "GN": (36.62, 58.91, 39.32), "GW": (38.13, 60.63, 41.08)}},
    _FOUR: {"": {"BN†": (36.39, 57.22, 39.56), "GN": (37.86, 58.96, 40.76), "GW": (39.60, 61.12, 43.25)}},
    _MASK: {
        "": {"BN†": (42.24, 63.00, 46.19), "GN": (42.18, 63.22, 46.00), "GW": (44.41, 65.36, 48.67)},
        "mask_": {"BN†": (37.53, 59.82, 39.96), "GN": (37.54, 60.18, 39.99), "GW": (39.17, 62.13, 41.95)},
    },
}
_COLUMNS = ("ap", "ap50", "ap75")
_TEXT = {"BN": 25.10, "BN + GW": 28.37, "GN": 28.19, "GW": 28.79}


def plan(scale: Settings) -> list[Settings]:
    """Every norm of the scale's cases, as what is not a run's default."""
    changes = {name: value for name, value in scale.items() if name != "cases"}
    plain = Detection().to_dict()
    settings = []
    for case in scale["cases"]:
        for norm, config in _CASES[case].items():
            fields = dataclasses.replace(config, **changes).to_dict()
            given = {name: _kept(value) for name, value in fields.items() if value != plain[name]}
            settings.append({"case": case, "variant": norm, **given})
    return settings


def _kept(value: Any) -> Any:
    """To the seven digits that results are kept with, by which a run is found again."""
    return float(f"{value:.7g}") if isinstance(value, float) else value


def run(settings: Settings, context: Context) -> dict[str, Any]:
    """Losses by epoch and average precision by test; that of a run that diverged is 0 at the end."""
    # Lightning takes seconds to import, which a list of experiments need not wait for.
    from lightning.pytorch.callbacks import LambdaCallback

    from whitenorm_lab.training.run import fit

    fields = {name: value for name, value in settings.items() if name not in ("case", "variant")}
    config = dataclasses.replace(
        Detection.from_dict(fields),
        seed=context.seed,
        data=context.data_root,
        folder=context.folder,
        quiet=True,
    )
    if config.freeze_bn or settings["case"] in _TABLES:
        config = dataclasses.replace(config, weights=_weights(config, context))
    watch = LambdaCallback(
        on_train_epoch_end=lambda trainer, module: context.progress(module.global_step / module.total_steps)
    )
    try:
        outcome, diverged = fit(config, callbacks=[watch]), False
    except DivergenceError as error:
        outcome, diverged = error.result, True
    return _values(outcome, config, diverged)


def _weights(config: Detection, context: Context) -> Path:
    """What the backbone begins from, as the data root has it."""
    root = root_folder(context.data_root)
    name = f"weights/{config.net}-{config.norm}"
    if root is None:
        raise OSError(f"{name} is looked for in the data root: pass --data or set ${ROOT_VARIABLE}")
    return next((path for path in (root / name, root / f"{name}.pt") if path.exists()), root / name)


def _values(outcome: TrainingResult, config: Detection, diverged: bool) -> dict[str, Any]:
    tested = [epoch for epoch in outcome.epochs if epoch.tests]
    columns = [f"{prefix}{name}" for prefix in (("", "mask_") if config.masks else ("",)) for name in _COLUMNS]
    values: dict[str, Any] = {
        "train_loss": [epoch.train_loss for epoch in outcome.epochs],
        "tested": [epoch.epoch for epoch in tested],
        "images_per_second": max((epoch.examples_per_second for epoch in outcome.epochs), default=0.0),
        **{name: [epoch.tests["test"][name] for epoch in tested] for name in columns},
    }
    if diverged:
        for name in columns:
            values[name].append(0.0)
        values["tested"].append(len(outcome.epochs) + 1)
    return values


def _above(case: str, better: str, other: str, columns: Sequence[str]) -> Any:
    """Judges that one norm's last precisions are above another's of the same seed."""

    def judge(results: Results) -> Evidence:
        if case not in results.levels("case"):
            return not_run()
        ends = {
            norm: {name: [curve[-1] for curve in results.values(name, case=case, variant=norm)] for name in columns}
            for norm in (better, other)
        }
        words = {name: name.replace("_", " ").replace("ap", "AP") for name in columns}
        parts = [
            lower(ends[other][name], ends[better][name], (f"{words[name]} of {other}", better)) for name in columns
        ]
        return every(*parts)

    return judge


def _of_tables() -> tuple[Claim, ...]:
    """Each column of GW's above BN†'s and GN's, and in table 4 of GN's above BN†'s."""
    pairs = [("GW", "BN†"), ("GW", "GN")]
    return tuple(
        Claim(
            f"{better} has a higher {prefix.replace('_', ' ')}AP, AP50 and AP75 than {other}, {case}",
            f"{other} {_listed(row[other])}, {better} {_listed(row[better])} %",
            _above(case, better, other, [f"{prefix}{name}" for name in _COLUMNS]),
        )
        for case, parts in _TABLES.items()
        for prefix, row in parts.items()
        for better, other in (pairs if case == _MASK else [*pairs, ("GN", "BN†")])
    )


def _listed(row: Sequence[float]) -> str:
    return "/".join(f"{value:.2f}" for value in row)


def _of_text() -> tuple[Claim, ...]:
    return tuple(
        Claim(
            f"From scratch at two images, {better} has a higher AP than {other}",
            f"{other} {_TEXT[other]:.2f} %, {better} {_TEXT[better]:.2f} %",
            _above(_SCRATCH, better, other, ["ap"]),
        )
        for better, other in (("BN + GW", "BN"), ("GN", "BN"), ("GW", "BN"), ("GW", "GN"))
    )


def draw(results: Results) -> Figure:
    """A row a case: training loss and AP by epoch."""
    cases = results.levels("case")
    figure, axes = plt.subplots(len(cases), 2, figsize=(9, 3.6 * len(cases)), layout="constrained", squeeze=False)
    for (left, right), case in zip(axes, cases, strict=True):
        found = results.where(case=case)
        for norm in found.levels("variant"):
            _line(left, found.where(variant=norm), norm, "train_loss")
            _line(right, found.where(variant=norm), norm, "ap")
        left.set(xlabel="epoch", ylabel="training loss", title=case)
        right.set(xlabel="epoch", ylabel="box AP (%)", title=case)
        for panel in (left, right):
            panel.xaxis.set_major_locator(MaxNLocator(integer=True))
            add_grid_and_legend(panel)
    return figure


def _line(panel: Any, found: Results, norm: str, which: str) -> None:
    """The epochs that all seeds came to, of which one that diverged has fewer."""
    curves = found.values(which)
    length = min(map(len, curves))
    epochs = range(1, length + 1) if which == "train_loss" else found[0].values["tested"][:length]
    plot_spread(panel, epochs, [curve[:length] for curve in curves], norm, marker=".")


_SMALL: Settings = {
    "cases": [_SCRATCH],
    "dataset": "coco128",
    "net": "resnet18",
    "batch_size": 2,
    "workers": 0,
    "steps": None,
    "bias_factor": 1.0,
    "anchor_size": 8,
}
EXPERIMENT = Experiment(
    id="gw-coco",
    paper="GW",
    where="tables 4 and 5, sec. 5.2",
    title="Detection and instance segmentation on COCO",
    cost="70 min of one core",
    claims=(*_of_text(), *_of_tables()),
    scales={
        "smoke": {
            **_SMALL,
            "min_size": 48,
            "max_size": 64,
            "fpn_channels": 16,
            "head_width": 16,
            "proposals": 20,
            "rois": 8,
            "lr": 0.001,
            "milestone_steps": [],
            "warmup_steps": 0,
            "epochs": 1,
            "checkpoint_epochs": 9,
        },
        "default": {
            **_SMALL,
            "train_images": 24,
            "min_size": 96,
            "max_size": 160,
            "fpn_channels": 64,
            "head_width": 256,
            "proposals": 200,
            "rois": 64,
            "flip": False,
            "lr": 0.01,
            "milestone_steps": [400],
            "warmup_steps": 50,
            "epochs": 40,
            "test_every": 8,
            "checkpoint_epochs": 8,
        },
        "paper": {"cases": [_SCRATCH, _TWO, _FOUR, _MASK]},
    },
    seeds={"smoke": 1, "default": 3, "paper": 3},
    min_seeds=3,
    plan=plan,
    run=run,
    draw=draw,
    data=("coco128",),
    reduction="Trained and tested here on the same few images: it shows how they are learnt, not what is found anew.",
)
