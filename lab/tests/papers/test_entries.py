"""The small experiments: points in the plane, formulas, runs that break down, and the list of what is not built."""

import pytest
import torch
from torch import nn

import whitenorm
from whitenorm import solvers
from whitenorm_lab import costs, parallel
from whitenorm_lab.claims.experiment import Context
from whitenorm_lab.claims.outcomes import PAPERS
from whitenorm_lab.claims.results import Results, Run
from whitenorm_lab.papers.dbn import axes
from whitenorm_lab.papers.iternorm import clouds, dbn_stability
from whitenorm_lab.papers.not_built import NOT_BUILT
from whitenorm_lab.papers.sw import flops


def test_products_are_counted_on_meta_tensors():
    assert costs.count_products(lambda: nn.Conv2d(4, 6, 3, padding=1), 2, 4, 5, 5) == 2 * 25 * 9 * 4 * 6
    values = 8 * 16 * 16
    assert costs.count_products(lambda: whitenorm.IterNorm(32, 32, 0), 8, 32, 16, 16) == 2 * values * 32**2
    assert (
        costs.count_products(lambda: whitenorm.DecorrelatedBatchNorm(32, 8), 8, 32, 16, 16)
        == 2 * values * 32 * 8 + 32 * 8**2
    )


def test_batches_of_the_axes_share_eigenvectors():
    first, second = axes.make_batches(60, seed=3)
    assert torch.equal(first[:-2], second[:-2])
    vectors = [torch.linalg.eigh(torch.cov(batch.T)).eigenvectors.abs() for batch in (first, second)]
    assert torch.allclose(vectors[0], vectors[1].flip(1), atol=1e-4)


def test_clouds_are_the_outputs_of_the_layers():
    x = clouds.make_cloud(200, seed=1)
    norms = {
        "BN": nn.BatchNorm1d(2, 1e-12, affine=False),
        "DBN": whitenorm.DecorrelatedBatchNorm(2, 2, 0, affine=False),
        "IterNorm T=3": whitenorm.IterNorm(2, 2, 3, 0, affine=False),
    }
    for method, norm in norms.items():
        assert torch.allclose(clouds.normalize(x, method), norm(x), atol=1e-4), method


def test_dbn_as_printed_is_dbn_except_for_equal_eigenvalues():
    x = torch.randn(40, 6, dtype=torch.float64)
    cov = (x.T @ x / 40).requires_grad_()
    grad = torch.randn(6, 6, dtype=torch.float64)
    gradients = []
    for solver in (dbn_stability.zca_as_printed, "zca"):
        matrix = solvers.inverse_sqrt(cov, solver)
        gradients.append((matrix, *torch.autograd.grad(matrix, cov, grad)))
    for printed, ours in zip(*gradients, strict=True):
        assert torch.allclose(printed, ours)
    # Equal eigenvalues: their difference is zero and the gradient is not finite.
    equal = torch.eye(3, requires_grad=True)
    assert not torch.autograd.grad(dbn_stability.zca_as_printed(equal).sum(), equal)[0].isfinite().all()


@pytest.mark.parametrize("how", ["error", "loss", "not at all"])
def test_a_run_that_breaks_down_reports_its_steps(monkeypatch, how):
    def fake_fit(*args, progress, **options):
        progress(0.5)
        if how == "error":
            raise torch.linalg.LinAlgError
        return {"loss": [2.0, float("inf") if how == "loss" else 1.0]}

    monkeypatch.setattr(dbn_stability, "fit", fake_fit)
    monkeypatch.setattr(dbn_stability, "_load_images", lambda context, count, side: None)
    scale = dbn_stability.EXPERIMENT.scales["smoke"]
    values = dbn_stability.run(dbn_stability.plan(scale)[-1], Context(0))
    assert values["finished"] == (2 if how == "not at all" else 1)


def test_broken_runs_are_counted():
    def make_runs(group, finished_steps):
        settings = {"net": "vgg-16conv", "gradient": "as printed", "group": group, "steps": 5}
        return [Run(settings, seed, {"finished": steps}, 1.0) for seed, steps in enumerate(finished_steps)]

    judge = dbn_stability.EXPERIMENT.claims[0].judge
    assert judge(Results(make_runs(16, [5, 5]) + make_runs(32, [5, 0]))).holds
    assert not judge(Results(make_runs(16, [5, 5]) + make_runs(32, [5, 5]))).holds
    assert not judge(Results(make_runs(16, [4, 5]) + make_runs(32, [5, 0]))).holds


def test_timing_in_one_process_restores_the_number_of_threads():
    threads = torch.get_num_threads()
    fed = {"batch": 2, "resolution": 32, "classes": 10, "rounds": 2}
    added = parallel.measure_added_percent("cnn-4", costs.Choice("dbn", "l1"), 1, fed)
    assert set(added) == {"step", "inference"}
    assert torch.get_num_threads() == threads


def test_the_segmentation_net_has_the_papers_output_and_layers():
    with torch.device("meta"):
        net = flops._build_net("SW^a 14 layers")
        assert net(torch.empty(2, 3, 65, 65)).shape == (2, 19, 9, 9)
        assert sum(isinstance(module, whitenorm.SwitchableWhitening) for module in net.modules()) == 14


def test_not_built_lists_everything_once():
    assert all(missing.paper in PAPERS and missing.title and missing.why for missing in NOT_BUILT)
    assert len({(missing.paper, missing.where, missing.title) for missing in NOT_BUILT}) == len(NOT_BUILT) > 0
