"""Loss, perplexity and BLEU of a test set, over all processes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torchmetrics
from torch import Tensor

_ORDERS = 4


class TranslationScores(torchmetrics.Metric):
    """Mean loss of a token, its exponential, and sacrebleu's BLEU of the sentences that are translated.

    BLEU is of n-grams counted over the whole set, however it came to which batch and process.

    Args:
        language: of the target, which decides on sacrebleu's tokenizer.

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
    """Loss, tokens; lengths of outputs and references, n-grams found and n-grams there are."""

    def __init__(self, language: str) -> None:
        super().__init__()
        self.language = language
        self.add_state("totals", torch.zeros(4 + 2 * _ORDERS, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, loss: Tensor, tokens: Tensor, outputs: Sequence[str] = (), references: Sequence[str] = ()) -> None:
        """Add a batch: the total loss of its tokens, and its translations, where there are some."""
        self.totals[0] += loss
        self.totals[1] += tokens
        if outputs:
            score = bleu(self.language).corpus_score(outputs, [references])
            counts = [score.sys_len, score.ref_len, *score.counts, *score.totals]
            self.totals[2:] += torch.tensor(counts, dtype=torch.float64).to(self.totals.device)

    def compute(self) -> dict[str, float]:
        """Of all batches; BLEU where there are translations."""
        loss, tokens, *rest = self.totals.tolist()
        mean = loss / tokens
        # A loss that large is infinite in all but name.
        numbers = {"loss": mean, "perplexity": math.exp(mean) if mean < 700 else math.inf}
        if rest[1]:
            lengths, counts = [int(number) for number in rest[:2]], [int(number) for number in rest[2:]]
            metric = bleu(self.language)
            score = metric.compute_bleu(
                counts[:_ORDERS], counts[_ORDERS:], *lengths, smooth_method=metric.smooth_method
            )
            numbers["bleu"] = score.score
        return numbers


def bleu(language: str) -> Any:
    """sacrebleu's BLEU as it is by default: mixed case, its own tokenizer for the language, n-grams up to four."""
    import sacrebleu

    # Nothing is said of outputs that look as if they were tokenized: a net that is not trained may give any.
    return sacrebleu.BLEU(trg_lang=language, force=True)


def signature(language: str) -> str:
    """How BLEU was taken, in sacrebleu's words, by which numbers of others can be compared.

    Example::

        >>> signature("en")
        'nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:...'
    """
    metric = bleu(language)
    metric.corpus_score(["a"], [["a"]])
    return str(metric.get_signature())
