"""Entry point of the ``whitenorm-lab`` command."""

from __future__ import annotations

from whitenorm.cli import Command, run_command

COMMANDS = {
    "demo": Command("whitenorm_lab.demo", "train one small net with six norms, and compare them"),
    "train": Command("whitenorm_lab.training.command", "train for a task, or with a paper's own set-up"),
    "evaluate": Command("whitenorm_lab.training.evaluation", "test the model of a training run"),
    "stylize": Command("whitenorm_lab.tasks.style.stylize", "paint an image with a style transfer net"),
    "reproduce": Command("whitenorm_lab.claims.command", "run the papers' experiments and judge their claims"),
    "report": Command("whitenorm_lab.claims.report", "write pages of the results of experiments"),
}


def main(args: list[str] | None = None) -> int:
    """Run the ``whitenorm-lab`` command and return its exit code."""
    return run_command(
        "whitenorm-lab", "Training and the papers' experiments, with whitenorm's layers.", COMMANDS, args
    )
