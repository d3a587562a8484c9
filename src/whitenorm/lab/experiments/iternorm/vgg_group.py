"""IterNorm figure 7b: the group size on VGG over CIFAR-10.

Paper: groups of {512, 256, 64, 32, 1}; training and test hardly depend on it, unlike DBN's. The claim is judged as
training and test errors within 1 point of those of the largest groups; groups of 1 are BatchNorm. The default scale has
a net of a quarter of the width and groups of a quarter of the size, 5,000 images, 5,000 test images and 5 epochs.
Command: ``whitenorm reproduce iternorm-vgg-group --data ROOT``.
"""

from __future__ import annotations

from whitenorm.lab.experiments.shared.classification import entry, variants
from whitenorm.lab.reproduce.evidence import Evidence, alike, every
from whitenorm.lab.reproduce.experiment import Claim
from whitenorm.lab.reproduce.results import Results
from whitenorm.lab.tasks.classification.presets.iternorm import IternormVgg

_SIZES = (512, 256, 64, 32, 1)
_MARGIN = 1.0


def _not_sensitive(which: str) -> Claim:
    def judge(results: Results) -> Evidence:
        ends = {
            size: [curve[-1] for curve in results.values(which, variant=f"groups of {size}")] for size in _SIZES[:-1]
        }
        return every(*(alike(ends[size], ends[512], (f"groups of {size}", "of 512"), _MARGIN) for size in _SIZES[1:-1]))

    return Claim(
        f"The {which.replace('_', ' ')} does not depend on a group size of 32 and more",
        "a picture: not sensitive",
        judge,
    )


EXPERIMENT = entry(
    "iternorm-vgg-group",
    variants(IternormVgg(), {"": {}}, {f"groups of {size}": {"group_size": size} for size in _SIZES}),
    (_not_sensitive("train_error"), _not_sensitive("test_error")),
    reduced={"width": 16, "group_share": 0.25, "train_images": 5000, "test_images": 5000, "epochs": 5},
    smoke={"width": 4, "group_share": 0.0625, "train_images": 64, "test_images": 16, "epochs": 1, "batch_size": 32},
    paper="IterNorm",
    where="fig. 7b",
    title="Group size on VGG",
    cost="22 min",
    data=("cifar10",),
)
