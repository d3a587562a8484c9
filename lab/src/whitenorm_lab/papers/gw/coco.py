"""GW tables 4 and 5, and sec. 5.2: Faster and Mask R-CNN on COCO with BN, GN, GW, and BN and GW mixed.

Paper: the set-up of maskrcnn-benchmark, train2017 and val2017. Table 4: ResNet-50, 90,000 steps of 16 images on 8 GPUs,
with a 2fc head and no norm outside the backbone, or with a 4conv1fc head and GN or GW in the head and the FPN; BN is
frozen (BN†), also beside GW, which is at S1-B2. Table 5: Mask R-CNN, ResNeXt-101, 180,000 steps of 8 images. Section
5.2: from scratch, two images per GPU, BN not frozen: AP of BN 25.10, of BN and GW mixed (S1-B2) 28.37, of GN everywhere
28.19, of GW everywhere 28.79.

Not stated in the paper: the groups of GN (here 32), which stages are not trained (here as in the codebase: two with
BN†, else none), the head of the nets from scratch (here 2fc), the width of the ResNeXt (here 32×8d).

Default scale: the nets from scratch only. It shows whether they learn, not how well they detect objects in new images:
ResNet-18 with an FPN of 64 channels, images of 96 pixels (the shorter side), trained and tested on the same 24 images
of COCO128, which the seed draws, 2 per step, for 40 epochs. It was set up with seed 7, which is not judged. Tests use
the running statistics: with seed 7, recomputing them from the 24 images changed the AP of BN from 24.9 to 24.5 and that
of BN and GW mixed from 31.0 to 30.8.

Cost: 70 minutes on one core. Command: ``whitenorm-lab reproduce gw-coco --data ROOT``, with ROOT/coco128. The paper
scale needs ROOT/coco, and in ROOT/weights the initial weights of the backbones, as files or folders of ``whitenorm-lab
train`` runs: resnet50-bn, resnet50-gn, resnet50-gw and the same of resnext101_32x8d.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from whitenorm_lab.claims.evidence import Evidence, every, lower, not_run
from whitenorm_lab.claims.experiment import Claim, Context, Experiment, Settings
from whitenorm_lab.claims.plots import plot_spread
from whitenorm_lab.claims.results import Results
from whitenorm_lab.papers.shared.training_runs import (
    context_fields,
    finish_epochs,
    fit_or_diverge,
    highest_throughput,
    non_default_fields,
    require_data_root,
)
from whitenorm_lab.tasks.detection.config import Detection
from whitenorm_lab.tasks.detection.presets import GwCoco, GwCocoMask, GwCocoScratch
from whitenorm_lab.training import TrainingResult

_ALL: dict[str, Any] = {"where": "all"}
_BN: dict[str, Any] = {"norm": "bn", **_ALL}
_GN: dict[str, Any] = {"norm": "gn", **_ALL}
_BACKBONE_ONLY: dict[str, Any] = {"fpn_norm": "none", "head_norm": "none"}
_2FC: dict[str, Any] = {"box_head": "2fc", **_BACKBONE_ONLY}
_GN_OUTSIDE: dict[str, Any] = {"fpn_norm": "gn", "head_norm": "gn"}
_FROZEN_BN: dict[str, Any] = {**_BN, **_BACKBONE_ONLY, "freeze_at": 2}
_TWO_FC, _FOUR_CONV, _MASK, _SCRATCH = "2fc head", "4conv1fc head", "Mask R-CNN", "from scratch"


def _build_cases() -> dict[str, dict[str, Detection]]:
    """Return the configurations by case and norm."""
    base, mask, scratch = GwCoco(), GwCocoMask(), GwCocoScratch()
    replace = dataclasses.replace
    return {
        _SCRATCH: {
            "BN": replace(scratch, **_BN),
            "BN + GW": scratch,
            "GN": replace(scratch, **_GN),
            "GW": replace(scratch, **_ALL),
        },
        _TWO_FC: {
            "BN†": replace(base, **{**_FROZEN_BN, **_2FC}),
            "GN": replace(base, **_GN, **_2FC),
            "GW": replace(base, **_2FC),
        },
        _FOUR_CONV: {"BN†": replace(base, **_FROZEN_BN), "GN": replace(base, **_GN, **_GN_OUTSIDE), "GW": base},
        _MASK: {
            "BN†": replace(mask, **_FROZEN_BN, mask_norm="none"),
            "GN": replace(mask, **_GN, **_GN_OUTSIDE, mask_norm="gn"),
            "GW": mask,
        },
    }


_CASES = _build_cases()
# AP, AP50 and AP75 by case, prefix of the score, and norm.
_TABLES: dict[str, dict[str, dict[str, tuple[float, float, float]]]] = {
    _TWO_FC: {"": {"BN†": (36.31, 58.39, 38.83), "GN": (36.62, 58.91, 39.32), "GW": (38.13, 60.63, 41.08)}},
    _FOUR_CONV: {"": {"BN†": (36.39, 57.22, 39.56), "GN": (37.86, 58.96, 40.76), "GW": (39.60, 61.12, 43.25)}},
    _MASK: {
        "": {"BN†": (42.24, 63.00, 46.19), "GN": (42.18, 63.22, 46.00), "GW": (44.41, 65.36, 48.67)},
        "mask_": {"BN†": (37.53, 59.82, 39.96), "GN": (37.54, 60.18, 39.99), "GW": (39.17, 62.13, 41.95)},
    },
}
_SCORES = ("ap", "ap50", "ap75")
_FROM_SCRATCH_AP = {"BN": 25.10, "BN + GW": 28.37, "GN": 28.19, "GW": 28.79}


def plan(scale: Settings) -> list[Settings]:
    """Return one setting per case of the scale and norm, with the fields that are not Detection's defaults."""
    changes = {name: value for name, value in scale.items() if name != "cases"}
    return [
        {
            "case": case,
            "variant": norm,
            **non_default_fields(dataclasses.replace(config, **changes), default=Detection()),
        }
        for case in scale["cases"]
        for norm, config in _CASES[case].items()
    ]


def run(settings: Settings, context: Context) -> dict[str, Any]:
    """Train a detector; return the loss per epoch and the AP per test, which ends with 0 if the loss diverges."""
    fields = {name: value for name, value in settings.items() if name not in ("case", "variant")}
    config = dataclasses.replace(Detection.from_dict(fields), **context_fields(context))
    if config.freeze_bn or settings["case"] in _TABLES:
        config = dataclasses.replace(config, weights=_find_weights(config, context))
    result, has_diverged = fit_or_diverge(config, context)
    return _collect_values(result, config, has_diverged)


def _find_weights(config: Detection, context: Context) -> Path:
    """Return the file, or the folder of a run, with the initial weights of the backbone."""
    name = f"weights/{config.net}-{config.norm}"
    root = require_data_root(context, name)
    return next((path for path in (root / name, root / f"{name}.pt") if path.exists()), root / name)


def _collect_values(result: TrainingResult, config: Detection, has_diverged: bool) -> dict[str, Any]:
    tested = [epoch for epoch in result.epochs if epoch.tests]
    scores = [f"{prefix}{name}" for prefix in (("", "mask_") if config.masks else ("",)) for name in _SCORES]
    values: dict[str, Any] = {
        "train_loss": [epoch.train_loss for epoch in result.epochs],
        "tested": [epoch.epoch for epoch in tested],
        "images_per_second": highest_throughput(result),
        **{name: [epoch.tests["test"][name] for epoch in tested] for name in scores},
    }
    if has_diverged:
        for name in scores:
            values[name].append(0.0)
        values["tested"].append(len(result.epochs) + 1)
    return values


def _judge_higher(case: str, better: str, other: str, scores: Sequence[str]) -> Callable[[Results], Evidence]:
    """Judge whether one norm has a higher precision than another of the same seed after the last epoch."""

    def judge(results: Results) -> Evidence:
        if case not in results.levels("case"):
            return not_run()
        final = {
            norm: {name: [curve[-1] for curve in results.values(name, case=case, variant=norm)] for name in scores}
            for norm in (better, other)
        }
        words = {name: name.replace("_", " ").replace("ap", "AP") for name in scores}
        return every(
            *(lower(final[other][name], final[better][name], (f"{words[name]} of {other}", better)) for name in scores)
        )

    return judge


def _build_table_claims() -> tuple[Claim, ...]:
    """Return the claims of tables 4 and 5: GW is above BN† and GN, and in table 4 GN is above BN†."""
    pairs = [("GW", "BN†"), ("GW", "GN")]
    return tuple(
        Claim(
            f"{better} has a higher {prefix.replace('_', ' ')}AP, AP50 and AP75 than {other}, {case}",
            f"{other} {_format_row(row[other])}, {better} {_format_row(row[better])} %",
            _judge_higher(case, better, other, [f"{prefix}{name}" for name in _SCORES]),
        )
        for case, rows in _TABLES.items()
        for prefix, row in rows.items()
        for better, other in (pairs if case == _MASK else [*pairs, ("GN", "BN†")])
    )


def _format_row(row: Sequence[float]) -> str:
    return "/".join(f"{value:.2f}" for value in row)


def _build_scratch_claims() -> tuple[Claim, ...]:
    return tuple(
        Claim(
            f"From scratch at two images, {better} has a higher AP than {other}",
            f"{other} {_FROM_SCRATCH_AP[other]:.2f} %, {better} {_FROM_SCRATCH_AP[better]:.2f} %",
            _judge_higher(_SCRATCH, better, other, ["ap"]),
        )
        for better, other in (("BN + GW", "BN"), ("GN", "BN"), ("GW", "BN"), ("GW", "GN"))
    )


def draw(results: Results) -> Figure:
    """Draw training loss and AP by epoch, with one row per case."""
    cases = results.levels("case")
    figure, axes = plt.subplots(len(cases), 2, figsize=(9, 3.6 * len(cases)), layout="constrained", squeeze=False)
    for row, case in zip(axes, cases, strict=True):
        runs = results.where(case=case)
        for panel, score, ylabel in zip(row, ("train_loss", "ap"), ("training loss", "box AP (%)"), strict=True):
            for norm in runs.levels("variant"):
                _draw_curve(panel, runs.where(variant=norm), norm, score)
            finish_epochs(panel, ylabel, case)
    return figure


def _draw_curve(axes: Axes, runs: Results, norm: str, score: str) -> None:
    """Draw a score up to the last epoch of the shortest run, because a run that diverged has fewer epochs."""
    curves = runs.values(score)
    length = min(map(len, curves))
    epochs = range(1, length + 1) if score == "train_loss" else runs[0].values["tested"][:length]
    plot_spread(axes, epochs, [curve[:length] for curve in curves], norm, marker=".")


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
    claims=(*_build_scratch_claims(), *_build_table_claims()),
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
        "paper": {"cases": [_SCRATCH, _TWO_FC, _FOUR_CONV, _MASK]},
    },
    seeds={"smoke": 1, "default": 3, "paper": 3},
    min_seeds=3,
    plan=plan,
    run=run,
    draw=draw,
    data=("coco128",),
    reduction=(
        "Trained and tested here on the same few images: this shows how well they are learnt, not how well objects in "
        "new images are detected."
    ),
)
