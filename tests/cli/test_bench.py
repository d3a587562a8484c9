"""``whitenorm bench``: layers beside the norms they replace."""

import re

import pytest
import torch

from whitenorm.cli import bench, main

FAST = ["--rounds", "1", "--tokens", "16", "12"]


def parse_rows(printed):
    """Return the numbers of each row, and its reference: the last row before it that is not indented."""
    rows, reference = {}, None
    for line in printed.splitlines():
        numbers = [float(number) for number in re.findall(r"([\d.]+)(?: ms|×)", line)]
        if " ms" in line:
            name = line.split()[0]
            reference = reference if line.startswith("  ") else name
            rows[name] = reference, numbers
    return rows


@pytest.mark.parametrize("shape", [(4, 12, 5), (4, 12, 3, 3), (4, 12, 2, 2, 2)])
def test_each_layer_is_compared_with_the_norm_it_replaces(shape, capsys):
    assert main(["bench", "--shape", *map(str, shape), *FAST]) == 0
    rows = parse_rows(capsys.readouterr().out)
    dims = len(shape) - 2
    assert {name: reference for name, (reference, _) in rows.items()} == {
        f"BatchNorm{dims}d": f"BatchNorm{dims}d",
        "IterNorm": f"BatchNorm{dims}d",
        "DecorrelatedBatchNorm": f"BatchNorm{dims}d",
        "SwitchableWhitening": f"BatchNorm{dims}d",
        "GroupNorm": "GroupNorm",
        "GroupWhitening": "GroupNorm",
        f"InstanceNorm{dims}d": f"InstanceNorm{dims}d",
        "InstanceWhitening": f"InstanceNorm{dims}d",
        "LayerNorm": "LayerNorm",
        "LayerWhitening": "LayerNorm",
    }
    for name, (reference, numbers) in rows.items():
        if name == reference:
            assert len(numbers) == 2
            continue
        for milliseconds, ratio, norm in zip(numbers[::2], numbers[1::2], rows[reference][1], strict=True):
            # Printed to 0.001 ms and 0.01.
            assert abs(ratio * norm - milliseconds) <= 0.005 * norm + 0.0005 * (ratio + 1) + 1e-6


@pytest.mark.parametrize("channels", [1, 7, 67, 100])
def test_any_number_of_channels(channels, capsys, recwarn):
    assert main(["bench", "--shape", "2", str(channels), "3", "3", "--rounds", "1", "--tokens", "8", "67"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert not recwarn.list
    assert f"DecorrelatedBatchNorm group_size={ {1: 1, 7: 7, 67: 1, 100: 10}[channels] }" in printed.out


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_dtypes(dtype, capsys):
    assert main(["bench", "--shape", "4", "8", "5", "--dtype", dtype, *FAST]) == 0
    assert dtype in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--shape", "4", "0", "3"], "expected --shape of 3 to 5 positive sizes"),
        (["--tokens", "4", "0"], "expected --tokens of 2 positive sizes"),
        (["--rounds", "0"], "expected --rounds of at least 1"),
        (["--device", "fridge"], "expected a --device that works with this PyTorch (got 'fridge': "),
        (["--shape", "1", "4", "1"], "Expected more than 1 value per channel when training"),
    ],
)
def test_errors_are_one_line(args, message, capsys):
    assert main(["bench", *args]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_an_error(capsys):
    assert main(["bench", "--device", "cuda"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "expected a --device that works with this PyTorch (got 'cuda': " in printed.err
    assert printed.err.endswith("; use cpu\n")


def test_steps_are_interleaved_after_a_warm_up():
    calls = []
    steps = {name: lambda name=name: calls.append(name) for name in "ab"}
    seconds = bench.time_interleaved(steps, 4, torch.device("cpu"))
    assert "".join(calls[-8:]) == "abababab"
    assert len(calls) > 8
    assert all(value >= 0 for value in seconds.values())
