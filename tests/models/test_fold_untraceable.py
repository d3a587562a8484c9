"""Folding inside models that cannot be traced, whose source is read."""

import pytest
import torch
from torch import nn

from tests.helpers.models import count_layers, make_iternorm, make_pair
from whitenorm import fold_
from whitenorm.models import BatchedIdentity


class Outer(nn.Module):
    """A model that cannot be traced, with a method that uses its parts."""

    def __init__(self, use, **parts):
        super().__init__()
        self.use = use
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.run(x if x.abs().sum() >= 0 else -x)


class Indexes(Outer):
    def run(self, x):
        y = self.body[0](x)
        return self.body[1](y) + y


class Iterates(Outer):
    def run(self, x):
        seen = []
        for block in self.blocks:
            for part in block:
                x = part(x)
                seen.append(x)
        return sum(value.mean() for value in seen) + x


class HandsOver(Outer):
    def run(self, x):
        return sum(part(x) if i == 0 else 0 for i, part in enumerate(list(self.body))) + self.body(x)


class ByName(Outer):
    def run(self, x):
        return self.get_submodule("body.0")(x) + self.body(x)


class Listed(Outer):
    def run(self, x):
        self.all = [self.body]
        return self.all[0](x)


class CallsOnly(Outer):
    def run(self, x):
        if self.body is not None and len(self.blocks):
            x = self.body(x)
        for i, block in enumerate(self.blocks):
            x = block(x) + i
        return self.blocks[0](x) + getattr(self, "body")(x[:, :4])  # noqa: B009


class TestUntraceable:
    """Parts of a model that cannot be traced are folded if its code only calls them."""

    def fold_and_count(self, model, channels=4):
        """Fold a model, check its output, and return the number of merged layers."""
        torch.manual_seed(0)
        x = torch.randn(2, channels, 5, 5)
        expected = model.eval()(x)
        with torch.no_grad():
            fold_(model)
        assert torch.allclose(model(x), expected, rtol=1e-4, atol=1e-4)
        return count_layers(model, BatchedIdentity)

    def test_called_parts_are_merged(self):
        blocks = nn.ModuleList(nn.Sequential(nn.Conv2d(8, 8, 1), make_iternorm(8)) for _ in range(3))
        assert self.fold_and_count(CallsOnly(None, body=make_pair(), blocks=blocks)) == 4

    @pytest.mark.parametrize("kind", [Indexes, HandsOver, ByName, Listed])
    def test_opened_parts_are_not_merged(self, kind):
        with pytest.warns(UserWarning, match=f"body.1: .*{kind.__name__} cannot be traced"):
            assert self.fold_and_count(kind(None, body=make_pair())) == 0

    def test_opened_elements_are_not_merged(self):
        blocks = nn.ModuleList(nn.Sequential(nn.Conv2d(4, 4, 1), make_iternorm(4)) for _ in range(2))
        with pytest.warns(UserWarning, match=r"blocks.0.1, blocks.1.1: .*Iterates cannot be traced"):
            assert self.fold_and_count(Iterates(None, blocks=blocks)) == 0

    def test_a_convolution_with_two_names(self):
        body = make_pair()

        class Shares(Outer):
            def run(self, x):
                return self.body(x) + self.conv(x)

        with pytest.warns(UserWarning, match="body.1: .*may use the layer before it alone"):
            assert self.fold_and_count(Shares(None, body=body, conv=body[0])) == 0

    def test_a_norm_with_an_attribute_that_is_read(self):
        class Reads(Outer):
            def run(self, x):
                return self.body(x) * self.body[1].eps

        with pytest.warns(UserWarning, match="body.1: stays"):
            assert self.fold_and_count(Reads(None, body=make_pair())) == 0

    def test_a_norm_with_a_mask(self):
        class Masks(Outer):
            def run(self, x):
                return self.norm(x, None)

        with pytest.warns(UserWarning, match="norm: stays, because Masks cannot be traced"):
            assert self.fold_and_count(Masks(None, norm=make_iternorm(4))) == 0

    def test_a_method_of_a_part(self):
        class Part(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = make_pair()

            def features(self, x):
                return self.body[0](x)

            def forward(self, x):
                return self.body(x)

        class CallsMethod(Outer):
            def run(self, x):
                return self.part(x) + self.part.features(x)

        with pytest.warns(UserWarning, match="part.body.1: .*CallsMethod cannot be traced"):
            assert self.fold_and_count(CallsMethod(None, part=Part())) == 0

    def test_a_part_with_optional_arguments(self):
        class Optional(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv, self.norm = nn.Conv2d(4, 8, 1), make_iternorm(8)

            def forward(self, x, bare=False):
                y = self.conv(x)
                return y if bare else self.norm(y)

        class Passes(Outer):
            def run(self, x):
                return self.part(x) + self.part(x, True)

        with pytest.warns(UserWarning, match="norm: .*it is not known with which bare it is called"):
            assert self.fold_and_count(Passes(None, part=Optional())) == 0

    def test_code_without_a_source(self):
        scope = {"Outer": Outer}
        exec("class NoSource(Outer):\n    def run(self, x):\n        return self.body(x)\n", scope)
        with pytest.warns(UserWarning, match="body.1: stays, because NoSource cannot be traced"):
            assert self.fold_and_count(scope["NoSource"](None, body=make_pair())) == 0

    def test_a_model_with_a_replaced_forward(self):
        model = make_pair().eval()
        plain = model[0]
        model.forward = lambda x: plain(x)
        x = torch.randn(2, 4, 5, 5)
        expected = model(x)
        with pytest.warns(UserWarning, match="its forward is replaced on the instance"):
            fold_(model)
        assert torch.equal(model(x), expected)

    def test_an_untraceable_part_is_no_obstacle_for_others(self):
        class Part(nn.Module):
            def forward(self, x):
                return x if x.sum() > 0 else -x

        assert self.fold_and_count(nn.Sequential(make_pair(), Part(), nn.Conv2d(8, 8, 1), make_iternorm(8))) == 2
