"""A headless Chromium for the tests, with the network blocked and its console read."""

import os
import shutil
from contextlib import contextmanager

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def chromium() -> str:
    """Return the browser's path; without one skip, or fail where CI is set."""
    path = os.environ.get("CHROMIUM") or next(
        (found for name in NAMES if (found := shutil.which(name))), None
    )
    if path is None:
        reason = (
            "no Chromium found: `apt install chromium`, or set CHROMIUM to the path of "
            "Chromium or Google Chrome"
        )
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    return path


@contextmanager
def browser():
    """Start Chromium and close it again."""
    from playwright.sync_api import sync_playwright

    flags = ["--no-sandbox", "--disable-background-networking", "--disable-gpu"]
    path = chromium()
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=flags)
        yield running
        running.close()


@contextmanager
def opened(browser, address, **context):
    """Open a page; fail at the end if it asked the network or wrote an error."""
    troubles = []
    shell = browser.new_context(
        **{"viewport": {"width": 1280, "height": 900}} | context
    )

    def gate(route):
        if route.request.url.startswith(("file:", "data:", "blob:")):
            route.continue_()
        else:
            troubles.append(f"asked for {route.request.url}")
            route.abort()

    shell.route("**/*", gate)
    page = shell.new_page()
    page.on("requestfailed", lambda r: troubles.append(f"failed: {r.url}"))
    page.on("pageerror", lambda e: troubles.append(f"error: {e}"))
    page.on(
        "console",
        lambda m: troubles.append(m.text) if m.type in ("error", "warning") else None,
    )
    page.goto(address)
    yield page
    shell.close()
    assert not troubles, troubles
