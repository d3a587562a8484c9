"""Layers that must not be folded stay, with a warning that says why."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import whitenorm
from tests.helpers.models import count_layers, make_iternorm, make_pair, randomize_norms, randomize_whitening
from whitenorm import fold_
from whitenorm.models import BatchedIdentity, ChannelMap


def check_unfolded(model, match, x=None, **options):
    """Check that nothing is folded, that one warning says why, and that the outputs stay."""
    model = model.eval()
    x = torch.randn(2, 4, 5, 5) if x is None else x
    expected = model(x)
    with pytest.warns(UserWarning, match=match) as caught:
        fold_(model, **options)
    assert len(caught) == 1
    assert torch.equal(model(x), expected)


class Doubled(whitenorm.IterNorm):
    def forward(self, input, mask=None):
        return 2 * super().forward(input, mask)


class DoubledBatchNorm(nn.BatchNorm2d):
    def forward(self, input):
        return 2 * super().forward(input)


class DoubledCall(nn.BatchNorm2d):
    def __call__(self, input):
        return 2 * super().__call__(input)


class Double(nn.Module):
    def forward(self, weight):
        return 2 * weight


class TestNorms:
    """Norms whose map is unknown stay."""

    @pytest.mark.parametrize(
        "norm", [Doubled(8), DoubledBatchNorm(8), DoubledCall(8)], ids=lambda norm: type(norm).__name__
    )
    def test_with_another_forward(self, norm):
        check_unfolded(
            make_pair(randomize_norms(norm)), "1: stays, because it has a forward of its own", batch_norms=True
        )

    @pytest.mark.parametrize("norm", [whitenorm.IterNorm(8), nn.BatchNorm2d(8)], ids=lambda norm: type(norm).__name__)
    def test_with_a_replaced_forward(self, norm):
        model = make_pair(randomize_norms(norm)).eval()
        plain = norm.forward
        norm.forward = lambda x: 2 * plain(x)
        check_unfolded(model, "1: stays, because it has a forward of its own", batch_norms=True)

    @pytest.mark.parametrize("norm", [whitenorm.IterNorm(8), nn.BatchNorm2d(8)], ids=lambda norm: type(norm).__name__)
    def test_parametrized(self, norm):
        parametrize.register_parametrization(norm, "weight", Double())
        check_unfolded(make_pair(norm), "1: stays, because it is parametrized", batch_norms=True)

    @pytest.mark.parametrize(
        "register",
        [
            lambda norm: norm.register_forward_hook(lambda module, inputs, output: None),
            lambda norm: norm.register_forward_pre_hook(lambda module, inputs: None),
            lambda norm: norm.register_full_backward_hook(lambda module, grads, outputs: None),
            lambda norm: norm.register_full_backward_pre_hook(lambda module, grads: None),
        ],
    )
    def test_with_hooks(self, register):
        model = make_pair()
        register(model[1])
        check_unfolded(model, "1: stays, because it has hooks", torch.randn(2, 4, 5, 5, requires_grad=True))

    def test_batch_norms_without_statistics(self):
        model = make_pair(nn.BatchNorm2d(8, track_running_stats=False))
        check_unfolded(model, "it keeps no population statistics", batch_norms=True)

    def test_subclasses_without_changes_are_folded(self):
        class Named(whitenorm.IterNorm):
            pass

        assert count_layers(fold_(make_pair(randomize_whitening(Named(8))).eval())) == 0


class Uses(nn.Module):
    """A convolution and a norm, used by a function."""

    def __init__(self, use):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 8, 1), make_iternorm(8)
        self.use = use

    def forward(self, x):
        return self.use(self, x)


class TestUses:
    """Layers that the model uses in other ways than to call them with their input."""

    @pytest.mark.parametrize(
        ("use", "reason"),
        [
            (lambda m, x: m.norm(m.conv(x)) * m.norm.weight.mean(), "reads its weight"),
            (lambda m, x: m.norm(m.conv(x)) * m.norm.eps, "reads its eps"),
            (lambda m, x: m.norm(m.conv(x)) * m.norm.num_features, "reads its num_features"),
            (lambda m, x: m.norm(m.conv(x)) * len(list(m.norm.parameters())), "reads its named_parameters, parameters"),
            (lambda m, x: m.norm(m.conv(x), mask=None), "more than its input"),
            (lambda m, x: m.norm(m.conv(x), None), "more than its input"),
            (lambda m, x: m.norm.forward(m.conv(x)), "Uses cannot be traced"),
        ],
    )
    def test_uses_of_the_norm(self, use, reason):
        check_unfolded(Uses(use), f"norm: stays, because .*{reason}")

    @pytest.mark.parametrize(
        ("use", "reason"),
        [
            (lambda m, x: m.norm(m.conv(x)).to(m.conv.weight.dtype), "reads the weight of"),
            (lambda m, x: m.norm(m.conv(x)) * m.conv.weight.shape[0], "reads the weight of"),
            (lambda m, x: m.norm(m.conv(x)) * (1 if m.conv.bias is None else 2), "reads the bias of"),
        ],
    )
    def test_uses_of_the_convolution(self, use, reason):
        model = Uses(use).eval()
        x = torch.randn(2, 4, 5, 5)
        expected = model(x)
        with pytest.warns(UserWarning, match=f"norm: is a 1×1 convolution of its own now, because .*{reason}"):
            fold_(model, x)
        assert torch.allclose(model(x), expected, atol=1e-5)

    def test_reading_unchanged_attributes_is_no_obstacle(self):
        model = Uses(lambda m, x: m.norm(m.conv(x)) / m.conv.out_channels + m.conv.stride[0]).eval()
        assert isinstance(fold_(model, torch.randn(2, 4, 5, 5)).norm, BatchedIdentity)


class Keeps(nn.Module):
    """A model that keeps the output of the convolution after the forward."""

    def __init__(self, keep):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 8, 1), make_iternorm(8)
        self.seen, self.keep = [], keep

    def forward(self, x):
        y = self.conv(x)
        self.keep(self, y)
        return self.norm(y)


SEEN = []


class TestKeptOutputs:
    @pytest.mark.parametrize(
        "keep",
        [
            lambda model, y: setattr(model, "last", y),
            lambda model, y: model.seen.append(y),
            lambda model, y: model.seen.append({"y": (1, [y])}),
            lambda model, y: SEEN.append(y),
            lambda model, y: setattr(model.conv, "last", y),
            lambda model, y: setattr(model, "shape", y.shape),
        ],
    )
    def test_the_norm_is_not_merged(self, keep):
        model = Keeps(keep).eval()
        x = torch.randn(2, 4, 5, 5)
        expected = model(x)
        with pytest.warns(UserWarning, match="norm: .*the model keeps the output of the layer before it"):
            fold_(model)
        assert torch.allclose(model(x), expected, atol=1e-5)
        SEEN.clear()

    def test_a_kept_output_of_the_norm_is_no_obstacle(self):
        model = nn.Sequential(make_pair(), nn.ReLU()).eval()
        seen = []
        model[0].register_forward_hook(lambda module, inputs, output: seen.append(output))
        assert count_layers(fold_(model)) == 0

    def test_kept_results_with_gradients_are_no_obstacle(self):
        class KeepsOutput(nn.Module):
            def __init__(self):
                super().__init__()
                self.body, self.last = make_pair(), None

            def forward(self, x):
                self.last = [self.body(x)]
                return self.last[0]

        model = KeepsOutput().eval()
        x = torch.randn(2, 4, 5, 5)
        expected = model(x)
        assert isinstance(fold_(model, x).body[1], BatchedIdentity)
        assert torch.allclose(model(x), expected, atol=1e-5)


class TestShapesAndDtypes:
    def test_unbatched_inputs_are_an_error(self):
        """Before folding, the second dimension is whitened, which is the height here."""
        model = make_pair().eval()
        x = torch.randn(4, 8, 5)
        assert model(x).shape == (8, 8, 5)
        fold_(model)
        with pytest.raises(ValueError, match=r"expected 4D input \(N, C, H, W\) \(got 3D input of shape \[8, 8, 5\]\)"):
            model(x)

    def test_unbatched_inputs_of_a_map_are_an_error(self):
        model = nn.Sequential(nn.MaxPool2d(1), make_iternorm(8, 4)).eval()
        fold_(model)
        with pytest.raises(ValueError, match="expected 4D input"):
            model(torch.randn(8, 8, 5))

    @pytest.mark.parametrize("producer", [nn.Conv2d(4, 8, 1), nn.MaxPool2d(1), nn.Identity()])
    def test_a_half_layer_before_a_wider_norm(self, producer):
        channels = 8 if isinstance(producer, nn.Conv2d) else 4
        model = nn.Sequential(nn.Conv2d(4, 4, 1), producer, make_iternorm(channels, 4)).eval()
        model[:2].bfloat16()
        x = torch.randn(2, 4, 5, 5).bfloat16()
        expected = model(x)
        if channels == 8:
            with pytest.warns(
                UserWarning, match=r"before it is torch\.bfloat16, but its own parameters are torch\.float32"
            ):
                fold_(model)
        else:
            fold_(model)
        assert isinstance(model[2], ChannelMap)
        assert model(x).dtype == expected.dtype
        # One rounding to bfloat16 at either end.
        assert torch.allclose(model(x).float(), expected.float(), rtol=0.02, atol=0.02)

    def test_a_wide_layer_before_a_half_norm(self):
        """The norm's map has the dtype of its statistics, float32."""
        model = nn.Sequential(nn.Conv2d(4, 8, 1), make_iternorm(8).bfloat16()).eval()
        x = torch.randn(2, 4, 5, 5)
        expected = model(x)
        with pytest.warns(UserWarning, match=r"is torch\.float32, but its own parameters are torch\.bfloat16"):
            fold_(model)
        assert torch.allclose(model(x), expected, atol=1e-5)

    def test_a_folded_model_can_be_traced_and_exported(self):
        model = fold_(make_pair().eval())
        x = torch.randn(2, 4, 5, 5)
        assert torch.equal(torch.fx.symbolic_trace(model)(x), model(x))
        assert torch.equal(torch.export.export(model, (x,)).module()(x), model(x))

    # TorchScript is deprecated.
    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    def test_a_folded_model_can_be_scripted(self):
        model = nn.Sequential(*make_pair(), nn.ReLU(), make_iternorm(8), nn.Flatten()).eval()
        x = torch.randn(2, 4, 5, 5)
        assert torch.equal(torch.jit.script(fold_(model))(x), model(x))


class TestWarning:
    def test_lists_some_names_by_reason(self):
        parts = [part for _ in range(11) for part in (nn.Conv2d(4, 4, 1, groups=4), make_iternorm(4))]
        watched = nn.Sequential(*parts, nn.Conv2d(4, 4, 1), make_iternorm(4)).eval()
        watched[1].register_forward_hook(lambda module, inputs, output: None)
        with pytest.warns(UserWarning, match="the others") as caught:
            fold_(watched)
        assert str(caught[0].message) == (
            "1 of 12 layers are merged; the others:\n"
            "  1: stays, because it has hooks\n"
            "  3, 5, 7, 9, 11, 13, 15, 17 and 2 more: is a 1×1 convolution of its own now, because the groups of the "
            "convolution before it do not hold its own; dense=True joins them"
        )

    def test_is_absent_if_all_is_as_requested(self):
        fold_(nn.Sequential(make_pair(), nn.AvgPool2d(2), make_iternorm(8)).eval())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_faster_rcnn_is_folded_inside():
    detection = pytest.importorskip("torchvision").models.detection
    torch.manual_seed(0)
    model = detection.fasterrcnn_resnet50_fpn(
        weights=None, weights_backbone=None, num_classes=5, min_size=96, max_size=128, box_score_thresh=0.0
    )
    model = whitenorm.convert_(randomize_norms(model), "iternorm", group_size=16).eval().double()
    images = [torch.rand(3, 96, 96, dtype=torch.float64), torch.rand(3, 80, 100, dtype=torch.float64)]
    expected = model(images)
    layers = count_layers(model)
    fold_(model, images)
    assert count_layers(model) == 0
    assert count_layers(model, BatchedIdentity) == layers == 53
    for actual, wanted in zip(model(images), expected, strict=True):
        assert len(wanted["boxes"])
        for name in wanted:
            torch.testing.assert_close(actual[name], wanted[name], rtol=1e-6, atol=1e-6)
