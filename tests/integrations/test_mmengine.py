"""Whitening layers in mmengine's registry, built as by mmcv's ``build_norm_layer``."""

import inspect
import sys
import types

import pytest
import torch
from torch import nn

import whitenorm
from whitenorm.integrations import mmengine


class Registry:
    """The part of mmengine's registry that whitenorm uses, with the same errors."""

    def __init__(self):
        self.module_dict = {}

    def register_module(self, name=None, force=False, module=None):
        assert callable(module)
        if not force and name in self.module_dict:
            raise KeyError(f"{name} is already registered at {module.__module__}")
        self.module_dict[name] = module

    def build(self, config):
        options = {key: value for key, value in config.items() if key != "type"}
        return self.module_dict[config["type"]](**options)


def build_norm_layer(registry, config, num_features, postfix=""):
    """Build a layer from a ``norm_cfg`` as mmcv does."""
    options = dict(config)
    kind = registry.module_dict[options.pop("type")]
    assert inspect.isclass(kind)
    requires_grad = options.pop("requires_grad", True)
    options.setdefault("eps", 1e-5)
    layer = kind(num_features, **options)
    for parameter in layer.parameters():
        parameter.requires_grad = requires_grad
    return f"{kind._abbr_}{postfix}", layer


@pytest.fixture
def registry(monkeypatch):
    package, module = types.ModuleType("mmengine"), types.ModuleType("mmengine.registry")
    module.MODELS = Registry()
    monkeypatch.setitem(sys.modules, "mmengine", package)
    monkeypatch.setitem(sys.modules, "mmengine.registry", module)
    mmengine.register()
    return module.MODELS


CONFIGS = [
    ({"type": "BatchWhitening", "group_size": 4}, "bn1", whitenorm.BatchWhitening),
    ({"type": "IterNorm", "steps": 3}, "bn1", whitenorm.IterNorm),
    ({"type": "DecorrelatedBatchNorm", "eps": 1e-3}, "bn1", whitenorm.DecorrelatedBatchNorm),
    ({"type": "SwitchableWhitening"}, "bn1", whitenorm.SwitchableWhitening),
    ({"type": "InstanceWhitening", "group_size": 4}, "in1", whitenorm.InstanceWhitening),
    ({"type": "GroupWhitening", "num_groups": 4}, "gn1", whitenorm.GroupWhitening),
    ({"type": "LayerWhitening", "num_groups": 4}, "ln1", whitenorm.LayerWhitening),
]


@pytest.mark.parametrize(("config", "name", "kind"), CONFIGS, ids=[config["type"] for config, _, _ in CONFIGS])
def test_builds_every_layer_from_a_norm_cfg(registry, config, name, kind):
    actual_name, layer = build_norm_layer(registry, config, 16, 1)
    assert actual_name == name
    assert type(layer) is kind
    assert layer.eps == config.get("eps", 1e-5)
    assert layer.weight.shape == (16,)
    assert layer.weight.requires_grad
    _, frozen = build_norm_layer(registry, {**config, "requires_grad": False}, 16)
    assert not any(parameter.requires_grad for parameter in frozen.parameters())


def test_builds_from_arguments_by_name(registry):
    layer = registry.build({"type": "GroupWhitening", "num_groups": 4, "num_channels": 16})
    assert (layer.num_groups, layer.num_channels) == (4, 16)
    assert registry.build({"type": "IterNorm", "num_features": 16, "steps": 3}).solver.steps == 3


def test_a_batch_layer_loads_a_batch_norm(registry):
    name, layer = build_norm_layer(registry, {"type": "IterNorm"}, 16, 1)
    model = nn.Module()
    model.add_module(name, layer)
    norm = nn.BatchNorm2d(16)
    norm(torch.randn(8, 16, 4, 4) * 3 + 1)
    model.load_state_dict({f"bn1.{key}": value for key, value in norm.state_dict().items()})
    x = torch.randn(2, 16, 4, 4)
    torch.testing.assert_close(layer.eval()(x), norm.eval()(x))


def test_registering_twice_changes_nothing(registry):
    before = dict(registry.module_dict)
    mmengine.register()
    assert registry.module_dict == before


def test_another_class_with_the_same_name_raises_the_registrys_error(monkeypatch, registry):
    monkeypatch.setitem(registry.module_dict, "IterNorm", nn.BatchNorm2d)
    with pytest.raises(KeyError, match="IterNorm is already registered"):
        mmengine.register()


def test_a_missing_mmengine_raises_an_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "mmengine.registry", None)
    with pytest.raises(ImportError, match=r"expected mmengine .* run pip install mmengine"):
        mmengine.register()


def test_mmcv_builds_the_layers():
    pytest.importorskip("mmengine.registry")
    bricks = pytest.importorskip("mmcv.cnn")
    mmengine.register()
    for config, name, kind in CONFIGS:
        actual_name, layer = bricks.build_norm_layer(config, 16, postfix=1)
        assert (actual_name, type(layer)) == (name, kind)
    module = bricks.ConvModule(3, 16, 3, norm_cfg={"type": "IterNorm"})
    assert isinstance(module.bn, whitenorm.IterNorm)
    assert module(torch.randn(2, 3, 8, 8)).shape == (2, 16, 6, 6)
