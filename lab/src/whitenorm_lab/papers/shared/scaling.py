"""Reduce the papers' training configurations to smaller scales, and describe the reduction in words."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

from whitenorm_lab.claims.experiment import Settings
from whitenorm_lab.training import Train

Rates = Mapping[str, Sequence[float]]
"""Learning rates to choose from, by optimizer."""
# Training images of CIFAR, and pixels per side.
_IMAGES, _SIDE = 50000, 32
# Channels of the first layer, where a configuration does not set them.
_WIDTHS = {"vgg": 64, "s-plain": 48}
# Norms without population statistics, so without need to recalibrate.
_WITHOUT_POPULATION = ("gw", "gn", "ln", "in", "iw", "none")
_RECALIBRATION_IMAGES = 5000


def reduce_config(config: Train, changes: Settings) -> Train:
    """Return a configuration with fewer epochs and other changes.

    Milestones move with the number of epochs. Norms with population statistics, including BatchNorm, are recalibrated
    before a test, so that no norm is tested with more outdated statistics than another.

    Args:
        config: the paper's configuration.
        changes: new values of its fields, and three keys of its own: ``nets`` maps nets of the paper to smaller ones,
            ``norms`` has changes for each norm, and ``group_share`` is the factor of the group size.

    Example::

        >>> short = reduce_config(Train(epochs=160, milestones=(80, 120)), {"epochs": 4})
        >>> short.epochs, short.milestones, short.recalibrate
        (4, (2, 3), 5000)
    """
    needs_no_recalibration = config.norm in _WITHOUT_POPULATION and config.where == "all"
    changes = {"recalibrate": None if needs_no_recalibration else _RECALIBRATION_IMAGES, **changes}
    group_share = changes.pop("group_share", 1)
    if config.group_size is not None:
        changes["group_size"] = max(1, round(group_share * config.group_size))
    changes["net"] = changes.pop("nets", {}).get(config.net, config.net)
    changes |= changes.pop("norms", {}).get(config.norm, {})
    epoch_share = changes.get("epochs", config.epochs) / config.epochs
    changes["milestones"] = tuple(sorted({max(1, round(epoch_share * epoch)) for epoch in config.milestones}))
    return dataclasses.replace(config, **changes)


def describe_reduction(config: Train, changes: Settings, rates: Rates | None = None) -> str:
    """Describe in one sentence how a smaller scale differs from a configuration and its learning rates.

    Example::

        >>> describe_reduction(Train(net="wrn-28-10", epochs=200), {"nets": {"wrn-28-10": "wrn-16-2"}, "epochs": 20})
        'Run here with WRN-16-2 instead of WRN-28-10 and 20 instead of 200 epochs.'
    """
    pairs: dict[str, tuple[int | str | None, int | str | None]] = {
        "": (format_net(changes.get("nets", {}).get(config.net, config.net)), format_net(config.net)),
        "channels in the first layer": (changes.get("width"), config.width or _default_width(config.net)),
        "training images": (changes.get("train_images"), _IMAGES - config.validation_images),
        "pixels a side": (changes.get("resize", changes.get("image_size")), _image_side(config)),
        "epochs": (changes.get("epochs"), config.epochs),
        "learning rates": (_count_rates(changes.get("rates")), _count_rates(rates)),
    }
    parts = [
        f"{_format_value(here)} instead of {_format_value(paper)} {what}".strip()
        for what, (here, paper) in pairs.items()
        if here is not None and paper is not None and here != paper
    ]
    return f"Run here with {', '.join(parts[:-1])}{' and ' if parts[1:] else ''}{parts[-1]}." if parts else ""


def _default_width(net: str) -> int | None:
    return next((width for kind, width in _WIDTHS.items() if net.startswith(kind)), None)


def _image_side(config: Train) -> int:
    return config.image_size if config.dataset.startswith("imagefolder:") else _SIDE


def _count_rates(rates: Rates | None) -> int | None:
    return None if rates is None else max(map(len, rates.values()))


def _format_value(value: int | str) -> str:
    return value if isinstance(value, str) else f"{value:,}"


def rename_as_run(name: str, config: Train, settings: Settings) -> str:
    """Replace the net and the group size in a variant's or case's name by those of a run.

    Example::

        >>> rename_as_run("BN, WRN-28-10", Train(net="wrn-28-10"), {"net": "wrn-16-2"})
        'BN, WRN-16-2'
    """
    name = name.replace(format_net(config.net), format_net(settings.get("net", Train.net)))
    return name.replace(f"groups of {config.group_size}", f"groups of {settings.get('group_size')}")


def format_net(net: str) -> str:
    """Format a net's name as the papers print it.

    Example::

        >>> format_net("wrn-28-10"), format_net("resnet50")
        ('WRN-28-10', 'ResNet-50')
    """
    return re.sub("^resnet", "ResNet-", re.sub("^(wrn|vgg)", lambda kind: kind[0].upper(), net))
