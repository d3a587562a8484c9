"""IterNorm figure 7a: the number of Newton steps T, on VGG over CIFAR-10.

Paper: T of {0, 1, 3, 5, 7}; the smallest and the largest train worst, and T = 7 tests significantly worse.

Default scale: a net of 8 channels in its first layer, 20,000 images at 16² and 15 epochs. Seeds start at 20: an earlier
set-up had 5,000 images for 5 epochs.
Cost: 1.5 h of one core. Command: ``whitenorm-lab reproduce iternorm-vgg-T --data ROOT``.
"""

from __future__ import annotations

from whitenorm_lab.claims.experiment import Claim
from whitenorm_lab.papers.shared.classification import FEW, build_experiment, errors_below, lower_error, variants
from whitenorm_lab.tasks.classification.presets.iternorm import IternormVgg

_STEPS = (0, 1, 3, 5, 7)

EXPERIMENT = build_experiment(
    "iternorm-vgg-T",
    variants(IternormVgg(), {"": {}}, {f"T = {steps}": {"newton_steps": steps} for steps in _STEPS}),
    (
        Claim(
            "T = 0 and T = 7 have a higher train error than T = 1, 3 and 5",
            "the smallest and the largest are worse",
            errors_below([(f"T = {middle}", f"T = {end}") for end in (0, 7) for middle in (1, 3, 5)], "train_error"),
        ),
        lower_error("T = 5", "T = 7", "a picture: T = 7 tests significantly worse"),
    ),
    reduced={"width": 8, "resize": 16, "train_images": 20000, "epochs": 15, "test_every": 5},
    smoke={"width": 4, "resize": 16, **FEW},
    first_seed=20,
    paper="IterNorm",
    where="fig. 7a",
    title="Newton's steps T on VGG",
    cost="1.5 h of one core",
    data=("cifar10",),
)
