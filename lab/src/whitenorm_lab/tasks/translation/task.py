"""The translation task: label smoothing in training, BLEU of a beam search in tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from whitenorm.models import convert_
from whitenorm_lab.tasks.translation.batches import Batch, Sequences, TextBatch, TextBatches, TokenBatches
from whitenorm_lab.tasks.translation.config import Translate
from whitenorm_lab.tasks.translation.scores import TranslationScores, write_translations
from whitenorm_lab.tasks.translation.text import Corpus, Pairs, read_corpus
from whitenorm_lab.tasks.translation.translator import Translator
from whitenorm_lab.tasks.translation.vocabulary import BOS, EOS, PAD, Vocabulary
from whitenorm_lab.training.batches import draw_calibration_rows, split_in_order
from whitenorm_lab.training.loaders import DataLoaders
from whitenorm_lab.training.progress import print_line
from whitenorm_lab.training.scores import Means
from whitenorm_lab.training.task import Task, call_model, forward_in_eval_mode


class Translation(Task[Translate]):
    """Trains on :class:`~.batches.Batch` and tests on :class:`~.batches.TextBatch`; ``fit`` accepts a Corpus."""

    unit: ClassVar[str] = "tokens"
    main_score: ClassVar[str] = "bleu"

    def __init__(self, config: Translate) -> None:
        super().__init__(config)
        # Empty until the training sentences are read; a loaded model replaces them by those of its state.
        self._vocabularies = (Vocabulary(), Vocabulary())

    def build_loaders(self, dataset: Corpus | None, step: Callable[[], int], rank: int, world: int) -> DataLoaders:
        config = self.config
        corpus = self._read_corpus() if dataset is None else dataset
        pairs = Pairs(*(side[: config.train_pairs] for side in corpus.train))
        self._vocabularies = learn_vocabularies(config, pairs)
        source, target = self._encode(pairs)
        train = TokenBatches(source, target, config.batch_size, config.seed, step, rank, world)

        def calibration(examples: int) -> list[Batch]:
            rows = draw_calibration_rows(len(target.lengths), examples, config.seed, world)
            shares = split_in_order(rows, max(1, len(target.lengths) // len(train) // world), rank, world)
            return [Batch(source.pad(share), target.pad(share), 1.0) for share in shares if len(share)]

        tests = {
            name: TextBatches(Pairs(*(side[: config.test_pairs] for side in split)), name == "test", rank, world)
            for name, split in (("test", corpus.test), ("validation", corpus.validation))
        }
        tokens_per_step = float(target.lengths.sum()) / len(train)
        return DataLoaders({"pieces": [config.vocabulary] * 2}, train, tests, calibration, tokens_per_step)

    def _read_corpus(self) -> Corpus:
        config = self.config
        corpus = read_corpus(config.dataset, config.data, config.source, config.target, config.skip_empty)
        if corpus.skipped:
            print_line(config, f"Skipped {corpus.skipped} pairs with an empty side.")
        return corpus

    def _encode(self, pairs: Pairs) -> tuple[Sequences, Sequences]:
        """Return the training pairs as ids, without those that are too long."""
        limit = self.config.max_length
        sides = [vocabulary.encode(side) for vocabulary, side in zip(self._vocabularies, pairs, strict=True)]
        rows = list(zip(*sides, strict=True))
        # Each side ends with EOS.
        short = [row for row in rows if max(map(len, row)) <= limit + 1]
        if not short:
            raise ValueError(f"expected training pairs of at most {limit} pieces (got none); raise max_length")
        if len(short) < len(rows):
            print_line(self.config, f"Skipped {len(rows) - len(short)} training pairs of more than {limit} pieces.")
        source, target = zip(*short, strict=True)
        return Sequences(source), Sequences(target)

    def build_model(self, description: dict[str, Any]) -> nn.Module:
        config = self.config
        net = Translator(*self._vocabularies, tuple(description["pieces"]), config)
        options = config.norm_options()
        return net if config.norm == "ln" and not options else convert_(net, config.norm, config.where, **options)

    def example_inputs(self, description: dict[str, Any], count: int) -> dict[str, Tensor]:
        source, target = (torch.randint(EOS, pieces, (count, 4)) for pieces in description["pieces"])
        return {"source": source, "target": target}

    def check(self, model: nn.Module, description: dict[str, Any]) -> None:
        logits = forward_in_eval_mode(model, self.example_inputs(description, 2))
        if not isinstance(model, Translator) or logits.shape[2:] != (description["pieces"][1],):
            raise ValueError(
                f"expected a Translator of {description['pieces']} pieces (got {type(model).__name__} with outputs of "
                f"shape {tuple(logits.shape)})"
            )

    def loss(self, model: nn.Module, batch: Batch, step: int, scores: Means) -> Tensor:
        logits = call_model(model, self.inputs(batch))
        total = _sum_cross_entropy(logits, batch.target, self.config.label_smoothing)
        scores.update((batch.target != PAD).sum(), loss=total.detach())
        return total / batch.tokens

    def inputs(self, batch: Batch) -> dict[str, Tensor]:
        return {"source": batch.source, "target": shift_right(batch.target)}

    def test_scores(self) -> TranslationScores:
        return TranslationScores(self.config.target)

    def test(self, model: nn.Module, batch: TextBatch, scores: TranslationScores) -> None:
        assert isinstance(model, Translator)
        if not batch.source:
            return
        source = model.encode(model.source_vocabulary, batch.source)
        target = model.encode(model.target_vocabulary, batch.target)
        loss = _sum_cross_entropy(model(source, shift_right(target)), target)
        outputs = self.translate(model, batch) if batch.is_translated else ()
        scores.update(loss, (target != PAD).sum(), outputs, batch.target)

    def translate(self, model: Translator, batch: TextBatch) -> list[str]:
        """Translate a batch with the search options of the configuration."""
        return model.translate(batch.source, self.config.beams, self.config.length_penalty)

    def format_scores(self, scores: dict[str, float]) -> str:
        formats = {"loss": "loss {:.4f}", "perplexity": "perplexity {:.2f}", "bleu": "BLEU {:.2f}"}
        return ", ".join(formats[name].format(value) for name, value in scores.items())

    def finish(self, model: nn.Module, loaders: DataLoaders, folder: Path) -> None:
        assert isinstance(model, Translator)
        # The whole test set; the loader's batches are one process's share.
        batches = TextBatches(loaders.tests["test"].pairs, True)
        write_translations(folder, self.config, ((batch, self.translate(model, batch)) for batch in batches))


def learn_vocabularies(config: Translate, pairs: Pairs) -> tuple[Vocabulary, Vocabulary]:
    """Learn the source and target vocabularies from the training pairs; the same object if it is joint."""
    if config.joint:
        both = Vocabulary.learn([*pairs.source, *pairs.target], config.vocabulary)
        return both, both
    return Vocabulary.learn(pairs.source, config.vocabulary), Vocabulary.learn(pairs.target, config.vocabulary)


def shift_right(target: Tensor) -> Tensor:
    """Return the decoder's input: the start, then each piece at the position of its successor.

    Example::

        >>> shift_right(torch.tensor([[7, 8, 2]]))
        tensor([[1, 7, 8]])
    """
    return F.pad(target[:, :-1], (1, 0), value=BOS)


def _sum_cross_entropy(logits: Tensor, target: Tensor, smoothing: float = 0.0) -> Tensor:
    """Return the total cross-entropy of all pieces that are not padding."""
    return F.cross_entropy(
        logits.flatten(0, 1), target.flatten(), ignore_index=PAD, label_smoothing=smoothing, reduction="sum"
    )


TASK = Translation
