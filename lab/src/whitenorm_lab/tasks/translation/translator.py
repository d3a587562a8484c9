"""A transformer with its vocabularies: from sentences to sentences."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from whitenorm_lab.tasks.translation.batches import Sequences
from whitenorm_lab.tasks.translation.search import beam_search
from whitenorm_lab.tasks.translation.transformer import Shape, Transformer
from whitenorm_lab.tasks.translation.vocabulary import Vocabulary


class Translator(Transformer):
    """A transformer that knows the pieces it was trained on; ``whitenorm_lab.training.load`` gives one.

    Args:
        source_vocabulary, target_vocabulary: one and the same if both languages share it.
        sizes: of the vocabularies.
        shape: of the net.
        shared: one embedding for source and target.

    Example::

        >>> vocabulary = Vocabulary.of(["a house is a house", "a mouse"], 20)
        >>> net = Translator(vocabulary, vocabulary, (20, 20), Shape(1, 1, 8, 16, 2)).eval()
        >>> len(net.translate(["a mouse", "a house"]))
        2
    """

    def __init__(
        self,
        source_vocabulary: Vocabulary,
        target_vocabulary: Vocabulary,
        sizes: tuple[int, int],
        shape: Shape,
        shared: bool = False,
    ) -> None:
        super().__init__(*sizes, shape, shared)
        self.source_vocabulary, self.target_vocabulary = source_vocabulary, target_vocabulary

    def translate(self, sentences: Sequence[str], beams: int = 5, penalty: float = 1.0) -> list[str]:
        """Translations, as :func:`~.search.beam_search` finds them; all sentences are one batch."""
        source = self.ids(self.source_vocabulary, sentences)
        return self.target_vocabulary.decode(beam_search(self, source, beams, penalty))

    def ids(self, vocabulary: Vocabulary, sentences: Sequence[str]) -> Tensor:
        """Sentences as padded ids, where the net is."""
        rows = Sequences(vocabulary.encode(sentences)).padded(torch.arange(len(sentences)))
        return rows.to(self.target.pieces.weight.device)
