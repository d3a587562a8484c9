"""What the papers report and no entry here runs, with the reason: counted, as what is not looked at says nothing."""

from __future__ import annotations

from typing import NamedTuple


class NotBuilt(NamedTuple):
    """A figure or table of a paper without an entry."""

    paper: str
    where: str
    title: str
    why: str


_GPU = "needs a GPU: what a card is busy with, or a time on it as such, has no ratio on a CPU to stand for it"
_TOP5 = "the entry on ImageNet judges top-1 errors, and that alone; no set for it is here"

NOT_BUILT: tuple[NotBuilt, ...] = (
    NotBuilt("DBN", "table 3, top-5", "Top-5 errors of residual nets on ImageNet", _TOP5),
    NotBuilt(
        "DBN",
        "sec. 3.3",
        "Learnable scale and shift, and their merging into the translated ReLU",
        'the text has no set-up and no number ("often marginally improve"); the scale alone is judged in dbn-resnet',
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
        "DBN's numbers are taken over from its own paper, of other runs with another baseline; dbn-wrn runs them",
    ),
    NotBuilt("IterNorm", "tables 2 and 3, top-5", "Top-5 errors of residual nets on ImageNet", _TOP5),
    NotBuilt("SW", "supplement, tables 1 and 2, GPU", "Times of ResNet-50 with BW and SW on a GPU", _GPU),
    NotBuilt("SW", "supplement, app. C, text", "Utilisation of the GPU, 20 to 40 % with SW and 100 % with BN", _GPU),
    NotBuilt(
        "GW",
        "sec. 5.1.1, text",
        "GW in the place of every norm of ResNet-50 against BN on ImageNet, 76.32 and 76.23 %",
        "gw-groups-imagenet has these nets with GW, beside GN's and not BN's",
    ),
    NotBuilt(
        "GW",
        "sec. 4.2, text",
        "Random labels with and without learnable scale and shift",
        'the text has no number ("the same observations"); gw-capacity runs with both',
    ),
    NotBuilt(
        "GW",
        "table 1, whole training set",
        "Constraint numbers over all batches of a training set",
        "those of a batch, which gw-constraints counts, times the number of batches: arithmetic, and in the tests",
    ),
    NotBuilt(
        "GW",
        "table A3, ResNeXt-101",
        "Training step of ResNeXt-101 with GW and BW_Σ",
        "gw-cost has the three smaller nets of the table",
    ),
)
