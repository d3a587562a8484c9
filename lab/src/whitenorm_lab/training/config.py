"""What a training run is: a dataclass for each task, every field an option of ``whitenorm-lab train``."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, get_args, get_type_hints

_R = TypeVar("_R", bound="RunConfig")
Schedule = Literal["constant", "step", "every", "cosine", "poly", "inverse-sqrt"]


@dataclass
class NormOptions:
    """Which norm stands where in a net, beside a :class:`RunConfig`."""

    norm: str = "bn"
    """bn, gn, ln, in, none, iternorm, dbn, bw-sigma, sw, sw5, gw or iw."""
    where: str = "all"
    """The recipe that places the norm, such as all, l1, l1+df, s1-b2, sw-cifar; BatchNorm stays elsewhere."""
    group_size: int | None = None
    """Channels whitened together; the method's own if not given."""
    num_groups: int | None = None
    """Groups of gn and gw; the method's own if not given."""
    newton_steps: int | None = None
    """IterNorm's T; 5 if not given."""
    solver: str | None = None
    """newton, zca, pca or cholesky; the method's own if not given."""
    eps: float | None = None
    """The norm's ε; its own if not given."""
    affine: bool = True
    """Whether the placed norm has γ and β."""
    bias: bool = True
    """Whether it has β beside γ."""

    def norm_options(self) -> dict[str, Any]:
        """The norm's options that are given."""
        options = {
            "group_size": self.group_size,
            "num_groups": self.num_groups,
            "steps": self.newton_steps,
            # GW's text has BW_Σ by Newton in all its experiments; convert_'s own is ZCA.
            "solver": self.solver or ("newton" if self.norm == "bw-sigma" else None),
            "eps": self.eps,
            "affine": None if self.affine else False,
            "bias": None if self.bias or not self.affine else False,
        }
        return {name: value for name, value in options.items() if value is not None}


@dataclass
class RunConfig:
    """What runs of all tasks have. A task's own is a subclass, which names the task and gives defaults that suit it."""

    task: ClassVar[str]
    """The task's folder in ``lab/tasks``."""
    named: ClassVar[tuple[str, ...]] = ()
    """Fields that are always part of a run's name, after the data set."""
    aside: ClassVar[tuple[str, ...]] = (
        *("data", "workers", "folder", "progress", "quiet", "checkpoint_epochs", "checkpoint_steps"),
    )
    """What changes where and how a run is shown, but not its numbers."""

    dataset: str = ""
    """What is trained on."""
    data: Path | None = None
    """The data root; $WHITENORM_DATA if not given."""
    workers: int = 2
    """Processes that read files. Sets that are in memory need none."""

    epochs: int = 160
    """Passes over the training examples."""
    steps: int | None = None
    """Stop after so many steps, in whatever epoch."""
    batch_size: int = 128
    """Examples a step, over all processes; 0 is all of them at once."""
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    """SGD with momentum, Adam, or AdamW."""
    lr: float = 0.1
    """Learning rate at the start, or after the warm-up."""
    momentum: float = 0.9
    """Of SGD."""
    nesterov: bool = False
    """Of SGD."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Of Adam and AdamW."""
    weight_decay: float = 0.0
    """On all parameters."""
    clip: float | None = None
    """The largest norm that the gradient may have; longer ones are shortened to it."""
    schedule: Schedule = "step"
    """lr × factor at each milestone, every so many steps, down to 0 along a cosine or a polynomial, or as 1/√step."""
    milestones: tuple[int, ...] = ()
    """Epochs of the step schedule."""
    milestone_steps: tuple[int, ...] = ()
    """Steps of the step schedule, beside those epochs."""
    factor: float = 0.1
    """Of the step and every schedules."""
    every: int = 1000
    """Steps of the every schedule."""
    power: float = 0.9
    """Of the poly schedule."""
    warmup: int = 0
    """Epochs of a linear rise to lr."""
    warmup_steps: int = 0
    """Steps of a linear rise to lr, beside those of the epochs."""
    warmup_from: float = 0.0
    """The share of lr that the rise begins at."""

    seed: int = 0
    """Of weights, order, augmentation and everything drawn in training."""
    precision: Literal["32", "bf16-mixed", "16-mixed", "64"] = "32"
    """Of the arithmetic: AMP in bfloat16 or float16, or plain."""
    accelerator: str = "auto"
    """cpu, gpu, or what there is. Several processes are started by torchrun."""
    sync: bool = False
    """Batch statistics over all processes."""
    test_every: int = 1
    """Epochs between tests."""
    recalibrate: int | None = None
    """Before a test, population statistics from so many training examples; 5,000 for batch whitening, else 0: none."""

    folder: Path | None = None
    """Of checkpoints, logs and results; runs/NAME on the command line, none in fit."""
    checkpoint_epochs: int = 1
    """Epochs between checkpoints."""
    checkpoint_steps: int | None = None
    """Also a checkpoint every so many steps."""
    progress: bool = True
    """Show progress bars on a terminal. There is a line an epoch with and without them."""
    quiet: bool = False
    """Say nothing at all."""

    def __post_init__(self) -> None:
        self.at_least(1, "epochs", "every", "test_every", "checkpoint_epochs", "steps", "checkpoint_steps")
        self.at_least(0, "batch_size", "workers", "warmup", "warmup_steps", "clip", "power")
        self.several_or_none("recalibrate")
        for name in ("milestones", "milestone_steps"):
            if list(getattr(self, name)) != sorted(getattr(self, name)):
                raise ValueError(f"expected {name} in rising order (got {getattr(self, name)})")
        if not 0 <= self.warmup_from <= 1:
            raise ValueError(f"expected warmup_from to be a share from 0 to 1 (got {self.warmup_from})")

    def at_least(self, least: int, *names: str) -> None:
        """Refuse smaller values of fields that are given."""
        for name in names:
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"expected {name} to be at least {least} (got {value})")

    def several_or_none(self, *names: str) -> None:
        """Refuse a number of examples that is 1 or negative."""
        for name in names:
            value = getattr(self, name)
            if value is not None and (value < 0 or value == 1):
                raise ValueError(f"expected {name} to be 2 or more, or 0 (got {value})")

    def elsewhere(self: _R, dataset: str) -> _R:
        """The same for another data set, to be tested on, of which nothing was trained on."""
        return replace(self, dataset=dataset)

    def at_once(self: _R, examples: int) -> _R:
        """The same, to be tested with so many examples at once."""
        return replace(self, batch_size=examples)

    def to_dict(self) -> dict[str, Any]:
        """The task and all fields, as JSON has them."""
        fields = {name: _plain(value) for name, value in asdict(self).items()}
        return {"task": self.task, **fields}

    @classmethod
    def from_dict(cls: type[_R], content: dict[str, Any]) -> _R:
        """What :meth:`to_dict` gave; fields that an older version had not are at their defaults.

        Example::

            >>> from whitenorm_lab.training import Train
            >>> config = Train(net="mlp-8", folder=Path("run"))
            >>> Train.from_dict(config.to_dict()) == config
            True
        """
        hints = get_type_hints(cls)
        return cls(**{name: _typed(value, hints.get(name)) for name, value in content.items() if name != "task"})


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value


def _typed(value: Any, hint: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    return Path(value) if isinstance(value, str) and Path in (hint, *get_args(hint)) else value
