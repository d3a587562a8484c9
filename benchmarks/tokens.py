"""Time transformers with LayerWhitening in place of LayerNorm, in training and inference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import timm
import torch
from torch import Tensor, nn

import whitenorm
from whitenorm.diagnostics import kernels_used
from whitenorm_lab.machine import describe_machine
from whitenorm_lab.timing import median_ratio, summarise, time_interleaved

# None is the layer's default, the divisor nearest √C; the others cost less.
GROUPS = (None, 8, 4)
BATCH, LENGTH = 8, 32


class Seq2Seq(nn.Module):
    """PyTorch's encoder-decoder in the size of GW's appendix: 6 layers each, 512 features, 4 heads."""

    def __init__(self, layers: int = 6, features: int = 512) -> None:
        super().__init__()
        self.net = nn.Transformer(features, 4, layers, layers, 2 * features, dropout=0.0, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.net(tokens, tokens)


def families(quick: bool) -> dict[str, tuple[Callable[[], nn.Module], Tensor]]:
    """Return constructors of nets and their inputs by name."""
    if quick:
        return {"translation, 1 layer": (lambda: Seq2Seq(1, 64), torch.randn(2, 8, 64))}
    return {
        "ViT-tiny": (lambda: timm.create_model("vit_tiny_patch16_224"), torch.randn(BATCH, 3, 224, 224)),
        "translation, 6 layers": (Seq2Seq, torch.randn(BATCH, LENGTH, 512)),
    }


def measure(name: str, make: Callable[[], nn.Module], x: Tensor, rounds: int) -> dict[str, Any]:
    """Both times with LayerNorm, and those with whitening of several numbers of groups as multiples of them."""
    models = {"LayerNorm": make(), **{_label(groups): _convert(make(), groups) for groups in GROUPS}}
    runs = {key: _build_step(model, x) for key, model in models.items()}
    steps = time_interleaved(runs, rounds, budget=60)
    inference = time_interleaved({key: _build_inference(model, x) for key, model in models.items()}, rounds, budget=15)
    rows = {
        key: {
            "step": median_ratio(steps[key], steps["LayerNorm"]),
            "inference": median_ratio(inference[key], inference["LayerNorm"]),
            "kernels": " and ".join(kernels_used(runs[key])),
            "step_ms": summarise(steps[key]).ms,
            "inference_ms": summarise(inference[key]).ms,
        }
        for key in models
    }
    return {"machine": describe_machine(), "name": name, "input": list(x.shape), "rows": rows}


def _label(groups: int | None) -> str:
    return "LayerWhitening" if groups is None else f"LayerWhitening, {groups} groups"


def _convert(model: nn.Module, groups: int | None) -> nn.Module:
    options = {} if groups is None else {"num_groups": groups}
    return whitenorm.convert_(model, "gw", **options)


def _build_step(model: nn.Module, x: Tensor) -> Callable[[], None]:
    def run() -> None:
        model.train()
        model.zero_grad()
        model(x).square().mean().backward()

    return run


def _build_inference(model: nn.Module, x: Tensor) -> Callable[[], None]:
    def run() -> None:
        model.eval()
        with torch.no_grad():
            model(x)

    return run
