"""Use an installed whitenorm as a stranger would, in a folder that is not the checkout.

``python tools/smoke.py`` needs torch alone; with ``inspect`` and ``demo`` it also runs those commands, which need
their extras. Called by ``make wheel``, and by the tests on a wheel that they build.
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


def library() -> None:
    """A layer forward and backward, a plain model converted, and folded again."""
    import torch
    from torch import nn

    import whitenorm

    source = Path(whitenorm.__file__).resolve().parent
    assert source != CHECKOUT / "src" / "whitenorm", f"expected an installed package (got the checkout's, {source})"
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
    assert not any(isinstance(module, whitenorm.BatchWhitening) for module in folded.modules())


def command(*args: str, code: int = 0) -> str:
    """What the command says; its exit code has to be this."""
    done = subprocess.run([sys.executable, "-m", "whitenorm", *args], capture_output=True, text=True)
    assert done.returncode == code, (
        f"whitenorm {' '.join(args)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    )
    return done.stdout + done.stderr


def main(commands: list[str]) -> None:
    os.chdir(tempfile.mkdtemp())
    library()
    assert command("--version").startswith("whitenorm ")
    assert "bench runs in a checkout only" in command("bench", code=2)
    if "inspect" in commands:
        Path("net.py").write_text(NET)
        said = command("inspect", "net.py:net", "--layer", "iternorm", "--html", "page.html", "--csv", "table.csv")
        assert "IterNorm" in said or "BatchWhitening" in said, said
        assert "<html" in Path("page.html").read_text(encoding="utf-8")
    if "demo" in commands:
        assert "IterNorm" in command("demo", "--epochs", "1", "--batch-size", "256")
        assert Path("whitenorm-demo/curves.png").stat().st_size > 0
    print("works:", ", ".join(["library", *commands]))


if __name__ == "__main__":
    main(sys.argv[1:])
