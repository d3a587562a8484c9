"""Loss, perplexity and BLEU of a test set, over all processes, and translations.txt."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
import torchmetrics
from torch import Tensor

from whitenorm_lab.tasks.translation.batches import TextBatch
from whitenorm_lab.tasks.translation.config import Translate
from whitenorm_lab.training.checkpoints import write_atomically

TRANSLATIONS_FILE = "translations.txt"
_ORDERS = 4


class TranslationScores(torchmetrics.Metric):
    """Mean loss per token, perplexity, and sacrebleu's BLEU of the translated sentences.

    N-grams are counted over the whole set, so that BLEU does not depend on batches and processes. (The BLEU of
    torchmetrics lacks the smoothing that sacrebleu uses by default.)

    Args:
        language: the target language, which determines sacrebleu's tokenizer.

    Example::

        >>> scores = TranslationScores("en")
        >>> scores.update(
        ...     torch.tensor(3.0), torch.tensor(2), ["a man walks on the street"], ["a man walks in the street"]
        ... )
        >>> {name: round(value, 2) for name, value in scores.compute().items()}
        {'loss': 1.5, 'perplexity': 4.48, 'bleu': 37.99}
    """

    full_state_update = False
    totals: Tensor
    """Loss, tokens, output length, reference length, matching n-grams and output n-grams of each order."""

    def __init__(self, language: str) -> None:
        super().__init__()
        self.language = language
        self.add_state("totals", torch.zeros(4 + 2 * _ORDERS, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, loss: Tensor, tokens: Tensor, outputs: Sequence[str] = (), references: Sequence[str] = ()) -> None:
        """Add a batch: the total loss of its tokens, and its translations, if any."""
        self.totals[0] += loss
        self.totals[1] += tokens
        if outputs:
            score = build_bleu(self.language).corpus_score(outputs, [references])
            counts = [score.sys_len, score.ref_len, *score.counts, *score.totals]
            self.totals[2:] += torch.tensor(counts, dtype=torch.float64).to(self.totals.device)

    def compute(self) -> dict[str, float]:
        """Return the scores of all batches; "bleu" only if there are translations."""
        loss, tokens, *counts = self.totals.tolist()
        mean = loss / tokens
        # math.exp raises OverflowError for larger losses.
        scores = {"loss": mean, "perplexity": math.exp(mean) if mean < 700 else math.inf}
        output_length, reference_length, *ngrams = map(int, counts)
        if reference_length:
            bleu = build_bleu(self.language)
            scores["bleu"] = bleu.compute_bleu(
                ngrams[:_ORDERS], ngrams[_ORDERS:], output_length, reference_length, smooth_method=bleu.smooth_method
            ).score
        return scores


def build_bleu(language: str) -> Any:
    """Return sacrebleu's BLEU with its defaults: mixed case, its tokenizer for the language, n-grams up to four."""
    import sacrebleu

    # force: no warning about outputs that look tokenized, which an untrained network may produce.
    return sacrebleu.BLEU(trg_lang=language, force=True)


def bleu_signature(language: str) -> str:
    """Return sacrebleu's signature, which identifies comparable BLEU scores.

    Example::

        >>> bleu_signature("en")
        'nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:...'
    """
    bleu = build_bleu(language)
    bleu.corpus_score(["a"], [["a"]])
    return str(bleu.get_signature())


def write_translations(folder: Path, config: Translate, batches: Iterable[tuple[TextBatch, list[str]]]) -> None:
    """Write BLEU with its signature, then every source, reference and output, short sentences first."""
    triples = [triple for batch, outputs in batches for triple in zip(batch.source, batch.target, outputs, strict=True)]
    _, references, outputs = zip(*triples, strict=True)
    score = build_bleu(config.target).corpus_score(outputs, [references])
    lines = [
        f"BLEU {score.score:.2f} of {len(triples)} sentences of {config.dataset}, {config.source} to {config.target}",
        f"{bleu_signature(config.target)}; beams {config.beams}, length penalty {config.length_penalty:g}",
    ]
    for source, reference, output in triples:
        lines += ["", f"source:    {source}", f"reference: {reference}", f"output:    {output}"]
    write_atomically(folder / TRANSLATIONS_FILE, ("\n".join(lines) + "\n").encode())
