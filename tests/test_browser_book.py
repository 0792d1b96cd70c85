"""The built book, opened from its folder with the network blocked."""

import re
from functools import partial
from pathlib import Path

import pytest
from browser import browser as start_browser
from browser import follows, opened, ready, unfolded

pytestmark = pytest.mark.browser

HTML = Path(__file__).parent.parent / "_build" / "html"
PAGES = sorted(HTML.glob("chapters/*.html"))


@pytest.fixture(scope="module")
def chromium():
    with start_browser() as running:
        yield running


def book(chromium, path, **context):
    """Open a page of the book; what lies outside its folder is not to be asked for."""
    return opened(chromium, path.as_uri(), home=HTML.as_uri(), **context)


def each(paths):
    return pytest.mark.parametrize("path", paths, ids=lambda path: path.stem)


def test_the_book_is_built():
    assert PAGES, "build it first: make book"


def grave(page, **options):
    """Return what axe-core finds of impact serious or critical."""
    from axe_playwright_python.sync_playwright import Axe

    options = {"preload": False, "resultTypes": ["violations"]} | options
    return [
        (v["id"], node["html"][:160], node["failureSummary"][:300])
        for v in Axe().run(page, options=options).response["violations"]
        if v["impact"] in ("serious", "critical")
        for node in v["nodes"][:3]
    ]


@each(PAGES)
def test_a_page_is_complete_and_bars_nobody(chromium, path):
    """Maths set, pictures there with their finding as text, WCAG by axe-core."""
    with book(chromium, path, color_scheme="light") as page:
        ready(page)
        text = page.locator("main").inner_text()
        assert not re.search(r"\\\(|\\\[|\\mathbf|\\frac", text), "maths left unset"
        broken = page.evaluate(
            "[...document.images].filter(i => !i.complete || !i.naturalWidth).length"
        )
        assert broken == 0
        for root in unfolded(page, ".rn-figure, .rn-explorer"):
            alt = root.locator("svg[role=img]").get_attribute("aria-label")
            assert len(alt) > 20 and "plot of" not in alt.lower()
        assert grave(page) == []
        page.emulate_media(color_scheme="dark")
        page.locator("html[data-theme=dark]").wait_for()
        page.wait_for_function("!document.getAnimations().length")  # colours fade over
        assert grave(page, runOnly=["color-contrast"]) == []  # what a theme can change


def drag(page, box, x0, x1):
    """Drag with the mouse from one place of a box to another, both 0 … 1."""
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + x0 * box["width"], y)
    page.mouse.down()
    page.mouse.move(box["x"] + x1 * box["width"], y, steps=4)
    page.mouse.up()


def swipe(page, box, x0, x1):
    """Drag with a finger from one place of a box to another, both 0 … 1."""
    touch = page.context.new_cdp_session(page)
    xs = [x0 + (x1 - x0) * k / 4 for k in range(5)]
    points = [
        {"x": box["x"] + x * box["width"], "y": box["y"] + box["height"] / 2}
        for x in xs
    ]
    send = touch.send
    send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": points[:1]})
    for point in points[1:]:
        send("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": [point]})
    send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})


def to_both_ends(root, drag):
    """Drag each slider of an explorer to both ends; picture and sentence follow."""
    for slider in root.locator("[type=range]").all():
        slider.scroll_into_view_if_needed()
        box = slider.bounding_box()
        low, high = slider.get_attribute("min"), slider.get_attribute("max")
        start = slider.input_value()
        at = 0.05 + 0.9 * int(start) / int(high)
        ends = [(low, 0), (high, 1)] if start != low else [(high, 1), (low, 0)]
        for value, end in ends:
            follows(root, partial(drag, root.page, box, at, end))
            assert slider.input_value() == value
            at = end + (0.02 if end == 0 else -0.02)
        slider.fill(start)  # two sliders may mean the same at their ends


EXPLORERS = [path for path in PAGES if 'class="rn-explorer' in path.read_text()]


@each(EXPLORERS)
def test_every_explorer_is_dragged_to_both_ends(chromium, path):
    with book(chromium, path) as page:
        ready(page)
        for root in unfolded(page):
            to_both_ends(root, drag)


OVERFLOW = """() => [...document.querySelectorAll("main *")].filter(e => {
  const style = getComputedStyle(e), box = e.getBoundingClientRect();
  if (!box.width || style.visibility === "hidden" || e.closest("svg, mjx-container"))
    return false;
  // Beside a formula stands its text for screen readers, which may overflow.
  const formula = e.matches("span.math") && e.querySelector("mjx-math");
  const inner = formula ? formula.getBoundingClientRect().width : e.scrollWidth;
  const cut = style.display !== "inline" && inner > e.clientWidth + 1 &&
    ["hidden", "clip"].includes(style.overflowX) && e.innerText;
  let scrolls = false;
  for (let up = e; up && up.tagName !== "MAIN"; up = up.parentElement)
    scrolls ||= ["auto", "scroll"].includes(getComputedStyle(up).overflowX);
  return cut || (box.right > innerWidth + 1 && !scrolls);
}).map(e => e.outerHTML.slice(0, 150))"""

UNREACHED = """root => [...root.querySelectorAll("input, select")].filter(e => {
  const box = e.getBoundingClientRect();
  const top = document.elementFromPoint(
    box.x + box.width / 2, box.y + box.height / 2);
  return box.left < 0 || box.right > innerWidth || box.height < 16
    || !e.contains(top);
}).map(e => e.outerHTML)"""

# A phone, the narrowest that WCAG asks for, and 1280 pixels at a zoom of 200 %.
NARROW = {"phone": 390, "narrowest": 320, "zoom": 640}


@each(PAGES)
def test_a_narrow_screen_loses_nothing(chromium, path):
    """By touch, with reduced motion: nothing cut, no sideways scroll, all in reach."""
    phone = {"has_touch": True, "is_mobile": True, "reduced_motion": "reduce"}
    view = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2}
    with book(chromium, path, **phone, **view) as page:
        for name, width in NARROW.items():
            page.set_viewport_size({"width": width, "height": 844})
            ready(page)
            assert page.evaluate("innerWidth") == width
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, f"{name}: the page scrolls sideways"
            assert page.evaluate(OVERFLOW) == [], name
            for root in unfolded(page):
                root.locator(".rn-controls").scroll_into_view_if_needed()
                assert root.evaluate(UNREACHED) == [], name
                if name == "phone":
                    to_both_ends(root, swipe)
                    assert root.evaluate("e => e.getAnimations({subtree: true})") == []
        scroll = "getComputedStyle(document.documentElement).scrollBehavior"
        assert page.evaluate(scroll) == "auto"


CHROME = (
    ".bd-sidebar-primary, .bd-sidebar-secondary, .prev-next-area, .bd-header-article, "
    ".rn-controls, .copybtn"
)


@each(PAGES)
def test_a_page_prints(chromium, path):
    """On paper from the dark theme: dark on white, no chrome, nothing cut off."""
    paper = {"viewport": {"width": 718, "height": 1000}}  # A4 less 1 cm on each side
    with book(chromium, path, color_scheme="dark", **paper) as page:
        ready(page)
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        page.emulate_media(media="print", color_scheme="dark")
        assert (
            page.evaluate(
                """chrome => [...document.querySelectorAll(chrome)].filter(e =>
            e.checkVisibility({opacityProperty: true, visibilityProperty: true}))
            .map(e => e.className)""",
                CHROME,
            )
            == []
        )
        for root in page.locator(".rn-explorer, .rn-figure").all():
            picture = root.locator("img, svg").first
            assert picture.is_visible() and picture.bounding_box()["height"] > 100
        assert page.evaluate(OVERFLOW) == []
        assert (
            page.evaluate(
                """[...document.querySelectorAll("main pre")].filter(e =>
            e.clientWidth && e.scrollWidth > e.clientWidth + 1)
            .map(e => e.innerText.slice(0, 80))"""
            )
            == []
        )
        ink = page.evaluate("getComputedStyle(document.querySelector('main p')).color")
        assert max(map(int, re.findall(r"\d+", ink)[:3])) < 128, f"light ink: {ink}"
        assert page.pdf(format="A4").startswith(b"%PDF")


def test_a_formula_is_a_stop_of_the_tab_key_only_where_it_scrolls(chromium):
    path = HTML / "chapters" / "04_path_ensembles.html"
    stops = "mjx-container[tabindex='0'], .math[tabindex='0']"
    with book(chromium, path) as page:
        ready(page)
        assert page.locator("mjx-container").count() > 50
        assert page.locator(stops).count() == 0
        page.set_viewport_size({"width": 390, "height": 844})
        page.wait_for_selector(stops, state="attached")
        for box in page.locator(stops).all():
            assert box.evaluate("box => box.scrollWidth > box.clientWidth")


def test_the_landing_explorer_says_what_the_code_gives(chromium):
    """Case forty-tanh: about 1e-9 against 1e2 at depth 40."""
    with book(chromium, HTML / "index.html") as page:
        page.wait_for_url("**/chapters/index.html")
        root = page.locator(".rn-explorer").first
        assert root.locator("output").inner_text() == "40"
        said = root.locator(".rn-sentence").inner_text()
        assert "9.2 × 10⁻¹⁰" in said and "160" in said
