"""Numbers in README and docs are those of the stored benchmarks, and README stays short."""

import re

import pytest

from benchmarks import costs, pages

README = (pages.ROOT / "README.md").read_text(encoding="utf-8")


def test_pages_are_not_stale():
    """If this fails, run ``make pages``."""
    stale = [path.name for path, text in pages.pages().items() if path.read_text(encoding="utf-8") != text]
    assert stale == []


def test_numbers_in_sentences(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "blocks", dict)
    (tmp_path / "docs").mkdir()
    readme = tmp_path / "README.md"
    readme.write_text("took <!-- measured: monitoring -->at most 90 %<!-- /measured --> longer")
    (text,) = pages.pages(tmp_path).values()
    assert re.fullmatch(r"took <!-- measured: monitoring -->at most \d+\.\d %<!-- /measured --> longer", text)
    assert "90 %" not in text
    readme.write_text("<!-- measured: moonitoring --><!-- /measured -->")
    with pytest.raises(ValueError, match=r"expected one of monitoring.*got moonitoring"):
        pages.pages(tmp_path)


def test_costs_are_ratios_of_what_is_stored():
    full, launches = pages.load_results("full"), pages.load_results("launches")
    text = costs.table(full, launches)
    added = full["models"][0]["models"]["GW full"]["step_percent"]
    base, *_ = launches["resnet50"]
    (ours,) = [row for row in launches["resnet50"] if (row["norm"], row["kernels"]) == ("GW", "triton")]
    predicted = ours["predicted_ms"][costs.CARD] / base["predicted_ms"][costs.CARD]
    measured_line, predicted_line = [line for line in text.splitlines() if line.startswith("| ResNet-50, GW, all")]
    assert measured_line.endswith(f"| {1 + added / 100:.2f}× |")
    assert predicted_line.endswith(f" | {predicted:.2f}× |")


def test_readme_is_short():
    text = re.sub(r"```.*?```|<!--.*?-->", "", README, flags=re.DOTALL)
    assert len(text.split()) <= 900
    assert len(re.findall(r"!\[", text)) == 1
    assert "make demo" in README
    assert "make test" in README


def test_links_of_readme_resolve():
    for address in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (pages.ROOT / address).exists(), address
