"""Recipes: the papers' placements by name, and the plan of what a conversion would change.

- ``"l1"``: the first norm (DBN, IterNorm)
- ``"full"``: every norm
- ``"s1"``: the first norm (GW)
- ``"s1-b1"``: the first norm, and the first of every residual block; ``"s1-b2"`` and ``"s1-b3"`` likewise
- ``"s1-b12"``: the first norm, and the first and second of every block
- ``"sw-cifar"``: norms 1, 4, 8, 12, …, counting one per convolution without shortcuts (SW on CIFAR)
- ``"sw-7"``: norms 1, 6, 12, …, 36 (SW, ResNet-50 on ImageNet)
- ``"sw-14"``: norms 1, 3, 6, …, 39 (SW, ResNet-50 in segmentation)
- ``"…+df"``: any of these, and an additional layer for the pooled features before the classifier: ``"l1+df"`` is
  IterNorm's, ``"s1-b2+df"`` GW's (table A1)

For every name, ``"+df"`` ("decorrelated features") adds the layer that would replace a BatchNorm1d of the features,
with γ, β and the options of the call, as in the papers' code. With ``"bn"`` it adds a BatchNorm, the papers' baseline
with an additional BN. The running statistics of a batch method initially leave the eval output unchanged. GW has about
√C groups there, unless you pass ``num_groups``; the paper has 64 everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from torch import Tensor, nn

from whitenorm._suggest import suggest
from whitenorm.models.affine import CONVOLUTIONS
from whitenorm.models.modules import Decorrelated, put_before
from whitenorm.models.norms import BATCH_NORM, Norm, as_norm, find_norms
from whitenorm.models.output_change import describe_output_change, is_trained
from whitenorm.models.targets import PLAIN_NAMES, LayerLike, Options, check_layer
from whitenorm.models.transfer import find_nearest_tensors, is_same_layer, make_identity_norm, make_replacement

Where = str | Sequence[str] | Callable[[nn.Module, str], bool]
"""Placement in a model: a recipe's name, module names or patterns, or a filter ``(module, name) -> bool``."""

REPLACE_ANYWAY = "to replace such norms anyway, give their exact names: where=[names]"
# The suffix for one more layer, before the classifier.
_FEATURES = "+df"
_SHORTCUTS = ("downsample", "shortcut", "skip")
# Numbers of the norms in each residual block, from one.
_BLOCKS = {"s1-b1": (1,), "s1-b2": (2,), "s1-b3": (3,), "s1-b12": (1, 2)}
# Numbers of the norms in the whole model, from one.
_NUMBERS: dict[str, Callable[[int], bool]] = {
    "sw-cifar": lambda i: i == 1 or i % 4 == 0,
    "sw-7": lambda i: i == 1 or (i % 6 == 0 and i <= 36),
    "sw-14": lambda i: i == 1 or (i % 3 == 0 and i <= 39),
}


class Change(NamedTuple):
    """A module of a model, and its replacement.

    Attributes:
        name: the module's name.
        old: the module.
        new: its replacement.
        why: the reason why it was chosen, such as a recipe.
        note: what is not as requested; may be empty.
        effect: how the output of a trained model changes; may be empty.
    """

    name: str
    old: nn.Module
    new: nn.Module
    why: str
    note: str = ""
    effect: str = ""


class Plan(tuple[Change, ...]):
    """The changes that a conversion would make; ``print`` shows a table, with notes below it.

    Attributes:
        skipped: the norms that stay, by name, with the reason: what would be lost, such as a forward of their own.

    Example::

        >>> print(plan(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), "iternorm"))
        name  old          new                       why
        1     BatchNorm2d  IterNorm(8, groups of 8)  all norms
    """

    skipped: Mapping[str, str]

    def __new__(cls, changes: Iterable[Change] = (), skipped: Mapping[str, str] | None = None) -> Plan:
        """Make a plan from changes, and the norms that stay with the reasons."""
        plan = super().__new__(cls, changes)
        plan.skipped = dict(skipped or {})
        return plan

    def __str__(self) -> str:
        rows = [("name", "old", "new", "why")]
        notes = list(dict.fromkeys(note for change in self for note in (change.note, change.effect) if note))
        marks = {"": "", **{note: f" [{i}]" for i, note in enumerate(notes, 1)}}
        for change in self:
            why = change.why + marks[change.note] + marks[change.effect]
            rows.append((change.name or "(the model)", type(change.old).__name__, _describe_module(change.new), why))
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = ["  ".join([*map(str.ljust, row[:3], widths), row[3]]) for row in rows]
        lines += [f"{marks[note].strip()} {note}" for note in notes]
        return "\n".join([*lines, *(f"{name or '(the model)'} stays: {why}" for name, why in self.skipped.items())])


def plan(model: nn.Module, layer: LayerLike, where: Where = "all", *, keep_eps: bool = False, **options: Any) -> Plan:
    """Return what :func:`whitenorm.convert_` would change, without changing the model; the new layers are made.

    Norms that already are the requested layer are left out. Norms that stay, because replacing them would lose
    something, are in the plan's ``skipped``.

    Args:
        model: any module.
        layer: a layer's name, or a function from width to layer.
        where: a recipe's name, ``"all"``, a list of names or patterns, or a filter ``(module, name) -> bool``.
        keep_eps: give the new layers the old norms' ε instead of their own default.
        options: arguments of the layer.

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
    has_features = isinstance(where, str) and where.endswith(_FEATURES)
    names, why = _select(model, norms, where.removesuffix(_FEATURES) if isinstance(where, str) else where)
    if not names:
        raise ValueError(
            f"expected where={where!r} to match at least one norm of the model (got none); its norms are:\n"
            f"{_list_norms(norms)}"
        )
    selected = {name: norms[name] for name in names if not _is_requested_plain(layer, norms[name], options)}
    skipped = _find_skipped(selected, where)
    nearest = find_nearest_tensors(model)
    changes = []
    for name, norm in selected.items():
        if name not in skipped:
            old_eps = {"eps": norm.eps} if keep_eps and norm.eps is not None and isinstance(layer, str) else {}
            new, note = make_replacement(layer, norm, {**old_eps, **options}, name, nearest[norm.module])
            changes.append(Change(name, norm.module, new, why, "; ".join(filter(None, (note, norm.obstacle)))))
    if has_features:
        changes.append(_change_classifier(model, layer, where, options, nearest))
    changes = [change for change in changes if not is_same_layer(change.new, change.old)]
    if any(is_trained(norm.module) for norm in norms.values()):
        changes = [change._replace(effect=_describe_effect(change)) for change in changes]
    return Plan(changes, skipped)


def _find_skipped(norms: dict[str, Norm], where: Where) -> dict[str, str]:
    """Return the norms that stay, with reasons: replacing them would lose something, and they are not named exactly."""
    explicit = () if isinstance(where, str) or callable(where) else where
    skipped = {name: norm.obstacle for name, norm in norms.items() if name not in explicit and norm.obstacle}
    if skipped and len(skipped) == len(norms):
        raise ValueError(
            f"expected where={where!r} to match at least one norm that can be replaced without a loss (got none):\n"
            f"{_format_lines(skipped)}\n{REPLACE_ANYWAY}"
        )
    return skipped


def _describe_effect(change: Change) -> str:
    if isinstance(change.old, nn.Linear):
        return describe_output_change(change.new.get_submodule("0"), make_identity_norm(change.old), "no norm")
    norm = as_norm(change.old)
    assert norm is not None
    return describe_output_change(change.new, norm, type(change.old).__name__)


def _is_requested_plain(layer: LayerLike, norm: Norm, options: Options) -> bool:
    """Return whether a norm already is the requested plain norm, or a subclass of it."""
    kinds = {"bn": BATCH_NORM, "gn": nn.GroupNorm, "ln": nn.LayerNorm}
    if options or layer not in PLAIN_NAMES:
        return False
    return isinstance(norm.module, nn.LayerNorm if norm.is_tokenwise else kinds[str(layer)])


def _list_norms(norms: dict[str, Norm]) -> str:
    return _format_lines({name: str(norm.module) for name, norm in norms.items()})


def _format_lines(texts: Mapping[str, str]) -> str:
    return "\n".join(f"  {name or '(the model)'}: {text}" for name, text in texts.items())


def _select(model: nn.Module, norms: dict[str, Norm], where: Where) -> tuple[list[str], str]:
    """Return the names of the norms that ``where`` selects, and the reason for the plan."""
    if not isinstance(where, str):
        if callable(where):
            return [name for name, norm in norms.items() if where(norm.module, name)], "the filter"
        return _select_by_name(norms, where), "by name"
    if where in ("all", "full"):
        return list(norms), "all norms"
    first = next(iter(norms))
    if where in ("l1", "s1"):
        return [first], "the first norm"
    blocks = find_residual_blocks(model) if where in (*_BLOCKS, *_NUMBERS) else []
    if where in _BLOCKS:
        return _select_in_blocks(first, blocks, where), f"recipe {where}"
    if where in _NUMBERS:
        ordered = [first, *(name for names in blocks for name in names if name != first)]
        is_selected = _NUMBERS[where]
        return [name for i, name in enumerate(ordered, 1) if is_selected(i)], f"recipe {where}"
    known = ("all", "full", "l1", "s1", *_BLOCKS, *_NUMBERS)
    hint = f"; module names come in a list: where=[{where!r}]" if _match(norms, where) else suggest(where, known)
    raise ValueError(
        f"expected where to be one of {', '.join(map(repr, known))}, each also with '+df', a list of module names or "
        f"patterns, or a filter (module, name) -> bool (got {where!r}){hint}"
    )


def _select_by_name(norms: dict[str, Norm], where: Sequence[str]) -> list[str]:
    """Return the norms with these names, inside modules with these names, or matching these patterns."""
    if not isinstance(where, (list, tuple, set)) or not all(isinstance(name, str) for name in where):
        raise ValueError(
            f"expected where to be a name, a list of module names or patterns, or a filter (module, name) -> bool (got "
            f"{where!r})"
        )
    if not where:
        raise ValueError(
            f"expected at least one module name or pattern in where (got {where!r}); where='all' means every norm"
        )
    selected = []
    for pattern in where:
        matches = _match(norms, pattern)
        if not matches:
            raise ValueError(
                f"expected every name or pattern in where to match a norm (got {pattern!r}, which matches none)"
                f"{suggest(pattern, _list_module_names(norms))}; the model's norms are:\n{_list_norms(norms)}"
            )
        selected += matches
    return [name for name in norms if name in selected]


def _match(norms: dict[str, Norm], pattern: str) -> list[str]:
    return [name for name in norms if fnmatchcase(name, pattern) or name.startswith(f"{pattern}.")]


def _list_module_names(norms: dict[str, Norm]) -> set[str]:
    """Return the names of the norms, and of the modules that contain them."""
    return {
        ".".join(parts[:depth]) for parts in (name.split(".") for name in norms) for depth in range(1, len(parts) + 1)
    }


def _select_in_blocks(first: str, blocks: list[list[str]], where: str) -> list[str]:
    numbers = _BLOCKS[where]
    shortest = min(map(len, blocks))
    if max(numbers) > shortest:
        raise ValueError(
            f"expected residual blocks with at least {max(numbers)} norms for where={where!r} (got blocks with "
            f"{shortest}); bottleneck blocks have three norms, basic blocks two"
        )
    return list(dict.fromkeys([first, *(names[i - 1] for names in blocks for i in numbers)]))


def find_residual_blocks(model: nn.Module) -> list[list[str]]:
    """Return the names of each residual block's norms, in order, without those of its shortcut.

    A block is a submodule whose direct children are at least two convolutions and as many norms. Only its shortcut may
    contain further norms.
    """
    blocks = []
    for name, module in model.named_modules():
        children = dict(module.named_children())
        norms = [child for child, part in children.items() if as_norm(part) is not None]
        convolutions = [part for part in children.values() if isinstance(part, CONVOLUTIONS)]
        if name and min(len(norms), len(convolutions)) >= 2 and not isinstance(module, nn.Sequential):
            with_norms = {child for child, part in children.items() if find_norms(part)}
            others = sorted(with_norms - {*norms, *_SHORTCUTS})
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


def _change_classifier(
    model: nn.Module, layer: LayerLike, where: Where, options: Options, nearest: Mapping[nn.Module, Tensor]
) -> Change:
    """Put a norm before the last linear layer, or replace the norm that an earlier conversion put there."""
    linears = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if not linears:
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
    name, classifier = linears[-1]
    parent = name.rpartition(".")[0]
    before = model.get_submodule(parent) if parent else model
    if isinstance(before, Decorrelated):
        norm = as_norm(before[0])
        assert norm is not None
        new, note = make_replacement(layer, norm, options, f"{parent}.0", nearest[norm.module])
        return Change(f"{parent}.0", norm.module, new, why, note)
    new, note = make_replacement(layer, make_identity_norm(classifier), options, f"{name}.0", classifier.weight)
    return Change(name, classifier, put_before(Decorrelated, new, classifier), why, note)


def _describe_module(module: nn.Module) -> str:
    if isinstance(module, nn.Sequential):
        return " → ".join(_describe_module(part) for part in module)
    kind = type(module).__name__
    for size, text in (("num_groups", "{} groups"), ("group_size", "groups of {}")):
        if hasattr(module, size):
            widths = (getattr(module, name, None) for name in ("num_features", "num_channels", "normalized_shape"))
            width = next(width for width in widths if width is not None)
            return f"{kind}({width}, {text.format(getattr(module, size))})"
    return kind
