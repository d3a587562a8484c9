"""Sentences as pieces of words, by sentencepiece."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

PAD, BOS, EOS, UNKNOWN = range(4)


class Vocabulary(nn.Module):
    """Pieces of one or two languages, by byte pair encoding of the training sentences.

    The same sentences give the same pieces. It is a module so that a net's weights and checkpoints have it, whole.

    Args:
        model: what sentencepiece would write to a file; none is a vocabulary that is to be loaded.

    Example::

        >>> vocabulary = Vocabulary.of(["a house is a house", "a mouse"], 20)
        >>> ids = vocabulary.encode(["a mouse house"])[0]
        >>> vocabulary.decode([ids])
        ['a mouse house']
        >>> ids[-1] == EOS
        True
    """

    def __init__(self, model: bytes = b"") -> None:
        super().__init__()
        self.model = model
        self._processor: Any = _processor(model) if model else None

    @classmethod
    def of(cls, sentences: Iterable[str], size: int) -> Vocabulary:
        """Of so many pieces: beginning, end, padding and the unknown among them."""
        import sentencepiece

        written = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.Train(
                sentence_iterator=iter(sentences),
                model_writer=written,
                model_type="bpe",
                vocab_size=size,
                # Every character of the training sentences has a piece.
                character_coverage=1.0,
                pad_id=PAD,
                bos_id=BOS,
                eos_id=EOS,
                unk_id=UNKNOWN,
                num_threads=1,
                minloglevel=2,
            )
        except RuntimeError as error:
            # Its words are behind the place in its own code.
            raise ValueError(
                "expected a vocabulary with a piece for every character of the training sentences, and no more pieces "
                f"than they fill (got {size} pieces; sentencepiece says: {str(error).rsplit('] ', 1)[-1]}); choose "
                "another --vocabulary"
            ) from error
        return cls(written.getvalue())

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """The pieces of each, with the end after them."""
        return [[*ids, EOS] for ids in self._processor.EncodeAsIds(list(sentences))]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Sentences again, without beginning, end and padding."""
        return [self._processor.DecodeIds([one for one in row if one >= UNKNOWN]) for row in ids]

    def get_extra_state(self) -> Tensor:
        """The model's bytes, as a tensor: of the kind that all of a checkpoint is."""
        return torch.from_numpy(np.frombuffer(self.model, np.uint8).copy())

    def set_extra_state(self, state: Tensor) -> None:
        """Take the bytes, unless sentences already had others."""
        model = state.cpu().numpy().tobytes()
        if self.model and model != self.model:
            raise ValueError(
                "expected the training sentences that the run began with (got others: their vocabulary differs); "
                "begin anew in another --folder"
            )
        self.model, self._processor = model, _processor(model)


def _processor(model: bytes) -> Any:
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(model)
    except RuntimeError as error:
        raise ValueError(f"expected a model of sentencepiece (got something else: {error})") from error
    return processor
