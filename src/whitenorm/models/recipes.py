"""Where the papers put whitening, by name, and what that would change in a model.

======================  ===============================================================================================
``"l1"``                the first norm (DBN, IterNorm)
``"l1+df"``             the first norm, and a whitening of the pooled features before the classifier (IterNorm);
                        ``"+df"`` goes with every name here (GW, table A1)
``"full"``              every norm
``"s1"``                the first norm (GW)
``"s1-b1"``             the first norm, and the first of every residual block; ``"s1-b2"`` and ``"s1-b3"`` likewise
``"s1-b12"``            the first norm, and the first and second of every block
``"sw-cifar"``          norms 1, 4, 8, 12, …, one a convolution, shortcuts not counted (SW on CIFAR)
``"sw-7"``              norms 1, 6, 12, …, 36 (SW, ResNet-50 on ImageNet)
``"sw-14"``             norms 1, 3, 6, …, 39 (SW, ResNet-50 in segmentation)
======================  ===============================================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import nn

from whitenorm.models.flow import CONVOLUTIONS
from whitenorm.models.layers import LayerLike, check_layer, features, make
from whitenorm.models.norms import Norm, as_norm, find_norms

Where = str | Callable[[nn.Module, str], bool]


class Change(NamedTuple):
    """One module of a model, what takes its place, and why."""

    name: str
    old: nn.Module
    new: nn.Module
    why: str


class Plan(tuple[Change, ...]):
    """Changes; printed, a table.

    Example::

        >>> print(plan(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), "iternorm"))
        name  old          new                       why
        1     BatchNorm2d  IterNorm(8, groups of 8)  all norms
    """

    def __str__(self) -> str:
        rows = [("name", "old", "new", "why")]
        rows += [(c.name or "(the model)", type(c.old).__name__, _describe(c.new), c.why) for c in self]
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        return "\n".join("  ".join([*map(str.ljust, row[:3], widths), row[3]]) for row in rows)


def plan(model: nn.Module, layer: LayerLike, where: Where = "all", keep_eps: bool = False) -> Plan:
    """What :func:`whitenorm.convert_` would do, without doing it. The new layers are made, the model is not touched.

    Args:
        model: any module.
        layer: a layer's name, or a function from width to layer.
        where: a recipe's name, ``"all"``, or a filter ``(module, name) -> bool``.
        keep_eps: give the new layers the ε of the old norms instead of their own.

    Example::

        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8))
        >>> [change.name for change in plan(model, "dbn", "l1")]
        ['1']
    """
    check_layer(layer)
    norms = find_norms(model)
    decorrelates = isinstance(where, str) and where.endswith(_FEATURES)
    chosen, why = _choose(model, norms, where.removesuffix(_FEATURES) if isinstance(where, str) else where)
    if not chosen:
        listed = "\n".join(f"  {name or '(the model)'}: {norm.module}" for name, norm in norms.items())
        raise ValueError(
            f"expected where={where!r} to match at least one norm of the model (got none); its norms are:\n"
            f"{listed or '  none that whitenorm knows: BatchNorm, GroupNorm or LayerNorm'}"
        )
    changes = [Change(name, norms[name].module, make(layer, norms[name], keep_eps), why) for name in chosen]
    if decorrelates:
        changes.append(_before_classifier(model, layer, where))
    return Plan(changes)


def _choose(model: nn.Module, norms: dict[str, Norm], where: Where) -> tuple[list[str], str]:
    if not isinstance(where, str):
        if not callable(where):
            raise ValueError(f"expected where to be a name or a filter (module, name) -> bool (got {where!r})")
        return [name for name, norm in norms.items() if where(norm.module, name)], "the filter"
    if where in ("all", "full"):
        return list(norms), "all norms"
    first = next(iter(norms), None)
    if where in ("l1", "s1"):
        return [] if first is None else [first], "the first norm"
    blocks = residual_blocks(model) if where in (*_BLOCKS, *_NUMBERS) else []
    if where in _BLOCKS:
        return _of_blocks(first, blocks, where), f"recipe {where}"
    if where in _NUMBERS:
        numbered = [first, *(name for names in blocks for name in names if name != first)]
        numbers = _NUMBERS[where]
        return [name for i, name in enumerate(numbered, 1) if name is not None and numbers(i)], f"recipe {where}"
    known = ", ".join(f'"{name}"' for name in ("all", "full", "l1", "s1", *_BLOCKS, *_NUMBERS))
    raise ValueError(
        f'expected where to be one of {known}, each also with "+df", or a filter (module, name) -> bool (got {where!r})'
    )


# The last linear layer's input is decorrelated too.
_FEATURES = "+df"
_SHORTCUTS = ("downsample", "shortcut", "skip")
# Which norms of each block, counted from one.
_BLOCKS = {"s1-b1": (1,), "s1-b2": (2,), "s1-b3": (3,), "s1-b12": (1, 2)}
_NUMBERS: dict[str, Callable[[int], bool]] = {
    "sw-cifar": lambda i: i == 1 or i % 4 == 0,
    "sw-7": lambda i: i == 1 or (i % 6 == 0 and i <= 36),
    "sw-14": lambda i: i == 1 or (i % 3 == 0 and i <= 39),
}


def _of_blocks(first: str | None, blocks: list[list[str]], where: str) -> list[str]:
    wanted = _BLOCKS[where]
    shortest = min(map(len, blocks))
    if max(wanted) > shortest:
        raise ValueError(
            f"expected residual blocks with at least {max(wanted)} norms for where={where!r} (got blocks with "
            f"{shortest}); of bottleneck blocks the third is there, of basic blocks only the first two"
        )
    inner = [names[i - 1] for names in blocks for i in wanted]
    return [] if first is None else list(dict.fromkeys([first, *inner]))


def residual_blocks(model: nn.Module) -> list[list[str]]:
    """The names of the norms of each residual block, in order, without the shortcut's.

    A block is a module inside the model whose own children are at least two convolutions and as many norms. Norms that
    are nested deeper in it may be a shortcut's only.
    """
    blocks = []
    for name, module in model.named_modules():
        children = dict(module.named_children())
        norms = [child for child, part in children.items() if _is_norm(part)]
        convolutions = [part for part in children.values() if isinstance(part, CONVOLUTIONS)]
        if name and min(len(norms), len(convolutions)) >= 2 and not isinstance(module, nn.Sequential):
            inside = {child for child, part in children.items() if find_norms(part)}
            others = sorted(inside - {*norms, *_SHORTCUTS})
            if others or len(norms) != len(convolutions):
                raise ValueError(
                    f"expected residual blocks with a norm for each convolution, and others in the shortcut only (got "
                    f"{name}, a {type(module).__name__} with {len(convolutions)} convolutions, {len(norms)} norms, and "
                    f"norms inside {others or 'nothing else'}); choose the places with a filter"
                )
            blocks.append([f"{name}.{child}" for child in norms])
    if not blocks:
        raise ValueError(
            f"expected a ResNet-like model (got {type(model).__name__}): looked for residual blocks, modules with at "
            'least two convolutions and two norms of their own, and found none; use where="all" or a filter'
        )
    return blocks


def _is_norm(module: nn.Module) -> bool:
    norm = as_norm(module)
    return norm is not None and norm.kind != "whitening"


def _before_classifier(model: nn.Module, layer: LayerLike, where: Where) -> Change:
    """The last linear layer, behind a whitening of its input."""
    linear = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise ValueError(
            f"expected a linear classifier for where={where!r} (got {type(model).__name__} without a linear layer); "
            f'leave out "{_FEATURES}"'
        )
    name, classifier = linear[-1]
    new = features(layer, classifier.in_features, classifier.weight).train(classifier.training)
    return Change(name, classifier, nn.Sequential(new, classifier), "features before the classifier")


def _describe(module: nn.Module) -> str:
    if isinstance(module, nn.Sequential):
        return " → ".join(_describe(part) for part in module)
    kind = type(module).__name__
    for size, words in (("num_groups", "{} groups"), ("group_size", "groups of {}")):
        if hasattr(module, size):
            width = getattr(module, "num_features", None) or getattr(module, "normalized_shape", "")
            return f"{kind}({width}, {words.format(getattr(module, size))})"
    return kind
