"""The explorers' core behaviour and the look of a page in Firefox and in WebKit."""

import io
import json

import matplotlib.image
import numpy as np
import pytest
from browser import HEAD, sample
from engines import HOOK, Firefox, WebKit
from test_browser_book import HTML

from resnotes import style

pytestmark = pytest.mark.browser

KEYS = {"right": "\ue014", "down": "\ue015", "Home": "\ue011", "End": "\ue010"}
CHAPTER = "03_identity_jacobian.html"  # maths, figures and two explorers


@pytest.fixture(scope="module", params=[Firefox, WebKit], ids=["firefox", "webkit"])
def engine(request, tmp_path_factory):
    running = request.param(tmp_path_factory.mktemp("profile"))
    yield running
    running.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(HEAD.replace("<title>", f"{HOOK}<title>") + sample("One.", "One"))
    return path.as_uri()


@pytest.fixture(scope="module")
def chapter(tmp_path_factory):
    """Return the address of a chapter of the built book that carries the hook."""
    home = tmp_path_factory.mktemp("book")
    (home / "_static").symlink_to(HTML / "_static")
    (home / "chapters").mkdir()
    page = (HTML / "chapters" / CHAPTER).read_text()
    assert "<head>" in page
    path = home / "chapters" / CHAPTER
    path.write_text(page.replace("<head>", f"<head>{HOOK}", 1))
    return path.as_uri()


def box(engine, selector):
    """Return the sides of an element in the window: left, top, right, bottom."""
    return engine.js(
        f"""const box = document.querySelector({json.dumps(selector)})
        .getBoundingClientRect();
        return [box.left, box.top, box.right, box.bottom]"""
    )


def says(engine, sentence):
    """Wait for a sentence; the picture's text for screen readers is the same."""
    said = "document.querySelector('.rn-sentence')"
    engine.wait(f"{said}?.textContent === {json.dumps(sentence)}")
    assert engine.js(f"return {said}.getAttribute('aria-live')") == "polite"
    picture = "return document.querySelector('.rn-picture svg')"
    assert engine.js(f"{picture}.getAttribute('aria-label')") == sentence
    return engine.js(f"{picture}.innerHTML")


def use_every_control(engine, address):
    """Default, keys, pointer, menu, radio buttons, and the last of all frames."""
    engine.go(address)
    engine.wait("document.querySelector('.rn-picture svg[role=img]')")
    pictures = [says(engine, "One: 10, x, a, no.")]
    engine.js("document.querySelector('[type=range]').focus()")
    for key, depth in (("right", 12), ("Home", 2), ("End", 20)):
        engine.press(KEYS[key])
        pictures.append(says(engine, f"One: {depth}, x, a, no."))
    left, top, right, bottom = box(engine, "[type=range]")
    middle = (top + bottom) / 2
    for start, end, depth in ((right - 8, left - 3, 2), (left + 8, right + 3, 20)):
        engine.drag((start, middle), ((left + right) / 2, middle), (end, middle))
        picture = says(engine, f"One: {depth}, x, a, no.")
        assert picture == pictures[-2 if depth == 2 else 3]
    text = (
        "return document.querySelector('[type=range]').getAttribute('aria-valuetext')"
    )
    assert engine.js(text) == "20"
    left, top, right, bottom = box(engine, "fieldset label:last-child input")
    engine.drag(((left + right) / 2, (top + bottom) / 2))
    pictures.append(says(engine, "One: 20, y, a, no."))
    engine.js("document.querySelector('select').focus()")
    engine.press("e")  # a menu takes the line that starts so
    pictures.append(says(engine, "One: 20, y, e, no."))
    engine.js("document.querySelector('fieldset:last-child input').focus()")
    engine.press(KEYS["down"])
    pictures.append(says(engine, "One: 20, y, e, yes."))
    assert len(set(pictures)) == len(pictures), "a picture did not follow"
    assert engine.troubles() == []


def test_every_control(engine, address):
    use_every_control(engine, address)


BREAKS = {
    "the frames": ('class="rn-frames">H4sI', 'class="rn-frames">AAAA'),
    "the script": ('<script class="rn-assets">', '<script type="text/plain">'),
    "the console": ("</title>", "</title><script>console.error('ouch')</script>"),
    "a file": ("</title>", "</title><script src='nothing.js'></script>"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_what_is_broken_is_seen(engine, address, tmp_path, monkeypatch, name):
    from urllib.request import urlopen

    html = urlopen(address).read().decode()
    assert html.count(BREAKS[name][0]) == 1
    path = tmp_path / "page.html"
    path.write_text(html.replace(*BREAKS[name]))
    monkeypatch.setattr(engine, "patience", 2)
    with pytest.raises(AssertionError):
        use_every_control(engine, path.as_uri())


def colours(engine):
    """Return the window's pixels, height × width × RGB, 0 … 255."""
    shot = matplotlib.image.imread(io.BytesIO(engine.screenshot()))
    return np.round(shot[..., :3] * 255).astype(int)


def painted(pixels, colour):
    """Return how many pixels have a colour, but for a shade or two."""
    rgb = [int(colour[k : k + 2], 16) for k in (1, 3, 5)]
    return int((np.abs(pixels - rgb).max(axis=-1) <= 3).sum())


def look_at(engine, chapter, theme):
    """Maths set, no sideways scroll, an explorer painted in the theme's colours."""
    engine.go(chapter)
    engine.wait("window.MathJax?.startup?.promise")
    engine.js("return MathJax.startup.promise.then(() => 1)")
    assert engine.js("return document.documentElement.dataset.theme") == theme
    assert not engine.js(
        """return [...document.querySelectorAll("mjx-container")].filter(e =>
        e.checkVisibility() && e.getBoundingClientRect().width < 3).length"""
    )
    assert engine.js("return document.querySelectorAll('mjx-math').length") > 20
    assert engine.js("return document.documentElement.scrollWidth <= innerWidth")
    engine.js(
        """document.documentElement.style.scrollBehavior = "auto";
        document.querySelector(".rn-explorer").scrollIntoView({block: "center"})"""
    )
    engine.wait("document.querySelector('.rn-explorer svg[role=img]')")
    left, top, right, bottom = (int(x) for x in box(engine, ".rn-explorer .rn-picture"))
    assert right - left > 300 and bottom - top > 200
    pixels = colours(engine)
    plot = pixels[top:bottom, left:right]
    k = ("light", "dark").index(theme)
    assert painted(plot, style.THEME["plain"][k]) > 200
    assert painted(plot, style.THEME["residual"][k]) > 200
    background = np.median(pixels.reshape(-1, 3), axis=0)
    assert (background.max() < 60) if theme == "dark" else (background.min() > 220)
    assert engine.troubles() == []


def test_the_look_of_a_chapter(engine, chapter):
    look_at(engine, chapter, "light")


def test_the_look_in_the_dark(engine, chapter, tmp_path):
    """The reader's system is dark: a browser started so."""
    night = type(engine)(tmp_path, dark=True)
    try:
        look_at(night, chapter, "dark")
    finally:
        night.close()
