"""The whole book by keyboard alone, from a folder and from a plain static server."""

import re
import shutil
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from browser import browser as start_browser
from browser import follows, opened, ready

pytestmark = pytest.mark.browser

HTML = Path(__file__).parent.parent / "_build" / "html"
PAGES = {path.name for path in HTML.glob("chapters/*.html")}

FOCUS = """() => { const e = document.activeElement;
const box = e.getBoundingClientRect(), stuck = window.before === e;
window.before = e;
const card = e.closest(".sd-card"); // shows the focus of a link that covers it
const mark = (style) => style.outlineStyle !== "none" || style.boxShadow !== "none";
return { stuck, name: e.matches("body") ? "" : e.outerHTML.slice(0, 120),
  marked: mark(getComputedStyle(e)) || !!card && mark(getComputedStyle(card)),
  shown: box.width > 0 && box.bottom > 0 && box.top < innerHeight,
  inside: !!e.closest("main"), kind: e.type || e.tagName.toLowerCase(),
  explorer: [...document.querySelectorAll(".rn-explorer")].findIndex(
    root => root.contains(e)),
  control: [...document.querySelectorAll(".rn-control")].findIndex(
    control => control.contains(e)),
  menu: e.matches("[data-bs-toggle=dropdown]"), fold: e.matches("summary"),
  next: e.matches(".right-next"), previous: e.matches(".left-prev") } }"""


@pytest.fixture(scope="module")
def chromium():
    with start_browser() as running:
        yield running


@pytest.fixture(scope="module")
def server():
    """Serve the built book on this machine, as `python -m http.server` does."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = partial(Quiet, directory=str(HTML))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def drive_slider(page, root):
    """Drive the slider that has the focus to both ends and back by keyboard."""
    focus = page.locator(":focus")
    low, start, high = (int(focus.get_attribute(n)) for n in ("min", "value", "max"))
    press = page.keyboard.press
    if start != low:
        follows(root, lambda: press("Home"))
    follows(root, lambda: press("End"))
    assert focus.input_value() == str(high)
    said = root.locator("output", has=page.locator("xpath=.")).all_inner_texts()
    assert focus.get_attribute("aria-valuetext") in said
    follows(root, lambda: press("Home"))
    assert focus.input_value() == str(low)
    follows(root, lambda: press("ArrowRight"))
    for _ in range(abs(start - low - 1)):  # as found: two sliders may meet at the ends
        press("ArrowRight" if start > low else "ArrowLeft")


def drive_choice(page, root, kind):
    """Go through all radio buttons, or open a menu and take its last line."""
    press = page.keyboard.press
    if kind == "radio":
        name = page.locator(":focus").get_attribute("name")
        for _ in range(root.locator(f"[name='{name}']").count()):
            follows(root, lambda: press("ArrowDown"))  # the last leads to the first
    else:
        start = page.locator(":focus").input_value()
        end, back = ("Home", "End") if start != "0" else ("End", "Home")
        follows(root, lambda: [press(key) for key in ("Alt+ArrowDown", end, "Enter")])
        follows(root, lambda: [press(key) for key in ("Alt+ArrowDown", back, "Enter")])


def walk(page):
    """Go through the open page with the Tab key; stay at the link to the next."""
    ready(page)
    focus = lambda: page.evaluate(FOCUS)  # noqa: E731
    page.keyboard.press("Tab")
    assert "Skip to main content" in focus()["name"], focus()
    page.keyboard.press("Enter")
    controls = set()
    for _ in range(1000):
        page.keyboard.press("Tab")
        at = focus()
        if at["next"] or not at["inside"]:
            break
        where = f"{page.url}: {at['name']}"
        assert not at["stuck"], f"the focus is caught at {where}"
        assert at["marked"] and at["shown"], f"the focus is not to be seen at {where}"
        if at["menu"]:
            page.keyboard.press("Enter")
            page.locator(".dropdown-menu.show").wait_for()
            page.keyboard.press("Escape")
            page.locator(".dropdown-menu.show").wait_for(state="hidden")
        elif at["fold"]:
            page.keyboard.press("Enter")
            assert page.locator("details[open] > summary:focus").count(), where
        elif at["control"] >= 0:
            root = page.locator(".rn-explorer").nth(at["explorer"])
            root.locator("svg[role=img]").wait_for()
            if at["kind"] == "range":
                drive_slider(page, root)
            else:
                drive_choice(page, root, at["kind"])
            controls.add(at["control"])
    missed = set(range(page.locator(".rn-control").count())) - controls
    assert not missed, f"{page.url}: no Tab reaches the controls {missed}"
    return at["next"]


def walk_book(chromium, home):
    """Walk from the landing page to the last, and back by the links to the previous."""
    address = f"{home}/chapters/index.html"
    with opened(chromium, address, home=home, reduced_motion="reduce") as page:
        name = lambda: page.url.split("#")[0].rsplit("/")[-1]  # noqa: E731
        there = [name()]
        while walk(page):
            with page.expect_navigation():
                page.keyboard.press("Enter")
            there.append(name())
        back = [name()]
        while back[-1] != there[0]:
            for _ in range(30):  # the link stands near the page's end
                page.keyboard.press("Shift+Tab")
                if page.evaluate(FOCUS)["previous"]:
                    break
            with page.expect_navigation():
                page.keyboard.press("Enter")
            back.append(name())
        assert back == there[::-1]
        return there


@pytest.mark.parametrize("way", ["folder", "server"])
def test_the_whole_book_by_keyboard_alone(chromium, request, way):
    home = HTML.as_uri() if way == "folder" else request.getfixturevalue("server")
    there = walk_book(chromium, home)
    assert len(there) == len(set(there)), "the links to the next page go round"
    assert set(there) == PAGES, "the links to the next page miss one"


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """Return a function that breaks the landing page in a copy of the book."""
    assert PAGES, "build it first: make book"
    home = tmp_path_factory.mktemp("book")
    (home / "_static").symlink_to(HTML / "_static")
    (home / "chapters").mkdir()
    shutil.copy(HTML / "chapters" / "01_vanishing_gradients.html", home / "chapters")
    page = (HTML / "chapters" / "index.html").read_text()

    def broken(pattern, replacement):
        changed, times = re.subn(pattern, replacement, page, count=1, flags=re.S)
        assert times == 1
        (home / "chapters" / "index.html").write_text(changed)
        return home.as_uri()

    return broken


END = "</body>"
DEAF = """<script>document.querySelector(".rn-controls").addEventListener("input",
  (e) => e.stopImmediatePropagation(), true)</script></body>"""
STUCK = """<script>{ let old; const root = document.querySelector(".rn-explorer");
const back = () => { const e = root.querySelector("%s"); if (!e) return;
  old ??= e.innerHTML; if (e.innerHTML !== old) e.innerHTML = old };
back(); new MutationObserver(back).observe(root, { childList: true, subtree: true }) }
</script></body>"""
BREAKS = {
    "nothing": (END, END, None),
    "the frames do not unpack": (r'(class="rn-frames">)....', r"\1AAAA", "not follow"),
    "no script": (r'<script class="rn-assets">.*?</script>', "", "Timeout"),
    "nothing listens": (END, DEAF, "picture and sentence did not follow"),
    "the sentence stays": (END, STUCK % ".rn-sentence", "text did not follow"),
    "the picture stays": (END, STUCK % "svg", "picture did not follow"),
    "no way to a control": (r'(<input type="range")', r'\1 tabindex="-1"', "no Tab"),
    "an error": (END, "<script>nowhere()</script></body>", "nowhere is not"),
    "a message": (END, "<script>console.error('ouch')</script></body>", "ouch"),
    "a request outside": (END, '<img src="https://a.example/x"></body>', "asked for"),
    "a file not there": (END, '<img src="nothing.png"></body>', "failed"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_the_walk_sees_what_is_broken(chromium, copy, name):
    """Each of these on a copy of the landing page ends the walk, and nothing else."""
    pattern, replacement, said = BREAKS[name]
    home = copy(pattern, replacement)

    def go():
        address = f"{home}/chapters/index.html"
        with opened(chromium, address, home=home, reduced_motion="reduce") as page:
            page.set_default_timeout(5000)
            assert walk(page)

    if said is None:
        go()
    else:
        with pytest.raises(Exception, match=said):
            go()
