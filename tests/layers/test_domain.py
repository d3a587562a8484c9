"""Domain whitening: each domain is a batch whitening of its own, with shared γ and β."""

import copy

import pytest
import torch
from torch import nn

import whitenorm
from tests.helpers import reference
from tests.helpers.cases import DEVICES, TOLERANCE, assert_close, randomise

FLOAT64 = torch.float64
DOMAINS = [1, 0, 2, 1, 0, 0, 2, 1, 2]


def make_layer(**options):
    return whitenorm.DomainWhitening(6, 3, 3, **options)


def make_input(dtype=FLOAT64, device="cpu", shape=(9, 6, 4, 3)):
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn(6, 6, generator=generator, dtype=FLOAT64)
    x = torch.randn(shape, generator=generator, dtype=FLOAT64)
    return (torch.einsum("ij,nj...->ni...", mixing, x) + 2).to(device, dtype)


def separate(layer):
    """Return a BatchWhitening for each domain, with the layer's parameters and the domain's running statistics."""
    layers = []
    for domain in range(layer.num_domains):
        one = whitenorm.BatchWhitening(6, 3, layer.solver, layer.eps, layer.momentum, population=layer.population)
        state = {
            key: value if key in ("weight", "bias") else value[domain] for key, value in layer.state_dict().items()
        }
        one.double().load_state_dict(state)
        layers.append(one.train(layer.training))
    return layers


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("population", ["covariance", "whitening"])
def test_each_domain_is_whitened_by_the_papers_formula(population, training, dtype, device):
    torch.manual_seed(0)
    layer = randomise(make_layer(population=population).double()).train(training)
    x = make_input(dtype, device).requires_grad_()
    exact = x.detach().cpu().double().requires_grad_()
    expected = torch.zeros_like(exact)
    for domain, one in enumerate(separate(layer)):
        rows = [i for i, each in enumerate(DOMAINS) if each == domain]
        expected = expected.index_put((torch.tensor(rows),), reference.forward(one, exact[rows]))
    layer.to(device, dtype)
    actual = layer(x, domain=DOMAINS)
    grad = torch.randn_like(exact)
    actual.backward(grad.to(actual))
    expected.backward(grad.to(dtype).double())
    assert_close(actual, expected, dtype)
    assert_close(x.grad, exact.grad, dtype)
    if dtype == FLOAT64:
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("solver", ["newton", "cholesky"])
def test_gradients(solver):
    layer = make_layer(solver=solver, track_running_stats=False).double()
    x = make_input(shape=(9, 6, 2)).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, *_: layer(x, domain=DOMAINS), (x, layer.weight, layer.bias))


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("population", ["covariance", "whitening"])
def test_running_statistics_are_those_of_separate_layers(population, momentum):
    layer = make_layer(population=population, momentum=momentum).double()
    layers = separate(layer)
    for step, domains in enumerate([DOMAINS, 1, [0] * 9, 1]):
        x = make_input() * (step + 1)
        each = [domains] * 9 if isinstance(domains, int) else domains
        layer(x, domain=domains)
        for domain in set(each):
            layers[domain](x[[i for i in range(9) if each[i] == domain]])
    for name, buffer in layer.named_buffers():
        torch.testing.assert_close(buffer, torch.stack([getattr(one, name) for one in layers]))
    layer.eval()
    for domain, one in enumerate(layers):
        torch.testing.assert_close(layer(x, domain=domain), one.eval()(x))


def test_masks():
    layer, x, mask = make_layer().double(), make_input(shape=(9, 6, 5)), torch.rand(9, 5) < 0.7
    layers = separate(layer)
    y = layer(x, mask=mask, domain=DOMAINS)
    rows = [i for i, each in enumerate(DOMAINS) if each == 1]
    torch.testing.assert_close(y[rows], layers[1](x[rows], mask=mask[rows]))


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 6, 3), make_layer(), nn.ReLU(), nn.Conv2d(6, 4, 1), whitenorm.IterNorm(4))


def test_use_domain_chooses_within_a_context():
    model, x = make_model(), torch.randn(4, 3, 6, 6)
    with pytest.raises(ValueError, match=r"use_domain\(model, 0\)"):
        model(x)
    with whitenorm.use_domain(model, 2) as same:
        assert same is model
        model(x)
        with whitenorm.use_domain(model, [0, 1, 1, 0]):
            model(x)
        model(x)
        assert model[1].num_batches_tracked.tolist() == [1, 1, 2]
    with pytest.raises(KeyError), whitenorm.use_domain(model, 1):
        raise KeyError
    assert model[1].domain is None


def test_state_dict_copies_and_repr():
    layer = randomise(make_layer())
    assert list(layer.state_dict()) == ["weight", "bias", "running_mean", "running_cov", "num_batches_tracked"]
    other = make_layer()
    other.load_state_dict(layer.state_dict())
    x = make_input(torch.float32)
    for copied in (other, copy.deepcopy(layer)):
        assert torch.equal(copied.eval()(x, domain=1), layer.eval()(x, domain=1))
    assert repr(layer).endswith("population='covariance', num_domains=3)")
    layer.reset_parameters()
    assert not layer.running_mean.any()
    assert torch.equal(layer.running_cov, torch.eye(3).expand(3, 2, 3, 3))
    assert layer.half().running_cov.dtype == torch.float32


@pytest.mark.parametrize("old", [nn.BatchNorm2d(6), whitenorm.BatchWhitening(6, 3, population="covariance")])
def test_a_plain_state_dict_is_loaded_into_all_domains(old):
    x = make_input(torch.float32)
    old = old.train()
    old(x)
    layer = make_layer(eps=old.eps, solver="zca" if isinstance(old, nn.BatchNorm2d) else old.solver)
    layer.load_state_dict(old.state_dict())
    for domain in range(3):
        assert torch.allclose(layer.eval()(x, domain=domain), old.eval()(x), atol=1e-5)
    assert layer.num_batches_tracked.tolist() == [1, 1, 1]


def test_conversion_keeps_the_output_of_a_trained_model_in_all_domains():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU())
    x = torch.randn(8, 3, 6, 6)
    model(x)
    expected = model.eval()(x)
    whitenorm.convert_(model, lambda width: whitenorm.DomainWhitening(width, 3, 2))
    for domain in range(3):
        with whitenorm.use_domain(model, domain):
            assert torch.allclose(model(x), expected, atol=1e-5)
    record = whitenorm.conversion_of(model)
    plain = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU())
    loaded = whitenorm.load_converted(plain, model.state_dict(), record).eval()
    with whitenorm.use_domain(loaded, 1):
        assert torch.allclose(loaded(x), expected, atol=1e-5)
    # Back to one population, which has to be chosen.
    with pytest.raises(ValueError, match="no domain is chosen"):
        whitenorm.convert_(model, "bw-sigma")
    with whitenorm.use_domain(model, 2):
        whitenorm.convert_(model, "bn")
    assert torch.allclose(model(x), expected, atol=1e-5)


def test_recalibration_of_one_domain():
    model = nn.Sequential(whitenorm.DomainWhitening(6, 3, 3)).double()
    before = copy.deepcopy(model.state_dict())
    data = make_input(shape=(36, 6)).unflatten(0, (4, 9))
    with pytest.raises(ValueError, match="one domain to recalibrate"):
        whitenorm.recalibrate_(model, data, progress=False)
    with whitenorm.use_domain(model, 1):
        whitenorm.recalibrate_(model, data, progress=False)
    layer, values = model[0], data.flatten(0, 1)
    assert_close(layer.running_mean[1], values.mean(0), FLOAT64)
    assert_close(layer.running_cov[1, 0], torch.cov(values[:, :3].T, correction=0), FLOAT64)
    for domain in (0, 2):
        assert torch.equal(layer.running_mean[domain], before["0.running_mean"][domain])
        assert torch.equal(layer.running_cov[domain], before["0.running_cov"][domain])


class Explicit(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = make_layer()

    def forward(self, x):
        return self.norm(x, domain=2)


def test_recalibration_refuses_a_domain_in_the_call():
    model = Explicit()
    with pytest.raises(ValueError, match="chosen by whitenorm"), whitenorm.use_domain(model, 1):
        whitenorm.recalibrate_(model, [make_input(torch.float32)], progress=False)


def test_folding_the_chosen_domain():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 6, 3), randomise(make_layer()), nn.ReLU()).eval()
    x = torch.randn(4, 3, 6, 6)
    with pytest.warns(UserWarning, match="no domain is chosen"):
        whitenorm.fold_(copy.deepcopy(model))
    for domain in (0, 2):
        with whitenorm.use_domain(model, domain):
            expected, folded = model(x), copy.deepcopy(model)
        with whitenorm.use_domain(folded, domain):
            whitenorm.fold_(folded)
        assert not any(isinstance(module, whitenorm.Whitening) for module in folded.modules())
        assert torch.allclose(folded(x), expected, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("training", [True, False])
def test_compiles_without_graph_breaks(training):
    torch._dynamo.reset()
    layer = randomise(make_layer()).train(training)
    plain, x = copy.deepcopy(layer), make_input(torch.float32)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for domain in (1, 0):
        assert torch.allclose(compiled(x, domain=domain), plain(x, domain=domain), atol=1e-4)
    for buffer, other in zip(layer.buffers(), plain.buffers(), strict=True):
        assert torch.allclose(buffer, other, atol=1e-5)


def test_inspection_in_a_domain():
    model = make_model()
    with whitenorm.use_domain(model, 1):
        model(torch.randn(8, 3, 6, 6))
        report = whitenorm.diagnostics.inspect(model, torch.randn(8, 3, 6, 6))
    assert len(report) == 2


def test_without_running_statistics():
    layer = make_layer(track_running_stats=False).eval()
    x = make_input(torch.float32)
    assert torch.equal(layer(x, domain=0), layer(x, domain=2))


def test_refuses():
    layer, x = make_layer(), make_input(torch.float32)
    with pytest.raises(ValueError, match=r"a domain from 0 to 2 \(got 3\)"):
        layer(x, domain=3)
    with pytest.raises(ValueError, match=r"a domain from 0 to 2 \(got -1\)"):
        layer(x, domain=[-1] * 9)
    with pytest.raises(ValueError, match="pass domain"):
        layer(x, domain=torch.tensor(DOMAINS))
    with pytest.raises(ValueError, match="one for each of 9 samples"):
        layer(x, domain=[0, 1])
    with pytest.raises(ValueError, match="a domain from 0 to 2"), whitenorm.use_domain(layer, 5):
        pass
    with pytest.raises(ValueError, match="without any"), whitenorm.use_domain(nn.ReLU(), 0):
        pass
    with pytest.raises(ValueError, match="num_domains"):
        whitenorm.DomainWhitening(6, 0)
