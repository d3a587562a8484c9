"""Rates of GPUs, and the shares of them that kernels attain: the assumptions of the predictions."""

from __future__ import annotations

from typing import NamedTuple

# Shares of the data sheet's rates that a plain copy and large products attain. Small products attain less, which is
# not modelled.
BANDWIDTH_ATTAINED = 0.85
FP32_ATTAINED = 0.7
TF32_ATTAINED = 0.5
# Assumed seconds that the host takes to launch an operation of torch, with autograd's bookkeeping, and a Triton kernel,
# whose launcher is in Python. A slow or busy host takes more.
TORCH_LAUNCH = 5e-6
TRITON_LAUNCH = 15e-6
# A product in a Triton kernel is three products in TF32, which together have nearly float32's accuracy.
PRODUCTS_OF_TF32 = 3


class Card(NamedTuple):
    """Peak bytes per second, FLOPs per second in float32 and in dense TF32, number of multiprocessors, and source."""

    name: str
    bandwidth: float
    fp32: float
    tf32: float
    processors: int
    source: str


CARDS = {
    card.name: card
    for card in (
        Card("A100 80GB", 2.039e12, 19.5e12, 156e12, 108, "the maker's data sheet, SXM form"),
        Card("H100 SXM", 3.35e12, 67e12, 494.7e12, 132, "the maker's data sheet; TF32 without sparsity"),
        # Its clock depends on the laptop, from 1.2 to 2.2 GHz.
        Card("RTX 4070 Laptop", 256e9, 15.6e12, 15.6e12, 36, "the maker's data sheet: 4,608 cores, here at 1.7 GHz"),
    )
}
