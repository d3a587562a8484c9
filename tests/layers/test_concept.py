"""Concept whitening: the formula in float64, the alignment of axes with concepts, conversion, folding and state."""

import copy

import pytest
import torch
from torch import nn

import whitenorm
from tests.helpers import reference
from tests.helpers.cases import DEVICES, TOLERANCE, assert_close, randomise

FLOAT64 = torch.float64
ACTIVATIONS = ["mean", "max", "positive_mean", "pool_max"]


def make_layer(num_concepts=2, seed=0, **options):
    """Return a layer with a random rotation."""
    layer = randomise(whitenorm.ConceptWhitening(6, num_concepts, **options).double(), seed)
    layer.rotation.copy_(torch.linalg.qr(torch.randn(6, 6, dtype=FLOAT64)).Q)
    return layer


def make_input(shape=(5, 6, 4, 3), dtype=FLOAT64, device="cpu"):
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn(6, 6, generator=generator, dtype=FLOAT64)
    x = torch.randn(shape, generator=generator, dtype=FLOAT64)
    return (torch.einsum("ij,nj...->ni...", mixing, x) + 2).to(device, dtype)


def reference_forward(layer, x):
    plain = whitenorm.BatchWhitening(6, None, layer.solver, layer.eps, affine=False, population=layer.population)
    plain.double().load_state_dict({key: layer.state_dict()[key] for key in plain.state_dict()})
    white = reference.forward(plain.train(layer.training), x)
    return reference.scale_and_shift(torch.einsum("ij,nj...->ni...", layer.rotation, white), layer.weight, layer.bias)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("options", [{"steps": 6}, {"affine": True, "population": "covariance", "steps": 4}], ids=str)
@pytest.mark.parametrize("shape", [(30, 6), (5, 6, 4, 3)])
def test_agrees_with_the_papers_formula(shape, options, training, dtype, device):
    torch.manual_seed(0)
    layer = make_layer(**options).train(training)
    exact_layer = copy.deepcopy(layer)
    x = make_input(shape, dtype, device).requires_grad_()
    exact = x.detach().cpu().double().requires_grad_()
    expected = reference_forward(exact_layer, exact)
    actual = layer.to(device, dtype)(x)
    grad = torch.randn_like(exact)
    actual.backward(grad.to(actual))
    expected.backward(grad.to(dtype).double())
    assert_close(actual, expected, dtype)
    if dtype in (FLOAT64, torch.float32):
        assert_close(x.grad, exact.grad, dtype)
    if dtype == FLOAT64:
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-10, atol=1e-10)
        for parameter, other in zip(layer.parameters(), exact_layer.parameters(), strict=True):
            assert_close(parameter.grad, other.grad, dtype)


@pytest.mark.parametrize("training", [True, False])
def test_gradients(training):
    layer = make_layer(affine=True, track_running_stats=training is False).train(training)
    x = make_input((4, 6, 3)).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, *_: layer(x), (x, layer.weight, layer.bias))


def test_masked_positions_give_zero():
    layer, x, mask = make_layer(affine=True), make_input((5, 6, 4)), torch.rand(5, 4) < 0.6
    y = layer(x, mask=mask)
    assert not y.movedim(1, -1)[~mask].any()
    valid = x.movedim(1, -1)[mask]
    assert_close(y.movedim(1, -1)[mask], layer(valid), FLOAT64)


def make_concepts(num_concepts, seed=1):
    """Return images of concepts, each with a direction of its own, which are not orthogonal."""
    generator = torch.Generator().manual_seed(seed)
    directions = torch.randn(num_concepts, 6, 1, 1, generator=generator, dtype=FLOAT64)
    return directions[:, None] + 0.3 * torch.randn(num_concepts, 8, 6, 4, 4, generator=generator, dtype=FLOAT64)


def objective(layer, concepts):
    activations = [whitenorm.concept_activations(layer, images)[""][:, j] for j, images in enumerate(concepts)]
    return sum(values.mean() for values in activations)


@pytest.mark.parametrize("num_concepts", [1, 3, 6])
def test_mean_activations_reach_their_maximum(num_concepts):
    """Over orthogonal axes, it is the sum of singular values of the concepts' mean features (Procrustes)."""
    layer, concepts = make_layer(num_concepts, activation="mean"), make_concepts(num_concepts)
    whitenorm.align_concepts_(layer, concepts, steps=100)
    assert_close(layer.rotation @ layer.rotation.T, torch.eye(6), FLOAT64)
    identity = copy.deepcopy(layer).eval()
    identity.rotation.copy_(torch.eye(6))
    means = torch.stack([identity(images).mean((0, 2, 3)) for images in concepts])
    best = torch.linalg.svdvals(means).sum()
    assert objective(layer, concepts) == pytest.approx(best.item(), rel=1e-3)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_grow_from_step_to_step(activation):
    layer, concepts = make_layer(3, activation=activation), make_concepts(3)
    values = [objective(layer, concepts).item()]
    for _ in range(10):
        whitenorm.align_concepts_(layer, concepts)
        values.append(objective(layer, concepts).item())
    assert values[-1] > values[0] + 0.5
    assert values[-1] >= max(values) - 0.1


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 5), (4, 6, 5, 7), (4, 6, 2, 3, 4)])
def test_activations_of_all_input_shapes(shape, activation):
    layer = make_layer(2, activation=activation).eval()
    x = make_input(shape)
    y = layer(x)[:, :2]
    actual = whitenorm.concept_activations(layer, x)[""]
    assert actual.shape == (4, 2)
    if activation == "mean" or len(shape) == 2:
        assert_close(actual, y.flatten(2).mean(2) if y.ndim > 2 else y, FLOAT64)
    elif activation == "max":
        assert_close(actual, y.flatten(2).amax(2), FLOAT64)
    elif activation == "positive_mean":
        expected = [[column[column > 0].mean() for column in sample.flatten(1)] for sample in y]
        assert_close(actual, torch.tensor(expected, dtype=FLOAT64).nan_to_num(0), FLOAT64)
    elif len(shape) == 3:
        assert_close(actual, y[..., :3].amax(-1), FLOAT64)
    whitenorm.align_concepts_(layer, [x, x])


def test_alignment_changes_nothing_else():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 6, 3), whitenorm.ConceptWhitening(6, 2), nn.Dropout(), nn.BatchNorm2d(6))
    before = copy.deepcopy(model.state_dict())
    model[2].eval()
    whitenorm.align_concepts_(model, torch.randn(2, 8, 3, 6, 6))
    changed = {key for key, value in model.state_dict().items() if not torch.equal(value, before[key])}
    assert changed == {"1.rotation", "1.concept_gradient"}
    assert [module.training for module in model] == [True, True, False, True]


def test_conversion_keeps_the_output_of_a_trained_model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU())
    x = torch.randn(8, 3, 6, 6)
    model(x)
    expected = model.eval()(x)
    batch_norm = copy.deepcopy(model[1])
    whitenorm.convert_(model, lambda width: whitenorm.ConceptWhitening(width, 2, affine=True))
    assert torch.allclose(model(x), expected, atol=1e-5)
    layer = whitenorm.ConceptWhitening(6, 2, affine=True).eval()
    layer.load_state_dict(batch_norm.state_dict())
    assert torch.allclose(layer(model[0](x)), batch_norm(model[0](x)), atol=1e-5)
    whitenorm.align_concepts_(model, torch.randn(2, 8, 3, 6, 6))
    rotated, record = model(x), whitenorm.conversion_of(model)
    plain = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU())
    loaded = whitenorm.load_converted(plain, model.state_dict(), record).eval()
    assert torch.allclose(loaded(x), rotated, atol=1e-6)
    with pytest.warns(UserWarning, match="its output in eval mode changes"):
        whitenorm.convert_(model, "bn")


def test_folding():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 6, 3), make_layer(affine=True).float(), nn.ReLU()).eval()
    x = torch.randn(4, 3, 6, 6)
    expected = model(x)
    whitenorm.fold_(model)
    assert not isinstance(model[1], whitenorm.Whitening)
    assert torch.allclose(model(x), expected, atol=1e-5)


def test_recalibration_and_state():
    layer = make_layer()
    rotation = layer.rotation.clone()
    data = make_input((36, 6)).unflatten(0, (4, 9))
    whitenorm.recalibrate_(layer, data, progress=False)
    assert_close(layer.running_mean, data.flatten(0, 1).mean(0), FLOAT64)
    assert torch.equal(layer.rotation, rotation)
    other = whitenorm.ConceptWhitening(6, 2).double()
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other.eval()(data[0]), layer.eval()(data[0]))
    assert layer.half().rotation.dtype == torch.float32
    assert repr(layer).endswith("num_concepts=2, activation='pool_max')")


@pytest.mark.filterwarnings("ignore")
def test_compiles_without_graph_breaks():
    torch._dynamo.reset()
    layer = make_layer(affine=True).float()
    plain, x = copy.deepcopy(layer), make_input(dtype=torch.float32)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(x), plain(x), atol=1e-4)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = make_layer()

    def forward(self, x):
        return self.norm(self.norm(x))


def test_refuses():
    with pytest.raises(ValueError, match="at most 6 concepts"):
        whitenorm.ConceptWhitening(6, 7)
    with pytest.raises(ValueError, match="num_concepts"):
        whitenorm.ConceptWhitening(6, 0)
    with pytest.raises(ValueError, match='activation to be one of "mean"'):
        whitenorm.ConceptWhitening(6, 2, "median")
    with pytest.raises(ValueError, match="a batch for each of the 2 concepts"):
        whitenorm.align_concepts_(make_layer(), [make_input()])
    with pytest.raises(ValueError, match="without any"):
        whitenorm.align_concepts_(nn.ReLU(), [make_input()])
    with pytest.raises(ValueError, match="'norm' once per batch"):
        whitenorm.align_concepts_(Twice(), [make_input(), make_input()])
