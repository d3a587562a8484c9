"""The code in README and in the pages runs as it stands, and what pages say of stored results is what these say."""

import json
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# The tutorials' code runs in tests of its own, at other sizes.
PAGES = [ROOT / "README.md", *sorted(path for path in DOCS.glob("**/*.md") if path.parent.name != "tutorials")]
FENCE = "```"


def blocks(path):
    return re.findall(rf"^{FENCE}python\n(.*?)^{FENCE}", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def name(path):
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", [path for path in PAGES if blocks(path)], ids=name)
def test_code_runs(path):
    pytest.importorskip("torchvision")
    names = {}
    with warnings.catch_warnings():
        # torch.export's own, of its tracing.
        warnings.simplefilter("ignore")
        for block in blocks(path):
            exec(block, names)


def test_what_is_called_by_its_path_needs_no_other_import():
    """In a process of its own, as other tests import more of the package."""
    pages = [ROOT / "README.md", *DOCS.glob("**/*.md")]
    called = {call for page in pages for call in re.findall(r"\bwhitenorm(?:\.\w+)+(?=\()", page.read_text("utf-8"))}
    assert "whitenorm.convert_" in called
    code = """
import sys, whitenorm
for path in sys.argv[1:]:
    try:
        eval(path)
    except AttributeError as error:
        print(path, error)
"""
    done = subprocess.run([sys.executable, "-c", code, *sorted(called)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.parametrize("path", [path for path in PAGES if "<!-- found: " in path.read_text("utf-8")], ids=name)
def test_what_was_found_is_what_was(path):
    """Where it fails: make pages."""
    found = pytest.importorskip("whitenorm_lab.claims.verdict_snippets")
    outcomes = pytest.importorskip("whitenorm_lab.claims.outcomes").gather(ROOT / "lab" / "results", "default")
    assert found.with_found(path, outcomes) == path.read_text(encoding="utf-8")


def test_what_transformers_says_of_translation():
    """By words, as the numbers are on the page of claims."""
    runs = json.loads((ROOT / "results/gw-nmt/default.json").read_text(encoding="utf-8"))["runs"]
    plain, whitened = ([run["values"] for run in runs if run["settings"]["variant"] == name] for name in ("LN", "GW"))
    assert len(plain) == len(whitened) == 3
    for a, b in zip(plain, whitened, strict=True):
        assert all(x > y for x, y in zip(a["test_bleu"], b["test_bleu"], strict=True))
        assert all(x < y for x, y in zip(a["test_loss"], b["test_loss"], strict=True))
        assert a["tokens_per_second"] > b["tokens_per_second"]
