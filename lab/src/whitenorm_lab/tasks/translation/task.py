"""Translation: a transformer, label smoothing, and BLEU of what a beam search finds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from whitenorm.models import convert_
from whitenorm_lab.tasks.translation import text
from whitenorm_lab.tasks.translation.batches import Batch, Sequences, TextBatch, TextBatches, TokenBatches
from whitenorm_lab.tasks.translation.config import Translate
from whitenorm_lab.tasks.translation.report import write_translations
from whitenorm_lab.tasks.translation.scores import TranslationScores
from whitenorm_lab.tasks.translation.text import Corpus, Pairs
from whitenorm_lab.tasks.translation.transformer import Shape
from whitenorm_lab.tasks.translation.translator import Translator
from whitenorm_lab.tasks.translation.vocabulary import BOS, EOS, PAD, Vocabulary
from whitenorm_lab.training.batches import in_turn
from whitenorm_lab.training.progress import say
from whitenorm_lab.training.scores import Means
from whitenorm_lab.training.sources import Source, calibration_rows
from whitenorm_lab.training.task import Task, call, forward


class Translation(Task[Translate]):
    """Batches are :class:`~.batches.Batch`, those of tests :class:`~.batches.TextBatch`; ``fit`` takes a Corpus."""

    unit: ClassVar[str] = "tokens"
    best: ClassVar[str] = "bleu"

    def __init__(self, config: Translate) -> None:
        super().__init__(config)
        # Those of the training sentences, once there are some; until then they are to be loaded with the net.
        self._vocabularies = (Vocabulary(), Vocabulary())

    def source(self, dataset: Corpus | None, step: Callable[[], int], rank: int, world: int) -> Source:
        config = self.config
        corpus = self._corpus() if dataset is None else dataset
        pairs = Pairs(*(side[: config.train_pairs] for side in corpus.train))
        self._vocabularies = vocabularies(config, pairs)
        source, target = self._encoded(pairs)
        train = TokenBatches(source, target, config.batch_size, config.seed, step, rank, world)

        def calibration(number: int) -> list[Batch]:
            rows = calibration_rows(len(target.lengths), number, config.seed, world)
            shares = in_turn(rows, max(1, len(target.lengths) // len(train) // world), rank, world)
            return [Batch(source.padded(share), target.padded(share), 1.0) for share in shares if len(share)]

        tests = {
            name: TextBatches(Pairs(*(side[: config.test_pairs] for side in split)), name == "test", rank, world)
            for name, split in (("test", corpus.test), ("validation", corpus.validation))
        }
        tokens = float(target.lengths.sum()) / len(train)
        return Source({"pieces": [config.vocabulary] * 2}, train, tests, calibration, tokens)

    def _corpus(self) -> Corpus:
        config = self.config
        corpus = text.read(config.dataset, config.data, config.source, config.target, config.skip_empty)
        if corpus.left_out:
            say(config, f"{corpus.left_out} pairs are left out, as a side of them is empty.")
        return corpus

    def _encoded(self, pairs: Pairs) -> tuple[Sequences, Sequences]:
        """The training pairs as ids, without those that are too long."""
        longest = self.config.max_length
        rows = list(zip(*(one.encode(side) for one, side in zip(self._vocabularies, pairs, strict=True)), strict=True))
        kept = [row for row in rows if max(map(len, row)) <= longest + 1]
        if not kept:
            raise ValueError(f"expected training pairs of at most {longest} pieces (got none); raise max_length")
        if len(kept) < len(rows):
            say(self.config, f"{len(rows) - len(kept)} training pairs are left out, of more than {longest} pieces.")
        source, target = zip(*kept, strict=True)
        return Sequences(source), Sequences(target)

    def build(self, description: dict[str, Any]) -> nn.Module:
        config = self.config
        shape = Shape(
            config.encoder_layers,
            config.decoder_layers,
            config.width,
            config.hidden,
            config.heads,
            config.dropout,
            config.pre_norm,
        )
        net = Translator(*self._vocabularies, tuple(description["pieces"]), shape, config.share_embeddings)
        options = config.norm_options()
        return net if config.norm == "ln" and not options else convert_(net, config.norm, config.where, **options)

    def example(self, description: dict[str, Any], number: int) -> dict[str, Tensor]:
        source, target = (torch.randint(EOS, pieces, (number, 4)) for pieces in description["pieces"])
        return {"source": source, "target": target}

    def check(self, model: nn.Module, description: dict[str, Any]) -> None:
        logits = forward(model, self.example(description, 2))
        if not isinstance(model, Translator) or logits.shape[2:] != (description["pieces"][1],):
            raise ValueError(
                f"expected a Translator of {description['pieces']} pieces (got {type(model).__name__} with outputs of "
                f"shape {tuple(logits.shape)})"
            )

    def loss(self, model: nn.Module, batch: Batch, step: int, scores: Means) -> Tensor:
        logits = call(model, self.inputs(batch))
        total = _cross_entropy(logits, batch.target, self.config.label_smoothing)
        scores.update((batch.target != PAD).sum(), loss=total.detach())
        return total / batch.tokens

    def inputs(self, batch: Batch) -> dict[str, Tensor]:
        return {"source": batch.source, "target": shifted(batch.target)}

    def test_scores(self) -> TranslationScores:
        return TranslationScores(self.config.target)

    def test(self, model: nn.Module, batch: TextBatch, scores: TranslationScores) -> None:
        assert isinstance(model, Translator)
        if not batch.source:
            return
        source, target = (
            model.ids(model.source_vocabulary, batch.source),
            model.ids(model.target_vocabulary, batch.target),
        )
        loss = _cross_entropy(model(source, shifted(target)), target)
        outputs = self.translated(model, batch) if batch.translated else ()
        scores.update(loss, (target != PAD).sum(), outputs, batch.target)

    def translated(self, model: Translator, batch: TextBatch) -> list[str]:
        """The outputs for a batch, by the configuration's search."""
        return model.translate(batch.source, self.config.beams, self.config.length_penalty)

    def words(self, numbers: dict[str, float]) -> str:
        shown = {"loss": "loss {:.4f}", "perplexity": "perplexity {:.2f}", "bleu": "BLEU {:.2f}"}
        return ", ".join(shown[name].format(value) for name, value in numbers.items())

    def finish(self, model: nn.Module, source: Source, folder: Path) -> None:
        assert isinstance(model, Translator)
        # All of the test set, of which a process has a share.
        batches = TextBatches(source.tests["test"].pairs, True)
        write_translations(folder, self.config, ((batch, self.translated(model, batch)) for batch in batches))


def vocabularies(config: Translate, pairs: Pairs) -> tuple[Vocabulary, Vocabulary]:
    """The source's and the target's, from training pairs: one and the same if it is joint."""
    if config.joint:
        both = Vocabulary.of([*pairs.source, *pairs.target], config.vocabulary)
        return both, both
    return Vocabulary.of(pairs.source, config.vocabulary), Vocabulary.of(pairs.target, config.vocabulary)


def shifted(target: Tensor) -> Tensor:
    """What the decoder is given: the beginning, and each piece at the place of the one that follows.

    Example::

        >>> shifted(torch.tensor([[7, 8, 2]]))
        tensor([[1, 7, 8]])
    """
    return F.pad(target[:, :-1], (1, 0), value=BOS)


def _cross_entropy(logits: Tensor, target: Tensor, smoothing: float = 0.0) -> Tensor:
    """The total over all pieces that are not padding."""
    return F.cross_entropy(
        logits.flatten(0, 1), target.flatten(), ignore_index=PAD, label_smoothing=smoothing, reduction="sum"
    )


TASK = Translation
