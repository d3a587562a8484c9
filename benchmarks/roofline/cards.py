"""Assumptions of the predictions: peak rates of GPUs, and the fractions that kernels attain."""

from __future__ import annotations

from typing import NamedTuple

# Fractions of the data sheet's figures: bandwidth of a plain copy, and rates of large products. Small products attain
# less, which is not modelled.
BANDWIDTH_ATTAINED = 0.85
FP32_ATTAINED = 0.7
TF32_ATTAINED = 0.5
# Assumed seconds per launch: PyTorch operations including autograd, and Triton kernels, whose launcher is in Python. A
# slow or busy host takes longer.
TORCH_LAUNCH = 5e-6
TRITON_LAUNCH = 15e-6
# Each product in a Triton kernel is three TF32 products, which together are nearly as accurate as float32.
PRODUCTS_OF_TF32 = 3


class Card(NamedTuple):
    """Peak bytes per second and FLOPs per second (float32, dense TF32), number of multiprocessors, and source."""

    name: str
    bandwidth: float
    fp32: float
    tf32: float
    processors: int
    source: str


CARDS = {
    card.name: card
    for card in (
        Card("A100 80GB", 2.039e12, 19.5e12, 156e12, 108, "manufacturer's data sheet, SXM form"),
        Card("H100 SXM", 3.35e12, 67e12, 494.7e12, 132, "manufacturer's data sheet; TF32 without sparsity"),
        # Its clock depends on the laptop, from 1.2 to 2.2 GHz.
        Card("RTX 4070 Laptop", 256e9, 15.6e12, 15.6e12, 36, "manufacturer's data sheet: 4,608 cores, here at 1.7 GHz"),
    )
}
