"""A headless Chromium for the tests, with the network blocked and its console read."""

import os
import shutil
from contextlib import contextmanager

import pytest

from resnotes import style
from resnotes.explore import Explorer

CHROMIUM = "chromium", "chromium-browser", "google-chrome", "chrome"


def found(*names: str, package: str, setting: str = "") -> str:
    """Return a program's path; without it skip, or fail where CI is set."""
    path = os.environ.get(setting) or next(filter(None, map(shutil.which, names)), None)
    if path is None:
        reason = f"no {names[0]} found: `apt install {package}`"
        if setting:
            reason += f", or set {setting} to the program's path"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    return path


@contextmanager
def browser():
    """Start Chromium and close it again."""
    from playwright.sync_api import sync_playwright

    flags = ["--no-sandbox", "--disable-background-networking", "--disable-gpu"]
    path = found(*CHROMIUM, package="chromium", setting="CHROMIUM")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=flags)
        yield running
        running.close()


@contextmanager
def opened(browser, address, home="file:", **context):
    """Open a page; fail at the end if it left `home` or wrote an error."""
    troubles = []
    shell = browser.new_context(
        **{"viewport": {"width": 1280, "height": 900}} | context
    )
    page = shell.new_page()

    def trouble(what):
        troubles.append(f"{page.url.rsplit('/')[-1]}: {what}")

    def gate(route):
        if route.request.url.startswith((home, "data:", "blob:")):
            route.continue_()
        else:
            trouble(f"asked for {route.request.url}")
            route.abort()

    def answer(response):
        if response.status >= 400:
            trouble(f"status {response.status}: {response.url}")

    def failed(request):
        # What a page still loads when the reader leaves it is aborted by the leaving.
        if request.failure != "net::ERR_ABORTED":
            trouble(f"failed: {request.url} ({request.failure})")

    shell.route("**/*", gate)
    page.on("requestfailed", failed)
    page.on("response", answer)
    page.on("pageerror", lambda e: trouble(f"error: {e}"))
    page.on(
        "console",
        lambda m: trouble(m.text) if m.type in ("error", "warning") else None,
    )
    page.goto(address)
    yield page
    shell.close()
    assert not troubles, troubles


def ready(page):
    """Wait until the maths is set and what follows from it is laid out."""
    page.evaluate(
        """async () => { await window.MathJax?.startup?.promise;
        await new Promise(done => requestAnimationFrame(
          () => requestAnimationFrame(done))) }"""
    )


def unfolded(page, selector=".rn-explorer"):
    """Scroll to each explorer or figure in turn, and yield it once it is drawn."""
    for k in range(page.locator(selector).count()):
        root = page.locator(selector).nth(k)
        root.scroll_into_view_if_needed()
        root.locator("svg[role=img]").wait_for()
        yield root


def seen(root):
    """Return an explorer's picture and its sentence, which is also its alt text."""
    picture, alt, sentence = root.evaluate(
        """root => { const svg = root.querySelector(".rn-picture svg");
        const sentence = root.querySelector(".rn-sentence");
        return [svg.innerHTML, svg.ariaLabel, sentence.textContent] }"""
    )
    assert alt == sentence, f"the alt text did not follow: {alt!r}, {sentence!r}"
    return picture, sentence


def follows(root, act):
    """Do something; fail unless the explorer's picture and sentence follow."""
    from playwright.sync_api import TimeoutError

    before = seen(root)
    act()
    try:
        root.page.wait_for_function(
            """([root, picture, sentence]) =>
            root.querySelector(".rn-picture svg").innerHTML !== picture &&
            root.querySelector(".rn-sentence").textContent !== sentence""",
            arg=[root.element_handle(), *before],
        )
    except TimeoutError:
        after = seen(root)
        parts = {"picture": 0, "sentence": 1}
        still = [part for part, k in parts.items() if before[k] == after[k]]
        raise AssertionError(
            f"{root.get_attribute('aria-label')} {' and '.join(still)} did not follow"
        ) from None
    return seen(root)


HEAD = (
    '<!doctype html><html lang="en" data-theme="light"><meta charset="utf-8">'
    '<meta name="viewport" content="width=device-width"><title>t</title>'
)


def sample(title, first):
    """Return an explorer with one control of each kind; `first` starts its sentence."""
    fig, ax = style.figure()
    (line,) = ax.plot([], [], **style.line("plain"))
    ax.set(xlim=(0, 30), ylim=(0, 30))

    def draw(depth, act, norm, bias):
        slope = 1 + "xy".index(act) + 0.1 * "abcde".index(norm) + 0.5 * bias
        line.set_data([0, depth], [0, slope * depth])
        return fig, f"{first}: {depth}, {act}, {norm}, {'yes' if bias else 'no'}."

    return Explorer(
        draw,
        title=title,
        start={"depth": 10},
        depth=range(2, 21, 2),
        act=("x", "y"),
        norm=tuple("abcde"),
        bias=(False, True),
    ).html()
