"""Beam search: the translations that a net finds likeliest."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from whitenorm_lab.tasks.translation.attention import Memory
from whitenorm_lab.tasks.translation.transformer import Transformer
from whitenorm_lab.tasks.translation.vocabulary import BOS, EOS, PAD

_NEVER = float("-inf")
# A translation has at most twice the source's pieces and these.
_ROOM = 10


class _Beams(NamedTuple):
    """The sentences that are still searched: N of them, B beams each, best first."""

    sentences: Tensor  # N: which of the batch
    pieces: Tensor  # N, B, T
    scores: Tensor  # N, B: log p
    ended: Tensor  # N: candidates so far
    source: list[Memory]
    past: list[Memory | None]


class _Best:
    """The best candidate of every sentence so far."""

    def __init__(self, number: int, limit: int, device: torch.device) -> None:
        self.scores = torch.full((number,), _NEVER, device=device)
        self.pieces = torch.full((number, limit), EOS, device=device)

    def offer(self, sentences: Tensor, scores: Tensor, pieces: Tensor) -> None:
        """Candidates ``(N, T)``, one a sentence, without their end."""
        better = scores > self.scores[sentences]
        rows, length = sentences[better], pieces.shape[1]
        self.scores[rows] = scores[better]
        self.pieces[rows, :length] = pieces[better]
        self.pieces[rows, length:] = EOS

    def ids(self) -> list[list[int]]:
        return [row[: row.index(EOS)] if EOS in row else row for row in self.pieces.tolist()]


@torch.no_grad()
def beam_search(net: Transformer, source: Tensor, beams: int = 5, penalty: float = 1.0) -> list[list[int]]:
    """The pieces of the best translation of each sentence, without beginning and end.

    Every step looks at the 2·B likeliest continuations of a sentence's B beams. Those among the first B that end are
    candidates; the first B that do not are the next beams. A sentence is done, and leaves the batch, when B candidates
    have ended. The one with the highest log p / length^penalty is taken; the end counts as a piece.

    Args:
        net: in eval mode.
        source: ids ``(N, S)``, padded. Of a sentence of S pieces, a translation has at most 2·S + 10, whatever stands
            beside it in the batch.
        beams: B; 1 is greedy.
        penalty: of length; 0 compares log p as it is, which favours short ones.
    """
    limits = 2 * (source != PAD).sum(1) + _ROOM
    longest = 2 * source.shape[1] + _ROOM
    best = _Best(len(source), longest, source.device)
    living = _begin(net, source, beams)
    for length in range(1, longest + 2):
        last = living.pieces[:, :, -1].reshape(-1, 1)
        logits, past = net.decode(last, living.source, living.past)
        gains = logits[:, 0].float().log_softmax(-1).unflatten(0, living.scores.shape)  # N, B, V
        gains[..., [PAD, BOS]] = _NEVER
        over = length > limits[living.sentences]
        gains[..., EOS + 1 :].masked_fill_(over[:, None, None], _NEVER)
        living = _longer(living._replace(past=past), gains, best, length**penalty)
        going = (living.ended < beams) & living.scores[:, 0].isfinite()
        # A search may wait for its device: which sentences are left decides on the shapes of the next step.
        if not going.all():
            living = _remaining(living, going)
        if not len(living.sentences):
            break
    return best.ids()


def _begin(net: Transformer, source: Tensor, beams: int) -> _Beams:
    number, device = len(source), source.device
    scores = torch.full((number, beams), _NEVER, device=device)
    # All beams are the same at the beginning: one of them counts.
    scores[:, 0] = 0
    return _Beams(
        torch.arange(number, device=device),
        torch.full((number, beams, 1), BOS, device=device),
        scores,
        torch.zeros(number, dtype=torch.long, device=device),
        net.encode(source),
        [None] * len(net.decoder),
    )


def _longer(living: _Beams, gains: Tensor, best: _Best, divisor: float) -> _Beams:
    """The beams with one more piece each; what ends is offered to the best."""
    number, beams, pieces = gains.shape
    rows = torch.arange(number, device=gains.device)
    scores, index = (living.scores[..., None] + gains).flatten(1).topk(2 * beams)  # N, 2B, best first
    origin, piece = index // pieces, index % pieces
    ends = piece == EOS

    candidates = scores.masked_fill(~ends, _NEVER)[:, :beams]
    value, which = candidates.max(1)
    best.offer(living.sentences, value / divisor, living.pieces[rows, origin[rows, which], 1:])

    # At most B of them end, one a beam, so that there are B that do not. Sorting is stable: best first.
    order = ends.int().argsort(dim=1, stable=True)[:, :beams]
    origin, piece = origin.gather(1, order), piece.gather(1, order)
    chosen = (rows[:, None] * beams + origin).flatten()
    return living._replace(
        pieces=torch.cat([living.pieces[rows[:, None], origin], piece[..., None]], 2),
        scores=scores.gather(1, order),
        ended=living.ended + candidates.isfinite().sum(1),
        past=[None if memory is None else memory.rows(chosen) for memory in living.past],
    )


def _remaining(living: _Beams, going: Tensor) -> _Beams:
    rows = going[:, None].expand_as(living.scores).flatten()
    return _Beams(
        living.sentences[going],
        living.pieces[going],
        living.scores[going],
        living.ended[going],
        [memory.rows(going) for memory in living.source],
        [None if memory is None else memory.rows(rows) for memory in living.past],
    )
