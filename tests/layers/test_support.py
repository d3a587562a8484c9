"""The compatibility page says what is so: every cell of its table is checked here."""

import pytest
import torch

from tests.helpers import ranks, support


@pytest.fixture(scope="module")
def table():
    return support.read_table(support.PAGE.read_text(encoding="utf-8"))


def test_the_table_has_all_layers_and_tools(table):
    assert list(table) == list(support.TOOLS)
    assert all(list(row) == list(support.LAYERS) for row in table.values())


# Together these take as long as all others.
SLOW = {"`torch.compile`": [], "`torch.export`": [], "ONNX": [], "DDP": [], "FSDP2": [ranks.needs_fsdp]}


@pytest.mark.parametrize(
    "tool",
    [pytest.param(tool, marks=[pytest.mark.slow, *SLOW[tool]]) if tool in SLOW else tool for tool in support.TOOLS],
)
def test_the_page_matches_the_tools(tool, table):
    if tool == "`torch.export`" and not hasattr(torch.compiler, "is_exporting"):
        pytest.skip("this version of torch cannot export an autograd function of any batch size in training mode")
    if tool == "ONNX":
        pytest.importorskip("onnxscript")
        pytest.importorskip("onnxruntime")
    for name in support.LAYERS:
        cell, errors = support.outcome(tool, name)
        assert cell == table[tool][name], f"{name}: {errors or 'works'}; make support writes the table anew"
