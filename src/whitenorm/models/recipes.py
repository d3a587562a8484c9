"""Where the papers put whitening, by name, and what that would change in a model.

- ``"l1"``: the first norm (DBN, IterNorm)
- ``"full"``: every norm
- ``"s1"``: the first norm (GW)
- ``"s1-b1"``: the first norm, and the first of every residual block; ``"s1-b2"`` and ``"s1-b3"`` likewise
- ``"s1-b12"``: the first norm, and the first and second of every block
- ``"sw-cifar"``: norms 1, 4, 8, 12, …, one a convolution, shortcuts not counted (SW on CIFAR)
- ``"sw-7"``: norms 1, 6, 12, …, 36 (SW, ResNet-50 on ImageNet)
- ``"sw-14"``: norms 1, 3, 6, …, 39 (SW, ResNet-50 in segmentation)
- ``"…+df"``: any of these, and one more norm, of the pooled features before the classifier: ``"l1+df"`` is IterNorm's,
  ``"s1-b2+df"`` GW's (table A1)

What ``"+df"`` adds ("decorrelated features") is one rule for all names: the norm that a BatchNorm1d of the features
would become, with γ and β and the options of the call, as in the papers' code; with ``"bn"`` a BatchNorm, the papers'
baseline with an extra BN. Of a batch method, its population is such that nothing changes in eval mode before it is
trained. GW then has about √C groups, unless ``num_groups`` is given; the paper has 64 there as elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from torch import Tensor, nn

from whitenorm._suggest import suggest
from whitenorm.models.effect import describe_effect, is_trained
from whitenorm.models.layers import PLAIN, LayerLike, Options, check_layer
from whitenorm.models.norms import BATCH, Norm, as_norm, find_norms
from whitenorm.models.parts import Decorrelated, put_before
from whitenorm.models.producers import CONVOLUTIONS
from whitenorm.models.transfer import make, nearest_tensors, norm_before, same

Where = str | Sequence[str] | Callable[[nn.Module, str], bool]


class Change(NamedTuple):
    """One module of a model, what takes its place, and why.

    ``note`` says what is not as asked, ``effect`` how the output of a trained model changes.
    """

    name: str
    old: nn.Module
    new: nn.Module
    why: str
    note: str = ""
    effect: str = ""


class Plan(tuple[Change, ...]):
    """Changes; printed, a table, with notes below it on what is not as asked, and on norms that stay.

    ``skipped`` maps the names of norms that stay to the reasons: what would be lost, such as a forward of their own.

    Example::

        >>> print(plan(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), "iternorm"))
        name  old          new                       why
        1     BatchNorm2d  IterNorm(8, groups of 8)  all norms
    """

    skipped: Mapping[str, str]

    def __new__(cls, changes: Iterable[Change] = (), skipped: Mapping[str, str] | None = None) -> Plan:
        """Make a plan of changes, and of the norms that are skipped, by name."""
        plan = super().__new__(cls, changes)
        plan.skipped = dict(skipped or {})
        return plan

    def __str__(self) -> str:
        rows = [("name", "old", "new", "why")]
        notes = list(dict.fromkeys(note for change in self for note in (change.note, change.effect) if note))
        marks = {"": "", **{note: f" [{i}]" for i, note in enumerate(notes, 1)}}
        rows += [
            (
                c.name or "(the model)",
                type(c.old).__name__,
                _describe(c.new),
                c.why + marks[c.note] + marks[c.effect],
            )
            for c in self
        ]
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = ["  ".join([*map(str.ljust, row[:3], widths), row[3]]) for row in rows]
        lines += [f"{marks[note].strip()} {note}" for note in notes]
        return "\n".join([*lines, *(f"{name or '(the model)'} stays: {why}" for name, why in self.skipped.items())])


def plan(model: nn.Module, layer: LayerLike, where: Where = "all", *, keep_eps: bool = False, **options: Any) -> Plan:
    """What :func:`whitenorm.convert_` would do, without doing it. The new layers are made, the model is not touched.

    Norms that are already what they would become are left out. Those that stay, as replacing them would lose something,
    are in the plan's ``skipped``, by name, with the reasons.

    Args:
        model: any module.
        layer: a layer's name, or a function from width to layer.
        where: a recipe's name, ``"all"``, a list of names or patterns, or a filter ``(module, name) -> bool``.
        keep_eps: give the new layers the ε of the old norms instead of their own.
        options: the layer's own arguments.

    Example::

        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8))
        >>> [change.name for change in plan(model, "dbn", "l1")]
        ['1']
    """
    check_layer(layer, options)
    norms = find_norms(model)
    if not norms:
        raise ValueError(
            f"expected a model with norms (got {type(model).__name__} without any that whitenorm knows: BatchNorm, "
            "InstanceNorm, GroupNorm, LayerNorm, RMSNorm, or its own); put whitening layers into it by hand"
        )
    decorrelates = isinstance(where, str) and where.endswith(_FEATURES)
    chosen, why = _choose(model, norms, where.removesuffix(_FEATURES) if isinstance(where, str) else where)
    if not chosen:
        raise ValueError(
            f"expected where={where!r} to match at least one norm of the model (got none); its norms are:\n"
            f"{_listed(norms)}"
        )
    others = {name: norms[name] for name in chosen if not _is_plain(layer, norms[name], options)}
    skipped = _skip(others, where)
    nearest = nearest_tensors(model)
    changes = []
    for name, norm in others.items():
        if name not in skipped:
            kept = {"eps": norm.eps} if keep_eps and norm.eps is not None and isinstance(layer, str) else {}
            new, note = make(layer, norm, {**kept, **options}, name, nearest[norm.module])
            changes.append(Change(name, norm.module, new, why, "; ".join(filter(None, (note, norm.obstacle)))))
    if decorrelates:
        changes.append(_before_classifier(model, layer, where, options, nearest))
    changes = [change for change in changes if not same(change.new, change.old)]
    if any(is_trained(norm.module) for norm in norms.values()):
        changes = [change._replace(effect=_effect(change)) for change in changes]
    return Plan(changes, skipped)


REPLACE_ANYWAY = "name such norms one by one, where=[names], to have them replaced all the same"


def _skip(norms: dict[str, Norm], where: Where) -> dict[str, str]:
    """Find the norms that stay, as replacing them would lose something and they are not asked for by their names."""
    named = () if isinstance(where, str) or callable(where) else where
    skipped = {name: norm.obstacle for name, norm in norms.items() if name not in named and norm.obstacle}
    if skipped and len(skipped) == len(norms):
        raise ValueError(
            f"expected where={where!r} to match at least one norm that can be replaced without a loss (got none):\n"
            f"{_reasons(skipped)}\n{REPLACE_ANYWAY}"
        )
    return skipped


def _effect(change: Change) -> str:
    if isinstance(change.old, nn.Linear):
        return describe_effect(change.new.get_submodule("0"), norm_before(change.old), "no norm")
    norm = as_norm(change.old)
    assert norm is not None
    return describe_effect(change.new, norm, type(change.old).__name__)


def _is_plain(layer: LayerLike, norm: Norm, options: Options) -> bool:
    """Whether a norm is of the plain kind that is asked for, whatever its library."""
    kinds = {"bn": BATCH, "gn": nn.GroupNorm, "ln": nn.LayerNorm}
    if options or layer not in PLAIN:
        return False
    return isinstance(norm.module, nn.LayerNorm if norm.of_tokens else kinds[str(layer)])


def _listed(norms: dict[str, Norm]) -> str:
    return _reasons({name: str(norm.module) for name, norm in norms.items()})


def _reasons(named: Mapping[str, str]) -> str:
    return "\n".join(f"  {name or '(the model)'}: {words}" for name, words in named.items())


def _choose(model: nn.Module, norms: dict[str, Norm], where: Where) -> tuple[list[str], str]:
    if not isinstance(where, str):
        if callable(where):
            return [name for name, norm in norms.items() if where(norm.module, name)], "the filter"
        return _by_names(norms, where), "by name"
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
    known = ("all", "full", "l1", "s1", *_BLOCKS, *_NUMBERS)
    hint = f"; module names come in a list: where=[{where!r}]" if _matching(norms, where) else suggest(where, known)
    raise ValueError(
        f"expected where to be one of {', '.join(map(repr, known))}, each also with '+df', a list of module names or "
        f"patterns, or a filter (module, name) -> bool (got {where!r}){hint}"
    )


def _by_names(norms: dict[str, Norm], where: Sequence[str]) -> list[str]:
    """The norms that are named, lie inside what is named, or match a pattern such as ``"layer4.*.bn2"``."""
    if not isinstance(where, (list, tuple, set)) or not all(isinstance(name, str) for name in where):
        raise ValueError(
            f"expected where to be a name, a list of module names or patterns, or a filter (module, name) -> bool (got "
            f"{where!r})"
        )
    if not where:
        raise ValueError(
            f"expected at least one module name or pattern in where (got {where!r}); where='all' means every norm"
        )
    chosen = []
    for pattern in where:
        matching = _matching(norms, pattern)
        if not matching:
            raise ValueError(
                f"expected every name or pattern in where to match a norm (got {pattern!r}, which matches none)"
                f"{suggest(pattern, _module_names(norms))}; the model's norms are:\n{_listed(norms)}"
            )
        chosen += matching
    return [name for name in norms if name in chosen]


def _matching(norms: dict[str, Norm], pattern: str) -> list[str]:
    return [name for name in norms if fnmatchcase(name, pattern) or name.startswith(f"{pattern}.")]


def _module_names(norms: dict[str, Norm]) -> set[str]:
    """The names of the norms, and of the modules that they lie in."""
    return {
        ".".join(parts[:depth]) for parts in (name.split(".") for name in norms) for depth in range(1, len(parts) + 1)
    }


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
        norms = [child for child, part in children.items() if as_norm(part) is not None]
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


def _before_classifier(
    model: nn.Module, layer: LayerLike, where: Where, options: Options, nearest: Mapping[nn.Module, Tensor]
) -> Change:
    """The last linear layer, behind a norm of its input; or that norm, where it already has one."""
    linear = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise ValueError(
            f"expected a linear classifier for where={where!r} (got {type(model).__name__} without a linear layer); "
            f'leave out "{_FEATURES}"'
        )
    if layer == "iw":
        raise ValueError(
            f'expected a layer for vectors in where="…{_FEATURES}" (got "iw", which whitens over the positions of a '
            'sample); use "iternorm", "dbn", "bw-sigma", "sw" or "gw"'
        )
    why = "features before the classifier"
    name, classifier = linear[-1]
    parent = name.rpartition(".")[0]
    before = model.get_submodule(parent) if parent else model
    if isinstance(before, Decorrelated):
        norm = as_norm(before[0])
        assert norm is not None
        new, note = make(layer, norm, options, f"{parent}.0", nearest[norm.module])
        return Change(f"{parent}.0", norm.module, new, why, note)
    new, note = make(layer, norm_before(classifier), options, f"{name}.0", classifier.weight)
    return Change(name, classifier, put_before(Decorrelated, new, classifier), why, note)


def _describe(module: nn.Module) -> str:
    if isinstance(module, nn.Sequential):
        return " → ".join(_describe(part) for part in module)
    kind = type(module).__name__
    for size, words in (("num_groups", "{} groups"), ("group_size", "groups of {}")):
        if hasattr(module, size):
            widths = (getattr(module, name, None) for name in ("num_features", "num_channels", "normalized_shape"))
            width = next(width for width in widths if width is not None)
            return f"{kind}({width}, {words.format(getattr(module, size))})"
    return kind
