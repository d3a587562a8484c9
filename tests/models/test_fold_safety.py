"""What must not be folded is left, and said; and an example shows what was folded wrongly."""

import copy
import dataclasses

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import whitenorm
from tests.helpers.models import randomize_norms
from tests.models.test_fold import left, ready
from whitenorm import fold_
from whitenorm.models.modules import BatchedIdentity, ChannelMap


def pair(norm=None, channels=8):
    """A convolution and a norm."""
    return nn.Sequential(nn.Conv2d(4, channels, 1), ready(whitenorm.IterNorm(channels)) if norm is None else norm)


def stays(model, match, x=None, **options):
    """Nothing is folded, one warning says why, and the outputs are what they were."""
    model = model.eval()
    x = torch.randn(2, 4, 5, 5) if x is None else x
    expected = model(x)
    with pytest.warns(UserWarning, match=match) as caught:
        fold_(model, **options)
    assert len(caught) == 1
    assert torch.equal(model(x), expected)
    return str(caught[0].message)


class Doubled(whitenorm.IterNorm):
    def forward(self, input, mask=None):
        return 2 * super().forward(input, mask)


class DoubledBatchNorm(nn.BatchNorm2d):
    def forward(self, input):
        return 2 * super().forward(input)


class Called(nn.BatchNorm2d):
    def __call__(self, input):
        return 2 * super().__call__(input)


class Twice(nn.Module):
    def forward(self, weight):
        return 2 * weight


class TestNorms:
    """Only norms whose map is known are folded."""

    @pytest.mark.parametrize("norm", [Doubled(8), DoubledBatchNorm(8), Called(8)], ids=lambda norm: type(norm).__name__)
    def test_with_a_forward_of_their_own(self, norm):
        stays(pair(randomize_norms(norm)), "1: stays, because it has a forward of its own", batch_norms=True)

    @pytest.mark.parametrize("norm", [whitenorm.IterNorm(8), nn.BatchNorm2d(8)], ids=lambda norm: type(norm).__name__)
    def test_with_a_forward_of_the_instance(self, norm):
        model = pair(randomize_norms(norm)).eval()
        plain = norm.forward
        norm.forward = lambda x: 2 * plain(x)
        stays(model, "1: stays, because it has a forward of its own", batch_norms=True)

    @pytest.mark.parametrize("norm", [whitenorm.IterNorm(8), nn.BatchNorm2d(8)], ids=lambda norm: type(norm).__name__)
    def test_parametrized(self, norm):
        parametrize.register_parametrization(norm, "weight", Twice())
        stays(pair(norm), "1: stays, because it is parametrized", batch_norms=True)

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
        model = pair()
        register(model[1])
        stays(model, "1: stays, because it has hooks", torch.randn(2, 4, 5, 5, requires_grad=True))

    def test_batch_norms_without_statistics(self):
        model = pair(nn.BatchNorm2d(8, track_running_stats=False))
        stays(model, "it keeps no population statistics", batch_norms=True)

    def test_subclasses_that_change_nothing_are_folded(self):
        class Named(whitenorm.IterNorm):
            pass

        assert left(fold_(pair(ready(Named(8))).eval())) == 0


class Uses(nn.Module):
    """A convolution and a norm, and what is done with them."""

    def __init__(self, use):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 8, 1), ready(whitenorm.IterNorm(8))
        self.use = use

    def forward(self, x):
        return self.use(self, x)


class TestUses:
    """Layers that are more than called with their input, and alone."""

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
    def test_of_the_norm(self, use, reason):
        stays(Uses(use), f"norm: stays, because .*{reason}")

    @pytest.mark.parametrize(
        ("use", "reason"),
        [
            (lambda m, x: m.norm(m.conv(x)).to(m.conv.weight.dtype), "reads the weight of"),
            (lambda m, x: m.norm(m.conv(x)) * m.conv.weight.shape[0], "reads the weight of"),
            (lambda m, x: m.norm(m.conv(x)) * (1 if m.conv.bias is None else 2), "reads the bias of"),
        ],
    )
    def test_of_the_convolution(self, use, reason):
        model = Uses(use).eval()
        x = torch.randn(2, 4, 5, 5)
        expected = model(x)
        with pytest.warns(UserWarning, match=f"norm: is a 1×1 convolution of its own now, because .*{reason}"):
            fold_(model, x)
        assert torch.allclose(model(x), expected, atol=1e-5)

    def test_of_what_folding_does_not_change_is_no_obstacle(self):
        model = Uses(lambda m, x: m.norm(m.conv(x)) / m.conv.out_channels + m.conv.stride[0]).eval()
        assert isinstance(fold_(model, torch.randn(2, 4, 5, 5)).norm, BatchedIdentity)


class Keeps(nn.Module):
    """The output of the convolution outlives the forward."""

    def __init__(self, keep):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 8, 1), ready(whitenorm.IterNorm(8))
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
    def test_the_layer_is_not_merged(self, keep):
        model = Keeps(keep).eval()
        x = torch.randn(2, 4, 5, 5)
        expected = model(x)
        with pytest.warns(UserWarning, match="norm: .*the model keeps the output of the layer before it"):
            fold_(model)
        assert torch.allclose(model(x), expected, atol=1e-5)
        SEEN.clear()

    def test_what_is_kept_of_the_norm_is_no_obstacle(self):
        model = nn.Sequential(pair(), nn.ReLU()).eval()
        seen = []
        model[0].register_forward_hook(lambda module, inputs, output: seen.append(output))
        assert left(fold_(model)) == 0

    def test_a_model_that_kept_results_with_gradients_is_folded(self):
        class Remembers(nn.Module):
            def __init__(self):
                super().__init__()
                self.body, self.last = pair(), None

            def forward(self, x):
                self.last = [self.body(x)]
                return self.last[0]

        model = Remembers().eval()
        x = torch.randn(2, 4, 5, 5)
        expected = model(x)
        assert isinstance(fold_(model, x).body[1], BatchedIdentity)
        assert torch.allclose(model(x), expected, atol=1e-5)


class TestShapesAndDtypes:
    def test_unbatched_inputs_are_an_error_and_not_another_result(self):
        """Before folding, the second dimension is whitened, which is the height here."""
        model = pair().eval()
        x = torch.randn(4, 8, 5)
        assert model(x).shape == (8, 8, 5)
        fold_(model)
        with pytest.raises(ValueError, match=r"expected 4D input \(N, C, H, W\) \(got 3D input of shape \[8, 8, 5\]\)"):
            model(x)

    def test_nor_are_they_for_a_map_of_its_own(self):
        model = nn.Sequential(nn.MaxPool2d(1), ready(whitenorm.IterNorm(8, 4))).eval()
        fold_(model)
        with pytest.raises(ValueError, match="expected 4D input"):
            model(torch.randn(8, 8, 5))

    @pytest.mark.parametrize("producer", [nn.Conv2d(4, 8, 1), nn.MaxPool2d(1), nn.Identity()])
    def test_a_half_layer_before_a_wider_norm(self, producer):
        channels = 8 if isinstance(producer, nn.Conv2d) else 4
        model = nn.Sequential(nn.Conv2d(4, 4, 1), producer, ready(whitenorm.IterNorm(channels, 4))).eval()
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
        """The norm's statistics are float32, and so stays its map."""
        model = nn.Sequential(nn.Conv2d(4, 8, 1), ready(whitenorm.IterNorm(8)).bfloat16()).eval()
        x = torch.randn(2, 4, 5, 5)
        expected = model(x)
        with pytest.warns(UserWarning, match=r"is torch\.float32, but its own parameters are torch\.bfloat16"):
            fold_(model)
        assert torch.allclose(model(x), expected, atol=1e-5)

    def test_a_folded_model_can_be_traced_and_exported(self):
        model = fold_(pair().eval())
        x = torch.randn(2, 4, 5, 5)
        assert torch.equal(torch.fx.symbolic_trace(model)(x), model(x))
        assert torch.equal(torch.export.export(model, (x,)).module()(x), model(x))

    # That TorchScript is deprecated.
    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    def test_a_folded_model_can_be_scripted(self):
        model = nn.Sequential(*pair(), nn.ReLU(), ready(whitenorm.IterNorm(8)), nn.Flatten()).eval()
        x = torch.randn(2, 4, 5, 5)
        assert torch.equal(torch.jit.script(fold_(model))(x), model(x))


class Sneaky(nn.Module):
    """Takes another path than its trace: of the convolution's output something is added where x is a tensor."""

    def __init__(self, result=lambda y: y):
        super().__init__()
        self.conv, self.norm, self.result = nn.Conv2d(4, 8, 1), ready(whitenorm.IterNorm(8)), result

    def forward(self, x):
        y = self.conv(x)
        return self.result(self.norm(y) + 0.2 * y if isinstance(x, torch.Tensor) else self.norm(y))


@dataclasses.dataclass
class Result:
    values: torch.Tensor


class TestExamples:
    """A wrong fold is seen on an example, whatever the outputs are."""

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
    @pytest.mark.parametrize(
        "result",
        [
            lambda y: y,
            lambda y: y.argmax(1),
            lambda y: y > 1,
            lambda y: {"a": [y, 3]},
            lambda y: [Result(y)],
            lambda y: (torch.zeros(1), y.sum().item()),
        ],
    )
    def test_a_wrong_fold_is_an_error(self, dtype, result):
        model = Sneaky(result).to(dtype).eval()
        state = copy.deepcopy(model.state_dict())
        with pytest.raises(ValueError, match="expected the same output after folding"):
            fold_(model, torch.randn(2, 4, 5, 5, dtype=dtype))
        assert left(model) == 1
        assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
    def test_a_right_fold_is_none(self, dtype):
        """Among so many values some are equal in half precision, and the largest of them another after folding."""
        net = nn.Sequential(nn.Conv2d(4, 64, 1), ready(whitenorm.IterNorm(64, 16)), Largest()).to(dtype).eval()
        x = torch.randn(8, 4, 32, 32, generator=torch.Generator().manual_seed(0)).to(dtype)
        assert left(fold_(net, x)) == 0

    def test_a_dtype_in_the_code_is_no_obstacle(self):
        model = nn.Sequential(ToHalf(), pair().bfloat16()).eval()
        assert left(fold_(model, torch.randn(2, 4, 5, 5))) == 0

    def test_infinite_outputs_may_be_equal(self):
        model = nn.Sequential(pair(), MasksOut()).eval()
        assert left(fold_(model, torch.randn(2, 4, 5, 5))) == 0

    def test_nothing_to_compare_is_an_error(self):
        model = nn.Sequential(pair(), Empty()).eval()
        with pytest.raises(ValueError, match="numbers to compare"):
            fold_(model, torch.randn(2, 4, 5, 5))
        assert left(model) == 1

    def test_it_leaves_the_state_of_the_model(self):
        model = nn.Sequential(Counts(), pair()).eval()
        fold_(model, torch.randn(2, 4, 5, 5))
        assert model[0].calls == 0

    def test_differences_by_rounding_alone_are_said(self):
        """Of nearly singular statistics float32 loses all digits, on both ways."""
        model = pair(whitenorm.IterNorm(8, affine=False)).eval()
        with torch.no_grad():
            model[1].running_whitening.copy_(torch.eye(8) * 1e7)
            model[1].running_mean.fill_(100)
            model[0].bias.fill_(100)
            model[0].weight.mul_(1e-7)
        with pytest.warns(UserWarning, match=r"agree in torch\.float64, but rounding makes them differ"):
            fold_(model, torch.randn(2, 4, 5, 5))


class Largest(nn.Module):
    def forward(self, y):
        return y.argmax(1), y


class ToHalf(nn.Module):
    def forward(self, x):
        return x.bfloat16()


class MasksOut(nn.Module):
    def forward(self, y):
        return y.masked_fill(torch.ones(5, 5, dtype=torch.bool).tril(), -torch.inf)


class Empty(nn.Module):
    def forward(self, y):
        return y[:0]


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return x


class Outer(nn.Module):
    """Cannot be traced, and does more with its parts than to call them."""

    def __init__(self, use, **parts):
        super().__init__()
        self.use = use
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.look(x if x.abs().sum() >= 0 else -x)


class Indexes(Outer):
    def look(self, x):
        y = self.body[0](x)
        return self.body[1](y) + y


class Iterates(Outer):
    def look(self, x):
        seen = []
        for block in self.blocks:
            for part in block:
                x = part(x)
                seen.append(x)
        return sum(value.mean() for value in seen) + x


class HandsOver(Outer):
    def look(self, x):
        return sum(part(x) if i == 0 else 0 for i, part in enumerate(list(self.body))) + self.body(x)


class ByName(Outer):
    def look(self, x):
        return self.get_submodule("body.0")(x) + self.body(x)


class Listed(Outer):
    def look(self, x):
        self.all = [self.body]
        return self.all[0](x)


class CallsOnly(Outer):
    def look(self, x):
        if self.body is not None and len(self.blocks):
            x = self.body(x)
        for i, block in enumerate(self.blocks):
            x = block(x) + i
        return self.blocks[0](x) + getattr(self, "body")(x[:, :4])  # noqa: B009


class TestUntraceable:
    """What is inside a model that cannot be traced is folded where its code only calls it."""

    def folded(self, model, channels=4):
        torch.manual_seed(0)
        x = torch.randn(2, channels, 5, 5)
        expected = model.eval()(x)
        with torch.no_grad():
            fold_(model)
        assert torch.allclose(model(x), expected, rtol=1e-4, atol=1e-4)
        return sum(isinstance(module, BatchedIdentity) for module in model.modules())

    def test_parts_that_are_called_are_merged(self):
        blocks = nn.ModuleList(nn.Sequential(nn.Conv2d(8, 8, 1), ready(whitenorm.IterNorm(8))) for _ in range(3))
        assert self.folded(CallsOnly(None, body=pair(), blocks=blocks)) == 4

    @pytest.mark.parametrize("kind", [Indexes, HandsOver, ByName, Listed])
    def test_parts_that_are_opened_are_not(self, kind):
        with pytest.warns(UserWarning, match=f"body.1: .*{kind.__name__} cannot be traced"):
            assert self.folded(kind(None, body=pair())) == 0

    def test_nor_are_parts_of_elements(self):
        blocks = nn.ModuleList(nn.Sequential(nn.Conv2d(4, 4, 1), ready(whitenorm.IterNorm(4))) for _ in range(2))
        with pytest.warns(UserWarning, match=r"blocks.0.1, blocks.1.1: .*Iterates cannot be traced"):
            assert self.folded(Iterates(None, blocks=blocks)) == 0

    def test_a_convolution_that_is_registered_outside_too(self):
        body = pair()

        class Shares(Outer):
            def look(self, x):
                return self.body(x) + self.conv(x)

        with pytest.warns(UserWarning, match="body.1: .*may use the layer before it alone"):
            assert self.folded(Shares(None, body=body, conv=body[0])) == 0

    def test_a_norm_whose_attributes_it_reads(self):
        class Reads(Outer):
            def look(self, x):
                return self.body(x) * self.body[1].eps

        with pytest.warns(UserWarning, match="body.1: stays"):
            assert self.folded(Reads(None, body=pair())) == 0

    def test_a_norm_with_a_mask(self):
        class Masks(Outer):
            def look(self, x):
                return self.norm(x, None)

        with pytest.warns(UserWarning, match="norm: stays, because Masks cannot be traced"):
            assert self.folded(Masks(None, norm=ready(whitenorm.IterNorm(4)))) == 0

    def test_a_method_of_a_part_is_read_too(self):
        class Part(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = pair()

            def features(self, x):
                return self.body[0](x)

            def forward(self, x):
                return self.body(x)

        class CallsMethod(Outer):
            def look(self, x):
                return self.part(x) + self.part.features(x)

        with pytest.warns(UserWarning, match="part.body.1: .*CallsMethod cannot be traced"):
            assert self.folded(CallsMethod(None, part=Part())) == 0

    def test_a_part_whose_arguments_are_not_known(self):
        class Optional(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv, self.norm = nn.Conv2d(4, 8, 1), ready(whitenorm.IterNorm(8))

            def forward(self, x, bare=False):
                y = self.conv(x)
                return y if bare else self.norm(y)

        class Passes(Outer):
            def look(self, x):
                return self.part(x) + self.part(x, True)

        with pytest.warns(UserWarning, match="norm: .*it is not known with which bare it is called"):
            assert self.folded(Passes(None, part=Optional())) == 0

    def test_code_without_a_source(self):
        scope = {"Outer": Outer}
        exec("class NoSource(Outer):\n    def look(self, x):\n        return self.body(x)\n", scope)
        with pytest.warns(UserWarning, match="body.1: stays, because NoSource cannot be traced"):
            assert self.folded(scope["NoSource"](None, body=pair())) == 0

    def test_a_model_whose_forward_was_replaced(self):
        model = pair().eval()
        plain = model[0]
        model.forward = lambda x: plain(x)
        x = torch.randn(2, 4, 5, 5)
        expected = model(x)
        with pytest.warns(UserWarning, match="its forward is replaced on the instance"):
            fold_(model)
        assert torch.equal(model(x), expected)

    def test_a_part_that_cannot_be_traced_is_no_obstacle_to_the_others(self):
        class Part(nn.Module):
            def forward(self, x):
                return x if x.sum() > 0 else -x

        assert self.folded(nn.Sequential(pair(), Part(), nn.Conv2d(8, 8, 1), ready(whitenorm.IterNorm(8)))) == 2


class TestWarning:
    def test_lists_names_by_reason_and_cuts_them(self):
        parts = [part for _ in range(11) for part in (nn.Conv2d(4, 4, 1, groups=4), ready(whitenorm.IterNorm(4)))]
        watched = nn.Sequential(*parts, nn.Conv2d(4, 4, 1), ready(whitenorm.IterNorm(4))).eval()
        watched[1].register_forward_hook(lambda module, inputs, output: None)
        with pytest.warns(UserWarning, match="the others") as caught:
            fold_(watched)
        assert str(caught[0].message) == (
            "1 of 12 layers are merged; the others:\n"
            "  1: stays, because it has hooks\n"
            "  3, 5, 7, 9, 11, 13, 15, 17 and 2 more: is a 1×1 convolution of its own now, because the groups of the "
            "convolution before it do not hold its own; dense=True joins them"
        )

    def test_none_where_all_is_as_asked(self):
        fold_(nn.Sequential(pair(), nn.AvgPool2d(2), ready(whitenorm.IterNorm(8))).eval())


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
    layers = left(model)
    fold_(model, images)
    assert left(model) == 0
    assert sum(isinstance(module, BatchedIdentity) for module in model.modules()) == layers == 53
    for actual, wanted in zip(model(images), expected, strict=True):
        assert len(wanted["boxes"])
        for name in wanted:
            torch.testing.assert_close(actual[name], wanted[name], rtol=1e-6, atol=1e-6)
