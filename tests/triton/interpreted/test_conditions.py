"""The conditions of ``whitenorm gpu`` that need no GPU, and that each finds what it is for."""

import torch

from whitenorm import IterNorm
from whitenorm.cli.gpu import conditions

CPU = torch.device("cpu")


def test_conditions():
    rows = list(conditions.compare_conditions(CPU, small=True))
    assert [row for row in rows if not row.agrees] == []
    cases = {row.case for row in rows}
    assert set(conditions.SMALL_SHAPES) < cases
    assert {"IterNorm, unaligned", "IterNorm, every other column", "IterNorm, new memory filled with NaN"} < cases
    assert "IterNorm, 3 times the same step" in cases


def test_placed_tensors():
    x = torch.randn(2, 3, 4, 5)
    unaligned, strided = conditions.copy_unaligned(x, CPU), conditions.copy_strided(x, CPU)
    assert torch.equal(unaligned, x)
    assert torch.equal(strided, x)
    assert unaligned.data_ptr() % 16 != 0
    assert strided.stride() == (120, 40, 10, 2)


def test_new_memory_is_nan_within_the_context_alone():
    with conditions.nan_in_new_memory():
        assert torch.empty(1000).isnan().all()
        assert torch.ones(3).new_empty(1000).isnan().all()
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_step_with_other_bits_is_found(monkeypatch):
    real = conditions.run_step
    calls = []

    def deviate_once(layer, x, grad):
        calls.append(x)
        return {"output": real(layer, x, grad)["output"] + (len(calls) == 3)}

    monkeypatch.setattr(conditions, "run_step", deviate_once)
    row = conditions._compare_repetitions("IterNorm", IterNorm(4), torch.randn(2, 4, 3, 3), CPU, 4)
    assert (row.error, row.agrees) == (1.0, False)
