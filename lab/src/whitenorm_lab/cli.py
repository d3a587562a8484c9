"""Entry point of the ``whitenorm-lab`` command."""

from __future__ import annotations

from whitenorm.cli import Command, run_command

_INSTALL = "whitenorm-lab"
COMMANDS = {
    "demo": Command("whitenorm_lab.demo", "train a small net with each of six norms, and compare them", _INSTALL),
    "train": Command("whitenorm_lab.training.command", "train on a task, or with a paper's configuration", _INSTALL),
    "evaluate": Command("whitenorm_lab.training.evaluation", "test the model of a training run", _INSTALL),
    "stylize": Command("whitenorm_lab.tasks.style.stylize", "apply a trained style to an image", _INSTALL),
    "reproduce": Command(
        "whitenorm_lab.claims.command", "run the papers' experiments and judge their claims", _INSTALL
    ),
    "report": Command("whitenorm_lab.claims.report", "write pages of the results of experiments", _INSTALL),
}


def main(args: list[str] | None = None) -> int:
    """Run the ``whitenorm-lab`` command and return its exit code."""
    return run_command("whitenorm-lab", "Train with whitenorm's layers, and reproduce the papers.", COMMANDS, args)
