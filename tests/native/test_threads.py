"""Threads and processes: the same bits for any number of threads, from several at once, and after a fork."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import whitenorm

MIX = ("bw", "iw", "bn", "in", "ln")


@pytest.fixture
def threads():
    """Return the function that sets torch's number of threads, which is restored."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def run_layers(seed=0):
    """Return outputs and gradients of all kinds of statistics, for inputs large enough for several threads."""
    torch.manual_seed(seed)
    layers = [
        whitenorm.BatchWhitening(32, 16),
        whitenorm.BatchWhitening(32, 16).eval(),
        whitenorm.InstanceWhitening(32, 16),
        whitenorm.GroupWhitening(8, 32),
        whitenorm.SwitchableWhitening(32, 16, MIX),
        whitenorm.BatchWhitening(32, 16, "zca"),
    ]
    results = []
    for memory_format in (torch.contiguous_format, torch.channels_last):
        for layer in layers:
            x = torch.randn(9, 32, 15, 17).to(memory_format=memory_format).requires_grad_()
            y = layer(x)
            layer.zero_grad()
            y.backward(torch.randn_like(y))
            results += [y.detach(), x.grad, *(parameter.grad for parameter in layer.parameters())]
    return results


def is_same(results, expected):
    return all(torch.equal(*pair) for pair in zip(results, expected, strict=True))


def test_any_number_of_threads_gives_the_same_bits(threads):
    threads(1)
    expected = run_layers()
    for count in (2, 3, 16):
        threads(count)
        assert is_same(run_layers(), expected), count


def test_calls_from_several_threads_at_once():
    """The kernels run without the interpreter's lock."""

    def run(seed):
        generator = torch.Generator().manual_seed(seed)
        layer = whitenorm.GroupWhitening(8, 32)
        results = []
        for _ in range(20):
            x = torch.randn(4, 32, 9 + seed, 9, generator=generator, requires_grad=True)
            y = layer(x)
            (grad,) = torch.autograd.grad(y.square().sum() + y.sum(), x)
            results += [y.detach(), grad]
        return results

    expected = [run(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(run, range(4)))
    assert all(map(is_same, results, expected))


FORK = """
import os, torch, whitenorm
from tests.native.test_threads import is_same, run_layers
whitenorm.set_kernels("native")
torch.set_num_threads(2)
expected = run_layers()
child = os.fork()
if child == 0:
    torch.set_num_threads(1)
    os._exit(0 if is_same(run_layers(), expected) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_after_a_fork():
    """In one thread, which workers of a DataLoader are left with: those of the parent do not survive a fork."""
    command = [sys.executable, "-W", "ignore", "-c", FORK]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr


def test_deterministic_algorithms():
    """Which also fill new tensors with NaN, so that a value which the kernels do not write would show."""
    expected = run_layers()
    torch.use_deterministic_algorithms(True)
    try:
        assert is_same(run_layers(), expected)
    finally:
        torch.use_deterministic_algorithms(False)
