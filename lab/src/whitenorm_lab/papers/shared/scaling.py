"""How the papers' trainings become smaller ones, and what they are then short of, in words."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

from whitenorm_lab.claims.experiment import Settings
from whitenorm_lab.training import Train

Rates = Mapping[str, Sequence[float]]
"""Learning rates to choose from, by optimizer."""
# Training images of CIFAR, and pixels a side.
_IMAGES, _SIDE = 50000, 32
# Channels of the first layer, where a configuration has none of its own.
_WIDTHS = {"vgg": 64, "s-plain": 48}
# Of which nothing has to be taken from training images before a test.
_WITHOUT_POPULATION = ("gw", "gn", "ln", "in", "iw", "none")
_RECALIBRATED = 5000


def smaller(config: Train, changes: Settings) -> Train:
    """A configuration with fewer epochs and other changes.

    Milestones keep their place in the schedule. ``nets`` names other nets for those of the paper, ``norms`` has changes
    for each norm; ``group_share`` is what is left of a group in narrower nets. Population statistics are taken anew
    before a test, those of BatchNorm too, so that no norm is tested with older ones than another.

    Example::

        >>> short = smaller(Train(epochs=160, milestones=(80, 120)), {"epochs": 4})
        >>> short.epochs, short.milestones, short.recalibrate
        (4, (2, 3), 5000)
    """
    changes = {"recalibrate": _recalibrated(config), **changes}
    left = changes.pop("group_share", 1)
    if config.group_size is not None:
        changes["group_size"] = max(1, round(left * config.group_size))
    changes["net"] = changes.pop("nets", {}).get(config.net, config.net)
    changes |= changes.pop("norms", {}).get(config.norm, {})
    share = changes.get("epochs", config.epochs) / config.epochs
    changes["milestones"] = tuple(sorted({max(1, round(share * epoch)) for epoch in config.milestones}))
    return dataclasses.replace(config, **changes)


def _recalibrated(config: Train) -> int | None:
    return None if config.norm in _WITHOUT_POPULATION and config.where == "all" else _RECALIBRATED


def short_of(config: Train, changes: Settings, rates: Rates | None = None) -> str:
    """What of a configuration, and of its learning rates, a smaller scale is without, as a sentence.

    Example::

        >>> short_of(Train(net="wrn-28-10", epochs=200), {"nets": {"wrn-28-10": "wrn-16-2"}, "epochs": 20})
        'Run here with WRN-16-2 instead of WRN-28-10 and 20 instead of 200 epochs.'
    """
    pairs: dict[str, tuple[int | str | None, int | str | None]] = {
        "": (printed(changes.get("nets", {}).get(config.net, config.net)), printed(config.net)),
        "channels in the first layer": (changes.get("width"), config.width or _width(config.net)),
        "training images": (changes.get("train_images"), _IMAGES - config.validation_images),
        "pixels a side": (changes.get("resize", changes.get("image_size")), _side(config)),
        "epochs": (changes.get("epochs"), config.epochs),
        "learning rates": (_choices(changes.get("rates")), _choices(rates)),
    }
    words = [
        f"{_said(here)} instead of {_said(paper)} {what}".strip()
        for what, (here, paper) in pairs.items()
        if here is not None and paper is not None and here != paper
    ]
    return f"Run here with {', '.join(words[:-1])}{' and ' if words[1:] else ''}{words[-1]}." if words else ""


def _width(net: str) -> int | None:
    return next((width for kind, width in _WIDTHS.items() if net.startswith(kind)), None)


def _side(config: Train) -> int:
    return config.image_size if config.dataset.startswith("imagefolder:") else _SIDE


def _choices(rates: Rates | None) -> int | None:
    return None if rates is None else max(map(len, rates.values()))


def _said(what: int | str) -> str:
    return what if isinstance(what, str) else f"{what:,}"


def as_run(name: str, config: Train, settings: Settings) -> str:
    """A variant's or case's name, with the net and the groups that a run of it had.

    Example::

        >>> as_run("BN, WRN-28-10", Train(net="wrn-28-10"), {"net": "wrn-16-2"})
        'BN, WRN-16-2'
    """
    name = name.replace(printed(config.net), printed(settings.get("net", Train.net)))
    return name.replace(f"groups of {config.group_size}", f"groups of {settings.get('group_size')}")


def printed(net: str) -> str:
    """A net's name as the papers print it.

    Example::

        >>> printed("wrn-28-10"), printed("resnet50")
        ('WRN-28-10', 'ResNet-50')
    """
    return re.sub("^resnet", "ResNet-", re.sub("^(wrn|vgg)", lambda kind: kind[0].upper(), net))
