"""A training that is watched: what is written, and that it is the same training."""

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
from tests.helpers.ranks import start
from tests.helpers.watched import Kept, hooks_of, net, rows_of, train
from whitenorm.diagnostics import Inspection, inspect, monitor
from whitenorm.diagnostics import monitoring as module


def test_rows_are_those_of_inspect():
    model = ResNet()
    x = torch.randn(16, 3, 8, 8)
    with torch.no_grad():
        model(x + 1)
    expected = inspect(model, x, loss=lambda y: y.abs().mean())
    with monitor(model, Kept()) as watching:
        model(x).abs().mean().backward()
    assert isinstance(watching.last, Inspection)
    for row, other in zip(watching.last, expected, strict=True):
        for key in ("name", "kind", "condition_before", "condition90_after", "dead_after", "disturbance"):
            assert getattr(row, key) == pytest.approx(getattr(other, key)), key
        assert row.gradient_ratio == pytest.approx(other.gradient_ratio)
        # Here without what the loss keeps.
        assert other.memory_share < row.memory_share < 1.1 * other.memory_share
        assert row.drift < other.drift  # This batch is in the population by now.
    assert 0 < sum(row.time_share for row in watching.last) < 1


def test_the_training_is_the_same_bit_for_bit():
    def trained(watched):
        torch.manual_seed(0)
        random.seed(0)
        model = nn.Sequential(net(), nn.Dropout(0.5), whitenorm.DecorrelatedBatchNorm(8, 4))
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        if watched:
            with monitor(model, kept, every=2):
                train(model, 7, optimizer)
        else:
            train(model, 7, optimizer)
        return {**model.state_dict(), "torch": torch.get_rng_state()}, random.getstate()

    kept = Kept()
    (plain, state), (watched, other) = trained(False), trained(True)
    assert list(kept) == [1, 3, 5, 7]
    assert state == other
    assert all(torch.equal(value, watched[name]) for name, value in plain.items())


def test_only_training_steps_count():
    model = net()
    with monitor(model, kept := Kept(), every=1) as watching:
        train(model, 1)
        with torch.no_grad():
            model(torch.randn(32, 8))
        model.eval()(torch.randn(32, 8)).sum().backward()
        model.train()
        train(model, 1)
    assert watching.step == 2
    assert list(kept) == [1, 2]
    assert all(row.gradient_ratio > 0 for rows in kept.values() for row in rows)


def test_the_default_keeps_to_its_budget(monkeypatch):
    model = net()
    model.register_forward_hook(lambda *_: time.sleep(0.002))
    monkeypatch.setattr(module, "BUDGET", 0.25)
    with monitor(model, kept := Kept()) as watching:
        train(model, 20)  # To warm up.
        start, before, known = time.perf_counter(), watching.cost, len(kept)
        train(model, 100)
        elapsed, cost = time.perf_counter() - start, watching.cost - before
    assert known < len(kept) < 120
    assert 0 < cost < 0.3 * elapsed + 0.05


def test_a_failure_leaves_nothing_and_loses_nothing(tmp_path):
    class Fails(nn.Module):
        fail = False

        def forward(self, x):
            if self.fail:
                raise RuntimeError("mine")
            return x

    model = net().append(Fails())
    model.register_forward_hook(lambda model, *_: setattr(model[-1], "fail", model[1].num_batches_tracked == 2))
    with pytest.raises(RuntimeError, match="mine"), monitor(model, tmp_path / "a.csv", every=1):
        train(model, 5)
    assert len(hooks_of(model)) == 1  # The test's own.
    assert [row["step"] for row in rows_of(tmp_path / "a.csv")] == ["1", "1", "2", "2"]

    with monitor(model, kept := Kept(), every=1) as watching:
        with pytest.raises(RuntimeError, match="mine"):
            train(model, 1)
        assert not any(hooks_of(layer) for layer in model)
        saved = dict(watching._watch.saved)
        torch.randn(5, requires_grad=True).exp().square().sum().backward()
        assert watching._watch.saved == saved
        model[-1].fail = False
        train(model, 1)
    assert list(kept) == [2]
    assert len(hooks_of(model)) == 1


def test_hooks_are_on_the_layers_in_watched_forwards_only():
    model, seen = net(), []
    model[0].register_forward_hook(lambda *_: seen.append(len(model[1]._forward_hooks)))
    with monitor(model, Kept(), every=3):
        train(model, 4)
        assert not model[1]._forward_hooks
    assert seen == [2, 0, 0, 2]


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_run_again_and_count_once(reentrant):
    class Saving(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.rest = nn.Linear(8, 8), net()

        def forward(self, x):
            return checkpoint(self.rest, self.first(x), use_reentrant=reentrant)

    model = Saving()
    with monitor(model, kept := Kept(), every=1) as watching:
        train(model, 2)
        if not reentrant:
            checkpoint(model, torch.randn(32, 8), use_reentrant=False).sum().backward()
    assert watching.step == len(kept) == (2 if reentrant else 3)
    assert [row.name for row in watching.last] == ["rest.1", "rest.3"]


def test_a_norm_that_runs_twice_is_one_row():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = whitenorm.IterNorm(8)
            self.alias = self.norm

        def forward(self, x):
            return self.norm(self.alias(x) ** 3)

    model = Twice()
    x = torch.randn(64, 8, requires_grad=True)
    with monitor(model, Kept()) as watching:
        model(x).square().sum().backward()
    assert [row.name for row in watching.last] == ["norm"]
    assert not x._backward_hooks


# torch's own, from its compiler.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.parametrize("how", ["outside", "inside", "in place inside"])
def test_a_compiled_model(how):
    model = nn.Sequential(net(), nn.Linear(8, 8))
    compiled = model
    if how == "outside":
        compiled = torch.compile(model, backend="eager")
    elif how == "inside":
        model[0] = torch.compile(model[0], backend="eager")
    else:
        model[0].compile(backend="eager")
    train(compiled, 1)
    with monitor(compiled, kept := Kept(), every=2) as watching:
        train(compiled, 3)
    assert watching.step == 3
    assert [[row.name for row in rows] for rows in kept.values()] == [["0.1", "0.3"]] * 2
    model.compile(backend="eager")
    with pytest.raises(ValueError, match=r"use torch.compile\(model\)"), monitor(model, Kept()):
        pass


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")
@pytest.mark.filterwarnings("ignore:Graph break due to unsupported builtin")
@pytest.mark.parametrize("compiled_before", [False, True])
def test_a_compiled_function_that_calls_the_model_is_no_silence(compiled_before):
    torch._dynamo.reset()
    model = net()
    step = torch.compile(lambda x: model(x).square().mean(), backend="eager")
    if compiled_before:
        step(torch.randn(32, 8))
        with pytest.warns(UserWarning, match="not from inside a compiled function"), monitor(model, Kept()):
            step(torch.randn(32, 8))
    else:
        with pytest.raises((AssertionError, RuntimeError), match="set_stance"), monitor(model, Kept()):
            step(torch.randn(32, 8))
    assert not hooks_of(model)


def test_it_is_said_when_nothing_was_seen():
    model = net()
    with pytest.warns(UserWarning, match="expected training steps inside the context"), monitor(model, Kept()):
        model[1](torch.randn(32, 8))
    with pytest.raises(ValueError, match="use DDP"), monitor(nn.DataParallel(model), Kept()):
        pass

    class Skips(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = whitenorm.IterNorm(8)

        def forward(self, x):
            return x

    model = Skips()
    with pytest.warns(UserWarning, match="ran none of the model's norms"), monitor(model, Kept()):
        model(torch.randn(4, 8))


def test_a_warning_for_each_layer_and_kind_once():
    model = nn.Sequential(whitenorm.IterNorm(8), nn.Linear(8, 8), whitenorm.GroupWhitening(4, 8))
    with warnings.catch_warnings(record=True) as caught, monitor(model, Kept(), every=1):
        warnings.simplefilter("always")
        train(model, 3, size=6)
    assert sorted(str(w.message)[:30] for w in caught) == [
        "0 (IterNorm), step 1: 6 values",
        "2 (GroupWhitening), step 1: 4 ",
    ]


def test_drift_is_news_only_of_a_population_that_had_the_time():
    model = nn.Sequential(nn.BatchNorm1d(8))
    far = torch.randn(64, 8) + 100
    with monitor(model, Kept(), every=1) as watching:
        model(far.requires_grad_()).sum().backward()
        assert not watching.last
        for _ in range(60):
            model(torch.randn(64, 8, requires_grad=True)).sum().backward()
        model(far).sum().backward()
        with pytest.warns(UserWarning, match="0 .BatchNorm1d., step 62: population statistics"):
            model(far)


def test_a_training_that_diverges_goes_on_and_shows():
    model = net()
    with pytest.warns(UserWarning, match="NaN or infinity"), monitor(model, Kept()) as watching:
        model(torch.full((32, 8), float("nan"))).sum().backward()
    assert math.isnan(watching.last[0].condition_before)
    assert "NaN" in watching.last[0].advice[0]
    assert "NaN or infinity" in watching.last.to_html()


def test_autocast_gives_the_same_numbers_as_outside_of_it():
    model = net()
    x = torch.randn(64, 8)
    rows = []
    for inside in (False, True):
        same = copy.deepcopy(model)
        with monitor(same, Kept()) as watching:
            with torch.autocast("cpu", torch.bfloat16):
                y = same(x)
            y.float().sum().backward()
            if inside:
                with torch.autocast("cpu", torch.bfloat16):
                    same(x)
        rows.append(watching.last)
    assert [row.disturbance for row in rows[0]] == [row.disturbance for row in rows[1]]
    assert [row.condition_before for row in rows[0]] == [row.condition_before for row in rows[1]]


def test_copies_and_pickles_of_a_watched_model_are_not_watched():
    model = net()
    with monitor(model, Kept(), every=1) as watching:
        train(model, 1)
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            train(other, 2)
    assert watching.step == 1


def _parallel(folder, rank, world):
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(whitenorm.synchronize_(net()))
    with monitor(model, f"{folder}/norms.csv", every=1):
        # Six values on each of two ranks make a covariance of eight features.
        train(model, 2, size=6)


def test_rank_zero_writes_for_a_model_in_ddp(tmp_path):
    arguments = (2, tmp_path / "meeting", functools.partial(_parallel, tmp_path))
    multiprocessing.start_processes(start, arguments, nprocs=2, start_method="spawn")
    rows = rows_of(tmp_path / "norms.csv")
    assert [(row["step"], row["name"]) for row in rows] == list(itertools.product("12", "13"))


def test_arguments_are_checked_before_files_are_made(tmp_path):
    net = nn.Sequential(nn.BatchNorm1d(2))
    for options in ({"every": 0}, {"every": 1.5}, {"first_step": 1.5}, {"first_step": -1}):
        with pytest.raises(ValueError, match="whole number"), monitor(net, tmp_path / "rows.csv", **options):
            pass
    assert list(tmp_path.iterdir()) == []


def test_hooks_of_the_user_on_saved_tensors_stay():
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))

    def packed():
        shapes = []
        with saved_tensors_hooks(lambda t: shapes.append(t.shape) or t, lambda t: t):
            net(torch.randn(8, 4)).sum().backward()
        return shapes

    expected = packed()
    with monitor(net, lambda step, rows: None) as watching:
        assert packed() == expected != []
    assert watching.last[0].memory_share is None


def test_hooks_of_the_user_between_two_monitors_stay():
    class Offloaded(nn.Sequential):
        packed = 0

        def forward(self, x):
            with saved_tensors_hooks(self.pack, lambda t: t):
                return self[0](x)

        def pack(self, tensor):
            self.packed += 1
            return tensor

    inner = net()
    model = nn.Sequential(nn.BatchNorm1d(8), Offloaded(inner))
    train(model, 1)
    once = model[1].packed
    with monitor(model, Kept()) as outside, monitor(inner, Kept()) as inside:
        train(model, 1)
    assert model[1].packed == 2 * once > 0
    assert [row.memory_share > 0 for row in outside.last] == [True, False, False]
    assert [row.memory_share for row in inside.last] == [None, None]


def test_where_hooks_on_saved_tensors_are_forbidden_nothing_is_counted():
    model = net()
    with monitor(model, Kept()) as watching, disable_saved_tensors_hooks("none here"):
        train(model, 1)
    assert [row.memory_share for row in watching.last] == [None, None]


def test_two_monitors_on_one_model():
    model = net()
    with monitor(model, Kept()) as outer, monitor(model, Kept()) as inner:
        train(model, 1)
    assert [row.memory_share for row in outer.last] == [row.memory_share for row in inner.last]
    assert all(row.memory_share > 0 for row in inner.last)


def test_the_compiler_is_back_after_two_monitors_on_one_model():
    torch._dynamo.reset()
    model, calls = net(), []

    def backend(graph, inputs):
        calls.append(graph)
        return graph.forward

    with monitor(model, Kept()), monitor(model, Kept()):
        train(model, 1)
    torch.compile(lambda x: 2 * x, backend=backend)(torch.ones(2))
    assert len(calls) == 1


def test_too_few_values_to_measure_by_are_no_warning():
    model = nn.Sequential(nn.LayerNorm(8))
    x = torch.randn(4, 8, requires_grad=True)
    with warnings.catch_warnings(), monitor(model, Kept()) as watching:
        warnings.simplefilter("error")
        model(x).sum().backward()
        model(x)
    assert "4 values of 8 features" in watching.last[0].advice[0]


def test_lazy_norms_from_their_first_step():
    torch.manual_seed(0)
    lazy = nn.Sequential(nn.Linear(8, 8), nn.LazyBatchNorm1d(), nn.Linear(8, 8))
    rows = []
    for _ in range(2):
        with monitor(lazy, Kept()) as watching:
            train(lazy, 1)
        rows.append(watching.last[0])
    assert [row.kind for row in rows] == ["BatchNorm1d"] * 2
    assert rows[0].memory_share == rows[1].memory_share > 0
