"""Pages in headless Chromium, without a network."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

# Font sizes are those on the screen, because a scaled SVG scales its text.
_FACTS = """() => {
  const isVisible = e => e.getClientRects().length > 0;
  const rect = e => e.getBoundingClientRect();
  const fonts = [...document.querySelectorAll('body *')].filter(e => isVisible(e) &&
      [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())).map(e => {
    const scale = e.ownerSVGElement && e.getScreenCTM ? Math.abs(e.getScreenCTM().d) : 1;
    return [parseFloat(getComputedStyle(e).fontSize) * scale, e.textContent.trim().slice(0, 40)];
  }).sort((a, b) => a[0] - b[0]);
  const clashes = [];
  for (const svg of document.querySelectorAll('svg[role=img]')) {
    const texts = [...svg.querySelectorAll('text')].filter(isVisible);
    texts.forEach((a, i) => {
      const p = rect(a);
      if (p.left < 0 || p.right > innerWidth) clashes.push(`${a.textContent} is outside of the window`);
      texts.slice(i + 1).forEach(b => {
        const q = rect(b);
        if (p.left < q.right && q.left < p.right && p.top < q.bottom && q.top < p.bottom)
          clashes.push(`${a.textContent} on ${b.textContent} in ${svg.getAttribute('aria-label')}`);
      });
    });
  }
  return {
    width: document.documentElement.scrollWidth,
    fonts: fonts[0],
    clashes,
    cut: [...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth)
      .map(e => `${e.getAttribute('aria-label')}: ${e.scrollWidth} in ${e.clientWidth}`),
    plots: [...document.querySelectorAll('svg[role=img], canvas, img')].filter(isVisible)
      .map(e => [rect(e).width, rect(e).height]),
    broken: [...document.querySelectorAll('img')].filter(e => !e.complete || !e.naturalWidth).length,
    unnamed: [...document.querySelectorAll('svg[role=img], canvas, img')]
      .filter(e => !(e.getAttribute('aria-label') || e.alt)).length,
  };
}"""


@dataclass
class PageView:
    """Layout of a page at one width, with all folded parts open."""

    width: int
    scroll_width: int
    smallest_font: tuple[float, str]
    clashes: list[str]
    cut: list[str]
    plots: list[tuple[float, float]]
    broken_images: int
    unnamed_plots: int
    errors: list[str]
    requests: list[str]
    answer: Any = None

    def check(self) -> None:
        """Assert what must hold for every page."""
        assert self.errors == []
        assert self.requests == []
        assert self.scroll_width <= self.width
        assert self.smallest_font[0] >= 12, self.smallest_font
        assert self.clashes == []
        assert self.broken_images == 0
        assert self.unnamed_plots == 0
        assert self.plots
        assert all(width > 20 and height > 20 for width, height in self.plots)


def look(
    path: Path,
    width: int,
    dark: bool = False,
    screenshot: Path | None = None,
    unfold: bool = True,
    act: Callable[[Any], Any] | None = None,
) -> PageView:
    """Open a file in a window of this width; skip the test without Chromium or playwright.

    At the end ``act`` is called with playwright's page, and returns the view's ``answer``.
    """
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed")
    errors: list[str] = []
    requests: list[str] = []
    # Closed before the next test, because its event loop would disturb those of other tests.
    with api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=list(_FLAGS))
        context = browser.new_context(
            offline=True, viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
        )
        page = context.new_page()
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda r: None if r.url.startswith(("file:", "data:")) else requests.append(r.url))
        page.goto(path.resolve().as_uri())
        if unfold:
            page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
            page.evaluate("Promise.all([...document.images].map(i => i.decode().catch(() => null)))")
        facts = page.evaluate(_FACTS)
        if screenshot is not None:
            page.screenshot(path=screenshot, full_page=True)
        answer = None if act is None else act(page)
        browser.close()
    return PageView(
        width=width,
        scroll_width=facts["width"],
        smallest_font=tuple(facts["fonts"]),
        clashes=facts["clashes"],
        cut=facts["cut"],
        plots=[tuple(size) for size in facts["plots"]],
        broken_images=facts["broken"],
        unnamed_plots=facts["unnamed"],
        errors=errors,
        requests=requests,
        answer=answer,
    )
