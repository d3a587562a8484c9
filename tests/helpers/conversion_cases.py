"""Random conversions from a seed: a norm of any kind, dtype and state, and the layer it is converted to."""

import copy
import random
import warnings
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.utils import parametrize

import whitenorm
from tests.helpers.models import BatchNormAct2d, FrozenBatchNorm2d, randomize_norms
from whitenorm._runtime import compute_dtype
from whitenorm.models import WHITENING_NAMES

TARGETS = (*WHITENING_NAMES, "bn", "gn", "ln")
# Targets that keep the eval output of a trained BatchNorm.
OUTPUT_KEEPING = ("iternorm", "dbn", "bw-sigma", "bn")
CHANNELS = 8
TOLERANCE = {torch.float64: 1e-7, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 8e-2}


class OwnForward(nn.BatchNorm2d):
    def forward(self, x):
        return super().forward(x).abs()


class OwnTensor(nn.GroupNorm):
    def __init__(self):
        super().__init__(2, CHANNELS)
        self.register_buffer("scale", torch.ones(()))


class Negative(nn.Module):
    def forward(self, weight):
        return -weight


def make_parametrized():
    norm = nn.BatchNorm2d(CHANNELS)
    parametrize.register_parametrization(norm, "weight", Negative())
    return norm


def make_patched():
    norm = nn.BatchNorm2d(CHANNELS)
    norm.forward = norm.forward
    return norm


def _list_batch_norms():
    for affine in (True, False):
        for tracks in (True, False):
            for kind in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
                name = f"{kind.__name__}(affine={affine}, track_running_stats={tracks})"
                yield name, lambda kind=kind, a=affine, t=tracks: kind(CHANNELS, affine=a, track_running_stats=t)


# Norms that are not converted, because something would be lost.
REFUSED = {
    "own forward": lambda: OwnForward(CHANNELS),
    "own tensor": OwnTensor,
    "parametrized": make_parametrized,
    "patched": make_patched,
}
SOURCES = {
    **dict(_list_batch_norms()),
    **REFUSED,
    "BatchNormAct2d": lambda: BatchNormAct2d(CHANNELS),
    "FrozenBatchNorm2d": lambda: FrozenBatchNorm2d(CHANNELS),
    "InstanceNorm2d": lambda: nn.InstanceNorm2d(CHANNELS),
    "InstanceNorm1d(affine=True)": lambda: nn.InstanceNorm1d(CHANNELS, affine=True),
    "GroupNorm": lambda: nn.GroupNorm(4, CHANNELS),
    "GroupNorm(affine=False)": lambda: nn.GroupNorm(4, CHANNELS, affine=False),
    "LayerNorm": lambda: nn.LayerNorm(CHANNELS),
    "LayerNorm(elementwise_affine=False)": lambda: nn.LayerNorm(CHANNELS, elementwise_affine=False),
    "LayerNorm(bias=False)": lambda: nn.LayerNorm(CHANNELS, bias=False),
    "RMSNorm": lambda: nn.RMSNorm(CHANNELS),
    **{name: lambda name=name: whitenorm.convert_(nn.BatchNorm2d(CHANNELS), name) for name in WHITENING_NAMES},
}


class Conversion(NamedTuple):
    """A norm in a model, and the target that it is converted to."""

    source: str
    target: str
    dtype: torch.dtype
    device: str
    is_trained: bool
    is_frozen: bool
    training: bool
    keep_eps: bool


def draw_conversion(seed):
    rng = random.Random(f"conversion {seed}")
    return Conversion(
        rng.choice(list(SOURCES)),
        rng.choice(TARGETS),
        rng.choice(list(TOLERANCE)),
        rng.choice(["cpu"] * 9 + ["meta"]),
        rng.random() < 0.6,
        rng.random() < 0.3,
        rng.random() < 0.5,
        rng.random() < 0.3,
    )


def make_model(case, seed):
    """Make a model of the norm and a linear layer, which determines the dtype of layers without tensors."""
    norm = SOURCES[case.source]()
    if case.is_trained:
        randomize_norms(norm, seed)
        for tensor in norm.parameters():
            if tensor.ndim == 1:
                values = torch.rand(tensor.shape, generator=torch.Generator().manual_seed(seed))
                tensor.data.copy_(values + 0.5)
    model = nn.ModuleDict({"linear": nn.Linear(2, 2), "norm": norm}).to(case.device, case.dtype).train(case.training)
    return model.requires_grad_(not case.is_frozen)


def make_input(case, seed):
    shape = (4, 6, CHANNELS) if "LayerNorm" in case.source or "RMSNorm" in case.source else (4, CHANNELS, 6, 5)
    if "1d" in case.source:
        shape = (4, CHANNELS, 12)
    elif "3d" in case.source:
        shape = (4, CHANNELS, 3, 2, 2)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(case.dtype)


def shows_training(case):
    """Return whether the norm is trained and has tensors that show it."""
    has_affine = "ffine=False" not in case.source and case.source != "InstanceNorm2d"
    return case.is_trained and (has_affine or "track_running_stats=True" in case.source)


def run_conversion(seed):
    """Run the conversion of a seed, and return a list of problems with the result."""
    case = draw_conversion(seed)
    model = make_model(case, seed)
    old = copy.deepcopy(model["norm"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            whitenorm.convert_(model, case.target, keep_eps=case.keep_eps)
        except ValueError as error:
            is_expected = case.source in REFUSED and "without a loss" in str(error)
            return [] if is_expected else [f"{error}"]
    text = "\n".join(str(warning.message) for warning in caught)
    if case.source in REFUSED:
        return [] if "nothing is converted" in text else ["was converted"]
    problems = list(_find_lost_state(case, old, model["norm"]))
    if case.device == "cpu":
        has_warned = "output in eval mode" in text
        problems += _find_wrong_outputs(case, old, model["norm"], make_input(case, seed), has_warned)
    return problems


def _find_lost_state(case, old, new):
    wide = compute_dtype(case.dtype)
    for name, parameter in new.named_parameters():
        if parameter.dtype != case.dtype:
            yield f"{name} of {parameter.dtype}"
        is_frozen = case.is_frozen or case.source == "FrozenBatchNorm2d"
        has_affine = getattr(old, "weight", None) is not None
        if has_affine and parameter.requires_grad == is_frozen:
            yield f"{name} with requires_grad={parameter.requires_grad}"
    for name, buffer in new.named_buffers():
        if buffer.is_floating_point() and buffer.dtype not in (case.dtype, wide):
            yield f"{name} of {buffer.dtype}"
    if any(tensor.device.type != case.device for tensor in (*new.parameters(), *new.buffers())):
        yield "another device"
    if any(module.training != case.training for module in new.modules()):
        yield "another mode"


def _find_wrong_outputs(case, old, new, x, has_warned):
    with torch.no_grad():
        expected, actual = (copy.deepcopy(norm).eval()(x).double() for norm in (old, new))
    y = copy.deepcopy(new).train()(x)
    if y.dtype != x.dtype or not y.isfinite().all() or not actual.isfinite().all():
        yield "not finite, or of another dtype"
    difference = (actual - expected).abs().max() / expected.abs().max()
    has_population = "BatchNorm" in case.source and "track_running_stats=False" not in case.source
    if has_population and case.target in OUTPUT_KEEPING:
        if difference > TOLERANCE[case.dtype]:
            yield f"eval output off by {difference:.2g}"
        if has_warned:
            yield "a warning where the output is kept"
    if shows_training(case) and difference > max(0.05, TOLERANCE[case.dtype]) and not has_warned:
        yield f"no warning where the output is off by {difference:.2g}"
    if not case.is_trained and has_warned:
        yield "a warning of a model that is not trained"
