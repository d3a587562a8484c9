"""The code on README and the pages runs, and what they quote from stored results is current."""

import json
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# test_tutorials.py runs the tutorials' code at small sizes.
PAGES = [ROOT / "README.md", *sorted(path for path in DOCS.glob("**/*.md") if path.parent.name != "tutorials")]
FENCE = "```"


def code_blocks(path):
    return re.findall(rf"^{FENCE}python\n(.*?)^{FENCE}", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def page_id(path):
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", [path for path in PAGES if code_blocks(path)], ids=page_id)
def test_code_runs(path):
    pytest.importorskip("torchvision")
    names = {}
    with warnings.catch_warnings():
        # torch.export warns about its own tracing.
        warnings.simplefilter("ignore")
        for block in code_blocks(path):
            exec(block, names)


def test_import_whitenorm_is_enough_for_every_qualified_call():
    """In a new process, because other tests import more of the package."""
    pages = [ROOT / "README.md", *DOCS.glob("**/*.md")]
    calls = {call for page in pages for call in re.findall(r"\bwhitenorm(?:\.\w+)+(?=\()", page.read_text("utf-8"))}
    assert "whitenorm.convert_" in calls
    code = """
import sys, whitenorm
for path in sys.argv[1:]:
    try:
        eval(path)
    except AttributeError as error:
        print(path, error)
"""
    process = subprocess.run([sys.executable, "-c", code, *sorted(calls)], capture_output=True, text=True)
    assert (process.returncode, process.stdout) == (0, ""), process.stderr


@pytest.mark.parametrize("path", [path for path in PAGES if "<!-- found: " in path.read_text("utf-8")], ids=page_id)
def test_verdicts_are_current(path):
    """If this fails, run ``make pages``."""
    snippets = pytest.importorskip("whitenorm_lab.claims.verdict_snippets")
    outcomes = pytest.importorskip("whitenorm_lab.claims.outcomes").load_outcomes(ROOT / "lab" / "results", "default")
    assert snippets.fill_verdicts(path, outcomes) == path.read_text(encoding="utf-8")


def test_translation_results_match_the_transformers_page():
    """The page says in words that LN had better BLEU, lower loss and higher speed than GW in every run."""
    runs = json.loads((ROOT / "lab/results/gw-nmt/default.json").read_text(encoding="utf-8"))["runs"]
    layer_norm, whitening = (
        [run["values"] for run in runs if run["settings"]["variant"] == variant] for variant in ("LN", "GW")
    )
    assert len(layer_norm) == len(whitening) == 3
    for ln, gw in zip(layer_norm, whitening, strict=True):
        assert all(x > y for x, y in zip(ln["test_bleu"], gw["test_bleu"], strict=True))
        assert all(x < y for x, y in zip(ln["test_loss"], gw["test_loss"], strict=True))
        assert ln["tokens_per_second"] > gw["tokens_per_second"]
