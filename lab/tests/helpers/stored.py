"""Stored results without running an experiment, and a parser for the pages made from them."""

import dataclasses
from html.parser import HTMLParser
from pathlib import Path

import matplotlib.pyplot as plt

from whitenorm_lab.claims import markdown_page, rules
from whitenorm_lab.claims.outcomes import load_outcomes
from whitenorm_lab.claims.results import Run, Store
from whitenorm_lab.papers import EXPERIMENTS

HOSTILE = '<script>alert(1)</script> & "quotes" | a*b_c ``<b>``'
MACHINE = {"commit": "a" * 40, "whitenorm": "0.1", "torch": "2", "python": "3", "processor": "P<x>", "threads": 2}
SHORT = "Trained on a tenth of the images."
PARTS = [
    {"ours": "DBN 1.5 ± 0.5, BN 2 ± 0.5", "verdict": "held", "why": "p = 0.01"},
    {"ours": "DBN 3 ± 0.5, LN 2 ± 0.5", "verdict": "not held", "why": "the other way, p = 0.02"},
]


def draw_line(runs):
    """Return a figure of any runs."""
    figure, axes = plt.subplots(figsize=(6, 4))
    axes.plot([run.seed for run in runs])
    return figure


def store_results(folder, name, verdicts, monkeypatch, text=HOSTILE, **more):
    """Store results with these verdicts and ``more`` entries, and let the experiment draw any runs."""
    judged = [
        {"claim": f"{n} {text}", "paper": text, "ours": f"1 ± 0.5 {text}", "verdict": verdict, "why": "p = 0.01" * n}
        for n, verdict in enumerate(verdicts)
    ]
    experiment = EXPERIMENTS[name]
    monkeypatch.setitem(EXPERIMENTS, name, dataclasses.replace(experiment, draw=draw_line))
    content = {
        "experiment": name,
        "paper": experiment.paper,
        "where": experiment.where,
        "title": experiment.title,
        "scale": "default",
        "parameters": experiment.scales["default"],
        "finished": "2026-01-02T03:04:05+00:00",
        "seconds": 90.0,
        "machine": MACHINE,
        "claims": judged,
        **more,
    }
    runs = [Run({"lr": lr}, seed + experiment.first_seed, {}, 1.0) for lr in (1, 2) for seed in range(3)]
    Store(folder, name, "default").write(content, runs)


def store_several(folder, monkeypatch):
    """Store results of one experiment with a claim of parts, one without, an exact one and a bar, and of another."""
    known = EXPERIMENTS["gw-constraints"]
    exact, bar, plain = (
        dataclasses.replace(known.claims[0], text=text, exact=text == "exact", bar=text == "bar", reason="")
        for text in ("exact", "bar", "plain")
    )
    entry = dataclasses.replace(known, claims=(exact, bar, plain), reduction=SHORT)
    monkeypatch.setitem(EXPERIMENTS, known.id, entry)
    base = {"paper": "less", "verdict": "not held", "why": "p = 0.3"}
    judged = [
        {**base, "claim": "exact", "ours": "3 of 4"},
        {**base, "claim": "bar", "ours": "7.25 %"},
        {
            **base,
            "claim": "plain",
            "ours": "DBN 1 ± 0.1, BN 2 ± 0.1; DBN 3 ± 0.1, LN 4 ± 0.1",
            "why": "1 of 2 parts not held: p = 1; …",
        },
        {**base, "claim": "plain", "ours": "both", "why": "1 of 2 parts not held: p = 0.02", "parts": PARTS},
    ]
    made = {"parameters": entry.scales["default"], "claims": judged, "rule": rules.NAME}
    store_results(folder, known.id, [], monkeypatch, text="", **made)
    store_results(folder, "dbn-axis-swap", ["held"], monkeypatch, text="")
    return load_outcomes(folder, "default")


def format_claims_page(gathered):
    """Format the page of claims, as in docs/."""
    return markdown_page.format_page(gathered, "default", Path("docs"))


class Page(HTMLParser):
    """Attributes of all elements by tag, and the text."""

    def __init__(self, path):
        super().__init__()
        self.found, self.text, self.places = {}, "", set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        self.found.setdefault(tag, []).append(dict(attributes))
        self.places.add(dict(attributes).get("id"))

    def handle_data(self, data):
        self.text += data
