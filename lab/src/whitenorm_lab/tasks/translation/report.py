"""translations.txt: what a trained net makes of its test set."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from whitenorm_lab.tasks.translation.batches import TextBatch
from whitenorm_lab.tasks.translation.config import Translate
from whitenorm_lab.tasks.translation.scores import bleu, signature
from whitenorm_lab.training.checkpoints import write

FILE = "translations.txt"


def write_translations(folder: Path, config: Translate, found: Iterable[tuple[TextBatch, list[str]]]) -> None:
    """BLEU with its signature, and below it every source, reference and output, short sentences first."""
    triples = [triple for batch, outputs in found for triple in zip(batch.source, batch.target, outputs, strict=True)]
    score = bleu(config.target).corpus_score([triple[2] for triple in triples], [[triple[1] for triple in triples]])
    lines = [
        f"BLEU {score.score:.2f} of {len(triples)} sentences of {config.dataset}, {config.source} to {config.target}",
        f"{signature(config.target)}; beams {config.beams}, length penalty {config.length_penalty:g}",
    ]
    for source, reference, output in triples:
        lines += ["", f"source:    {source}", f"reference: {reference}", f"output:    {output}"]
    write(folder / FILE, ("\n".join(lines) + "\n").encode())
