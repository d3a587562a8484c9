"""GW figure 6: errors of ResNet-50 on ImageNet by the number of groups of GW and GN, used for all norms.

Paper: g of {8, 16, 32, 64, 128}, or all channels where there are fewer. GW has lower training and validation errors
than GN at every g, and both have higher training errors at 128. Default scale: g of {8, 32} at 64² on a folder of
images of your own, for 5 epochs.

Cost: hours, depending on the number of images. Command: ``whitenorm-lab reproduce gw-groups-imagenet --data ROOT``,
with ROOT/imagenet/train and val.
"""

from __future__ import annotations

from whitenorm_lab.papers.gw.imagenet import SMOKE
from whitenorm_lab.papers.shared.classification import build_experiment, lower_error, variants
from whitenorm_lab.tasks.classification.presets.gw import GwImagenet

_GROUPS = (8, 16, 32, 64, 128)

EXPERIMENT = build_experiment(
    "gw-groups-imagenet",
    variants(
        GwImagenet(),
        {f"g = {groups}": {"num_groups": groups, "where": "all"} for groups in _GROUPS},
        {"GN": {"norm": "gn"}, "GW": {}},
    ),
    (
        *(
            lower_error(f"GW, g = {groups}", f"GN, g = {groups}", "a picture: GW better", which)
            for groups in _GROUPS
            for which in ("train_error", "test_error")
        ),
        *(
            lower_error(f"{norm}, g = 64", f"{norm}, g = 128", "a picture: significantly reduced at 128", "train_error")
            for norm in ("GN", "GW")
        ),
    ),
    reduced={"cases": ["g = 8", "g = 32"], "image_size": 64, "epochs": 5},
    smoke={"cases": ["g = 8"], **SMOKE},
    paper="GW",
    where="fig. 6",
    title="Number of groups on ImageNet",
    cost="hours, by the number of images",
    data=("imagenet",),
)
