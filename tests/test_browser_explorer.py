"""The explorer on a page without a kernel, in a real browser."""

import pytest
from browser import HEAD, opened, sample
from browser import browser as start_browser

from resnotes import style

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def chromium():
    with start_browser() as running:
        yield running


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "page.html"
    space = '<div style="height:3000px"></div>'
    both = sample("The first.", "One") + space + sample("The second.", "Two")
    path.write_text(HEAD + both)
    return path.as_uri()


def state(page, which=0):
    root = page.locator(".rn-explorer").nth(which)
    return {
        "picture": root.locator(".rn-picture svg").inner_html(),
        "alt": root.locator(".rn-picture svg").get_attribute("aria-label"),
        "sentence": root.locator(".rn-sentence").inner_text(),
        "shown": root.locator("output").inner_text(),
    }


def changed(page, act, which=0):
    """Do something; check that picture, alt text and sentence followed it."""
    root = page.locator(".rn-explorer").nth(which)
    root.locator(".rn-picture svg").wait_for()
    before = state(page, which)
    act(root)
    page.wait_for_function(
        "([root, old]) => root.querySelector('.rn-sentence').textContent !== old",
        arg=[root.element_handle(), before["sentence"]],
    )
    after = state(page, which)
    assert after["picture"] != before["picture"]
    assert after["alt"] == after["sentence"]
    return after


MOVES = {
    "slider by mouse": (
        lambda r: r.locator("[type=range]").click(position={"x": 3, "y": 20}),
        "One: 2, x, a, no.",
    ),
    "slider by arrow": (
        lambda r: r.locator("[type=range]").press("ArrowRight"),
        "One: 12, x, a, no.",
    ),
    "slider by Home": (
        lambda r: r.locator("[type=range]").press("Home"),
        "One: 2, x, a, no.",
    ),
    "slider by End": (
        lambda r: r.locator("[type=range]").press("End"),
        "One: 20, x, a, no.",
    ),
    "radio by mouse": (lambda r: r.get_by_label("y", exact=True).click(), "One: 10, y"),
    "radio by arrow": (
        lambda r: r.get_by_label("x", exact=True).press("ArrowDown"),
        "One: 10, y",
    ),
    "menu by choice": (
        lambda r: r.locator("select").select_option("3"),
        "One: 10, x, d",
    ),
    "menu by keyboard": (
        lambda r: r.locator("select").press("ArrowDown"),
        "One: 10, x, b",
    ),
    "yes or no": (lambda r: r.get_by_label("yes").click(), "One: 10, x, a, yes"),
}


@pytest.mark.parametrize("move", MOVES)
def test_every_control_by_mouse_and_by_keyboard(chromium, address, move):
    act, said = MOVES[move]
    with opened(chromium, address) as page:
        after = changed(page, act)
        assert after["sentence"].startswith(said)
        assert after["shown"] in after["sentence"]


def test_touch(chromium, address):
    phone = {
        "viewport": {"width": 390, "height": 844},
        "has_touch": True,
        "is_mobile": True,
    }
    with opened(chromium, address, **phone) as page:
        changed(page, lambda r: r.get_by_label("y", exact=True).tap())
        after = changed(
            page, lambda r: r.locator("[type=range]").tap(position={"x": 4, "y": 20})
        )
        assert after["sentence"] == "One: 2, y, a, no."
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 390, "the page scrolls sideways on a phone"


def test_by_tab_alone(chromium, address):
    """Each control is reached by Tab, shows its focus and says its name and value."""
    with opened(chromium, address) as page:
        seen = []
        for _ in range(4):
            page.keyboard.press("Tab")
            seen.append(
                page.evaluate(
                    """() => { const e = document.activeElement;
                    return [e.type, getComputedStyle(e).outlineStyle] }"""
                )
            )
        assert [kind for kind, _ in seen] == ["range", "radio", "select-one", "radio"]
        assert all(outline == "solid" for _, outline in seen)
        tree = page.locator(".rn-explorer").first.aria_snapshot()
        assert 'slider "depth' in tree and 'group "act"' in tree
        assert 'combobox "norm' in tree and 'group "The first."' in tree


def test_the_slider_says_the_value_and_not_its_index(chromium, address):
    with opened(chromium, address) as page:
        slider = page.locator("[type=range]").first
        assert slider.get_attribute("aria-valuetext") == "10"
        changed(page, lambda r: r.locator("[type=range]").press("ArrowRight"))
        assert slider.get_attribute("aria-valuetext") == "12"
        live = page.locator(".rn-sentence").first.get_attribute("aria-live")
        assert live == "polite"


def test_two_explorers_do_not_disturb_each_other(chromium, address):
    with opened(chromium, address) as page:
        page.locator(".rn-explorer").nth(1).scroll_into_view_if_needed()
        page.locator(".rn-explorer").nth(1).locator("svg").wait_for()
        second = changed(page, lambda r: r.locator("[type=range]").press("End"), 1)
        first = changed(page, lambda r: r.get_by_label("y", exact=True).click())
        assert second["sentence"] == "Two: 20, x, a, no."
        assert first["sentence"] == "One: 10, y, a, no."
        assert state(page, 1) == second


def test_nothing_is_unpacked_before_the_reader_is_near(chromium, address):
    with opened(chromium, address) as page:
        page.locator(".rn-explorer").first.locator("svg").wait_for()
        assert page.locator(".rn-explorer").nth(1).locator("svg").count() == 0


def test_without_javascript_the_default_frame_shows(chromium, address):
    with opened(chromium, address, java_script_enabled=False) as page:
        root = page.locator(".rn-explorer").first
        image = root.locator("img")
        assert image.is_visible()
        assert image.get_attribute("alt") == "One: 10, x, a, no."
        assert image.bounding_box()["height"] > 100
        assert not root.locator("[type=range]").is_visible()
        assert "need JavaScript" in root.inner_text()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_frames_follow_the_theme(chromium, address, theme):
    with opened(chromium, address) as page:
        page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
        page.locator(".rn-picture svg").first.wait_for()
        light, dark = style.THEME["plain"]
        wanted = dict(light=light, dark=dark)[theme]
        rgb = tuple(int(wanted[k : k + 2], 16) for k in (1, 3, 5))
        strokes = page.evaluate(
            """() => [...document.querySelectorAll('.rn-picture svg path')]
            .map(p => getComputedStyle(p).stroke)"""
        )
        assert f"rgb{rgb}" in strokes
        fills = page.evaluate(
            """() => [...document.querySelectorAll('.rn-picture svg text')]
            .map(t => getComputedStyle(t).fill)"""
        )
        ink = {"light": "rgb(26, 26, 26)", "dark": "rgb(227, 229, 232)"}[theme]
        assert set(fills) == {ink}


def test_nothing_moves_by_itself(chromium, address):
    """Reduced motion is respected by having none: no animation, no transition."""
    with opened(chromium, address, reduced_motion="reduce") as page:
        changed(page, lambda r: r.locator("[type=range]").press("End"))
        assert page.evaluate("document.getAnimations().length") == 0


def test_starting_shifts_nothing(chromium, address):
    with opened(chromium, address) as page:
        page.locator(".rn-picture svg").first.wait_for()
        shift = page.evaluate(
            """() => new Promise(done => { let sum = 0;
            new PerformanceObserver(list => list.getEntries()
              .forEach(e => sum += e.value)).observe({type: 'layout-shift',
              buffered: true});
            setTimeout(() => done(sum), 300) })"""
        )
        assert shift == 0


def test_a_browser_without_decompression_says_so(chromium, address):
    with opened(chromium, "about:blank") as page:
        page.add_init_script("delete window.DecompressionStream")
        page.goto(address)
        sentence = page.locator(".rn-sentence").first
        page.wait_for_function(
            "document.querySelector('.rn-sentence').textContent.includes('newer')"
        )
        assert "cannot unpack" in sentence.inner_text()
        assert page.locator(".rn-picture svg").first.is_visible()


def test_a_broken_explorer_is_noticed(chromium, address, tmp_path):
    """The check itself can fail: without the script no control does anything."""
    from urllib.request import urlopen

    html = urlopen(address).read().decode()
    broken = tmp_path / "broken.html"
    broken.write_text(html.replace("put(holder, frames.svg[k]", "(() => {})(holder"))
    with (
        opened(chromium, broken.as_uri()) as page,
        pytest.raises(AssertionError),
    ):
        changed(page, lambda r: r.locator("[type=range]").press("End"))
