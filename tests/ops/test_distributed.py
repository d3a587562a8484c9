"""Statistics over several processes: the same as one process on the joined batch."""

import copy
import io

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn
from torch.overrides import TorchFunctionMode

import whitenorm
from tests.helpers import fuzz_ranks, ranks
from tests.helpers.sampling import mark_slow
from whitenorm.ops import dispatch


@pytest.fixture
def single_process(tmp_path):
    with ranks.gloo(tmp_path / "store"):
        yield


@pytest.mark.parametrize("world", mark_slow([2, 3, 4], sample=[2]))
def test_ranks_together_are_one_process(world, tmp_path):
    torch.multiprocessing.spawn(ranks.start, (world, tmp_path / "store", ranks.all_checks), nprocs=world)


@pytest.mark.slow
def test_random_steps_with_masks_and_empty_batches(tmp_path):
    cases, deviations, _ = fuzz_ranks.fuzz(0, 40, None, tmp_path / "store")
    assert cases == 40
    assert not deviations


@ranks.needs_fsdp
@pytest.mark.parametrize("world", mark_slow([2, 3], sample=[2]))
def test_ranks_that_share_parameters_are_one_process(world, tmp_path):
    torch.multiprocessing.spawn(ranks.start, (world, tmp_path / "store", ranks.inside_fsdp), nprocs=world)


def test_a_clear_error_without_a_process_group():
    with pytest.raises(RuntimeError, match="init_process_group first"):
        whitenorm.synchronize_(nn.Sequential(whitenorm.IterNorm(4)))


@pytest.mark.usefixtures("single_process")
def test_a_model_without_whitening_is_an_error():
    with pytest.raises(ValueError, match="batch whitening layers"):
        whitenorm.synchronize_(nn.Sequential(nn.BatchNorm2d(4)))


@pytest.mark.usefixtures("single_process")
def test_a_model_of_sample_statistics_has_nothing_to_synchronise():
    model = nn.Sequential(whitenorm.GroupWhitening(2, 4), whitenorm.LayerWhitening(4))
    with pytest.warns(UserWarning, match="nothing is synchronized"):
        assert whitenorm.synchronize_(model) is model


@pytest.mark.usefixtures("single_process")
def test_batch_norms_stay_local_on_a_cpu_with_a_warning():
    model = nn.Sequential(whitenorm.IterNorm(4), nn.BatchNorm2d(4))
    with pytest.warns(UserWarning, match=r"1 BatchNorms stay local \(1\)"):
        whitenorm.synchronize_(model)
    assert type(model[1]) is nn.BatchNorm2d


@pytest.mark.usefixtures("single_process")
def test_batch_norms_beside_whitening_become_synchronised_on_other_devices():
    model = nn.Sequential(whitenorm.IterNorm(4), nn.BatchNorm2d(4)).to("meta")
    whitenorm.synchronize_(model)
    assert isinstance(model[1], nn.SyncBatchNorm)
    assert model[1].process_group is dist.group.WORLD


@pytest.mark.usefixtures("single_process")
def test_a_conversion_keeps_synchronization():
    layer = whitenorm.synchronize_(whitenorm.IterNorm(4))
    assert whitenorm.convert_(nn.Sequential(layer), "dbn")[0].process_group is dist.group.WORLD
    assert isinstance(whitenorm.convert_(nn.Sequential(layer), "bn")[0], nn.SyncBatchNorm)


@pytest.mark.usefixtures("single_process")
def test_copies_share_the_group_and_pickles_drop_it():
    layer = whitenorm.synchronize_(whitenorm.IterNorm(4))
    assert layer.process_group is dist.group.WORLD
    assert copy.deepcopy(layer).process_group is dist.group.WORLD
    stream = io.BytesIO()
    torch.save(layer, stream)
    stream.seek(0)
    assert torch.load(stream, weights_only=False).process_group is None


@pytest.mark.usefixtures("single_process")
def test_a_second_derivative_is_a_clear_error():
    layer = whitenorm.synchronize_(whitenorm.IterNorm(4))
    x = torch.randn(8, 4, requires_grad=True)
    with pytest.raises(RuntimeError, match="process_group to None"):
        torch.autograd.grad(layer(x).sum(), x, create_graph=True)


class Called(TorchFunctionMode):
    """Which of torch's functions were called."""

    def __init__(self):
        super().__init__()
        self.functions = set()

    def __torch_function__(self, function, types, arguments=(), options=None):
        self.functions.add(function)
        return function(*arguments, **(options or {}))


@pytest.mark.usefixtures("single_process")
@pytest.mark.parametrize("name", ranks.LAYERS)
def test_nothing_waits_for_the_device(name, monkeypatch):
    """No number is copied from the host, and none is read there."""
    # The operations that a GPU would run.
    monkeypatch.setattr(dispatch, "_mode", "torch")
    layer = whitenorm.synchronize_(ranks.LAYERS[name]())
    x = torch.randn(8, 6, 3, 3, requires_grad=True)
    with Called() as called:
        layer(x).sum().backward()
    assert torch.Tensor.matmul in called.functions
    host = {torch.as_tensor, torch.tensor, torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.__bool__, torch.equal}
    assert not called.functions & host


@pytest.mark.usefixtures("single_process")
@pytest.mark.parametrize("name", ["iternorm", "bw-sigma", "sw-batch"])
def test_a_single_value_over_all_ranks(name):
    """BatchNorm's error; where a compiler traces and cannot ask for the number, nothing is recorded."""
    layer = whitenorm.synchronize_(ranks.LAYERS[name]())
    before = copy.deepcopy(layer.state_dict())
    x = torch.randn(1, 6, requires_grad=True)
    with pytest.raises(ValueError, match="Expected more than 1 value per channel when training"):
        layer(x)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    compiled(x).square().sum().backward()
    assert x.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())
    for key, value in layer.state_dict().items():
        assert torch.equal(value, before[key]), key


@pytest.mark.usefixtures("single_process")
@pytest.mark.parametrize("name", ["iternorm", "sw"])
def test_compiles_without_graph_breaks(name):
    layer = whitenorm.synchronize_(ranks.LAYERS[name]())
    x = torch.randn(8, 6, 3, 3)
    expected = copy.deepcopy(layer)(x)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(x), expected, atol=1e-6)
