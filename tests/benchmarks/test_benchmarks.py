"""The benchmark suite: the alternatives compute the same as the layers, and the report shows every result."""

import importlib
import json
import pkgutil
import subprocess
import sys
from functools import partial

import pytest
import torch
from rich.console import Console

import benchmarks
import whitenorm
from benchmarks import layers, models, papers, picture, report, run, solvers, sweep, tokens
from benchmarks.native import Native
from tests.helpers.cases import assert_close
from whitenorm.diagnostics import kernels_used
from whitenorm.ops.native.library import load_library
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
        "binary": "kernels-avx2",
        "sgemm_gflops": 1.0,
        "layers": [layers.measure(shape, rounds=3, budget=1) for shape in shapes],
        "solvers": [solvers.measure(8, 2, rounds=3, budget=1)],
        "sweep": [sweep.measure(*case, rounds=3, budget=1) for case in sweep.cases(quick=True)],
        "tokens": [tokens.measure(name, *net, rounds=3) for name, net in tokens.families(quick=True).items()],
        "models": [models.measure(models.resnet50(["SW^a 7 layers"], 32, 2), 3)],
    }


def copy_of(results):
    return json.loads(json.dumps(results))


def test_rows_are_ratios_of_what_was_timed(results):
    assert [entry["shape"] for entry in results["layers"]] == [[4, 32, 6, 6], [64, 64]]
    for shape, name, row in report.rows(results):
        assert row["ms"] > 0
        assert row["norm"] == layers.METHODS[name].norm
        assert row["saved"] < row["saved_paper"]
        # The output and the input's gradient at least.
        assert min(row["peak"], row["peak_torch"], row["peak_paper"], row["peak_norm"]) >= 2
        assert ("channels_last_to_contiguous" in row) == (len(shape) == 4)
        assert (row["norm"] == "BatchNorm") == (row["to_norm"] == row["to_batchnorm"])
    assert results["solvers"][0]["solvers"]["zca"]["error"] < 1e-4


def test_results_name_the_kernels_that_ran(results):
    native = load_library().description if load_library().functions is not None else "torch"
    passes = "torch" if native == "torch" else f"{native} and torch"
    kernels = {name: row["kernels"] for shape, name, row in report.rows(results) if len(shape) == 4}
    assert kernels == {"IterNorm": native, "DBN": passes, "SW": native, "IW": native, "GW": native}
    assert {row["kernels"] for row in results["sweep"]} <= {native, passes, "torch"}
    assert results["tokens"][0]["rows"]["LayerNorm"]["kernels"] == ""
    assert results["models"][0]["models"]["SW^a 7 layers"]["kernels"] == passes


def test_torch_kernels_are_used_for_one_contender_only():
    layer, x = whitenorm.IterNorm(16), torch.randn(4, 16, 4, 4)
    before = kernels_used(lambda: layer(x))
    assert kernels_used(layers.with_torch_kernels(lambda: layer(x))) == ("torch",)
    assert kernels_used(lambda: layer(x)) == before


def test_peak_memory_counts_what_is_alive_at_once():
    class Twice(torch.nn.Module):
        def forward(self, x):
            return (x.repeat(2, 1)[: len(x)] * 2).clone()

    # Forward: the repeated input, its part doubled, and the copy; backward needs no more.
    assert layers.measure_peak_share(torch.nn.Identity(), (64, 64)) <= 1.01
    assert layers.measure_peak_share(Twice(), (64, 64)) == pytest.approx(4, abs=0.01)


def test_tables_show_every_row(results, tmp_path):
    text = report.format_all(results)
    assert "| 4×32×6×6 | IterNorm |" in text
    assert "| 64×64 | LayerWhitening |" in text
    assert "(+11.4 %; +1.6 %)" in text
    targets = report.list_targets(results)
    assert text.count("| met |") + text.count("| **missed** |") + text.count("| not measured |") == len(targets)
    picture.draw(results, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 1000


def test_every_column_has_a_legend(results):
    for table in (report.cost_table(results), report.detail_table(results)):
        header = next(line for line in table.splitlines() if line.startswith("| shape"))
        for column in header.strip("| ").split(" | "):
            assert f"**{column}**" in table, column


def test_values_that_were_not_measured_are_dashes(results):
    changed = copy_of(results)
    for _, _, row in report.rows(changed):
        row["to_norm"] = row["to_floor"] = row["to_torch"] = None
    assert " | – | " in report.cost_table(changed)
    assert all(target.is_met is None for target in report.list_targets(changed) if target.measured == "–")


def test_losses_of_suite_and_sweep_are_listed(results):
    assert {row["method"] for row in results["sweep"]} == set(sweep.FEATURES)
    for row in results["sweep"]:
        rivals = {"paper", "native", "torch"} if row["method"] == "IterNorm" else {"paper", "torch"}
        assert set(row["to_own"]) == rivals
    changed = copy_of(results)
    for row in changed["sweep"]:
        # That torch's kernels are faster is no loss to an alternative.
        row["to_own"] = {"paper": 0.5 if row["method"] == "GW" else 2.0, "torch": 0.1}
    for _, name, row in report.rows(changed):
        row["to_paper"], row["to_native"] = (1.25, 1.2) if name == "IW" else (0.5, None)
    losses = [(loss.layer, loss.shape, loss.alternative) for loss in report.list_losses(changed)]
    assert losses == [("IW", [4, 32, 6, 6], "paper"), ("GW, K = 16", [4, 256, 4, 4], "paper")]
    text = report.target_table(changed)
    assert "faster on these 2 of 9 layers of the suite and 3 other shapes" in text
    assert "| GW, K = 16 | 4×256×4×4 |" in text


def test_targets_name_nets_of_the_full_suite(results):
    """The names of the nets and shapes that the targets are for are those that are measured."""
    changed = copy_of(results)
    rows = changed["tokens"][0]["rows"]
    changed["tokens"] = [{"name": name, "input": [], "rows": rows} for name in tokens.families(quick=False)]
    measured = [target.measured for target in report.list_targets(changed) if "training step with" in target.what]
    assert measured == [f"{rows['LayerWhitening']['step']:.2f}×"] * 2


def test_targets_are_judged_by_the_worst_row(results):
    changed = copy_of(results)
    for _, name, row in report.rows(changed):
        row["to_paper"] = 0.2 if name != "GW" else 1.1
    by_name = {target.what.split(",")[0]: target for target in report.list_targets(changed)}
    assert by_name["DBN"].is_met
    assert by_name["SW"].is_met
    assert not by_name["GW"].is_met
    assert by_name["GW"].measured == "0.91×"


def test_an_interrupted_run_resumes(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "measure_sgemm_rate", lambda: 1e9)
    calls = []

    def measure(name):
        if name == "b" and len(calls) == 1:
            raise KeyboardInterrupt
        calls.append(name)
        return name.upper()

    cases = [run.Case("layers", name, 1.0, partial(measure, name)) for name in "ab"]
    path, console = tmp_path / "full.partial.json", Console(quiet=True)
    with pytest.raises(KeyboardInterrupt):
        run.measure(cases, path, console)
    calls.append("again")
    assert run.measure(cases, path, console)["layers"] == ["A", "B"]
    assert calls == ["a", "again", "b"]
    # Times of another machine, or of other code, are not mixed with these.
    path.write_text(json.dumps({**json.loads(path.read_text()), "binary": "another"}))
    run.measure(cases, path, console)
    assert calls[3:] == ["a", "b"]


def test_the_suite_has_the_shapes_of_the_targets_within_twenty_minutes():
    cases = run.list_cases(quick=False)
    assert sum(case.seconds for case in cases) < 20 * 60
    assert sum(case.part == "sweep" for case in cases) == 142
    assert {(256, 128), (32, 256, 14, 14), (32, 64, 56, 56), (4, 16, 4, 4)} <= set(layers.SHAPES)
    assert len({(case.part, case.name) for case in cases}) == len(cases)


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
