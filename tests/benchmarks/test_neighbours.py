"""The benchmark of nearest-neighbour search."""

import pytest
import torch

from benchmarks import neighbours


def test_precision_of_a_known_order():
    database = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])
    relevant = torch.tensor([[True, False, True]])
    measured = neighbours.measure_search(database, torch.tensor([[1.0, 0.0]]), relevant)
    assert measured == pytest.approx({"first": 1.0, "ten": 2 / 3, "map": (1 + 2 / 3) / 2})


def test_every_form_is_measured(monkeypatch):
    monkeypatch.setattr(neighbours, "COMPONENTS", (2, 8))
    x = torch.randn(40, 6)
    results = {"cases": {"random": neighbours.measure(x[:30], x[30:], torch.rand(10, 30) < 0.5)}}
    lines = neighbours.format_table(results).splitlines()
    assert len(lines) == 2 + len(["raw", "centred", "2", "2, whitened", "whitened"])
