"""Whitener: fitted whitening against a plain float64 reference, in one pass, in any batches, over ranks."""

import copy
import pickle

import pytest
import torch
import torch.multiprocessing

from tests.helpers import ranks, reference
from tests.helpers.cases import SOLVERS
from whitenorm import Whitener
from whitenorm.solvers import Newton, as_solver

FLOAT64 = torch.float64


def make_data(number=200, features=12, dtype=FLOAT64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(number, features, generator=generator, dtype=FLOAT64)
    return (x @ torch.randn(features, features, generator=generator, dtype=FLOAT64) + 3).to(dtype)


def whiten_by_formula(x, solver, eps, group_size, n_components=None):
    """Whiten (N, D) group by group; W·Dᵀ with projection."""
    outputs = []
    groups = x.shape[1] // group_size
    for group in x.split(group_size, dim=1):
        mean, cov = reference.mean_and_cov(group.T)
        rows = group - mean
        if n_components is not None:
            values, vectors = torch.linalg.eigh(cov)
            vectors = vectors.flip(1)[:, : n_components // groups]
            vectors = vectors * torch.where(vectors[0] < 0, -1, 1)
            rows, cov = rows @ vectors, torch.diag(values.flip(0)[: n_components // groups])
        matrix = reference.whitening_matrix(cov + eps * torch.eye(len(cov), dtype=x.dtype), as_solver(solver))
        outputs.append(rows @ matrix.T)
    return torch.cat(outputs, 1)


@pytest.mark.parametrize("group_size", [4, 12])
@pytest.mark.parametrize("n_components", [None, 6])
@pytest.mark.parametrize("solver", SOLVERS, ids=str)
def test_is_the_formula(solver, n_components, group_size):
    x = make_data()
    whitener = Whitener(12, n_components, group_size, solver, eps=0.1).fit(x)
    expected = whiten_by_formula(x, solver, 0.1, group_size, n_components)
    y = whitener(x)
    assert (y - expected).abs().max() <= 1e-10 * expected.abs().max()
    assert torch.equal(whitener.transform(x), y)
    assert torch.equal(whitener.fit_transform(x), y)


@pytest.mark.parametrize("solver", SOLVERS, ids=str)
def test_the_inverse(solver):
    x = make_data()
    whitener = Whitener(12, solver=solver).fit(x)
    assert (whitener.inverse_transform(whitener(x)) - x).abs().max() <= 1e-10 * x.abs().max()
    # With fewer components, the projection onto their span.
    whitener = Whitener(12, 5, solver=solver, eps=0).fit(x)
    _, _, axes = torch.linalg.svd(x - x.mean(0), full_matrices=False)
    expected = (x - x.mean(0)) @ axes[:5].T @ axes[:5] + x.mean(0)
    assert (whitener.inverse_transform(whitener(x)) - expected).abs().max() <= 1e-10 * x.abs().max()


def test_output_is_white_along_the_largest_eigenvectors():
    x = make_data()
    y = Whitener(12, 4, eps=0).fit(x)(x)
    assert (torch.cov(y.T, correction=0) - torch.eye(4)).abs().max() <= 1e-10
    _, singular, axes = torch.linalg.svd(x - x.mean(0), full_matrices=False)
    expected = (x - x.mean(0)) @ axes[:4].T / singular[:4] * len(x) ** 0.5
    assert (y.abs() - expected.abs()).abs().max() <= 1e-10


@pytest.mark.parametrize("feature_dim", [1, -1])
def test_images_and_tokens(feature_dim):
    rows = make_data(2 * 5 * 6)
    x = rows.view(2, 5, 6, 12)
    x = x.movedim(-1, 1) if feature_dim == 1 else x
    whitener = Whitener(12, 8, 6, eps=0, feature_dim=feature_dim).fit(x)
    expected = Whitener(12, 8, 6, eps=0).fit(rows)(rows).view(2, 5, 6, 8)
    y = whitener(x)
    assert torch.allclose(y.movedim(feature_dim, -1), expected)
    assert whitener.inverse_transform(y).shape == x.shape


@pytest.mark.parametrize("sizes", [[200], [1, 150, 0, 49], [2] * 100])
def test_batches_make_no_difference(sizes):
    """Also where the mean is 1e6 standard deviations."""
    x = make_data() + 1e6
    exact = torch.cov((x - 1e6).T, correction=0)
    streamed = Whitener(12)
    for batch in x.split(sizes):
        streamed.partial_fit(batch)
    for whitener in (
        streamed,
        Whitener(12).fit(x.split(sizes)),
        Whitener(12).fit((batch, None) for batch in x.split(sizes)),
    ):
        assert whitener.n_samples_seen_ == 200
        assert (whitener.mean_ - x.mean(0)).abs().max() <= 1e-8
        assert (whitener.covariance_[0] - exact).abs().max() <= 1e-8
        assert (whitener(x) - Whitener(12).fit(x)(x)).abs().max() <= 1e-6


def test_float32_batches_are_added_up_in_float64():
    x = make_data(20_000, 4, torch.float32) + 1000
    whitener = Whitener(4).fit(x.split(7))
    assert (whitener.covariance_[0] - torch.cov(x.double().T, correction=0)).abs().max() <= 1e-10
    assert whitener(x).dtype == torch.float32


def test_fit_forgets_and_partial_fit_adds():
    one, two = make_data(seed=1), make_data(seed=2)
    whitener = Whitener(12).fit(one)
    before = whitener(one)
    whitener.partial_fit(two)
    assert not torch.allclose(whitener(one), before)
    assert torch.allclose(whitener(one), Whitener(12).fit([one, two])(one))
    assert torch.allclose(Whitener(12).fit(one).merge(Whitener(12).fit(two))(one), whitener(one))
    assert torch.equal(whitener.fit(one)(one), before)


def test_an_error_keeps_the_earlier_fit():
    x = make_data()
    whitener = Whitener(12).fit(x)
    before = whitener(x)
    with pytest.raises(ValueError, match="expected 12 features"):
        whitener.fit([x, x[:, :5]])
    with pytest.raises(ValueError, match="at least 2 values"):
        whitener.fit([x[:1]])
    assert torch.equal(whitener(x), before)


@pytest.mark.parametrize("n_components", [None, 6])
@pytest.mark.parametrize("inverse", [False, True])
def test_linear_layer(n_components, inverse):
    x = make_data()
    whitener = Whitener(12, n_components, 6).fit(x)
    data = whitener(x) if inverse else x
    linear = whitener.to_linear(inverse, dtype=FLOAT64)
    expected = whitener.inverse_transform(data) if inverse else whitener(data)
    assert (linear(data) - expected).abs().max() <= 1e-10 * expected.abs().max()
    assert whitener.to_linear().weight.dtype == torch.float32


@pytest.mark.parametrize("n_components", [None, 3])
def test_gradients(n_components):
    whitener = Whitener(6, n_components, 6, feature_dim=-1).fit(make_data(features=6))
    x = make_data(4, 6).view(2, 2, 6).requires_grad_()
    assert torch.autograd.gradcheck(whitener, x)
    assert torch.autograd.gradgradcheck(whitener, x)
    y = whitener(x).detach().requires_grad_()
    assert torch.autograd.gradcheck(whitener.inverse_transform, y)
    assert torch.allclose(torch.vmap(whitener)(x), whitener(x))


def test_state_dict_copies_and_pickles():
    x = make_data()
    whitener = Whitener(12, 6).fit(x)
    assert set(whitener.state_dict()) == {"mean_", "covariance_", "n_samples_seen_"}
    loaded = Whitener(12, 6).fit(2 * x)
    loaded.load_state_dict(whitener.state_dict())
    for other in (loaded, copy.deepcopy(whitener), pickle.loads(pickle.dumps(whitener))):
        assert torch.equal(other(x), whitener(x))
        assert torch.equal(other.partial_fit(x)(x), copy.deepcopy(whitener).partial_fit(x)(x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_casting_keeps_the_moments(dtype):
    x = make_data()
    whitener = Whitener(12, eps=0.1).fit(x)
    expected = whitener(x.to(dtype).double())
    y = torch.nn.Sequential(whitener).to(dtype)(x.to(dtype))
    assert whitener.covariance_.dtype == FLOAT64
    assert y.dtype == dtype
    assert (y.double() - expected).abs().max() <= 4 * torch.finfo(dtype).eps * expected.abs().max() + 1e-5
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (whitener(x.float()) - whitener(x)).abs().max() <= 1e-4


def test_degenerate_data_is_finite_and_nan_shows():
    x = torch.cat([make_data(5, 6), torch.ones(5, 6, dtype=FLOAT64)], 1)
    for solver in SOLVERS:
        whitener = Whitener(12, solver=solver, eps=0).fit(x)
        assert whitener(x).isfinite().all()
        assert whitener.inverse_transform(whitener(x)).isfinite().all()
        assert Whitener(12, solver=solver).fit(x * torch.nan)(x).isnan().any()


def test_traces_and_compiles():
    x = make_data(dtype=torch.float32)
    whitener = Whitener(12).fit(x)
    exported = torch.export.export(whitener, (x,)).module()
    assert torch.allclose(exported(x), whitener(x), atol=1e-5)
    graph = torch.fx.symbolic_trace(torch.nn.Sequential(whitener, torch.nn.ReLU())).graph
    assert [node.op for node in graph.nodes] == ["placeholder", "call_module", "call_module", "output"]


def test_repr():
    assert repr(Whitener(12, 6, 4, Newton(3))) == (
        "Whitener(12, n_components=6, group_size=4, solver=Newton(steps=3), eps=1e-05, feature_dim=1)"
    )


class TestErrors:
    def test_not_fitted(self):
        for unfitted in (Whitener(4), Whitener(4).partial_fit(torch.zeros(1, 4))):
            for function in (unfitted, unfitted.inverse_transform, lambda x, w=unfitted: w.to_linear()):
                with pytest.raises(ValueError, match=r"at least 2 values \(got [01]\); call fit"):
                    function(torch.zeros(3, 4))

    def test_shapes(self):
        whitener = Whitener(12).fit(make_data())
        for x in (torch.zeros(3, 5), torch.zeros(12), torch.zeros(2, 5, 12)):
            with pytest.raises(ValueError, match=r"12 features in dimension 1 \(got shape"):
                whitener(x)
        with pytest.raises(ValueError, match="floating-point"):
            whitener(torch.zeros(3, 12, dtype=torch.long))
        with pytest.raises(ValueError, match=r"tensors, or tuples .* \(got dict\)"):
            whitener.fit([{"x": 1}])

    @pytest.mark.parametrize("n_components", [5, 0, 14, -2])
    def test_components(self, n_components):
        with pytest.raises(ValueError, match="components"):
            Whitener(12, n_components, 6)

    def test_feature_dim(self):
        with pytest.raises(ValueError, match="feature_dim to be 1 or -1"):
            Whitener(12, feature_dim=2)

    def test_merging_others(self):
        with pytest.raises(ValueError, match=r"covariances \(1, 12, 12\) \(got \(2, 6, 6\)\)"):
            Whitener(12).merge(Whitener(12, group_size=6))


@pytest.mark.parametrize("world", [2])
def test_ranks_fit_together(world, tmp_path):
    torch.multiprocessing.spawn(ranks.start, (world, tmp_path / "store", ranks.whitener_of_all_ranks), nprocs=world)
