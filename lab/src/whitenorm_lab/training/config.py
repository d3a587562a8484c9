"""Configuration of a training run; every field is an option of ``whitenorm-lab train``."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, get_args, get_type_hints

_Config = TypeVar("_Config", bound="RunConfig")
Schedule = Literal["constant", "step", "every", "cosine", "poly", "inverse-sqrt"]


@dataclass
class NormOptions:
    """The norm of a net and its places; a second base class of configurations beside :class:`RunConfig`."""

    norm: str = "bn"
    """bn, gn, ln, in, none, iternorm, dbn, bw-sigma, sw, sw5, gw or iw."""
    where: str = "all"
    """Recipe for the places of the norm, such as all, l1, l1+df, s1-b2, sw-cifar; BatchNorm stays at the others."""
    group_size: int | None = None
    """Channels whitened together; by default the method's own."""
    num_groups: int | None = None
    """Groups of gn and gw; by default the method's own."""
    newton_steps: int | None = None
    """Newton iterations T of IterNorm; 5 by default."""
    solver: str | None = None
    """newton, zca, pca, cholesky or minimax; by default the method's own."""
    eps: float | None = None
    """The norm's ε; by default its own."""
    affine: bool = True
    """Give the norm γ and β."""
    bias: bool = True
    """Give the norm β beside γ."""

    def norm_options(self) -> dict[str, Any]:
        """Return the norm's options that differ from its defaults."""
        options = {
            "group_size": self.group_size,
            "num_groups": self.num_groups,
            "steps": self.newton_steps,
            # The GW paper uses Newton for BW_Σ in all experiments; the default of convert_ is ZCA.
            "solver": self.solver or ("newton" if self.norm == "bw-sigma" else None),
            "eps": self.eps,
            "affine": None if self.affine else False,
            "bias": None if self.bias or not self.affine else False,
        }
        return {name: value for name, value in options.items() if value is not None}


@dataclass
class RunConfig:
    """Options of all tasks. Each task has a subclass, which names the task and adds its own options and defaults."""

    task: ClassVar[str]
    """Name of the task, a package in ``whitenorm_lab.tasks``."""
    name_fields: ClassVar[tuple[str, ...]] = ()
    """Fields that are always part of a run's default folder name, after the data set."""
    neutral_fields: ClassVar[tuple[str, ...]] = (
        *("data", "workers", "folder", "progress", "quiet", "checkpoint_epochs", "checkpoint_steps"),
    )
    """Fields that may change when a run resumes, because they do not affect its numbers."""

    dataset: str = ""
    """Data set to train on."""
    data: Path | None = None
    """Root folder of the data sets; $WHITENORM_DATA by default."""
    workers: int = 2
    """Processes that read files; data sets in memory need none."""

    epochs: int = 160
    """Passes over the training examples."""
    steps: int | None = None
    """Stop after this many steps, in whichever epoch."""
    batch_size: int = 128
    """Examples per step over all processes; 0 uses all of them in every step."""
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    """SGD with momentum, Adam, or AdamW."""
    lr: float = 0.1
    """Learning rate at the start, or after the warm-up."""
    momentum: float = 0.9
    """Momentum of SGD."""
    nesterov: bool = False
    """Use Nesterov momentum in SGD."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Betas of Adam and AdamW."""
    weight_decay: float = 0.0
    """Weight decay of all parameters."""
    clip: float | None = None
    """Clip gradients to this norm."""
    schedule: Schedule = "step"
    """Learning rate: × factor at each milestone (step), × factor at a fixed interval (every), decay to 0 (cosine,
    poly), or 1/√step (inverse-sqrt)."""
    milestones: tuple[int, ...] = ()
    """Epochs of the step schedule."""
    milestone_steps: tuple[int, ...] = ()
    """Steps of the step schedule, in addition to those epochs."""
    factor: float = 0.1
    """Factor of the step and every schedules."""
    every: int = 1000
    """Interval of the every schedule in steps."""
    power: float = 0.9
    """Exponent of the poly schedule."""
    warmup: int = 0
    """Epochs of a linear warm-up to lr."""
    warmup_steps: int = 0
    """Steps of a linear warm-up to lr, in addition to those epochs."""
    warmup_from: float = 0.0
    """Fraction of lr at which the warm-up begins."""

    seed: int = 0
    """Seed of weights, order, augmentation and all other random draws."""
    precision: Literal["32", "bf16-mixed", "16-mixed", "64"] = "32"
    """float32, automatic mixed precision in bfloat16 or float16, or float64."""
    accelerator: str = "auto"
    """cpu, gpu, or auto for whichever is available. torchrun starts several processes."""
    sync: bool = False
    """Compute batch statistics over all processes."""
    test_every: int = 1
    """Epochs between tests."""
    recalibrate: int | None = None
    """Recompute population statistics from this many training examples before a test; by default 5,000 for batch
    whitening, and 0, which keeps the running statistics, for other norms."""

    folder: Path | None = None
    """Folder for checkpoints, logs and results; on the command line runs/NAME by default, in fit none."""
    checkpoint_epochs: int = 1
    """Epochs between checkpoints."""
    checkpoint_steps: int | None = None
    """Steps between checkpoints, in addition to those after epochs."""
    progress: bool = True
    """Show progress bars on a terminal. One line per epoch is printed with and without them."""
    quiet: bool = False
    """Print nothing."""

    def __post_init__(self) -> None:
        self.check_at_least(1, "epochs", "every", "test_every", "checkpoint_epochs", "steps", "checkpoint_steps")
        self.check_at_least(0, "batch_size", "workers", "warmup", "warmup_steps", "clip", "power")
        self.check_zero_or_several("recalibrate")
        for name in ("milestones", "milestone_steps"):
            if list(getattr(self, name)) != sorted(getattr(self, name)):
                raise ValueError(f"expected {name} in rising order (got {getattr(self, name)})")
        if not 0 <= self.warmup_from <= 1:
            raise ValueError(f"expected warmup_from from 0 to 1 (got {self.warmup_from})")

    def check_at_least(self, least: int, *names: str) -> None:
        """Raise a ValueError if one of these fields is set to less."""
        for name in names:
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"expected {name} to be at least {least} (got {value})")

    def check_zero_or_several(self, *names: str) -> None:
        """Raise a ValueError if one of these counts of examples is 1 or negative."""
        for name in names:
            value = getattr(self, name)
            if value is not None and (value < 0 or value == 1):
                raise ValueError(f"expected {name} to be 2 or more, or 0 (got {value})")

    def for_dataset(self: _Config, dataset: str) -> _Config:
        """Return a copy that tests on another data set."""
        return replace(self, dataset=dataset)

    def with_batch_size(self: _Config, examples: int) -> _Config:
        """Return a copy that tests with another batch size."""
        return replace(self, batch_size=examples)

    def to_dict(self) -> dict[str, Any]:
        """Return the task and all fields as JSON types."""
        fields = {name: _to_json(value) for name, value in asdict(self).items()}
        return {"task": self.task, **fields}

    @classmethod
    def from_dict(cls: type[_Config], content: dict[str, Any]) -> _Config:
        """Restore a configuration from :meth:`to_dict`; fields that an older version lacked get their defaults.

        Example::

            >>> from whitenorm_lab.training import Train
            >>> config = Train(net="mlp-8", folder=Path("run"))
            >>> Train.from_dict(config.to_dict()) == config
            True
        """
        hints = get_type_hints(cls)
        return cls(**{name: _from_json(value, hints.get(name)) for name, value in content.items() if name != "task"})


def _to_json(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value


def _from_json(value: Any, hint: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    return Path(value) if isinstance(value, str) and Path in (hint, *get_args(hint)) else value
