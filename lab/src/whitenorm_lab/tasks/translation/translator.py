"""The encoder-decoder transformer: the layers and the beam search of ``transformers``, with vocabularies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LogitsProcessor, LogitsProcessorList, M2M100Config, M2M100ForConditionalGeneration
from transformers.models.bart.modeling_bart import BartDecoderLayer, BartEncoderLayer
from transformers.models.m2m_100.modeling_m2m_100 import M2M100ScaledWordEmbedding

from whitenorm_lab.tasks.translation.batches import Sequences
from whitenorm_lab.tasks.translation.config import Translate
from whitenorm_lab.tasks.translation.vocabulary import BOS, EOS, PAD, Vocabulary


class Translator(nn.Module):
    """Transformer from source to target pieces (Vaswani et al., 2017), with LayerNorm at every norm.

    It is M2M100 of ``transformers``, which is fairseq's transformer with sinusoidal positions and norms before each
    block. For norms after each block, the layers are those of BART and the final norms are left out. Dropout is
    applied after the embeddings and to the output of each block. The output weights are those of the target embedding.

    Args:
        source_vocabulary, target_vocabulary: the same object if both languages share it.
        sizes: numbers of pieces of the two vocabularies.
        config: the sizes of the network.

    Shape:
        - Source ids :math:`(N, S)` and target ids :math:`(N, T)`, padded at the end with ``PAD``.
        - Logits :math:`(N, T, V)`, where V is the size of the target vocabulary.

    Example::

        >>> vocabulary = Vocabulary.learn(["a house is a house", "a mouse"], 20)
        >>> config = Translate(encoder_layers=1, decoder_layers=1, width=8, hidden=16, heads=2)
        >>> net = Translator(vocabulary, vocabulary, (20, 20), config).eval()
        >>> net(torch.full((2, 5), 4), torch.full((2, 4), 4)).shape
        torch.Size([2, 4, 20])
        >>> len(net.translate(["a mouse", "a house"]))
        2
    """

    def __init__(
        self, source_vocabulary: Vocabulary, target_vocabulary: Vocabulary, sizes: tuple[int, int], config: Translate
    ) -> None:
        super().__init__()
        if config.share_embeddings and sizes[0] != sizes[1]:
            raise ValueError(
                f"expected vocabularies of the same size for a shared embedding (got {sizes[0]} and {sizes[1]} pieces)"
            )
        self.source_vocabulary, self.target_vocabulary = source_vocabulary, target_vocabulary
        # Any, because BART's layers take this configuration too, but are annotated with their own.
        options: Any = M2M100Config(
            vocab_size=sizes[1],
            d_model=config.width,
            encoder_layers=config.encoder_layers,
            decoder_layers=config.decoder_layers,
            encoder_ffn_dim=config.hidden,
            decoder_ffn_dim=config.hidden,
            encoder_attention_heads=config.heads,
            decoder_attention_heads=config.heads,
            dropout=config.dropout,
            attention_dropout=0.0,
            activation_dropout=0.0,
            encoder_layerdrop=0.0,
            decoder_layerdrop=0.0,
            activation_function="relu",
            scale_embedding=True,
            pad_token_id=PAD,
            bos_token_id=BOS,
            eos_token_id=EOS,
            decoder_start_token_id=BOS,
        )
        # Any, because the annotations of generate exclude models with more than one base class.
        self.net: Any = M2M100ForConditionalGeneration(options)
        encoder, decoder = self.net.model.encoder, self.net.model.decoder
        if not config.share_embeddings:
            encoder.embed_tokens = M2M100ScaledWordEmbedding(sizes[0], config.width, PAD, math.sqrt(config.width))
        if not config.pre_norm:
            encoder.layers = nn.ModuleList(BartEncoderLayer(options, i) for i in range(config.encoder_layers))
            decoder.layers = nn.ModuleList(BartDecoderLayer(options, i) for i in range(config.decoder_layers))
            encoder.layer_norm = decoder.layer_norm = nn.Identity()
        _initialize_(self.net)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the logits of the piece that follows each target piece."""
        logits: Tensor = self.net(source, source != PAD, decoder_input_ids=target, use_cache=False).logits
        return logits

    def translate(self, sentences: Sequence[str], beams: int = 5, length_penalty: float = 1.0) -> list[str]:
        """Translate sentences, as one batch, by :meth:`search`."""
        return self.target_vocabulary.decode(
            self.search(self.encode(self.source_vocabulary, sentences), beams, length_penalty).tolist()
        )

    def encode(self, vocabulary: Vocabulary, sentences: Sequence[str]) -> Tensor:
        """Return sentences as padded ids on the network's device."""
        rows = Sequences(vocabulary.encode(sentences)).pad(torch.arange(len(sentences)))
        return rows.to(self.net.device)

    @torch.no_grad()
    def search(self, source: Tensor, beams: int = 5, length_penalty: float = 1.0) -> Tensor:
        """Return the most likely translation of each sentence, found by beam search.

        Args:
            source: ids :math:`(N, S)`. The translation of a sentence of S pieces has at most 2·S + 10 pieces, however
                long the other sentences of the batch are.
            beams: number of beams; 1 is greedy search.
            length_penalty: translations are compared by log p / length^length_penalty, where the end counts as a piece.

        Returns:
            ids :math:`(N, T)`: the start, the translation, the end, and padding.
        """
        limits = 2 * (source != PAD).sum(1) + 10
        options = {"early_stopping": True, "length_penalty": length_penalty} if beams > 1 else {}
        ids: Tensor = self.net.generate(
            source,
            attention_mask=source != PAD,
            num_beams=beams,
            do_sample=False,
            max_new_tokens=int(limits.max()) + 1,
            suppress_tokens=[PAD, BOS],
            logits_processor=LogitsProcessorList([_LengthLimit(limits.repeat_interleave(beams))]),
            **options,
        )
        return ids


class _LengthLimit(LogitsProcessor):
    """Force the end of translations that reach the limit of their row."""

    def __init__(self, limits: Tensor) -> None:
        self.limits = limits  # N·beams

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        is_over = input_ids.shape[1] > self.limits
        is_end = torch.arange(scores.shape[1], device=scores.device) == EOS
        return scores.masked_fill(is_over[:, None] & ~is_end, -torch.inf)


def _initialize_(net: nn.Module) -> None:
    """Initialize as fairseq does: Xavier's uniform weights, and embeddings of standard deviation width^-½."""
    for name, module in net.named_modules():
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
        elif isinstance(module, nn.Linear) and module.bias is not None:
            # Queries, keys and values get the bounds of one joint matrix.
            is_joint = name.endswith(("q_proj", "k_proj", "v_proj"))
            nn.init.xavier_uniform_(module.weight, 1 / math.sqrt(2) if is_joint else 1.0)
            nn.init.zeros_(module.bias)
