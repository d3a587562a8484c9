"""Assumptions of the predictions: peak rates of GPUs, and the fractions that kernels attain."""

from __future__ import annotations

from typing import NamedTuple

# Fractions of the data sheet's figures: bandwidth of a plain copy, and rates of large products. Small products attain
# less, which is not modelled.
BANDWIDTH_ATTAINED = 0.85
FP32_ATTAINED = 0.7
TF32_ATTAINED = 0.5
# Shortest time of a kernel on a GPU.
KERNEL = 3e-6
# Seconds of the host: per PyTorch operation, including autograd; per Triton kernel, and beside them per step of a layer
# with Triton kernels. The latter two are a line through times measured by benchmarks/roofline/host.py, with 4 µs per
# launch for the driver, which is not called there. A slow or busy host takes longer.
TORCH_LAUNCH = 5e-6
TRITON_LAUNCH = 26e-6
TRITON_LAYER = 72e-6
# Each product in a Triton kernel is three TF32 products, which together are nearly as accurate as float32.
PRODUCTS_OF_TF32 = 3


class Card(NamedTuple):
    """Peak bytes per second and FLOPs per second (float32, dense TF32), multiprocessors, bytes of the cache, source."""

    name: str
    bandwidth: float
    fp32: float
    tf32: float
    processors: int
    cache: int
    source: str


CARDS = {
    card.name: card
    for card in (
        Card("A100 80GB", 2.039e12, 19.5e12, 156e12, 108, 40 * 2**20, "manufacturer's data sheet, SXM form"),
        Card("H100 SXM", 3.35e12, 67e12, 494.7e12, 132, 50 * 2**20, "manufacturer's data sheet; TF32 without sparsity"),
        # Its clock depends on the laptop, from 1.2 to 2.2 GHz.
        Card(
            "RTX 4070 Laptop",
            256e9,
            15.6e12,
            15.6e12,
            36,
            32 * 2**20,
            "manufacturer's data sheet: 4,608 cores, here at 1.7 GHz",
        ),
    )
}
