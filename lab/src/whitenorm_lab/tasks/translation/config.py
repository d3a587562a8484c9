"""What a run of translation is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from whitenorm_lab.training.config import NormOptions, RunConfig, Schedule


@dataclass
class Translate(RunConfig, NormOptions):
    """Train a transformer to translate: LayerNorm or Group Whitening at every norm, any parallel text.

    A run that was stopped goes on where it was when the same command is given again. Its folder gets translations.txt
    at the end: sources, references and outputs of the test set.
    """

    task: ClassVar[str] = "translation"
    named: ClassVar[tuple[str, ...]] = ("norm",)

    dataset: str = "multi30k"
    """multi30k, iwslt14, or folder:PATH with train.de, train.en, val.de, … and test.de, … inside."""
    source: str = "de"
    """The language to translate from, as its files' names end."""
    target: str = "en"
    """The language to translate to."""
    skip_empty: bool = False
    """Leave out pairs of which a side is empty; otherwise they are an error."""
    max_length: int = 175
    """Leave out training pairs of which a side has more pieces."""
    train_pairs: int | None = None
    """Train on the first so many pairs; all if not given."""
    test_pairs: int | None = None
    """Test and validate on the first so many; all if not given."""
    vocabulary: int = 3000
    """Pieces of words, for both languages together or for each."""
    joint: bool = True
    """One vocabulary for both languages."""

    encoder_layers: int = 3
    """Of self-attention and a feed-forward block."""
    decoder_layers: int = 3
    """Of self-attention, attention to the source, and a feed-forward block."""
    width: int = 128
    """Of embeddings and of what attention and blocks give."""
    hidden: int = 256
    """Units between the two linear layers of a feed-forward block."""
    heads: int = 4
    """Of attention."""
    dropout: float = 0.1
    """After the embeddings, and of what every block adds."""
    pre_norm: bool = True
    """Norms before attention and blocks, and at the end of both stacks; otherwise after each sum."""
    share_embeddings: bool = True
    """One embedding for source and target, of a joint vocabulary; the output has the target's in any case."""
    norm: str = "ln"
    """ln, or gw: LayerWhitening, with num_groups the divisor of the width nearest to its root if not given."""

    epochs: int = 10
    batch_size: int = 1024
    """Tokens a step, over all processes: of the longer side, with padding."""
    optimizer: Literal["sgd", "adam", "adamw"] = "adam"
    lr: float = 4e-3
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 1e-4
    schedule: Schedule = "inverse-sqrt"
    warmup_steps: int = 300
    label_smoothing: float = 0.1
    """Share of the target spread over all pieces."""

    beams: int = 5
    """Of the search for a translation; 1 is greedy."""
    length_penalty: float = 1.0
    """Translations are compared by log p / length^penalty."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.at_least(
            1,
            *("max_length", "train_pairs", "test_pairs", "vocabulary", "batch_size", "beams"),
            *("encoder_layers", "decoder_layers", "width", "hidden", "heads", "num_groups"),
        )
        for name in ("dropout", "label_smoothing"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"expected {name} from 0 to below 1 (got {getattr(self, name)})")
        if self.norm not in ("ln", "gw"):
            raise ValueError(f"expected norm to be ln or gw, which are of tokens (got {self.norm!r})")
        if self.num_groups is not None and self.width % self.num_groups:
            raise ValueError(f"expected num_groups that divide the width, {self.width} (got {self.num_groups})")
        if self.share_embeddings and not self.joint:
            raise ValueError(
                "expected a joint vocabulary for shared embeddings (got separate ones); use --no-share-embeddings"
            )


@dataclass
class GwNmt(Translate):
    """IWSLT14 from German to English: the base transformer with GW for every LN (GW, app. G).

    As fairseq recommends for this set: 6 + 6 layers of width 512, LN after the sums. The number of groups is not
    printed; here it is the divisor of the width nearest to its root, 16.

    Expected: BLEU 35.27 ± 0.06, with --norm ln 35.02 ± 0.09 (mean of 5 seeds; fairseq's BLEU of tokenized text in lower
    case, where sacrebleu's, taken here, is of the text as it is).
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
