"""Figures and tables of the papers that no experiment here reproduces, each with the reason."""

from __future__ import annotations

from typing import NamedTuple


class NotBuilt(NamedTuple):
    """A figure or table of a paper without an experiment."""

    paper: str
    where: str
    title: str
    why: str


_GPU = "needs a GPU: utilisation and absolute times have no equivalent ratio on a CPU"
_TOP5 = "the experiment on ImageNet judges top-1 errors only; the data set is not available here"

NOT_BUILT: tuple[NotBuilt, ...] = (
    NotBuilt("DBN", "table 3, top-5", "Top-5 errors of residual nets on ImageNet", _TOP5),
    NotBuilt(
        "DBN",
        "sec. 3.3",
        "Learnable scale and shift, and their merging into the translated ReLU",
        'the text gives no set-up and no numbers ("often marginally improve"); the scale alone is judged in dbn-resnet',
    ),
    NotBuilt(
        "DBN",
        "app. B, text",
        "Full whitening in 71 ms beside a convolution in 32 ms",
        "the same layer and convolution are timed in iternorm-cost, against the later figures of the same authors",
    ),
    NotBuilt("DBN", "app. B, text", "Utilisation of the GPU, 20 to 40 % with DBN and 95 % with BN", _GPU),
    NotBuilt(
        "IterNorm",
        "table 1, row DBN",
        "IterNorm against DBN in wide residual nets",
        "DBN's numbers come from its own paper, from other runs with another baseline; dbn-wrn repeats them",
    ),
    NotBuilt("IterNorm", "tables 2 and 3, top-5", "Top-5 errors of residual nets on ImageNet", _TOP5),
    NotBuilt("SW", "supplement, tables 1 and 2, GPU", "Times of ResNet-50 with BW and SW on a GPU", _GPU),
    NotBuilt("SW", "supplement, app. C, text", "Utilisation of the GPU, 20 to 40 % with SW and 100 % with BN", _GPU),
    NotBuilt(
        "GW",
        "sec. 5.1.1, text",
        "GW in the place of every norm of ResNet-50 against BN on ImageNet, 76.32 and 76.23 %",
        "gw-groups-imagenet has these nets with GW, compared with GN instead of BN",
    ),
    NotBuilt(
        "GW",
        "sec. 4.2, text",
        "Random labels with and without learnable scale and shift",
        'the text gives no numbers ("the same observations"); gw-capacity trains with both',
    ),
    NotBuilt(
        "GW",
        "table 1, whole training set",
        "Constraint numbers over all batches of a training set",
        "equal to those of one batch, which gw-constraints counts, times the number of batches; checked in the tests",
    ),
    NotBuilt(
        "GW",
        "table A3, ResNeXt-101",
        "Training step of ResNeXt-101 with GW and BW_Σ",
        "gw-cost has the three smaller nets of the table",
    ),
)
