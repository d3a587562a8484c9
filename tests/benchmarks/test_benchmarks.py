"""The benchmark suite: the alternatives compute the same as the layers, and the report shows every result."""

import importlib
import json
import pkgutil
import subprocess
import sys

import pytest
import torch

import benchmarks
import whitenorm
from benchmarks import layers, models, papers, picture, report, solvers, sweep, tokens
from benchmarks.native import Native
from tests.helpers.cases import assert_close
from whitenorm_lab.costs import RESNET50, VGG_A, build_net, count_gflops

PAIRS = {
    "IterNorm": (papers.IterNorm(12, 6), whitenorm.IterNorm(12, 6)),
    "DBN": (papers.DBN(12, 6), whitenorm.DecorrelatedBatchNorm(12, 6)),
    "SW": (papers.SW(12, 6), whitenorm.SwitchableWhitening(12, 6)),
    "IW": (papers.IW(12, 6), whitenorm.InstanceWhitening(12, 6)),
    "GW": (papers.GW(4, 12), whitenorm.GroupWhitening(4, 12)),
    "native Newton": (Native(12, 6, "newton"), whitenorm.IterNorm(12, 6)),
    "native ZCA": (Native(12, 6, "zca"), whitenorm.DecorrelatedBatchNorm(12, 6)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_same_as_the_layer(name):
    torch.manual_seed(0)
    paper, layer = (module.double() for module in PAIRS[name])
    x = torch.randn(4, 12, 5, 5, dtype=torch.float64)
    grad = torch.randn_like(x)
    results = []
    for module in (paper, layer):
        inputs = x.clone().requires_grad_()
        y = module(inputs)
        y.backward(grad)
        parameters = dict(module.named_parameters())
        results.append([y, inputs.grad, parameters["weight"].grad, parameters["bias"].grad, module.eval()(x)])
    for actual, expected in zip(*results, strict=True):
        assert_close(actual, expected, torch.float64)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("GW S1", 1),
        ("GW S1-B1", 17),
        ("GW S1-B2", 17),
        ("GW S1-B3", 17),
        ("GW S1-B12", 33),
        ("GW full", 53),
        ("SW^a 7 layers", 7),
        ("SW^b 14 layers", 14),
    ],
)
def test_placements(name, count):
    model = build_net("resnet50", 1000, RESNET50[name])
    kinds = (whitenorm.GroupWhitening, whitenorm.SwitchableWhitening)
    assert sum(isinstance(module, kinds) for module in model.modules()) == count


def test_resnet50_is_the_one_the_papers_count():
    """25.557 M parameters, and SW's 4.1 GFLOPs."""
    model = build_net("resnet50", 1000)
    assert sum(parameter.numel() for parameter in model.parameters()) == 25_557_032
    assert count_gflops(model, 224) == pytest.approx(4.1, abs=0.05)


def test_group_sizes_of_vgg():
    model = build_net("vgg-a", 10, VGG_A["DBN-G256"])
    layers_ = [module for module in model.modules() if isinstance(module, whitenorm.DecorrelatedBatchNorm)]
    assert [layer.group_size for layer in layers_] == [64, 128, *[256] * 6]


@pytest.fixture(scope="module")
def results():
    shapes = [(4, 32, 6, 6), (64, 64)]
    return {
        "machine": {"processor": "p", "threads": 1, "torch": "t", "commit": "c"},
        "sgemm_gflops": 1.0,
        "layers": [layers.measure(shape, 1e11, rounds=3, budget=1) for shape in shapes],
        "solvers": [solvers.measure(8, 2, rounds=3, budget=1)],
        "sweep": [sweep.measure(*case, rounds=3, budget=1) for case in sweep.cases(quick=True)],
        "tokens": [tokens.measure(name, *net, rounds=3) for name, net in tokens.families(quick=True).items()],
        "models": [models.measure(models.resnet50(["SW^a 7 layers"], 32, 2), 3, lambda name: None)],
    }


def test_rows_are_ratios_of_what_was_timed(results):
    assert [entry["shape"] for entry in results["layers"]] == [[4, 32, 6, 6], [64, 64]]
    for _, _, row in report.rows(results):
        assert row["ms"] > 0
        assert row["to_floor"] < row["to_batchnorm"]
        assert row["saved"] < row["saved_paper"]
        # The output and the input's gradient at least.
        assert min(row["peak"], row["peak_paper"], row["peak_batchnorm"]) >= 2
    assert results["solvers"][0]["solvers"]["zca"]["error"] < 1e-4


def test_peak_memory_counts_what_is_alive_at_once():
    class Twice(torch.nn.Module):
        def forward(self, x):
            return (x.repeat(2, 1)[: len(x)] * 2).clone()

    # Forward: the repeated input, its part doubled, and the copy; backward needs no more.
    assert layers.measure_peak_share(torch.nn.Identity(), (64, 64)) <= 1.01
    assert layers.measure_peak_share(Twice(), (64, 64)) == pytest.approx(4, abs=0.01)


def test_report_shows_every_row_and_loss(results, tmp_path):
    text = report.markdown(results)
    assert "| 4×32×6×6 | IterNorm |" in text
    assert "| 64×64 | DBN |" in text
    assert "SW^a 7 layers" in text
    assert "(+11.4 %; +1.6 %)" in text
    assert "FLOPs added, time relative to the convolution | 0 | 0, " in text
    assert text.count("| yes |") + text.count("| no |") == len(report.bars(results))
    picture.draw(results, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 1000


def test_reading_names_the_losses(results):
    changed = json.loads(json.dumps(results))
    for _, name, row in report.rows(changed):
        row["to_paper"] = 1.25 if name == "IW" else 0.5
    text = report.reading(changed)
    assert "are faster than these layers on IW 4×32×6×6." in text
    for bar in report.bars(changed):
        assert (f"- {bar.what}: measured {bar.measured}, target {bar.wanted}" in text) != bar.reached


def test_every_rival_that_is_ahead_is_named(results):
    assert {row["method"] for row in results["sweep"]} == set(sweep.FEATURES)
    for row in results["sweep"]:
        rivals = {"paper", "native", "other layout"} if row["method"] == "IterNorm" else {"paper"}
        assert set(row["ms"]) == {row["method"], *rivals}
    changed = json.loads(json.dumps(results))
    for row in changed["sweep"]:
        row["fastest_to_own"] = 0.5 if row["method"] == "GW" else 2.0
    for _, name, row in report.rows(changed):
        row["to_paper"], row["to_native"] = (1.25, None) if name == "IW" else (0.5, 0.5)
    (said,) = report.behind(changed)
    assert "shapes: IW 4×32×6×6 (paper, 1.25). Of 3" in said
    assert "faster on 1, listed in" in said
    text = report.sweep_table(changed)
    assert "| GW | 16 | 4×256×4×4 |" in text
    assert "| IW |" not in text


def test_the_other_layout_is_another_one():
    layouts = []
    x = torch.randn(2, 64, 4, 4)

    def step():
        layouts.append(whitenorm.functional.channel_groups(x, 64, True).copied)

    step()
    sweep._in_other_layout(step)
    assert layouts == [True, False]


def test_bars_are_judged_by_the_worst_row(results):
    changed = json.loads(json.dumps(results))
    for _, name, row in report.rows(changed):
        row["to_paper"] = 0.2 if name != "GW" else 1.1
    found = {bar.what: bar for bar in report.bars(changed)}
    assert not found["speed-up over the papers' formulation (mean, worst)"].reached
    assert found["DBN, speed-up over its paper's formulation (worst)"].reached


def test_the_suite_runs_as_a_module():
    process = subprocess.run([sys.executable, "-m", "benchmarks", "--help"], capture_output=True, text=True, check=True)
    assert "--quick" in process.stdout


@pytest.mark.parametrize("shape", [(5, 12), (5, 12, 3, 3)], ids=str)
def test_grouped_product_is_a_grouped_convolution(shape):
    product = layers.GroupedProduct(12, 4)
    x = torch.randn(shape)
    weight = product.matrix.reshape(12, 4, 1, 1)
    expected = torch.nn.functional.conv2d(x.reshape(*shape[:2], -1, 1), weight, groups=3).reshape(shape)
    assert torch.allclose(product(x), expected, atol=1e-5)


@pytest.mark.parametrize("name", [module.name for module in pkgutil.iter_modules(benchmarks.__path__)])
def test_every_benchmark_imports(name):
    assert importlib.import_module(f"benchmarks.{name}").__doc__
