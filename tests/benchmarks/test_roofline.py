"""Counting of the operations of a training step, and prediction of its time on a GPU."""

import pytest
import torch
from torch import nn

import whitenorm
from benchmarks.layers import METHODS, find_floor
from benchmarks.roofline import cards
from benchmarks.roofline.cards import Card
from benchmarks.roofline.floor import Rates, floor_seconds, list_needed_operations
from benchmarks.roofline.prediction import gpu_seconds, host_seconds, predict_seconds
from benchmarks.roofline.work import Operation, count_operations, count_passes, layer_work, nbytes, step_work
from whitenorm.cli.gpu.cases import CASES
from whitenorm.ops import launches


def meta(*shape):
    return torch.empty(shape, device="meta")


def operations_of(run):
    return [(operation.name, operation.bytes, operation.flops) for operation in count_operations(run)[1]]


def test_operations_of_small_functions():
    x, small = meta(8, 4), meta(4)
    assert operations_of(lambda: x + x) == [("add", 256, 0)]
    assert operations_of(lambda: x.add_(1)) == [("add_", 256, 0)]
    assert operations_of(lambda: x + small) == [("add", 272, 0)]
    assert operations_of(lambda: x.t() @ x) == [("mm", 128 + 64, 2 * 4 * 4 * 8)]
    assert operations_of(lambda: torch.mul(x, 2, out=meta(8, 4))) == [("mul", 256, 0)]
    # These do not read the tensor that they write.
    assert operations_of(lambda: x.zero_()) == [("zero_", 128, 0)]
    assert operations_of(lambda: x.copy_(small)) == [("copy_", 144, 0)]


def test_views_and_allocations_are_free():
    x = meta(8, 4)
    assert operations_of(lambda: torch.empty_like(x.view(4, 8).t().unsqueeze(0).expand(3, -1, -1)[0].detach())) == []


def test_an_expanded_dimension_is_in_memory_once():
    matrix = meta(1, 4, 4).expand(8, -1, -1)
    assert nbytes(matrix) == 64
    assert operations_of(lambda: torch.bmm(matrix, meta(8, 4, 2))) == [("bmm", 64 + 256 + 256, 8 * 2 * 4 * 4 * 2)]


def test_a_step_of_a_model():
    layer = nn.Linear(3, 5, device="meta")
    work = step_work(lambda: layer(meta(2, 3)).sum())
    assert [operation.name for operation in work.forward] == ["addmm", "sum"]
    # Forward, and the gradient of the weight; the input needs none.
    assert work.flops == 2 * (2 * 2 * 3 * 5)


def test_triton_launches_count_their_tensors():
    x, matrix = meta(8, 4, 16), meta(4, 4)

    def run():
        launches.record_launch("a_kernel", (x, matrix, None, 3, x), (5, 2), {})
        return x + 1

    assert count_operations(run)[1] == (
        Operation("add", 2 * 2048, 0),
        Operation("a_kernel", 2048 + 64, 0, triton=True, programs=10),
    )


def test_nested_recorders():
    with launches.record_launches() as outer:
        launches.record_launch("a", (), (1,), {})
        with launches.record_launches() as inner:
            launches.record_launch("b", (), (1,), {})
        launches.record_launch("c", (), (1,), {})
    assert ([launch.kernel for launch in outer], [launch.kernel for launch in inner]) == (["a", "b", "c"], ["b"])


def test_batch_norm():
    work = layer_work(nn.BatchNorm2d(64), (64, 64, 32, 32))
    assert (len(work.forward), len(work.backward)) == (2, 1)
    assert count_passes(work, (64, 64, 32, 32)) == pytest.approx(5, abs=0.01)


@pytest.mark.parametrize("name", CASES)
def test_triton_launches(name):
    """At most 8 launches, 10 for SW, and 9 passes over x."""
    pytest.importorskip("triton")
    case = CASES[name]
    work = layer_work(case.build_layer(), case.shape, "triton")
    assert 0 < work.triton_launches <= (10 if name == "SW" else 8)
    assert count_passes(work, case.shape) <= 9
    assert work.flops > 0


CARD = Card("a card", bandwidth=1e12, fp32=1e13, tf32=1e14, processors=100, cache=10**6, source="made up")


@pytest.mark.parametrize(
    ("operation", "seconds"),
    [
        (Operation("add", 0, 0), cards.KERNEL),
        (Operation("_apply", 0, 0, triton=True), cards.KERNEL),
        (Operation("add", 10**9, 0), 1e-3 / cards.BANDWIDTH_ATTAINED),
        (Operation("mm", 0, 10**10), 1e-3 / cards.FP32_ATTAINED),
        (Operation("convolution_backward", 0, 10**11), 1e-3 / cards.TF32_ATTAINED),
        (Operation("_apply", 0, 10**11, triton=True), 3e-3 / cards.TF32_ATTAINED),
        # x and y, and x again if it exceeds the cache; x, grad and dx, and the first two again.
        (Operation("native_batch_norm", 10**6, 0), cards.KERNEL),
        (Operation("native_batch_norm", 10**9, 0), 1.5e-3 / cards.BANDWIDTH_ATTAINED),
        (Operation("native_batch_norm_backward", 3 * 10**9, 0), 5e-3 / cards.BANDWIDTH_ATTAINED),
        # One of a hundred multiprocessors is busy, then all.
        (Operation("_solve", 0, 10**9, triton=True, programs=1), 3e-3 / cards.TF32_ATTAINED),
        (Operation("_solve", 0, 10**11, triton=True, programs=500), 3e-3 / cards.TF32_ATTAINED),
    ],
)
def test_prediction(operation, seconds):
    assert gpu_seconds([operation], CARD) == pytest.approx(seconds)
    assert gpu_seconds([operation, operation], CARD) == pytest.approx(2 * seconds)


def test_a_step_takes_as_long_as_the_slower_of_gpu_and_host():
    small, large = Operation("_apply", 0, 0, triton=True), Operation("add", 10**9, 0)
    assert host_seconds([small, large], 2) == cards.TRITON_LAUNCH + cards.TORCH_LAUNCH + 2 * cards.TRITON_LAYER
    assert predict_seconds([small], CARD, 1) == host_seconds([small], 1)
    assert predict_seconds([small, large], CARD, 1) == gpu_seconds([small, large], CARD)


def test_the_floor_counts_the_products_that_the_layer_computes():
    """IterNorm's torch kernels compute the same products as the floor, and all of the covariance instead of half."""
    shape = (32, 64, 16, 16)
    needed = list_needed_operations(shape, 64, 1, "newton", is_per_sample=False)
    passes = sum(operation.flops for operation in needed if operation.name != "solve")
    product = 2 * 32 * 64 * 256 * 64
    assert passes == 4.5 * product
    work = layer_work(whitenorm.IterNorm(64), shape)
    assert passes + product // 2 <= work.flops <= 1.2 * (passes + product // 2)
    assert sum(operation.bytes for operation in needed) <= work.bytes


def test_the_floor_takes_the_longer_of_memory_and_products():
    shape = (8, 16, 4, 4)
    by_memory, by_products = Rates(flops=1e30, bandwidth=1.0), Rates(flops=1.0, bandwidth=1e30)
    batch, sample = [list_needed_operations(shape, 16, 1, "newton", is_per_sample=flag) for flag in (False, True)]
    size = 4 * 8 * 16 * 16
    assert floor_seconds(batch, by_memory) == pytest.approx(8 * size)
    assert floor_seconds(sample, by_memory) == pytest.approx(5 * size)
    assert floor_seconds(batch, by_products) == pytest.approx(floor_seconds(sample, by_products))
    zca = list_needed_operations(shape, 16, 1, "zca", is_per_sample=False)
    assert zca[:-1] == batch[:-1]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_floor(name):
    shape = (32, 64) if name == "LayerWhitening" else (32, 64, 8, 8)
    rates = Rates(flops=1e11, bandwidth=1e10)
    assert 0 < find_floor(name, shape, rates) < 2 * find_floor(name, (2 * shape[0], *shape[1:]), rates)
