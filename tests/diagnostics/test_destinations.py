"""Destinations of a monitor's rows: CSV, TensorBoard, writers and functions."""

import sys

import pytest
from torch import nn

from tests.helpers.monitoring import RowsByStep, build_net, list_hooks, read_rows, train
from whitenorm.diagnostics import monitor


def test_csv_is_appended_to_after_a_killed_run(tmp_path):
    path = tmp_path / "new" / "norms.csv"
    model = build_net()
    with monitor(model, path, every=3):
        train(model, 3)
        # A recorded step is written when the next step begins.
        assert len(path.read_text().splitlines()) == 3
    with path.open("a") as file:
        file.write("99,br")
    with monitor(model, str(path), every=3, first_step=4) as watching:
        train(model, 1)
    assert watching.step == 4
    rows = read_rows(path)
    assert [(row["step"], row["name"]) for row in rows] == [
        ("1", "1"),
        ("1", "3"),
        ("99", "br"),
        ("4", "1"),
        ("4", "3"),
    ]
    assert float(rows[-1]["condition_before"]) == pytest.approx(watching.last[1].condition_before)
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with (
        pytest.raises(OSError, match=r"expected .*other.csv to be new .* \(got a,b\)"),
        monitor(model, tmp_path / "other.csv"),
    ):
        pass
    assert (tmp_path / "other.csv").read_text() == "a,b\n1,2\n"
    assert not list_hooks(model)


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    model = build_net()
    with monitor(model, tmp_path / "run.1", every=2) as watching:
        train(model, 3)
    events = EventAccumulator(str(tmp_path / "run.1")).Reload()
    values = events.Scalars("norm/1/condition_after")
    assert [event.step for event in values] == [1, 3]
    assert values[-1].value == pytest.approx(watching.last[0].condition_after, rel=1e-5)
    assert "norm/1/width" not in events.Tags()["scalars"]
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="expected a folder"), monitor(model, tmp_path / "file"):
        pass


def test_missing_tensorboard_is_an_error_that_names_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match="pip install tensorboard"), monitor(build_net(), tmp_path):
        pass


def test_writers_and_invalid_destinations():
    class Writer:
        calls = ()

        def add_scalar(self, tag, value, step):
            self.calls += ((tag, step),)

    model, writer = build_net(), Writer()
    with monitor(model, writer):
        train(model, 1)
    assert ("norm/3/gradient_ratio", 1) in writer.calls
    for to in (None, 3, "x.txt", "runs/x.json"):
        with pytest.raises(ValueError, match=r"expected a \.csv file, a folder for TensorBoard"), monitor(model, to):
            pass
    with pytest.raises(ValueError, match="every"), monitor(model, RowsByStep(), every=0):
        pass
    with pytest.raises(ValueError, match="expected a model with norms"), monitor(nn.Linear(2, 2), RowsByStep()):
        pass
