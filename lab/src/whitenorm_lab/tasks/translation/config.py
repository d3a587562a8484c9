"""Configuration of translation runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from whitenorm_lab.training.config import NormOptions, RunConfig, Schedule


@dataclass
class Translate(RunConfig, NormOptions):
    """Train a transformer to translate, with LayerNorm or Group Whitening at every norm, on any parallel text.

    Give the same command again to resume a stopped run. At the end, its folder contains translations.txt: sources,
    references and outputs of the test set.
    """

    task: ClassVar[str] = "translation"
    name_fields: ClassVar[tuple[str, ...]] = ("norm",)

    dataset: str = "multi30k"
    """multi30k, iwslt14, or folder:PATH with the files train.de, train.en, val.de, … and test.de, …."""
    source: str = "de"
    """Source language: the extension of its files."""
    target: str = "en"
    """Target language: the extension of its files."""
    skip_empty: bool = False
    """Skip pairs with an empty side, which are an error otherwise."""
    max_length: int = 175
    """Skip training pairs with more pieces than this on a side."""
    train_pairs: int | None = None
    """Number of training pairs, from the start of the files; default: all."""
    test_pairs: int | None = None
    """Number of test and of validation pairs, from the start of the files; default: all."""
    vocabulary: int = 3000
    """Number of pieces in a vocabulary."""
    joint: bool = True
    """Use one vocabulary for both languages."""

    encoder_layers: int = 3
    """Number of encoder layers."""
    decoder_layers: int = 3
    """Number of decoder layers."""
    width: int = 128
    """Size of the embeddings and of the output of each block."""
    hidden: int = 256
    """Hidden units of the feed-forward blocks."""
    heads: int = 4
    """Number of attention heads."""
    dropout: float = 0.1
    """Dropout rate after the embeddings and on the output of each block."""
    pre_norm: bool = True
    """Place norms before each block and at the end of encoder and decoder; otherwise after each residual sum."""
    share_embeddings: bool = True
    """Share one embedding between source and target. The output weights are always those of the target embedding."""
    norm: str = "ln"
    """ln, or gw: LayerWhitening, whose default number of groups is the divisor of the width nearest to its root."""

    epochs: int = 10
    batch_size: int = 1024
    """Tokens per step, over all processes: the longest sentence times the number of pairs."""
    optimizer: Literal["sgd", "adam", "adamw"] = "adam"
    lr: float = 4e-3
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 1e-4
    schedule: Schedule = "inverse-sqrt"
    warmup_steps: int = 300
    label_smoothing: float = 0.1
    """Share of the target probability that is spread over all pieces."""

    beams: int = 5
    """Number of beams of the search; 1 is greedy search."""
    length_penalty: float = 1.0
    """Exponent p: the search compares translations by log probability / length^p."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_at_least(
            1,
            *("max_length", "train_pairs", "test_pairs", "vocabulary", "batch_size", "beams"),
            *("encoder_layers", "decoder_layers", "width", "hidden", "heads", "num_groups"),
        )
        for name in ("dropout", "label_smoothing"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"expected {name} from 0 to below 1 (got {getattr(self, name)})")
        if self.norm not in ("ln", "gw"):
            raise ValueError(f"expected norm to be ln or gw, which normalize each token (got {self.norm!r})")
        if self.width % self.heads:
            raise ValueError(f"expected a width that is a multiple of the {self.heads} heads (got {self.width})")
        if self.width % 2 or self.width < 4:
            raise ValueError(f"expected an even width of at least 4, for sines and cosines (got {self.width})")
        if self.num_groups is not None and self.width % self.num_groups:
            raise ValueError(f"expected num_groups to divide the width, {self.width} (got {self.num_groups})")
        if self.share_embeddings and not self.joint:
            raise ValueError(
                "expected a joint vocabulary for shared embeddings (got separate ones); pass --no-share-embeddings"
            )


@dataclass
class GwNmt(Translate):
    """IWSLT14, German to English: the base transformer with GW in place of each LN (GW, app. G).

    As fairseq recommends for this data set: 6 + 6 layers of width 512, norms after the residual sums. The paper does
    not state the number of groups; here it is the divisor of the width nearest to its root, 16.

    Expected: BLEU 35.27 ± 0.06, with --norm ln 35.02 ± 0.09 (mean of 5 seeds; fairseq's BLEU of tokenized lower-case
    text, whereas here it is sacrebleu's BLEU of the unchanged text).
    Cost: 44 PFLOPs.
    Command: torchrun --nproc-per-node 2 -m whitenorm_lab train gw-nmt --data ROOT
    """

    dataset: str = "iwslt14"
    vocabulary: int = 10000
    encoder_layers: int = 6
    decoder_layers: int = 6
    width: int = 512
    hidden: int = 1024
    heads: int = 4
    dropout: float = 0.3
    pre_norm: bool = False
    share_embeddings: bool = False
    norm: str = "gw"
    epochs: int = 50
    batch_size: int = 4096
    lr: float = 5e-4
    warmup_steps: int = 4000
