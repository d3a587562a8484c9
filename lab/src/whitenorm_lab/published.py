"""Times and costs printed in the papers, to compare measurements with.

They are from other machines, most of them GPUs, so only ratios can be compared.
"""

from __future__ import annotations


def _compute_percent(time: float, base: float) -> float:
    return 100 * (time / base - 1)


def _compute_percents(times: dict[str, float], base: float) -> dict[str, float]:
    return {name: _compute_percent(time, base) for name, time in times.items()}


# Time added to a training step, in percent of BatchNorm's.
STEP_PERCENT = {
    # GW, tables A2 and A3 (BW_Σ), and the text before them (full): ms, ResNet-50, V100.
    **_compute_percents(
        {
            "GW S1": 437,
            "GW S1-B1": 518,
            "GW S1-B2": 514,
            "GW S1-B3": 634,
            "GW S1-B12": 589,
            "BW_Σ S1-B2": 550,
            "GW full": 796,
        },
        419,
    ),
    # SW, supplement, table 1: seconds, ResNet-50 at 224², CPU.
    **_compute_percents({"BW 7 layers": 0.793, "SW^a 7 layers": 0.802, "SW^b 7 layers": 0.817}, 0.720),
    # DBN, table B.1: seconds per epoch, VGG-A on CIFAR, GPU.
    **_compute_percents(
        {"DBN-G8": 707.47, "DBN-G16": 466.92, "DBN-G64": 297.25, "DBN-G256": 440.88, "DBN-G512": 1004}, 163.68
    ),
}

# Time added to inference, in percent of BatchNorm's.
INFERENCE_PERCENT = {
    **_compute_percents({"BW 7 layers": 0.259, "SW^a 7 layers": 0.262, "SW^b 7 layers": 0.268}, 0.210),
    **_compute_percents(
        {"DBN-G8": 15.50, "DBN-G16": 14.41, "DBN-G64": 13.70, "DBN-G256": 13.64, "DBN-G512": 13.68}, 11.47
    ),
}

# The same at 713², batch 1: SW, supplement, table 2, seconds, CPU.
STEP_PERCENT_713 = _compute_percents(
    {
        "BW 7 layers": 17.72,
        "SW^a 7 layers": 17.89,
        "SW^b 7 layers": 18.48,
        "BW 14 layers": 18.26,
        "SW^a 14 layers": 18.49,
        "SW^b 14 layers": 18.90,
    },
    17.61,
)

INFERENCE_PERCENT_713 = _compute_percents(
    {
        "BW 7 layers": 8.42,
        "SW^a 7 layers": 8.52,
        "SW^b 7 layers": 8.70,
        "BW 14 layers": 8.52,
        "SW^a 14 layers": 8.80,
        "SW^b 14 layers": 8.88,
    },
    8.29,
)

# Percent that one DBN adds to training and inference of a residual net. DBN, table B.2, seconds per epoch on CIFAR, and
# table B.4, seconds per iteration on ImageNet, one GPU.
DBN_L1_PERCENT = {
    "resnet20": (_compute_percent(42.87, 25.97), _compute_percent(2.44, 1.94)),
    "resnet32": (_compute_percent(57.47, 40.36), _compute_percent(3.33, 2.80)),
    "resnet44": (_compute_percent(72.06, 55.03), _compute_percent(4.36, 3.65)),
    "resnet56": (_compute_percent(86.80, 69.53), _compute_percent(5.12, 4.57)),
    "wrn-28-10": (_compute_percent(457, 440), _compute_percent(38.10, 36.56)),
    "wrn-40-10": (_compute_percent(659.55, 643.94), _compute_percent(26.08, 25.69)),
    "resnet18": (_compute_percent(0.31, 0.20), _compute_percent(0.09, 0.07)),
    "resnet34": (_compute_percent(0.45, 0.34), _compute_percent(0.14, 0.12)),
    "resnet50": (_compute_percent(0.80, 0.69), _compute_percent(0.22, 0.19)),
    "resnet101": (_compute_percent(1.35, 1.24), _compute_percent(0.37, 0.35)),
}

# The same for ImageNet's nets on several GPUs: DBN, table B.3, seconds per iteration.
DBN_L1_PARALLEL_PERCENT = {
    "resnet18": (_compute_percent(1.45, 0.81), _compute_percent(0.51, 0.40)),
    "resnet34": (_compute_percent(2.04, 1.21), _compute_percent(0.71, 0.55)),
    "resnet50": (_compute_percent(1.12, 0.51), _compute_percent(0.25, 0.19)),
    "resnet101": (_compute_percent(4.21, 1.52), _compute_percent(0.57, 0.42)),
}

# Percent that GW and BW_Σ at S1-B2 add to a training step of larger nets: GW, table A3, ms, V100.
S1_B2_PERCENT = {
    "resnet101": {"GW S1-B2": _compute_percent(810, 672), "BW_Σ S1-B2": _compute_percent(882, 672)},
    "resnext50_32x4d": {"GW S1-B2": _compute_percent(738, 574), "BW_Σ S1-B2": _compute_percent(798, 574)},
}

# FLOPs of inference at 224², in billions: SW, supplement, table 1.
GFLOPS = {"BatchNorm": 4.143, "BW 7 layers": 4.185, "SW^a 7 layers": 4.185, "SW^b 7 layers": 4.188}

# The same for a segmentation net at 713²: table 2.
GFLOPS_713 = {
    "BatchNorm": 274.73,
    "BW 7 layers": 275.30,
    "SW^a 7 layers": 275.30,
    "SW^b 7 layers": 275.34,
    "BW 14 layers": 275.68,
    "SW^a 14 layers": 275.68,
    "SW^b 14 layers": 275.75,
}

# Forward and backward of a layer, N = 64 at 32², by width, as a ratio to the 'cudnn' convolution: IterNorm, supplement,
# table 1, ms, GPU.
TO_CONVOLUTION = {
    (name, width): time / convolution
    for width, convolution, times in (
        (64, 5.65, {"DBN": 15.92, "IterNorm T=3": 6.59, "IterNorm": 7.40, "IterNorm T=7": 8.21}),
        (128, 13.62, {"DBN": 35.02, "IterNorm T=3": 13.32, "IterNorm": 13.92, "IterNorm T=7": 14.68}),
    )
    for name, time in times.items()
}
# A training step of VGG with IterNorm, batch 256, as a ratio to DBN: the text above that table, seconds.
VGG_TO_DBN = 0.343 / 1.366
