"""Monitoring of a training run, which must not change it."""

import copy
import functools
import itertools
import math
import pickle
import random
import time
import warnings

import pytest
import torch
from torch import multiprocessing, nn
from torch.autograd.graph import disable_saved_tensors_hooks, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import whitenorm
from tests.helpers.models import ResNet
from tests.helpers.monitoring import RowsByStep, build_net, list_hooks, read_rows, train
from tests.helpers.ranks import start
from whitenorm.diagnostics import Inspection, inspect, monitor
from whitenorm.diagnostics import monitoring as module


def test_rows_agree_with_inspect():
    model = ResNet()
    x = torch.randn(16, 3, 8, 8)
    with torch.no_grad():
        model(x + 1)
    expected = inspect(model, x, loss=lambda y: y.abs().mean())
    with monitor(model, RowsByStep()) as watching:
        model(x).abs().mean().backward()
    assert isinstance(watching.last, Inspection)
    for row, other in zip(watching.last, expected, strict=True):
        for key in ("name", "kind", "condition_before", "condition90_after", "dead_after", "disturbance"):
            assert getattr(row, key) == pytest.approx(getattr(other, key)), key
        assert row.gradient_ratio == pytest.approx(other.gradient_ratio)
        # The monitor does not see what the loss saves.
        assert other.memory_share < row.memory_share < 1.1 * other.memory_share
        assert row.drift < other.drift  # By now the population includes this batch.
    assert 0 < sum(row.time_share for row in watching.last) < 1


def test_the_training_is_the_same_bit_for_bit():
    def run(is_monitored):
        torch.manual_seed(0)
        random.seed(0)
        model = nn.Sequential(build_net(), nn.Dropout(0.5), whitenorm.DecorrelatedBatchNorm(8, 4))
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        if is_monitored:
            with monitor(model, rows, every=2):
                train(model, 7, optimizer)
        else:
            train(model, 7, optimizer)
        return {**model.state_dict(), "torch": torch.get_rng_state()}, random.getstate()

    rows = RowsByStep()
    (plain, state), (monitored, monitored_state) = run(False), run(True)
    assert list(rows) == [1, 3, 5, 7]
    assert state == monitored_state
    assert all(torch.equal(value, monitored[name]) for name, value in plain.items())


def test_only_training_steps_are_counted():
    model = build_net()
    with monitor(model, rows := RowsByStep(), every=1) as watching:
        train(model, 1)
        with torch.no_grad():
            model(torch.randn(32, 8))
        model.eval()(torch.randn(32, 8)).sum().backward()
        model.train()
        train(model, 1)
    assert watching.step == 2
    assert list(rows) == [1, 2]
    assert all(row.gradient_ratio > 0 for step_rows in rows.values() for row in step_rows)


def test_the_default_interval_keeps_to_the_budget(monkeypatch):
    model = build_net()
    model.register_forward_hook(lambda *_: time.sleep(0.002))
    monkeypatch.setattr(module, "BUDGET", 0.25)
    with monitor(model, rows := RowsByStep()) as watching:
        train(model, 20)  # To warm up.
        start, cost_before, steps_before = time.perf_counter(), watching.cost, len(rows)
        train(model, 100)
        elapsed, cost = time.perf_counter() - start, watching.cost - cost_before
    assert steps_before < len(rows) < 120
    assert 0 < cost < 0.3 * elapsed + 0.05


def test_an_error_removes_hooks_and_loses_no_rows(tmp_path):
    class Fails(nn.Module):
        fail = False

        def forward(self, x):
            if self.fail:
                raise RuntimeError("from the model")
            return x

    model = build_net().append(Fails())
    model.register_forward_hook(lambda model, *_: setattr(model[-1], "fail", model[1].num_batches_tracked == 2))
    with pytest.raises(RuntimeError, match="from the model"), monitor(model, tmp_path / "a.csv", every=1):
        train(model, 5)
    assert len(list_hooks(model)) == 1  # This test's hook.
    assert [row["step"] for row in read_rows(tmp_path / "a.csv")] == ["1", "1", "2", "2"]

    with monitor(model, rows := RowsByStep(), every=1) as watching:
        with pytest.raises(RuntimeError, match="from the model"):
            train(model, 1)
        assert not any(list_hooks(layer) for layer in model)
        saved_bytes = dict(watching._recorder.saved_bytes)
        torch.randn(5, requires_grad=True).exp().square().sum().backward()
        assert watching._recorder.saved_bytes == saved_bytes
        model[-1].fail = False
        train(model, 1)
    assert list(rows) == [2]
    assert len(list_hooks(model)) == 1


def test_layers_have_hooks_in_recorded_forwards_only():
    model, num_hooks = build_net(), []
    model[0].register_forward_hook(lambda *_: num_hooks.append(len(model[1]._forward_hooks)))
    with monitor(model, RowsByStep(), every=3):
        train(model, 4)
        assert not model[1]._forward_hooks
    assert num_hooks == [2, 0, 0, 2]


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_forwards_count_once(reentrant):
    class Saving(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.rest = nn.Linear(8, 8), build_net()

        def forward(self, x):
            return checkpoint(self.rest, self.first(x), use_reentrant=reentrant)

    model = Saving()
    with monitor(model, rows := RowsByStep(), every=1) as watching:
        train(model, 2)
        if not reentrant:
            checkpoint(model, torch.randn(32, 8), use_reentrant=False).sum().backward()
    assert watching.step == len(rows) == (2 if reentrant else 3)
    assert [row.name for row in watching.last] == ["rest.1", "rest.3"]


def test_a_norm_that_runs_twice_gets_one_row():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = whitenorm.IterNorm(8)
            self.alias = self.norm

        def forward(self, x):
            return self.norm(self.alias(x) ** 3)

    model = Twice()
    x = torch.randn(64, 8, requires_grad=True)
    with monitor(model, RowsByStep()) as watching:
        model(x).square().sum().backward()
    assert [row.name for row in watching.last] == ["norm"]
    assert not x._backward_hooks


# Raised by torch's compiler.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.parametrize("how", ["outside", "inside", "in place inside"])
def test_a_compiled_model(how):
    model = nn.Sequential(build_net(), nn.Linear(8, 8))
    compiled = model
    if how == "outside":
        compiled = torch.compile(model, backend="eager")
    elif how == "inside":
        model[0] = torch.compile(model[0], backend="eager")
    else:
        model[0].compile(backend="eager")
    train(compiled, 1)
    with monitor(compiled, rows := RowsByStep(), every=2) as watching:
        train(compiled, 3)
    assert watching.step == 3
    assert [[row.name for row in step_rows] for step_rows in rows.values()] == [["0.1", "0.3"]] * 2
    model.compile(backend="eager")
    with pytest.raises(ValueError, match=r"use torch.compile\(model\)"), monitor(model, RowsByStep()):
        pass


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")
@pytest.mark.filterwarnings("ignore:Graph break due to unsupported builtin")
@pytest.mark.parametrize("is_compiled_before", [False, True])
def test_a_call_inside_a_compiled_function_is_reported(is_compiled_before):
    torch._dynamo.reset()
    model = build_net()
    step = torch.compile(lambda x: model(x).square().mean(), backend="eager")
    if is_compiled_before:
        step(torch.randn(32, 8))
        with pytest.warns(UserWarning, match="do not call it inside a compiled function"), monitor(model, RowsByStep()):
            step(torch.randn(32, 8))
    else:
        with pytest.raises((AssertionError, RuntimeError), match="set_stance"), monitor(model, RowsByStep()):
            step(torch.randn(32, 8))
    assert not list_hooks(model)


def test_a_context_without_training_steps_is_reported():
    model = build_net()
    with pytest.warns(UserWarning, match="expected training steps inside the context"), monitor(model, RowsByStep()):
        model[1](torch.randn(32, 8))
    with pytest.raises(ValueError, match="use DDP"), monitor(nn.DataParallel(model), RowsByStep()):
        pass

    class Skips(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = whitenorm.IterNorm(8)

        def forward(self, x):
            return x

    model = Skips()
    with pytest.warns(UserWarning, match="ran none of the model's norms"), monitor(model, RowsByStep()):
        model(torch.randn(4, 8))


def test_one_warning_per_layer_and_kind():
    model = nn.Sequential(whitenorm.IterNorm(8), nn.Linear(8, 8), whitenorm.GroupWhitening(4, 8))
    with warnings.catch_warnings(record=True) as caught, monitor(model, RowsByStep(), every=1):
        warnings.simplefilter("always")
        train(model, 3, batch_size=6)
    assert sorted(str(w.message)[:30] for w in caught) == [
        "0 (IterNorm), step 1: 6 values",
        "2 (GroupWhitening), step 1: 4 ",
    ]


def test_drift_is_reported_once_the_population_has_settled():
    model = nn.Sequential(nn.BatchNorm1d(8))
    far = torch.randn(64, 8) + 100
    with monitor(model, RowsByStep(), every=1) as watching:
        model(far.requires_grad_()).sum().backward()
        assert not watching.last
        for _ in range(60):
            model(torch.randn(64, 8, requires_grad=True)).sum().backward()
        model(far).sum().backward()
        with pytest.warns(UserWarning, match="0 .BatchNorm1d., step 62: population statistics"):
            model(far)


def test_diverged_training_continues_and_is_reported():
    model = build_net()
    with pytest.warns(UserWarning, match="NaN or infinity"), monitor(model, RowsByStep()) as watching:
        model(torch.full((32, 8), float("nan"))).sum().backward()
    assert math.isnan(watching.last[0].condition_before)
    assert "NaN" in watching.last[0].advice[0]
    assert "NaN or infinity" in watching.last.to_html()


def test_measures_are_not_affected_by_autocast():
    model = build_net()
    x = torch.randn(64, 8)
    rows = []
    for inside in (False, True):
        same = copy.deepcopy(model)
        with monitor(same, RowsByStep()) as watching:
            with torch.autocast("cpu", torch.bfloat16):
                y = same(x)
            y.float().sum().backward()
            if inside:
                with torch.autocast("cpu", torch.bfloat16):
                    same(x)
        rows.append(watching.last)
    assert [row.disturbance for row in rows[0]] == [row.disturbance for row in rows[1]]
    assert [row.condition_before for row in rows[0]] == [row.condition_before for row in rows[1]]


def test_copies_and_pickles_of_a_monitored_model_are_not_monitored():
    model = build_net()
    with monitor(model, RowsByStep(), every=1) as watching:
        train(model, 1)
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            train(other, 2)
    assert watching.step == 1


def _train_in_ddp(folder, rank, world):
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(whitenorm.synchronize_(build_net()))
    with monitor(model, f"{folder}/norms.csv", every=1):
        # Six values on each of two ranks are enough for a covariance of eight features.
        train(model, 2, batch_size=6)


@pytest.mark.slow
def test_rank_zero_writes_for_a_model_in_ddp(tmp_path):
    arguments = (2, tmp_path / "meeting", functools.partial(_train_in_ddp, tmp_path))
    multiprocessing.start_processes(start, arguments, nprocs=2, start_method="spawn")
    rows = read_rows(tmp_path / "norms.csv")
    assert [(row["step"], row["name"]) for row in rows] == list(itertools.product("12", "13"))


def test_arguments_are_checked_before_files_are_created(tmp_path):
    net = nn.Sequential(nn.BatchNorm1d(2))
    for options in ({"every": 0}, {"every": 1.5}, {"first_step": 1.5}, {"first_step": -1}):
        with pytest.raises(ValueError, match="whole number"), monitor(net, tmp_path / "rows.csv", **options):
            pass
    assert list(tmp_path.iterdir()) == []


def test_user_hooks_on_saved_tensors_keep_working():
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))

    def collect_saved_shapes():
        shapes = []
        with saved_tensors_hooks(lambda t: shapes.append(t.shape) or t, lambda t: t):
            net(torch.randn(8, 4)).sum().backward()
        return shapes

    expected = collect_saved_shapes()
    with monitor(net, lambda step, rows: None) as watching:
        assert collect_saved_shapes() == expected != []
    assert watching.last[0].memory_share is None


def test_user_hooks_between_two_monitors_keep_working():
    class Offloaded(nn.Sequential):
        num_packed = 0

        def forward(self, x):
            with saved_tensors_hooks(self.pack, lambda t: t):
                return self[0](x)

        def pack(self, tensor):
            self.num_packed += 1
            return tensor

    inner = build_net()
    model = nn.Sequential(nn.BatchNorm1d(8), Offloaded(inner))
    train(model, 1)
    per_step = model[1].num_packed
    with monitor(model, RowsByStep()) as outside, monitor(inner, RowsByStep()) as inside:
        train(model, 1)
    assert model[1].num_packed == 2 * per_step > 0
    assert [row.memory_share > 0 for row in outside.last] == [True, False, False]
    assert [row.memory_share for row in inside.last] == [None, None]


def test_memory_is_not_measured_where_saved_tensor_hooks_are_disabled():
    model = build_net()
    with monitor(model, RowsByStep()) as watching, disable_saved_tensors_hooks("disabled here"):
        train(model, 1)
    assert [row.memory_share for row in watching.last] == [None, None]


def test_two_monitors_on_one_model():
    model = build_net()
    with monitor(model, RowsByStep()) as outer, monitor(model, RowsByStep()) as inner:
        train(model, 1)
    assert [row.memory_share for row in outer.last] == [row.memory_share for row in inner.last]
    assert all(row.memory_share > 0 for row in inner.last)


def test_the_compiler_is_restored_after_two_monitors_on_one_model():
    torch._dynamo.reset()
    model, calls = build_net(), []

    def backend(graph, inputs):
        calls.append(graph)
        return graph.forward

    with monitor(model, RowsByStep()), monitor(model, RowsByStep()):
        train(model, 1)
    torch.compile(lambda x: 2 * x, backend=backend)(torch.ones(2))
    assert len(calls) == 1


def test_too_few_values_for_the_measures_give_no_warning():
    model = nn.Sequential(nn.LayerNorm(8))
    x = torch.randn(4, 8, requires_grad=True)
    with warnings.catch_warnings(), monitor(model, RowsByStep()) as watching:
        warnings.simplefilter("error")
        model(x).sum().backward()
        model(x)
    assert "4 values of 8 features" in watching.last[0].advice[0]


def test_lazy_norms_are_recorded_from_the_first_step():
    torch.manual_seed(0)
    lazy = nn.Sequential(nn.Linear(8, 8), nn.LazyBatchNorm1d(), nn.Linear(8, 8))
    rows = []
    for _ in range(2):
        with monitor(lazy, RowsByStep()) as watching:
            train(lazy, 1)
        rows.append(watching.last[0])
    assert [row.kind for row in rows] == ["BatchNorm1d"] * 2
    assert rows[0].memory_share == rows[1].memory_share > 0
