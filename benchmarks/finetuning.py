"""The numbers of docs/tutorials/finetuning.md, by its own code.

``python -m benchmarks.finetuning`` runs the page's code, which reads CIFAR-10 from $WHITENORM_DATA, and writes
benchmarks/results/finetuning.json, the page's table and its picture; with ``--tables`` from the results there are.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import time
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from whitenorm.lab import sealed
from whitenorm.lab.machine import machine
from whitenorm.lab.marked import write_between

ROOT = Path(__file__).parent
RESULTS = ROOT / "results" / "finetuning.json"
PAGE = ROOT.parent / "docs" / "tutorials" / "finetuning.md"
PICTURE = PAGE.with_suffix(".png")
START, END = "<!-- finetuning -->", "<!-- /finetuning -->"
_SIZES = re.compile(r"size, images, epochs = (\d+), (\d+), (\d+)")


def code() -> str:
    """All of the page's Python."""
    return "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))


def ran(sizes: tuple[int, int, int] | None = None) -> dict[str, list[float]]:
    """The accuracies by epoch that the page's code finds, with its own sizes or others."""
    source, found = code(), 1
    if sizes is not None:
        source, found = _SIZES.subn("size, images, epochs = {}, {}, {}".format(*sizes), source)
    if found != 1:
        raise ValueError(f"expected one line of sizes, images and epochs in {PAGE} (got {found})")
    names: dict[str, Any] = {}
    exec(compile(source, str(PAGE), "exec"), names)
    history: dict[str, list[float]] = names["history"]
    return history


def measure() -> dict[str, Any]:
    """The whole run, with what it ran on."""
    start = time.process_time()
    history = ran()
    return {"code": digest(), "history": history, "seconds": time.process_time() - start, "machine": machine()}


def digest() -> str:
    """By which results are seen to be of another code."""
    return hashlib.sha256(code().encode()).hexdigest()[:16]


def table(results: dict[str, Any]) -> str:
    """Accuracies after 0, 1 and all epochs, with what was run."""
    size, images, epochs = map(int, _SIZES.search(code()).groups())  # type: ignore[union-attr]
    rows = [
        f"| {name} | " + " | ".join(_percent(curve, epoch) for epoch in (0, 1, epochs)) + " |"
        for name, curve in results["history"].items()
    ]
    return "\n".join(
        [
            f"Test accuracy in % on {images:,} images, fine-tuned on {images:,} others, at {size}²; one seed:",
            "",
            f"| | before | after 1 epoch | after {epochs} epochs |",
            "| --- | ---: | ---: | ---: |",
            *rows,
            "",
            f"![Accuracy by epoch]({PICTURE.name})",
            "",
            f"One run, {results['seconds'] / 60:.0f} minutes of one core. An accuracy near 70 % on {images:,} images "
            f"has a standard error of {100 * (0.21 / images) ** 0.5:.1f} points, and another seed has other images.",
        ]
    )


def _percent(curve: list[float], epoch: int) -> str:
    """A network that was not trained has its first accuracy alone."""
    return f"{100 * curve[epoch]:.1f}" if epoch < len(curve) else "–"


def draw(results: dict[str, Any]) -> None:
    """Accuracy by epoch, a line a network."""
    figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
    for name, curve in results["history"].items():
        axes.plot(range(len(curve)), [100 * value for value in curve], label=name, marker=".")
    longest = max(map(len, results["history"].values()))
    axes.set(xlabel="epoch", ylabel="test accuracy (%)", xticks=range(longest))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(PICTURE, dpi=110, metadata={"Software": None})
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", action="store_true", help="run nothing: table and picture of the stored results")
    if parser.parse_args().tables:
        results = stored()
    else:
        results = measure()
        RESULTS.write_text(json.dumps(sealed.packed(results), indent=1) + "\n", encoding="utf-8")
    draw(results)
    write_between(PAGE, START, END, table(results))


def stored() -> dict[str, Any]:
    """The results there are; an error where they were changed."""
    return sealed.unpacked(json.loads(RESULTS.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
