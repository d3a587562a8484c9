"""Use an installed whitenorm from a folder that is not the checkout.

``python tools/smoke.py`` needs torch alone. With ``inspect`` it also runs ``whitenorm inspect``, which needs the
inspect extra; with ``lab`` the demo of whitenorm-lab. Called by ``make wheel``, and by the tests on wheels that they
build.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
NET = """
from torch import nn
net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
"""


def use_library() -> None:
    """Run a layer forward and backward, convert a model, train it for a step, and fold it."""
    import torch
    from torch import nn

    import whitenorm

    package = Path(whitenorm.__file__).resolve().parent
    assert package != CHECKOUT / "src" / "whitenorm", f"expected an installed package (got the checkout's, {package})"
    x = torch.randn(8, 16, 6, 6, requires_grad=True)
    whitenorm.IterNorm(16)(x).square().sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    model = nn.Sequential(nn.Conv2d(16, 16, 3), nn.BatchNorm2d(16), nn.ReLU())
    whitenorm.convert_(model, "iternorm")
    assert isinstance(model[1], whitenorm.BatchWhitening)
    model(x.detach())
    expected = model.eval()(x.detach())
    folded = whitenorm.fold_(model)
    torch.testing.assert_close(folded(x.detach()), expected, rtol=1e-4, atol=1e-4)
    assert not any(isinstance(module, whitenorm.Whitening) for module in folded.modules())


def run(module: str, *args: str) -> str:
    """Run ``python -m module`` and return its output."""
    result = subprocess.run([sys.executable, "-m", module, *args], capture_output=True, text=True)
    assert result.returncode == 0, f"{module} {' '.join(args)} ended with {result.returncode}:\n{result.stderr}"
    return result.stdout


def run_library_commands() -> None:
    assert run("whitenorm", "--version").startswith("whitenorm ")
    assert "inspect" in run("whitenorm")
    assert "IterNorm" in run("whitenorm", "bench", "--shape", "2", "16", "4", "--tokens", "8", "16", "--rounds", "1")


def run_inspect() -> None:
    Path("net.py").write_text(NET)
    output = run(
        "whitenorm", "inspect", "net.py:net", "--layer", "iternorm", "--html", "page.html", "--csv", "table.csv"
    )
    assert "IterNorm" in output or "BatchWhitening" in output, output
    assert "<html" in Path("page.html").read_text(encoding="utf-8")
    assert Path("table.csv").stat().st_size > 0


def run_demo() -> None:
    assert "IterNorm" in run("whitenorm_lab", "demo", "--epochs", "1", "--batch-size", "256")
    assert Path("whitenorm-demo/curves.png").stat().st_size > 0


def main(extras: list[str]) -> None:
    os.chdir(tempfile.mkdtemp())
    use_library()
    run_library_commands()
    if "inspect" in extras:
        run_inspect()
    if "lab" in extras:
        run_demo()
    print("works:", ", ".join(["library", *extras]))


if __name__ == "__main__":
    main(sys.argv[1:])
