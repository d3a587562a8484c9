"""The HTML page of inspections: its content, and its layout in a browser."""

import base64
import math
import struct
import sys
import zlib
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import torch
from torch import nn

import whitenorm
from tests.helpers.browser import look
from tests.helpers.models import ResNet
from whitenorm.cli import main
from whitenorm.diagnostics import Inspection, condition_number, html_page, inspect
from whitenorm.diagnostics.conditioning import correlation_matrix, covariance, flatten_features
from whitenorm.diagnostics.page.plots import LogAxis, fit_log_axis, render_heat_map
from whitenorm.diagnostics.page.text import format_number, format_percent

VOID = {"meta", "link", "img", "br"}


class Page(HTMLParser):
    """Elements with their attributes, and text by element; asserts that all elements are closed."""

    def __init__(self, page):
        super().__init__()
        self.open, self.elements, self.texts = [], [], []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))

    def all(self, tag, **attributes):
        return [a for t, a in self.elements if t == tag and attributes.items() <= a.items()]

    def text(self, tag):
        return [data for t, data in self.texts if t == tag]


def build_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 6), nn.BatchNorm1d(6))


@pytest.fixture(scope="module")
def runs():
    model, x = build_net(), torch.randn(256, 6, generator=torch.Generator().manual_seed(0))
    return {"BatchNorm": inspect(model, x), "ZCA": inspect(whitenorm.convert_(model, "dbn"), x)}


def test_reports_carry_spectra_and_correlations():
    x = torch.randn(300, 80) * torch.linspace(1, 2, 80) + 0.5 * torch.randn(300, 1)
    (report,) = inspect(nn.Sequential(nn.BatchNorm1d(80)), x)
    assert len(report.spectrum_before) == len(report.spectrum_after) == 80
    assert report.spectrum_before == sorted(report.spectrum_before, reverse=True)
    assert report.spectrum_before[0] / report.spectrum_before[-1] == pytest.approx(condition_number(x))
    assert report.correlations_before.shape == (64, 64)
    torch.testing.assert_close(report.correlations_before, torch.corrcoef(x[:, :64].T), atol=1e-5, rtol=0)
    assert set(inspect(nn.Sequential(nn.BatchNorm1d(80)), x).to_dicts()[0]).isdisjoint(
        {"spectrum_before", "correlations_before"}
    )


def test_constant_channels_are_uncorrelated():
    x = torch.randn(50, 3)
    x[:, 1] = 2
    assert correlation_matrix(covariance(flatten_features(x)))[1].tolist() == [0, 0, 0]


def test_frame(runs, monkeypatch):
    pytest.importorskip("pandas")
    frame = runs["BatchNorm"].to_frame()
    assert list(frame["name"]) == ["1", "4"]
    assert frame["condition_before"][1] == runs["BatchNorm"][1].condition_before
    assert list(Inspection().to_frame().columns) == list(frame.columns) == list(runs["BatchNorm"].to_dicts()[0])
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match=r"needs pandas.*pip install 'whitenorm\[inspect\]'"):
        runs["BatchNorm"].to_frame()


def test_every_layer_has_its_plots(runs):
    page = Page(html_page(runs, "Two runs"))
    assert page.text("title")[0] == page.text("h1")[0] == "Two runs"
    assert [a["id"] for a in page.all("div", **{"class": "blocks"})] == ["layer-1", "layer-2"]
    # One lane per layer, and for each of two layers in two runs one plot of spectra and two of correlations.
    plots = page.all("svg", role="img")
    assert len(plots) == 2 + 4
    assert all(a["aria-label"] for a in plots)
    assert len(page.all("img")) == 8
    assert len({a["alt"] for a in page.all("img")}) == 8
    assert len(page.all("polyline", **{"class": "output"})) == 4
    assert {a["href"] for a in page.all("a")} == {"#layer-1", "#layer-2"}
    text = " ".join(data for _, data in page.texts)
    assert "the first 64 of 96 channels" in text
    assert "all 6 channels" in text
    # 96 channels computed from six features have 90 dead directions.
    assert "90 of 96 of the input are zero up to rounding" in text
    assert format_number(runs["ZCA"][1].condition_after) in page.text("td")


def test_the_page_loads_nothing_and_has_no_script(runs):
    html = runs["ZCA"].to_html()
    page = Page(html)
    sources = [a.get("src") or a.get("href") or "" for _, a in page.elements]
    assert all(source.startswith(("data:", "#")) or not source for source in sources)
    assert not page.all("script")
    assert "http" not in html.replace("http-equiv", "")
    assert "url(" not in html


def test_layers_that_only_one_run_has():
    x = torch.randn(64, 6)
    shorter = inspect(nn.Sequential(nn.BatchNorm1d(6)), x)
    longer = inspect(nn.Sequential(nn.Identity(), nn.BatchNorm1d(6)), x)
    page = Page(html_page({"a": shorter, "b": longer}))
    assert [a["href"] for a in page.all("a")][:2] == ["#layer-1", "#layer-2"]
    assert page.text("b")[1:] == ["0", "1"]
    assert len(page.all("polyline")) == 4


def test_text_is_escaped(runs):
    evil = "<script>alert('\"&')</script>"
    reports = Inspection(replace(r, name=evil, kind=evil, advice=[evil]) for r in runs["ZCA"][:1])
    html = html_page({evil: reports, "b" + evil: reports}, title=evil)
    assert "<script" not in html
    page = Page(html)
    assert page.text("title")[0] == evil
    assert evil in page.text("li")
    assert f"Eigenvalues of input and output of {evil}, {evil}, log scale" in {
        a["aria-label"] for a in page.all("svg", role="img")
    }


def test_a_large_model_makes_a_page_of_reasonable_size(runs):
    large = replace(
        runs["ZCA"][0],
        width=2048,
        spectrum_before=sorted(torch.rand(2048).tolist(), reverse=True),
        spectrum_after=sorted(torch.rand(2048).tolist(), reverse=True),
        correlations_before=2 * torch.rand(64, 64) - 1,
        correlations_after=2 * torch.rand(64, 64) - 1,
    )
    reports = Inspection(replace(large, name=f"layer{i}") for i in range(53))
    page = html_page({"before": reports, "after": reports})
    assert len(page.encode()) < 3e6
    assert len(Page(page).all("details", **{"class": "layer"})) == 53
    assert page.count('<details class="layer" open>') == 2


def test_no_inspections_are_an_error():
    with pytest.raises(ValueError, match="expected at least one inspection"):
        html_page({})
    with pytest.raises(ValueError, match="got 1 without"):
        Inspection().to_html()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (64, "64"),
        (0.0, "0"),
        (1.0, "1"),
        (0.0123456, "0.0123"),
        (1234.5, "1234"),
        (999.9, "1000"),
        (9999.7, "1.00×10⁴"),
        (-0.5, "−0.5"),
        (123456.0, "1.23×10⁵"),
        (-1.5e-7, "−1.50×10⁻⁷"),
        (math.inf, "∞"),
        (-math.inf, "−∞"),
        (math.nan, "NaN"),
    ],
)
def test_numbers(value, text):
    assert format_number(value) == text


def test_percentages():
    assert format_percent(0.1234) == "12.3 %"
    assert format_percent(math.nan) == "NaN"


def test_log_axis():
    assert fit_log_axis([3, 250, 0, math.inf, math.nan]) == LogAxis(0, 3)
    assert fit_log_axis([1, 1]) == LogAxis(0, 1)
    assert fit_log_axis([]) == LogAxis(0, 1)
    axis = fit_log_axis([1e-12, 1e6])
    assert (axis.place(1e6), axis.place(1e-3), axis.place(1e-12)) == (0, 50, 100)
    assert len(axis.ticks()) <= 6


def test_heat_map_shows_the_matrix():
    matrix = torch.tensor([[1.0, -1.0, 0.0], [0.5, math.nan, 7.0]])
    data = base64.b64decode(render_heat_map(matrix).split(",")[1])
    chunks, start = {}, 8
    while start < len(data):
        size, kind = struct.unpack(">I4s", data[start : start + 8])
        body = data[start + 8 : start + 8 + size]
        assert struct.unpack(">I", data[start + 8 + size : start + 12 + size])[0] == zlib.crc32(kind + body)
        chunks[kind], start = body, start + 12 + size
    assert struct.unpack(">II", chunks[b"IHDR"][:8]) == (3, 2)
    pixels = zlib.decompress(chunks[b"IDAT"])
    colours = [tuple(chunks[b"PLTE"][3 * p : 3 * p + 3]) for p in pixels[1:4] + pixels[5:8]]
    red, blue, white, orange, grey, clipped = colours
    assert white == (255, 255, 255)
    assert grey == (128, 128, 128)
    assert red == clipped
    assert red[0] > red[2]
    assert blue[2] > blue[0]
    assert orange[0] > orange[2]


def build_hard_cases(runs):
    """Return reports of singular, constant and one-channel features, with infinite and NaN values and a long name."""
    worst = replace(
        runs["ZCA"][1],
        name="a_very_long_name_of_a_layer." * 5,
        condition_before=math.nan,
        condition_after=math.inf,
        gradient_ratio=math.nan,
        drift=math.inf,
        spectrum_after=[math.inf, 1.0, math.nan, 0.0, 0.0, 0.0],
        dead_after=3,
        correlations_after=torch.full((6, 6), math.nan),
    )
    constant = inspect(nn.Sequential(nn.BatchNorm1d(3)), torch.ones(16, 3))
    single = inspect(nn.BatchNorm1d(1), torch.randn(16, 1))
    others = (replace(runs["ZCA"][1], name=f"layer{i}.norm", condition_after=10.0**i) for i in range(14))
    return Inspection([worst, *constant, *single, *others])


def test_hard_cases(runs):
    page = Page(build_hard_cases(runs).to_html())
    assert {"NaN", "∞", "(the model itself)"} <= {data for _, data in page.texts}
    text = " ".join(page.text("figcaption"))
    assert "3 of 6 of the output are zero" in text
    assert "2 of 6 of the output are not finite" in text
    numbers = [a[key] for tag, a in page.elements for key in ("x", "y", "cx", "cy", "points") if key in a]
    assert not any("nan" in value or "inf" in value for value in numbers)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390])
def test_in_a_browser(runs, tmp_path, width, dark):
    path = tmp_path / "page.html"
    hard = build_hard_cases(runs)
    path.write_text(html_page({**runs, "hard": hard}) if dark else hard.to_html(), encoding="utf-8")
    view = look(path, width, dark=dark)
    view.check()
    lanes = len({row.name for reports in (*runs.values(), hard) for row in reports}) if dark else len(hard)
    assert len(view.plots) == lanes + 3 * (4 + len(hard) if dark else len(hard))
    if width == 1280:
        assert view.cut == []


def test_no_column_of_a_conversion_is_cut_off(tmp_path):
    torch.manual_seed(0)
    model, x = ResNet(2), torch.randn(4, 3, 16, 16)
    runs = {"a_model_with_a_long_name": inspect(model, x)}
    runs["with dbn at s1-b2+df"] = inspect(whitenorm.convert_(model, "dbn"), x)
    path = tmp_path / "page.html"
    path.write_text(html_page(runs), encoding="utf-8")
    view = look(path, 1280)
    view.check()
    assert view.cut == []


def test_lanes_have_names_and_changes_are_highlighted(runs):
    model = build_net()
    x = torch.randn(256, 6)
    reports = {"old": inspect(model, x), "new": inspect(whitenorm.convert_(model, "dbn", where="l1"), x)}
    page = Page(html_page(reports))
    names = [data for tag, data in page.texts if tag == "a"]
    assert names[:2] == ["1", "4"]
    assert [a.get("class") for a in page.all("li")][1:3] == ["changed", None]
    assert "BatchNorm1d → DecorrelatedBatchNorm" in page.text("span")
    assert len(page.all("tbody", **{"class": "changed"})) == 1
    text = " ".join(data for _, data in page.texts)
    assert "1 of 2 norms: BatchNorm1d → DecorrelatedBatchNorm" in text
    # Only the layer that changed is open.
    assert [("open" in a) for a in page.all("details", **{"class": "layer"})] == [True, False]
    better = [a for a in page.all("td") if a.get("class", "").endswith("better")]
    assert len(better) >= 2
    unchanged = Page(html_page({"a": reports["old"], "b": reports["old"]}))
    assert "none of 2 norms is of another kind" in " ".join(data for _, data in unchanged.texts)
    assert not unchanged.all("tbody", **{"class": "changed"})


def test_the_browser_checks_can_fail(tmp_path):
    path = tmp_path / "bad.html"
    path.write_text(
        "<!doctype html><meta charset=utf-8><div style='width:2000px;font-size:9px'>wide</div><svg role=img>"
        "<text x=5 y=20>one</text><text x=9 y=22>two</text></svg><script>undefined_name()</script>"
        "<img src='https://example.invalid/a.png'>"
        "<div class=scroll aria-label=wide style='width:100px;overflow:auto'><p style='width:200px'>wide</div>"
    )
    view = look(path, 390)
    assert view.cut == ["wide: 200 in 100"]
    assert view.scroll_width > 390
    assert view.smallest_font == (9, "wide")
    assert "one on two" in view.clashes[0]
    assert any("undefined_name" in error for error in view.errors)
    assert view.requests == ["https://example.invalid/a.png"]
    assert view.broken_images == 1
    assert view.unnamed_plots == 2


def test_command(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(
        "from torch import nn\n\ndef net():\n"
        "    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(288, 4))\n"
    )
    page, table = tmp_path / "page.html", tmp_path / "table.csv"
    arguments = ["--layer", "iternorm", "--shape", "8", "3", "8", "8", "--html", str(page), "--csv", str(table)]
    assert main(["inspect", f"{file}:net", *arguments]) == 0
    assert "Page:" in capsys.readouterr().out
    headings = Page(page.read_text(encoding="utf-8")).text("h3")
    assert headings[-2:] == [f"{file}:net: BatchNorm2d", "with iternorm at all: IterNorm"]
    lines = table.read_text().splitlines()
    assert [line.split(",")[:4] for line in lines[1:]] == [
        ["before", "0", "1", "BatchNorm2d"],
        ["after", "0", "1", "IterNorm"],
    ]
    assert main(["inspect", f"{file}:net", "--shape", "8", "3", "8", "8", "--html", str(file / "p")]) == 1
    assert "exists" in capsys.readouterr().err
