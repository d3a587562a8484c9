"""The command ``whitenorm-lab demo``: train one small convolutional net with each normalization."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

import matplotlib
import tyro

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F  # noqa: N812
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor, nn

import whitenorm
from whitenorm_lab import digits
from whitenorm_lab.terminal import create_console, print_table

NORMS: dict[str, Callable[[int], nn.Module]] = {
    "BN": nn.BatchNorm2d,
    "GN": lambda channels: nn.GroupNorm(8, channels),
    "DBN": whitenorm.DecorrelatedBatchNorm,
    "IterNorm": whitenorm.IterNorm,
    "SW": whitenorm.SwitchableWhitening,
    "GW": lambda channels: whitenorm.GroupWhitening(8, channels),
}


@dataclass
class Demo:
    """Train one small convolutional net on handwritten digits with BN, GN, DBN, IterNorm, SW and GW.

    All norms get the same seed, order of images and number of epochs. Prints a table, and writes the curves as a figure
    and the values as JSON. Takes about half a minute on two cores.
    """

    out: Path = Path("whitenorm-demo")
    """Folder for curves.png and results.json."""
    epochs: int = 15
    """Epochs over the 1,297 training images."""
    batch_size: int = 64
    """Images per step."""
    lr: float = 0.05
    """Learning rate of SGD with momentum 0.9."""
    target: float = 0.9
    """Test accuracy; the table has the first epoch that reaches it."""
    seed: int = 0
    """Seed of the weights and of the order of images."""

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise ValueError(f"expected epochs to be at least 1 (got {self.epochs})")
        if not 2 <= self.batch_size <= digits.TRAIN_IMAGES:
            raise ValueError(f"expected batch_size from 2 to {digits.TRAIN_IMAGES} (got {self.batch_size})")


@dataclass
class Result:
    """Training result of one norm; the lists have one entry per epoch."""

    norm: str
    train_loss: list[float] = field(default_factory=list)
    test_accuracy: list[float] = field(default_factory=list)
    ms_per_step: float = 0.0
    condition_number: float = 0.0

    def epochs_to(self, target: float) -> int | None:
        """Return the first epoch whose test accuracy reaches the target, or None."""
        return next((i for i, accuracy in enumerate(self.test_accuracy, start=1) if accuracy >= target), None)


def main(args: list[str]) -> None:
    """Parse the arguments and run the command."""
    run(tyro.cli(Demo, prog="whitenorm-lab demo", args=args))


def run(demo: Demo) -> list[Result]:
    """Train with every norm, write figure and JSON, and print the table."""
    console = create_console()
    demo.out.mkdir(parents=True, exist_ok=True)
    train, test = digits.load()
    columns = (
        TextColumn("{task.description:>8}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("epochs"),
        TextColumn("{task.fields[last]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    # Without a terminal, rich shows bars only at the end, and truncates their text.
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        tasks = {name: progress.add_task(name, total=demo.epochs, last="", start=False) for name in NORMS}
        results = []
        for name, task in tasks.items():
            progress.start_task(task)
            result = Result(name)
            for _ in train_epochs(result, demo, train, test):
                last = f"loss {result.train_loss[-1]:.3f}  test {result.test_accuracy[-1]:.1%}"
                progress.update(task, advance=1, last=last)
            results.append(result)
    # Write the files first, because printing into a closed pipe, such as that of head, ends the command.
    write_json(results, demo, demo.out / "results.json")
    draw_curves(results, demo, demo.out / "curves.png")
    print_table(console, build_table(results, demo))
    console.print(f"Curves: {demo.out / 'curves.png'}   Values: {demo.out / 'results.json'}", soft_wrap=True)
    return results


def build_net(norm: Callable[[int], nn.Module]) -> nn.Sequential:
    """Build four 3×3 convolutions, each followed by the norm, and a linear classifier of the pooled features."""

    def build_block(in_channels: int, out_channels: int) -> list[nn.Module]:
        return [nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False), norm(out_channels), nn.ReLU()]

    return nn.Sequential(
        *build_block(1, 32),
        *build_block(32, 32),
        nn.MaxPool2d(2),
        *build_block(32, 64),
        *build_block(64, 64),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


# Index of the last norm in that net.
LAST_NORM = 11


def train_epochs(result: Result, demo: Demo, train: digits.Split, test: digits.Split) -> Iterator[None]:
    """Train and record in ``result``; yield after every epoch."""
    torch.manual_seed(demo.seed)
    model = build_net(NORMS[result.norm])
    optimizer = torch.optim.SGD(model.parameters(), lr=demo.lr, momentum=0.9)
    order = torch.Generator().manual_seed(demo.seed)
    times = []
    for _ in range(demo.epochs):
        model.train()
        losses = []
        # Drop the last, smaller batch.
        steps = len(train.labels) // demo.batch_size
        for batch in torch.randperm(len(train.labels), generator=order).split(demo.batch_size)[:steps]:
            start = time.perf_counter()
            optimizer.zero_grad()
            loss = F.cross_entropy(model(train.images[batch]), train.labels[batch])
            loss.backward()
            optimizer.step()
            times.append(time.perf_counter() - start)
            losses.append(loss.item())
        result.train_loss.append(sum(losses) / len(losses))
        result.test_accuracy.append(compute_accuracy(model, test))
        result.ms_per_step = 1000 * median(times)
        result.condition_number = compute_condition_number(model[: LAST_NORM + 1], test.images)
        yield


@torch.no_grad()
def compute_accuracy(model: nn.Module, split: digits.Split) -> float:
    """Return the share of correctly classified images, in eval mode."""
    return (model.eval()(split.images).argmax(1) == split.labels).float().mean().item()


@torch.no_grad()
def compute_condition_number(layers: nn.Module, images: Tensor) -> float:
    """Return λ_max / λ_min of the channels' covariance over all positions, after these layers in eval mode."""
    return whitenorm.diagnostics.condition_number(layers.eval()(images))


def build_table(results: list[Result], demo: Demo) -> Table:
    """Return a table with one row per norm."""
    table = Table(
        title=f"Handwritten digits, {demo.epochs} epochs, seed {demo.seed}",
        caption="The condition number is that of the features' covariance after the last norm, on the test images.",
    )
    table.add_column("norm")
    headings = [
        "test accuracy",
        "training loss",
        f"epochs to {demo.target:.0%}",
        "ms per step",
        "condition number",
    ]
    for heading in headings:
        table.add_column(heading, justify="right")
    for result in results:
        reached = result.epochs_to(demo.target)
        table.add_row(
            result.norm,
            f"{result.test_accuracy[-1]:.1%}",
            f"{result.train_loss[-1]:.4f}",
            "never" if reached is None else str(reached),
            f"{result.ms_per_step:.1f}",
            f"{result.condition_number:.3g}",
        )
    return table


def write_json(results: list[Result], demo: Demo, path: Path) -> None:
    """Write settings, versions, machine and results."""
    content = {
        "settings": {**asdict(demo), "out": str(demo.out)},
        "versions": {
            "whitenorm": whitenorm.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "machine": {"platform": platform.platform(), "threads": torch.get_num_threads()},
        "results": [{**asdict(result), "epochs_to_target": result.epochs_to(demo.target)} for result in results],
    }
    path.write_text(json.dumps(content, indent=2) + "\n")


def draw_curves(results: list[Result], demo: Demo, path: Path) -> None:
    """Plot training loss and test accuracy by epoch."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    epochs = range(1, demo.epochs + 1)
    for result in results:
        left.semilogy(epochs, result.train_loss, label=result.norm)
        right.plot(epochs, [100 * accuracy for accuracy in result.test_accuracy], label=result.norm)
    left.set(xlabel="epoch", ylabel="training loss", title="Training loss")
    right.set(xlabel="epoch", ylabel="test accuracy (%)", title="Test accuracy")
    right.axhline(100 * demo.target, color="grey", linewidth=0.8, linestyle=":")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)
