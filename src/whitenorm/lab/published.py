"""The papers' own figures of time and cost, as printed, to stand beside what is measured here.

They come from other machines, most of them GPUs: only ratios can be compared.
"""

from __future__ import annotations


def _percent(times: dict[str, float], base: float) -> dict[str, float]:
    return {name: 100 * (time / base - 1) for name, time in times.items()}


# Additional time of a training step over BatchNorm.
STEP_PERCENT = {
    # GW, tables A2 and (BW_Σ) A3: ms, ResNet-50, V100.
    **_percent(
        {
            "GW S1": 437,
            "GW S1-B1": 518,
            "GW S1-B2": 514,
            "GW S1-B3": 634,
            "GW S1-B12": 589,
            "BW_Σ S1-B2": 550,
        },
        419,
    ),
    # SW, supplement, table 1: seconds, ResNet-50 at 224², CPU.
    **_percent({"BW 7 layers": 0.793, "SW^a 7 layers": 0.802, "SW^b 7 layers": 0.817}, 0.720),
    # DBN, table B.1: seconds an epoch, VGG-A on CIFAR, GPU.
    **_percent({"DBN-G8": 707.47, "DBN-G16": 466.92, "DBN-G64": 297.25, "DBN-G256": 440.88, "DBN-G512": 1004}, 163.68),
}

# The same of inference.
INFERENCE_PERCENT = {
    **_percent({"BW 7 layers": 0.259, "SW^a 7 layers": 0.262, "SW^b 7 layers": 0.268}, 0.210),
    **_percent({"DBN-G8": 15.50, "DBN-G16": 14.41, "DBN-G64": 13.70, "DBN-G256": 13.64, "DBN-G512": 13.68}, 11.47),
}

# A training step at 713², batch 1: SW, supplement, table 2, seconds, CPU.
STEP_PERCENT_713 = _percent(
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

# FLOPs of inference at 224², in billions: SW, supplement, table 1.
GFLOPS = {"BatchNorm": 4.143, "BW 7 layers": 4.185, "SW^a 7 layers": 4.185, "SW^b 7 layers": 4.188}

# Forward and backward, N = 64 at 32², against the 'cudnn' convolution: IterNorm, supplement, table 1, ms, GPU.
TO_CONVOLUTION = {
    ("IterNorm", 64): 7.40 / 5.65,
    ("IterNorm", 128): 13.92 / 13.62,
    ("DBN", 64): 15.92 / 5.65,
    ("DBN", 128): 35.02 / 13.62,
}
