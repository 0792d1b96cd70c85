"""The built book, opened from its folder with the network blocked."""

import re
from pathlib import Path

import pytest
from browser import browser as start_browser
from browser import opened

pytestmark = pytest.mark.browser

HTML = Path(__file__).parent.parent / "_build" / "html"
PAGES = sorted(HTML.glob("chapters/*.html"))


@pytest.fixture(scope="module")
def chromium():
    with start_browser() as running:
        yield running


def each(paths):
    return pytest.mark.parametrize("path", paths, ids=lambda path: path.stem)


def test_the_book_is_built():
    assert PAGES, "build it first: make book"


@each(PAGES)
def test_a_page_is_complete(chromium, path):
    """Maths set, pictures there, no error, no request that fails or leaves."""
    with opened(chromium, path.as_uri()) as page:
        page.wait_for_function("!window.MathJax || window.MathJax.startup?.promise")
        page.evaluate("window.MathJax?.startup?.promise")
        text = page.locator("main").inner_text()
        assert not re.search(r"\\\(|\\\[|\\mathbf|\\frac", text), "maths left unset"
        broken = page.evaluate(
            "[...document.images].filter(i => !i.complete || !i.naturalWidth).length"
        )
        assert broken == 0
        for k in range(page.locator(".rn-figure, .rn-explorer").count()):
            root = page.locator(".rn-figure, .rn-explorer").nth(k)
            root.scroll_into_view_if_needed()
            root.locator("svg[role=img]").wait_for()
            assert root.locator("svg[role=img]").get_attribute("aria-label")


@each(PAGES)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious(chromium, path, theme):
    """WCAG by axe-core: no violation of impact serious or critical."""
    from axe_playwright_python.sync_playwright import Axe

    with opened(chromium, path.as_uri(), color_scheme=theme) as page:
        page.evaluate("window.MathJax?.startup?.promise")
        for k in range(page.locator(".rn-figure, .rn-explorer").count()):
            root = page.locator(".rn-figure, .rn-explorer").nth(k)
            root.scroll_into_view_if_needed()
            root.locator("svg[role=img]").wait_for()
        found = Axe().run(page, options={"preload": False}).response["violations"]
        grave = [
            (v["id"], node["html"][:160], node["failureSummary"][:300])
            for v in found
            if v["impact"] in ("serious", "critical")
            for node in v["nodes"][:3]
        ]
        assert grave == []


@each(PAGES)
def test_every_explorer_goes_to_both_ends(chromium, path):
    with opened(chromium, path.as_uri()) as page:
        for k in range(page.locator(".rn-explorer").count()):
            root = page.locator(".rn-explorer").nth(k)
            root.scroll_into_view_if_needed()
            root.locator("svg[role=img]").wait_for()
            sentence = root.locator(".rn-sentence")
            for c in range(root.locator("[type=range]").count()):
                slider = root.locator("[type=range]").nth(c)
                start = slider.input_value()
                seen = []
                for key in ("Home", "End"):
                    slider.press(key)
                    page.wait_for_timeout(150)
                    seen.append(
                        (sentence.inner_text(), root.locator("svg").inner_html())
                    )
                    label = root.locator("output").nth(c).inner_text()
                    assert slider.get_attribute("aria-valuetext") == label
                assert seen[0][0] != seen[1][0], "the sentence did not follow"
                assert seen[0][1] != seen[1][1], "the picture did not follow"
                slider.fill(start)  # two sliders may mean the same at their ends
            for c in range(root.locator("[type=radio]").count()):
                before = sentence.inner_text()
                radio = root.locator("[type=radio]").nth(c)
                was = radio.is_checked()
                radio.check()
                page.wait_for_timeout(150)
                assert was or sentence.inner_text() != before
            for c in range(root.locator("select").count()):
                before = sentence.inner_text()
                root.locator("select").nth(c).press("End")
                page.wait_for_timeout(150)
                assert sentence.inner_text() != before


@each(PAGES)
@pytest.mark.parametrize("width", [320, 390])
def test_a_phone_does_not_scroll_sideways(chromium, path, width):
    phone = {"viewport": {"width": width, "height": 844}, "has_touch": True}
    with opened(chromium, path.as_uri(), **phone) as page:
        page.evaluate("window.MathJax?.startup?.promise")
        page.wait_for_timeout(200)
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width


def test_the_landing_explorer_says_what_the_code_gives(chromium):
    """Case forty-tanh: about 1e-9 against 1e2 at depth 40."""
    with opened(chromium, (HTML / "index.html").as_uri()) as page:
        page.wait_for_url("**/chapters/index.html")
        root = page.locator(".rn-explorer").first
        assert root.locator("output").inner_text() == "40"
        said = root.locator(".rn-sentence").inner_text()
        assert "9.2 × 10⁻¹⁰" in said and "160" in said
