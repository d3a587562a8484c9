"""The net of a run, from its folder."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from whitenorm.lab import nets, sealed
from whitenorm.lab.training.checkpoints import newest_whole
from whitenorm.lab.training.config import Train
from whitenorm.lab.training.folder import Description, RunFolder

_PREFIX = "model."


def load(run: Path | str) -> nn.Module:
    """The net that a run of ``whitenorm train`` trained, in eval mode, on the CPU.

    Of a run that is done the final weights, of one that was stopped those of its newest checkpoint.

    Args:
        run: the run's folder.

    Example::

        >>> import tempfile
        >>> from whitenorm.lab.training import Train, fit, load
        >>> folder = Path(tempfile.mkdtemp()) / "run"
        >>> _ = fit(Train(net="mlp-16", norm="iternorm", dataset="digits", epochs=1, folder=folder, quiet=True))
        >>> load(folder)[2]
        IterNorm(16, ...)
    """
    folder = RunFolder(Path(run))
    config, description = folder.config(), folder.description()
    if "model" in description.given:
        raise ValueError(
            f"expected a run of a net by name (got {folder.path}, whose model was handed to fit); build that model and "
            "load weights.pt into it"
        )
    # A net's first weights are drawn, which nobody else's draws should notice.
    with torch.random.fork_rng(devices=[]):
        model = build(config, description)
    try:
        model.load_state_dict(weights(folder))
    except RuntimeError as error:
        raise OSError(f"expected weights of {config.net} in {folder.path} (got others): {error}") from error
    return model.eval()


def build(config: Train, description: Description) -> nn.Module:
    """The net of a configuration, untrained."""
    model = nets.build(
        config.net,
        description.classes,
        config.norm,
        config.where,
        shape=description.shape,
        activation=config.activation,
        width=config.width,
        dropout=config.dropout,
        norm_last=config.norm_last,
        init=config.init,
        norm_options=config.norm_options(),
    )
    return model.double() if config.precision == "64" else model


def weights(folder: RunFolder) -> dict[str, Tensor]:
    """The state of a run's model: the final one, or else that of the newest checkpoint."""
    if (final := folder.weights()) is not None:
        return final
    checkpoint, wrong = newest_whole(folder.checkpoints)
    if checkpoint is None:
        raise OSError(
            f"expected weights.pt or a checkpoint in {folder.path} (got neither); train until there is one"
            + "".join(f". {path} is damaged: {why}" for path, why in wrong.items())
        )
    state = sealed.read_archive(checkpoint)["state_dict"]
    return {name.removeprefix(_PREFIX): value for name, value in state.items() if name.startswith(_PREFIX)}
