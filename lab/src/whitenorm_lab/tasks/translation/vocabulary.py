"""Subword vocabularies, by sentencepiece."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

PAD, BOS, EOS, UNKNOWN = range(4)


class Vocabulary(nn.Module):
    """Byte pair encoding of one or two languages, learned from the training sentences.

    The same sentences give the same pieces. It is a module so that the network's weights and checkpoints contain it.

    Args:
        model: serialized sentencepiece model. Leave it empty for a vocabulary whose state is loaded later.

    Example::

        >>> vocabulary = Vocabulary.learn(["a house is a house", "a mouse"], 20)
        >>> ids = vocabulary.encode(["a mouse house"])[0]
        >>> vocabulary.decode([ids])
        ['a mouse house']
        >>> ids[-1] == EOS
        True
    """

    def __init__(self, model: bytes = b"") -> None:
        super().__init__()
        self.model = model
        self._processor: Any = _build_processor(model) if model else None

    @classmethod
    def learn(cls, sentences: Iterable[str], size: int) -> Vocabulary:
        """Learn a vocabulary of ``size`` pieces, which include padding, start, end and unknown."""
        import sentencepiece

        model = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.Train(
                sentence_iterator=iter(sentences),
                model_writer=model,
                model_type="bpe",
                vocab_size=size,
                # Every character of the training sentences gets a piece.
                character_coverage=1.0,
                pad_id=PAD,
                bos_id=BOS,
                eos_id=EOS,
                unk_id=UNKNOWN,
                num_threads=1,
                minloglevel=2,
            )
        except RuntimeError as error:
            # The message follows a source location in sentencepiece's own code.
            raise ValueError(
                "expected a vocabulary size of at least one piece per character of the training sentences, and at most "
                f"as many pieces as they contain (got {size} pieces; sentencepiece says: "
                f"{str(error).rsplit('] ', 1)[-1]}); choose another --vocabulary"
            ) from error
        return cls(model.getvalue())

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """Return the ids of each sentence, followed by ``EOS``."""
        return [[*ids, EOS] for ids in self._processor.EncodeAsIds(list(sentences))]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Return the sentences of ids, ignoring padding, start and end."""
        return [self._processor.DecodeIds([piece for piece in row if piece >= UNKNOWN]) for row in ids]

    def get_extra_state(self) -> Tensor:
        """Return the model's bytes as a tensor, so that checkpoints contain only tensors."""
        return torch.from_numpy(np.frombuffer(self.model, np.uint8).copy())

    def set_extra_state(self, state: Tensor) -> None:
        """Load the model's bytes; raise an error if they differ from a vocabulary that was learned before."""
        model = state.cpu().numpy().tobytes()
        if self.model and model != self.model:
            raise ValueError(
                "expected the training sentences that the run started with (got others: their vocabulary differs); "
                "start again in another --folder"
            )
        self.model, self._processor = model, _build_processor(model)


def _build_processor(model: bytes) -> Any:
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(model)
    except RuntimeError as error:
        raise ValueError(f"expected a serialized sentencepiece model (got something else: {error})") from error
    return processor
