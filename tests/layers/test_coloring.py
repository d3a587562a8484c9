"""Colouring and the whitening and colouring transform against their formulas in float64."""

import pytest
import torch
from torch import nn

import whitenorm
from tests.helpers import reference
from tests.helpers.cases import DEVICES, TOLERANCE, assert_close
from whitenorm.functional import wct

FLOAT64 = torch.float64
LABELS = torch.tensor([1, 0, 2, 1])


def make_features(shape=(4, 6, 5, 3), seed=0, dtype=FLOAT64, device="cpu"):
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(shape[1], shape[1], generator=generator, dtype=FLOAT64)
    x = torch.randn(shape, generator=generator, dtype=FLOAT64)
    return (torch.einsum("ij,nj...->ni...", mixing, x) + seed).to(device, dtype)


def make_coloring(**options):
    torch.manual_seed(0)
    layer = whitenorm.Coloring(6, **options).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn_like(parameter))
    return layer


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 5), (4, 6, 5, 3)])
@pytest.mark.parametrize(("group_size", "num_classes"), [(None, None), (3, 3), (2, None), (6, 3)])
def test_coloring_agrees_with_the_papers_formula(group_size, num_classes, shape, dtype, device):
    layer = make_coloring(group_size=group_size, num_classes=num_classes).to(device, dtype)
    exact_layer = whitenorm.Coloring(6, group_size, num_classes).double()
    exact_layer.load_state_dict(layer.state_dict())
    labels = None if num_classes is None else LABELS
    x = make_features(shape, dtype=dtype, device=device).requires_grad_()
    exact = x.detach().cpu().double().requires_grad_()
    actual = layer(x, None if labels is None else labels.to(device))
    expected = reference.coloring(exact, exact_layer, labels)
    actual.square().sum().backward()
    expected.square().sum().backward()
    assert_close(actual, expected, dtype)
    if dtype == FLOAT64:
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-10, atol=1e-10)
        for tensor, other in zip([x, *layer.parameters()], [exact, *exact_layer.parameters()], strict=True):
            assert_close(tensor.grad, other.grad, dtype)


def test_gradients_of_coloring():
    layer = make_coloring(group_size=3, num_classes=3)
    inputs = (make_features((4, 6, 2)).requires_grad_(), *layer.parameters())
    assert torch.autograd.gradcheck(lambda x, *_: layer(x, LABELS), inputs)


@pytest.mark.parametrize("group_size", [None, 2])
def test_coloring_as_a_linear_layer(group_size):
    x = make_features((4, 6))
    plain, conditional = make_coloring(group_size=group_size), make_coloring(group_size=group_size, num_classes=3)
    assert_close(plain.to_linear()(x), plain(x), FLOAT64)
    assert_close(conditional.to_linear(2)(x), conditional(x, torch.full((4,), 2)), FLOAT64)
    assert whitenorm.Coloring(6, bias=False).to_linear().bias is None


def test_coloring_begins_as_the_identity():
    x = make_features(dtype=torch.float32)
    assert torch.equal(whitenorm.Coloring(6, 3)(x), x)
    assert torch.equal(whitenorm.Coloring(6, num_classes=3)(x, LABELS), x)
    layer = make_coloring(num_classes=3).float()
    layer.reset_parameters()
    assert torch.equal(layer(x, LABELS), x)


def test_whitening_with_coloring_learns_a_covariance():
    torch.manual_seed(0)
    target = torch.randn(512, 4) @ torch.randn(4, 4)
    model = nn.Sequential(whitenorm.BatchWhitening(4, solver="zca", affine=False), whitenorm.Coloring(4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    x = torch.randn(512, 4)
    for _ in range(300):
        optimizer.zero_grad()
        (torch.cov(model(x).T) - torch.cov(target.T)).square().sum().backward()
        optimizer.step()
    assert torch.allclose(torch.cov(model(x).T), torch.cov(target.T), atol=0.02)


@pytest.mark.filterwarnings("ignore")
def test_coloring_state_tools_and_repr():
    layer = make_coloring(group_size=3, num_classes=3)
    other = whitenorm.Coloring(6, 3, 3).double()
    other.load_state_dict(layer.state_dict())
    x = make_features()
    assert torch.equal(other(x, LABELS), layer(x, LABELS))
    assert list(layer.state_dict()) == ["weight", "bias", "class_weight", "class_bias"]
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, LABELS), layer(x, LABELS))
    plain, larger = make_coloring(group_size=2), make_features((7, 6, 5, 3))  # another batch size
    exported = torch.export.export(plain, (x,), dynamic_shapes=({0: torch.export.Dim("batch", min=2)},)).module()
    for tool in (exported, torch.jit.trace(plain, (x,)), torch.fx.symbolic_trace(nn.Sequential(plain))):
        torch.testing.assert_close(tool(larger), plain(larger))
    assert repr(layer) == "Coloring(6, group_size=3, num_classes=3, bias=True)"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("alpha", [1.0, 0.4])
@pytest.mark.parametrize("styles", [4, 1])
def test_wct_agrees_with_the_papers_formula(styles, alpha, dtype, device):
    content = make_features(dtype=dtype, device=device).requires_grad_()
    style = make_features((styles, 6, 7, 4), 1, dtype, device).requires_grad_()
    exact = [tensor.detach().cpu().double().requires_grad_() for tensor in (content, style)]
    actual, expected = wct(content, style, alpha, 0.01), reference.wct(*exact, alpha, 0.01)
    grad = torch.linspace(-1, 1, expected.numel(), dtype=FLOAT64).view(expected.shape)
    actual.backward(grad.to(actual))
    expected.backward(grad.to(dtype).double())
    assert actual.dtype == dtype
    assert_close(actual, expected, dtype)
    if dtype == FLOAT64:
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-10, atol=1e-10)
        for tensor, other in zip((content, style), exact, strict=True):
            assert_close(tensor.grad, other.grad, dtype)


def test_gradients_of_wct():
    inputs = make_features((2, 3, 4, 3)).requires_grad_(), make_features((2, 3, 5, 2), 1).requires_grad_()
    assert torch.autograd.gradcheck(lambda *tensors: wct(*tensors, 0.7, 0.1), inputs)


@pytest.mark.parametrize("solver", ["zca", "cholesky"])
def test_wct_gives_the_moments_of_the_style(solver):
    content, style = make_features(), make_features((4, 6, 7, 9), 1)
    y = wct(content, style, eps=0, solver=solver).flatten(2)
    for sample, other in zip(y, style.flatten(2), strict=True):
        assert_close(sample.mean(1), other.mean(1), FLOAT64)
        assert_close(torch.cov(sample, correction=0), torch.cov(other, correction=0), FLOAT64)


def test_wct_of_an_image_with_itself_and_with_strength_zero():
    x = make_features()
    assert_close(wct(x, x, eps=1e-9), x, FLOAT64)
    assert torch.equal(wct(x, x + 1, 0.0), x)
    strengths = torch.tensor([0.0, 1, 0, 1], dtype=FLOAT64).view(4, 1, 1, 1)
    mixed = wct(x, x.flip(0), strengths)
    assert torch.equal(mixed[::2], x[::2])
    torch.testing.assert_close(mixed[1::2], wct(x, x.flip(0))[1::2])


def test_wct_of_constant_images_is_finite():
    x = torch.full((2, 6, 4, 4), 3.0, requires_grad=True)
    y = wct(x, torch.zeros(2, 6, 4, 4))
    y.sum().backward()
    assert y.isfinite().all()
    assert x.grad.isfinite().all()


def test_refuses():
    x = make_features()
    with pytest.raises(ValueError, match="no labels"):
        whitenorm.Coloring(6)(x, LABELS)
    with pytest.raises(ValueError, match="labels of 3 classes"):
        whitenorm.Coloring(6, num_classes=3)(x)
    with pytest.raises(ValueError, match="labels of 3 classes"):
        whitenorm.Coloring(6, num_classes=3).to_linear()
    with pytest.raises(ValueError, match=r"labels of shape \(4,\)"):
        whitenorm.Coloring(6, num_classes=3)(x, LABELS[:2])
    with pytest.raises(ValueError, match="expected 6 channels"):
        whitenorm.Coloring(6)(x[:, :3])
    with pytest.raises(ValueError, match="group_size to divide"):
        whitenorm.Coloring(6, 4)
    with pytest.raises(ValueError, match=r"style of shape \(4, 6, ...\)"):
        wct(x, x[:, :3])
    with pytest.raises(ValueError, match="samples and channels of content"):
        wct(x, x[:2])
    with pytest.raises(ValueError, match="more than 1 value"):
        wct(x, x[..., :1, :1])
