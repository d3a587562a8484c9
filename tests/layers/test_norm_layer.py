"""Layers as `norm_layer=` of other libraries' networks, and the group sizes that follow from their widths."""

import functools
import pickle
import warnings

import pytest
import torch
from torch import nn

import whitenorm
from tests.helpers.sampling import mark_slow
from whitenorm.ops.check import Wish, fit_group_size

LAYERS = {
    "iternorm": whitenorm.IterNorm,
    "dbn": whitenorm.DecorrelatedBatchNorm,
    "bw": whitenorm.BatchWhitening,
    "sw": whitenorm.SwitchableWhitening,
    "gw": lambda width: whitenorm.GroupWhitening(4, width),
    "gw-partial": functools.partial(whitenorm.GroupWhitening, 2),
}
NETS = [
    "mobilenet_v2",
    "mobilenet_v3_small",
    "efficientnet_b0",
    "regnet_y_400mf",
    "resnet18",
]


class TestDefaultGroupSize:
    @pytest.mark.parametrize(
        ("make", "width", "expected"),
        [
            (whitenorm.IterNorm, 64, 64),
            (whitenorm.IterNorm, 96, 48),
            (whitenorm.IterNorm, 72, 36),
            (whitenorm.IterNorm, 32, 32),
            (whitenorm.IterNorm, 1, 1),
            (whitenorm.DecorrelatedBatchNorm, 24, 12),
            (whitenorm.DecorrelatedBatchNorm, 67 * 4, 4),
            (whitenorm.SwitchableWhitening, 40, 10),
        ],
    )
    def test_is_the_largest_divisor_up_to_it(self, make, width, expected):
        layer = make(width)
        assert layer.group_size == expected
        assert type(layer.group_size) is int

    @pytest.mark.parametrize(
        ("make", "width", "size"),
        [
            (whitenorm.IterNorm, 67, 1),
            (whitenorm.IterNorm, 134, 2),
            (whitenorm.IterNorm, 15 * 67, 15),
            (whitenorm.DecorrelatedBatchNorm, 17, 1),
            (whitenorm.DecorrelatedBatchNorm, 67 * 3, 3),
            (whitenorm.SwitchableWhitening, 34, 2),
        ],
    )
    def test_warns_where_little_is_left_of_it(self, make, width, size):
        with pytest.warns(UserWarning, match=f"{width} channels, so group_size={size} is used.*pass group") as seen:
            assert make(width).group_size == size
        assert [warning.filename for warning in seen] == [__file__]
        assert ("without whitening" in str(seen[0].message)) == (size == 1)

    @pytest.mark.parametrize(
        ("make", "default"),
        [(whitenorm.IterNorm, 64), (whitenorm.DecorrelatedBatchNorm, 16), (whitenorm.SwitchableWhitening, 16)],
    )
    def test_a_given_one_must_divide_even_if_it_is_the_default(self, make, default):
        with pytest.raises(ValueError, match=rf"divide the 72 channels \(got {default}\); choose one of \[1, 2, 3, 4"):
            make(72, default)
        with pytest.raises(ValueError, match=rf"divide the 72 channels \(got {default}\)"):
            make(72, group_size=default)
        assert make(8, default).group_size == 8

    def test_of_the_function(self):
        equal = torch.zeros(2)
        x = torch.randn(4, 24, 5, 5)
        expected = whitenorm.functional.switchable_whitening(x, equal, equal, training=True, group_size=12)
        assert torch.equal(whitenorm.functional.switchable_whitening(x, equal, equal, training=True), expected)
        with pytest.raises(ValueError, match=r"divide the 24 channels \(got 16\)"):
            whitenorm.functional.switchable_whitening(x, equal, equal, training=True, group_size=16)
        with pytest.warns(UserWarning, match="group_size=1 is used, which is BatchNorm's scaling"):
            whitenorm.functional.switchable_whitening(torch.randn(4, 17, 5, 5), equal, equal, training=True)

    @pytest.mark.parametrize("width", [32, 24, 17])
    def test_compiles(self, width):
        def function(x):
            return whitenorm.functional.switchable_whitening(x, torch.zeros(2), torch.zeros(2), training=True)

        torch._dynamo.reset()
        x = torch.randn(4, width, 3, 3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = function(x)
        compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="eager")
        torch.testing.assert_close(compiled(x), expected)

    def test_shows_and_pickles_as_its_number(self):
        assert repr(Wish(64)) == "64"
        assert "64" in repr(functools.partial(whitenorm.IterNorm, group_size=Wish(64)))
        assert fit_group_size(96, pickle.loads(pickle.dumps(Wish(64)))) == 48


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("name", mark_slow(NETS, sample=["mobilenet_v3_small", "resnet18"]))
def test_a_network_of_torchvision_trains_a_step(name, layer):
    """With eps and momentum passed by the network itself, as EfficientNet and MobileNetV3 do."""
    models = pytest.importorskip("torchvision").models
    torch.manual_seed(0)
    options = {} if layer.startswith("gw") else {"eps": 1e-3, "momentum": 0.01}
    model = getattr(models, name)(weights=None, num_classes=4, norm_layer=functools.partial(LAYERS[layer], **options))
    layers = [module for module in model.modules() if isinstance(module, whitenorm.layers.base.Whitening)]
    assert len(layers) > 10
    assert all(module.eps == options.get("eps", 1e-5) for module in layers)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    x = torch.randn(4, 3, 64, 64)
    loss = nn.functional.cross_entropy(model(x), torch.arange(4))
    loss.backward()
    optimizer.step()
    assert loss.isfinite()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    assert model.eval()(x).isfinite().all()
