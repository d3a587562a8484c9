"""The emulator itself: that it computes, and that it reports what would go wrong on a GPU."""

from collections import Counter

import numpy as np
import pytest
import torch

from tests.helpers.sampling import mark_slow
from tests.triton.emulator.launches import emulate
from tests.triton.emulator.machine import GlobalMemory, Machine
from tests.triton.emulator.ptx import parse
from tests.triton.interpreted.kernel_reference import method, moments, newton, view
from whitenorm.ops.triton.solve import solve
from whitenorm.ops.types import Statistics

HEADER = """
.visible .entry add(
	.param .u64 .ptr .global .align 1 add_param_0,
	.param .u64 .ptr .global .align 1 add_param_1,
	.param .u64 .ptr .global .align 1 add_param_2
)
.reqntid 64
{
	.reg .b32 	%r<9>;
"""
# Each of 64 threads writes its index to shared memory and reads that of the thread on the other side.
EXCHANGE = """
	ld.param.b64 	%rd1, [add_param_0];
	mov.u32 	%r1, %tid.x;
	shl.b32 	%r2, %r1, 2;
	st.shared.b32 	[%r2], %r1;
	bar.sync 	0;
	xor.b32 	%r3, %r2, 252;
	ld.shared.b32 	%r4, [%r3];
	mul.wide.u32 	%rd2, %r1, 4;
	add.s64 	%rd3, %rd1, %rd2;
	@%p1 bra 	$L__BB0_1;
	st.global.b32 	[ %rd3 + 0 ], { %r4 };
$L__BB0_1:
	ret;
}
"""


def run(body, grid=(1,)):
    """Run a program whose first argument is memory for 64 integers; return these and the faults."""
    faults = Counter()
    memory = GlobalMemory(512, faults)
    Machine(parse(HEADER + body), shared=256).run(grid, [256], memory, faults)
    return memory.read_bytes(256, 256).view(np.int32), faults


def without_guard(body):
    return body.replace("	@%p1 bra 	$L__BB0_1;\n", "")


def test_an_exchange():
    values, faults = run(without_guard(EXCHANGE))
    assert values.tolist() == list(range(63, -1, -1))
    assert not faults


def test_an_exchange_without_its_barrier():
    _, faults = run(without_guard(EXCHANGE).replace("	bar.sync 	0;\n", ""))
    assert any("another warp" in fault or "uninitialised" in fault for fault in faults)


def test_programs_that_write_the_same_memory():
    _, faults = run(
        without_guard(EXCHANGE).replace("%r4, [%r3];", "%r4, [%r3];\n	mov.u32 	%r4, %ctaid.x;"), grid=(2,)
    )
    assert any("another program" in fault for fault in faults)


def test_lanes_that_diverge():
    body = EXCHANGE.replace("	@%p1", "	setp.lt.s32 	%p1, %r1, 5;\n	@%p1")
    with pytest.raises(AssertionError, match="diverge"):
        run(body)


@pytest.mark.parametrize("address", ["misaligned", "outside"])
def test_bad_addresses(address):
    offset = {"misaligned": "+ 2", "outside": "+ 4096"}[address]
    with pytest.raises(AssertionError, match=address):
        run(without_guard(EXCHANGE).replace("%rd3 + 0", f"%rd3 {offset}"))


BARRIER = "bar.sync \t0;"


def solve_without_barrier(index):
    """Solve for a matrix by the compiled kernel without one of its barriers; return its error and faults."""
    batch = moments(view((2, 1, 17, 1, 49)), pooled=True)

    def delete(name, ptx):
        parts = ptx.split(BARRIER)
        return (
            ptx
            if index is None
            else BARRIER.join([*parts[:index], parts[index] + parts[index + 1], *parts[index + 2 :]])
        )

    with emulate(delete) as emulation:
        solution = solve(Statistics(None, batch), method(("bw",)), None, None)
    expected = newton(batch.cov.double() + 1e-3 * torch.eye(17, dtype=torch.float64))
    return (solution.whitening - expected).abs().max() / expected.abs().max(), emulation.faults


def test_a_kernel_with_its_barriers():
    error, faults = solve_without_barrier(None)
    assert error < 1e-5
    assert not faults


@pytest.mark.parametrize("index", mark_slow(range(3, 14), sample=[8]))
def test_a_kernel_without_a_barrier(index):
    """Delete each barrier of the iteration in turn."""
    _, faults = solve_without_barrier(index)
    assert faults
