"""A small folder of scenes with label maps, and a tiny net to train on it."""

import timm
import torch

import whitenorm
from lab.tests.helpers.image_sets import write_scenes

CLASSES = ("sky", "road", "traffic light")
NET = {"net": "timm:resnet18", "width": 4}
TINY = {**NET, "head": "fcn", "crop": 32, "batch_size": 4, "workers": 0, "quiet": True}


def write_folder(path, train, val):
    """Write images, label maps and ``classes.txt``, as ``folder:PATH`` expects them."""
    write_scenes(path, {"train": train, "val": val}, len(CLASSES))
    (path / "classes.txt").write_text("\n".join(CLASSES))
    return path


def list_sw_layers(model):
    return [name for name, module in model.named_modules() if isinstance(module, whitenorm.SwitchableWhitening)]


def write_weights(path, **changes):
    """Write weights with BatchNorm; ``changes`` replaces entries, or removes those that are None."""
    state = timm.create_model("resnet18", channels=(4, 8, 16, 32), num_classes=7).state_dict()
    state = {name: torch.randn_like(value) if value.is_floating_point() else value for name, value in state.items()}
    state |= {name: value for name, value in changes.items() if value is not None}
    torch.save({name: value for name, value in state.items() if name not in changes or changes[name] is not None}, path)
    return state
