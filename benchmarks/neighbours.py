"""Measure what whitening changes for nearest-neighbour search: ``python -m benchmarks.neighbours --data ROOT``.

``make pages`` writes the table of docs/whitener.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate, normalize

from whitenorm import Whitener
from whitenorm_lab import data, digits
from whitenorm_lab.digits import Split
from whitenorm_lab.machine import describe_machine
from whitenorm_lab.nets import pretrained

RESULTS = Path(__file__).parent / "results" / "neighbours.json"
QUERIES = 500
COMPONENTS = (32, 64, 128, 256)


@dataclass
class Search:
    """Search by cosine similarity with raw, centred, projected and whitened features, fitted to the database alone."""

    data: Path | None = None
    """Folder with Extended Yale-B, PIE and CIFAR-10; default: $WHITENORM_DATA."""
    out: Path = RESULTS
    """JSON file of the results."""


def split_faces(name: str, root: Path | None) -> tuple[Split, Split]:
    """Return 2,000 faces at most as the database, and others as queries, at random."""
    images, labels = data.load(name, root).train
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    queries, database = order[:QUERIES], order[QUERIES:2500]
    return Split(images[database], labels[database]), Split(images[queries], labels[queries])


def split_objects(root: Path | None) -> tuple[Split, Split]:
    objects = data.load("cifar10", root)
    database, queries = objects.train, objects.test
    return Split(database.images[:4000], database.labels[:4000]), Split(
        queries.images[:QUERIES], queries.labels[:QUERIES]
    )


def read_pixels(images: Tensor) -> Tensor:
    return images.flatten(1).float() / 255


@torch.no_grad()
def embed(images: Tensor) -> Tensor:
    """Return the pooled features of EfficientNet-Lite0, trained on ImageNet, of images enlarged threefold."""
    net = pretrained.efficientnet_lite0(num_classes=0).eval()
    enlarged = interpolate(images.float() / 255, scale_factor=3, mode="bilinear")
    return torch.cat([net((batch - pretrained.MEAN[0]) / pretrained.STD[0]) for batch in enlarged.split(50)])


CASES: dict[str, tuple[Callable[[Path | None], tuple[Split, Split]], Callable[[Tensor], Tensor]]] = {
    "faces (Extended Yale-B), pixels": (lambda root: split_faces("yaleb", root), read_pixels),
    "faces (PIE), pixels": (lambda root: split_faces("pie", root), read_pixels),
    "digits, pixels": (lambda root: digits.load_pixels(), read_pixels),
    "CIFAR-10, EfficientNet-Lite0": (split_objects, embed),
}


def measure_search(database: Tensor, queries: Tensor, relevant: Tensor) -> dict[str, float]:
    """Return precision among the first neighbours, and mean average precision."""
    order = (normalize(queries) @ normalize(database).T).argsort(1, descending=True)
    hits = relevant.gather(1, order).double()
    precision = hits.cumsum(1) / torch.arange(1, hits.shape[1] + 1)
    average = (precision * hits).sum(1) / hits.sum(1).clamp(min=1)
    return {"first": hits[:, 0].mean().item(), "ten": hits[:, :10].mean().item(), "map": average.mean().item()}


def measure(database: Tensor, queries: Tensor, relevant: Tensor) -> dict[str, dict[str, float]]:
    """Measure the search by each form of the features."""
    mean = database.mean(0)
    axes = torch.linalg.svd(database - mean, full_matrices=False).Vh
    forms: dict[str, Callable[[Tensor], Tensor]] = {"raw": lambda x: x, "centred": lambda x: x - mean}
    features = database.shape[1]
    for count in [count for count in COMPONENTS if count < features]:
        forms[f"{count} components"] = lambda x, count=count: (x - mean) @ axes[:count].T
        forms[f"{count} components, whitened"] = Whitener(features, count).fit(database)
    forms["whitened, ε = 1e-3"] = Whitener(features, eps=1e-3).fit(database)
    return {name: measure_search(form(database), form(queries), relevant) for name, form in forms.items()}


def format_table(results: dict[str, Any]) -> str:
    """Return one row per form of the features: first neighbour, ten neighbours and mean average precision, in %."""
    cases = results["cases"]
    forms = list(dict.fromkeys(form for case in cases.values() for form in case))
    lines = [f"| features | {' | '.join(cases)} |", f"| --- {'| --- ' * len(cases)}|"]
    for form in forms:
        rows = [case.get(form) for case in cases.values()]
        cells = [
            "–" if row is None else f"{100 * row['first']:.1f}, {100 * row['ten']:.1f}, {100 * row['map']:.1f}"
            for row in rows
        ]
        lines.append(f"| {form} | {' | '.join(cells)} |")
    return "\n".join(lines)


def run(options: Search) -> dict[str, Any]:
    """Measure all cases, print and write."""
    results: dict[str, Any] = {"machine": describe_machine(), "cases": {}}
    for name, (load, read) in CASES.items():
        database, queries = load(options.data)
        relevant = queries.labels[:, None] == database.labels
        results["cases"][name] = measure(read(database.images), read(queries.images), relevant)
    print(format_table(results))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return results


if __name__ == "__main__":
    import tyro

    run(tyro.cli(Search))
