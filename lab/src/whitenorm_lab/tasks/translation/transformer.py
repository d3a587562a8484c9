"""The encoder-decoder transformer, with LayerNorm at every norm until another is put in its place."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from whitenorm_lab.tasks.translation.attention import Attention, Memory
from whitenorm_lab.tasks.translation.vocabulary import PAD


class Shape(NamedTuple):
    """A transformer's sizes; the defaults are the base for IWSLT14 (fairseq's ``transformer_iwslt_de_en``)."""

    encoder_layers: int = 6
    decoder_layers: int = 6
    width: int = 512
    hidden: int = 1024
    """Units between the two linear layers of a block."""
    heads: int = 4
    dropout: float = 0.3
    """After the embedding, and of what every block adds."""
    pre_norm: bool = False
    """Norms before attention and linear layers, and at the end of both stacks; otherwise after each sum."""


class Residual(nn.Module):
    """What every block of a layer is inside of: ``x + f(norm(x))``, or ``norm(x + f(x))`` after the sum."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(shape.width)
        self.dropout = nn.Dropout(shape.dropout)
        self.pre_norm = shape.pre_norm

    def before(self, x: Tensor) -> Tensor:
        """What goes into f."""
        return self.norm(x) if self.pre_norm else x

    def after(self, x: Tensor, added: Tensor) -> Tensor:
        """The sum of x and f's output."""
        total = x + self.dropout(added)
        return total if self.pre_norm else self.norm(total)


class SelfAttention(Residual):
    """Attention to the sequence itself."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.attention = Attention(shape.width, shape.heads)

    def forward(
        self, x: Tensor, seen: Tensor | None = None, causal: bool = False, past: Memory | None = None
    ) -> tuple[Tensor, Memory]:
        inside = self.before(x)
        memory = self.attention.remember(inside, seen).after(past)
        return self.after(x, self.attention(inside, memory, causal)), memory


class CrossAttention(Residual):
    """Attention to the encoder's output. Rows of one source are queries of one memory: it is not repeated for them."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.attention = Attention(shape.width, shape.heads)

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        inside = self.before(x)
        queries = inside.reshape(len(memory.keys), -1, inside.shape[-1])
        return self.after(x, self.attention(queries, memory).view_as(inside))


class FeedForward(Residual):
    """Two linear layers with a ReLU between them, at every position."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.linear = nn.Sequential(
            nn.Linear(shape.width, shape.hidden), nn.ReLU(), nn.Linear(shape.hidden, shape.width)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.after(x, self.linear(self.before(x)))


class EncoderLayer(nn.Module):
    """Self-attention and a feed-forward block."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.self_attention, self.feed_forward = SelfAttention(shape), FeedForward(shape)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        return self.feed_forward(self.self_attention(x, seen)[0])


class DecoderLayer(nn.Module):
    """Self-attention to what came before, attention to the source, and a feed-forward block."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.self_attention, self.cross_attention = SelfAttention(shape), CrossAttention(shape)
        self.feed_forward = FeedForward(shape)

    def forward(self, x: Tensor, source: Memory, past: Memory | None) -> tuple[Tensor, Memory]:
        # One new position sees all that there are.
        x, memory = self.self_attention(x, causal=past is None, past=past)
        return self.feed_forward(self.cross_attention(x, source)), memory


class Embedding(nn.Module):
    """Pieces as vectors times √width, plus sines of their positions, so that no length is the longest."""

    def __init__(self, pieces: int, shape: Shape) -> None:
        super().__init__()
        self.pieces = nn.Embedding(pieces, shape.width)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, ids: Tensor, first: int = 0) -> Tensor:
        weight = self.pieces.weight
        places = sinusoids(first + ids.shape[1], weight.shape[1], weight.device).to(weight.dtype)
        return self.dropout(math.sqrt(weight.shape[1]) * self.pieces(ids) + places[first:])


def sinusoids(length: int, width: int, device: torch.device | None = None) -> Tensor:
    r"""Positions ``(length, width)``: sines in the first half, cosines in the second, of periods 2π to 20000π.

    Example::

        >>> sinusoids(3, 2)
        tensor([[ 0.0000,  1.0000],
                [ 0.8415,  0.5403],
                [ 0.9093, -0.4161]])
    """
    half = width // 2
    rates = torch.exp(torch.arange(half, device=device) * (-math.log(10000) / max(1, half - 1)))
    angles = torch.arange(length, device=device)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], 1)


class Transformer(nn.Module):
    """From source to target pieces (Vaswani et al., 2017); the output's weights are the target's embedding.

    Padding follows the sentences; no position of a sentence sees it.

    Args:
        source_pieces, target_pieces: sizes of the vocabularies.
        shape: of the net.
        shared: one embedding for source and target, of one vocabulary.

    Shape:
        ids ``(N, S)`` and ``(N, T)``, logits ``(N, T, target_pieces)``.

    Example::

        >>> net = Transformer(20, 30, Shape(1, 1, 8, 16, 2))
        >>> net(torch.ones(2, 5, dtype=torch.long), torch.ones(2, 4, dtype=torch.long)).shape
        torch.Size([2, 4, 30])
    """

    def __init__(self, source_pieces: int, target_pieces: int, shape: Shape, shared: bool = False) -> None:
        super().__init__()
        if shape.width % 2:
            raise ValueError(f"expected an even width, as positions are sines and cosines (got {shape.width})")
        if shared and source_pieces != target_pieces:
            raise ValueError(
                f"expected one vocabulary for a shared embedding (got {source_pieces} and {target_pieces} pieces)"
            )
        self.target = Embedding(target_pieces, shape)
        self.source = self.target if shared else Embedding(source_pieces, shape)
        self.encoder = nn.ModuleList(EncoderLayer(shape) for _ in range(shape.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(shape) for _ in range(shape.decoder_layers))
        self.encoder_norm = nn.LayerNorm(shape.width) if shape.pre_norm else nn.Identity()
        self.decoder_norm = nn.LayerNorm(shape.width) if shape.pre_norm else nn.Identity()
        _initialise_(self)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        return self.decode(target, self.encode(source), [None] * len(self.decoder))[0]

    def encode(self, source: Tensor) -> list[Memory]:
        """The source as every layer of the decoder attends to it."""
        seen, x = source != PAD, self.source(source)
        for layer in self.encoder:
            x = layer(x, seen)
        x = self.encoder_norm(x)
        return [layer.cross_attention.attention.remember(x, seen) for layer in self.decoder]  # type: ignore[union-attr, operator]

    def decode(
        self, target: Tensor, source: list[Memory], past: list[Memory | None]
    ) -> tuple[Tensor, list[Memory | None]]:
        """Logits of what follows each target piece, and the past of the pieces to come.

        Args:
            target: ``(N, T)``; with a past ``(N, 1)``, the next piece.
            source: from :meth:`encode`; N may be a multiple of its rows, each of which then has N/rows rows in turn.
            past: of the earlier pieces, a layer; None at the beginning.
        """
        x = self.target(target, 0 if past[0] is None else past[0].keys.shape[2])
        memories: list[Memory | None] = []
        for layer, memory, before in zip(self.decoder, source, past, strict=True):
            x, now = layer(x, memory, before)
            memories.append(now)
        return nn.functional.linear(self.decoder_norm(x), self.target.pieces.weight), memories


def _initialise_(net: Transformer) -> None:
    """Xavier's uniform weights, of queries, keys and values as of one matrix; embeddings of deviation width^-½."""
    for module in net.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
    for module in net.modules():
        if isinstance(module, Attention):
            width = module.query.in_features
            for linear in (module.query, module.memory):
                # As of 3·width outputs.
                nn.init.xavier_uniform_(linear.weight, math.sqrt((width + linear.out_features) / (4 * width)))
