"""The counts of benchmarks/launches.py: at most those of the papers' formulation, and equal to those in docs/gpu.md."""

import json

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import whitenorm
from benchmarks import collectives, launches, resnet
from benchmarks.launch_tables import counts, markdown
from benchmarks.roofline.work import layer_work, step_work
from whitenorm.cli.gpu.cases import CASES

# Operations of the authors' code; there is none for LayerWhitening, and DBN's handles the groups one by one.
AUTHORS = {"IterNorm": 101, "SW": 175, "GW": 124, "IW": 124}


@pytest.fixture(scope="module")
def fresh():
    return {name: launches.layer_rows(name, case) for name, case in CASES.items()}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kernels", ["torch", "triton"])
def test_no_more_operations_and_bytes_than_the_papers_formulation(fresh, name, kernels):
    if kernels not in fresh[name]:
        pytest.skip("no Triton")
    ours, paper = fresh[name][kernels], fresh[name]["paper"]
    operations = ours["forward"] + ours["backward"]
    assert operations <= paper["forward"] + paper["backward"]
    assert operations <= AUTHORS.get(name, operations)
    assert ours["passes"] <= paper["passes"]


def test_the_page_is_not_stale(fresh):
    """To update the page: python -m benchmarks.launches --write."""
    pytest.importorskip("triton")
    assert counts({"layers": fresh}) in launches.PAGE.read_text()


def test_the_tables_are_those_of_the_results():
    results = json.loads(launches.RESULTS.read_text())
    assert launches.RESULTS.with_suffix(".md").read_text() == f"{markdown(results)}\n"


def test_a_net_is_the_sum_of_its_parts(monkeypatch):
    """The norms counted separately and the net without them add up to the whole net."""

    def small():
        with torch.device("meta"):
            return nn.Sequential(
                nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 36, 1000)
            )

    monkeypatch.setattr(resnet, "_model", small)
    monkeypatch.setattr(resnet, "RESOLUTION", 8)
    resnet._shapes.cache_clear()
    resnet._without_norms.cache_clear()
    try:
        parts = resnet.step_operations("iternorm", "torch")
    finally:
        resnet._shapes.cache_clear()
        resnet._without_norms.cache_clear()
    model = whitenorm.convert_(small(), "iternorm")
    labels = torch.empty(resnet.BATCH, dtype=torch.long, device="meta")
    whole = step_work(lambda: F.cross_entropy(model(resnet._images()), labels)).operations
    assert sorted(parts) == sorted(whole)


@pytest.mark.parametrize("channels", [64, 128])
def test_bytes_sent_by_ranks(channels):
    """Triangles of 64 features: one collective forward in float64, and one backward in float32."""
    norm = resnet.Norm(whitenorm.IterNorm(channels), (8, channels, 4, 4))
    (operations,) = collectives.count_synchronized([norm], "torch")
    count = 1 + channels // 64 * (64 + 64 * 65 // 2)
    assert collectives.message_bytes(operations) == [8 * count, 4 * count]
    assert not collectives.message_bytes(layer_work(whitenorm.IterNorm(channels), norm.shape).operations)
    assert not torch.distributed.is_initialized()


def test_the_model_of_an_all_reduce():
    within = collectives.START + 6 * collectives.HOP_WITHIN
    assert collectives.all_reduce_seconds(0, 8) == pytest.approx(within)
    assert collectives.all_reduce_seconds(0, 64) == pytest.approx(within + 6 * collectives.HOP_BETWEEN)
    large = collectives.all_reduce_seconds(10**9, 8) - within
    assert large == pytest.approx(2 * 7 / 8 * 1e9 / collectives.LINK_WITHIN)
