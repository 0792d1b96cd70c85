"""Firefox and WebKit for the tests, each behind the same five methods.

Playwright drives only its own builds of these two, which no Linux distribution has.
So Firefox is driven over WebDriver BiDi, which it speaks itself, and WebKit through
the WebDriver of WebKitGTK: a few commands of the standards, sent as they are.
"""

import base64
import json
import os
import re
import socket
import subprocess
import time
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from browser import found

SIZE = 1280, 900

# The first script of a page: WebKit's driver cannot read the console.
HOOK = """<script>troubles = [];
addEventListener("error", (e) =>
  troubles.push(e.message || `failed: ${e.target.src || e.target.href}`), true);
addEventListener("unhandledrejection", (e) => troubles.push(String(e.reason)));
for (const kind of ["error", "warn"])
  console[kind] = (...said) => troubles.push(said.join(" "));
</script>"""


def started(command: list, pattern: str, folder: Path):
    """Start a program; return it and what it says about where it is to be found."""
    log = folder / "log"
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    end = time.monotonic() + 60
    while not (said := re.search(pattern, log.read_text())):
        assert time.monotonic() < end and process.poll() is None, log.read_text()
        time.sleep(0.05)
    return process, said[1]


class Engine:
    """A browser with one window.

    `go(address)` opens a page, `js(code)` runs a function's body and returns its value,
    `act(*sources)` performs input, `screenshot()` gives a PNG. `troubles()` are the
    errors of a page that carries `HOOK`, and its requests that left this machine.
    """

    def troubles(self) -> list[str]:
        """Return what went wrong on the page so far."""
        return self.js(
            """const far = performance.getEntriesByType("resource")
            .map(e => e.name).filter(n => /^(http|ws)/.test(n));
            return [...troubles, ...far.map(n => "asked for " + n)]"""
        )

    def press(self, *keys: str) -> None:
        """Press keys one after another where the focus is."""
        actions = [
            {"type": kind, "value": key}
            for key in keys
            for kind in ("keyDown", "keyUp")
        ]
        self.act({"type": "key", "id": "keys", "actions": actions})

    def drag(self, start, *stops) -> None:
        """Press the pointer at a point (CSS pixels), move it on, let go; or click."""
        move = [
            {"type": "pointerMove", "x": int(x), "y": int(y), "duration": 30}
            for x, y in (start, *stops)
        ]
        down = {"type": "pointerDown", "button": 0}
        up = {"type": "pointerUp", "button": 0}
        actions = [move[0], down, *move[1:], up]
        self.act({"type": "pointer", "id": "mouse", "actions": actions})

    patience = 20  # seconds

    def wait(self, condition: str) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + self.patience
        while not self.js(f"return !!({condition})"):
            assert time.monotonic() < end, f"never came true: {condition}"
            time.sleep(0.02)


class Firefox(Engine):
    """Firefox over WebDriver BiDi."""

    def __init__(self, folder: Path, dark: bool = False):
        import websocket

        path = found("firefox-esr", "firefox", package="firefox-esr")
        settings = {"ui.systemUsesDarkTheme": int(dark), "app.update.enabled": False}
        folder.joinpath("user.js").write_text(
            "".join(
                f'user_pref("{k}", {json.dumps(v)});\n' for k, v in settings.items()
            )
        )
        flags = ["--headless", "--no-remote", "--remote-debugging-port", "0"]
        self.process, address = started(
            [path, *flags, "--profile", str(folder)], r"BiDi listening on (\S+)", folder
        )
        self.socket = websocket.create_connection(
            f"{address}/session", suppress_origin=True, timeout=60
        )
        self.count = 0
        self.send("session.new", capabilities={})
        (tab,) = self.send("browsingContext.getTree")["contexts"]
        self.tab = tab["context"]
        size = dict(zip(("width", "height"), SIZE, strict=True))
        self.send("browsingContext.setViewport", context=self.tab, viewport=size)

    def send(self, method: str, **params) -> dict:
        """Send one command and return its result."""
        self.count += 1
        self.socket.send(
            json.dumps({"id": self.count, "method": method, "params": params})
        )
        answer = json.loads(self.socket.recv())
        assert answer["type"] == "success" and answer["id"] == self.count, answer
        return answer["result"]

    def go(self, address):
        self.send(
            "browsingContext.navigate", context=self.tab, url=address, wait="complete"
        )

    def js(self, code):
        answer = self.send(
            "script.evaluate",
            expression=f"(async () => {{{code}}})().then(JSON.stringify)",
            target={"context": self.tab},
            awaitPromise=True,
        )
        assert answer["type"] == "success", answer
        return json.loads(answer["result"].get("value", "null"))

    def act(self, *sources):
        self.send("input.performActions", context=self.tab, actions=list(sources))

    def screenshot(self):
        shot = self.send("browsingContext.captureScreenshot", context=self.tab)
        return base64.b64decode(shot["data"])

    def close(self):
        self.socket.close()
        self.process.terminate()
        self.process.wait(20)


class WebKit(Engine):
    """WebKitGTK's small browser through its WebDriver, in a display of its own."""

    def __init__(self, folder: Path, dark: bool = False):
        driver = found("WebKitWebDriver", package="webkit2gtk-driver")
        screen = found("Xvfb", package="xvfb")
        # Debian keeps it beside the library, others under libexec.
        small = [*Path("/usr").glob("lib*/*/webkit2gtk-4.*/MiniBrowser")]
        small += Path("/usr/libexec").glob("webkit2gtk-4.*/MiniBrowser")
        self.display, number = started(
            [screen, "-displayfd", "1", "-nolisten", "tcp"], r"(\d+)\n", folder
        )
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        env = {**os.environ, "DISPLAY": f":{number}", "HOME": str(folder)}
        self.process = subprocess.Popen([driver, f"--port={port}"], env=env)
        self.address = f"http://127.0.0.1:{port}/session"
        flags = ["--automation"] + ["--dark-mode"] * dark
        options = {"binary": str(small[0]), "args": flags}
        wanted = {"alwaysMatch": {"webkitgtk:browserOptions": options}}
        session = self.send("POST", "", capabilities=wanted)
        self.address += f"/{session['sessionId']}"
        size = dict(zip(("width", "height"), SIZE, strict=True))
        self.send("POST", "/window/rect", **size)

    def send(self, method: str, path: str, **body):
        """Send one command and return its result; at first wait for the driver."""
        data = json.dumps(body).encode() if method == "POST" else None
        request = Request(self.address + path, data, method=method)
        for _ in range(100):
            try:
                with urlopen(request, timeout=60) as answer:
                    return json.load(answer)["value"]
            except HTTPError as error:
                raise AssertionError(error.read().decode()) from None
            except URLError:
                time.sleep(0.1)
        raise AssertionError("WebKitWebDriver does not answer")

    def go(self, address):
        self.send("POST", "/url", url=address)

    def js(self, code):
        return self.send("POST", "/execute/sync", script=code, args=[])

    def act(self, *sources):
        self.send("POST", "/actions", actions=list(sources))

    def screenshot(self):
        return base64.b64decode(self.send("GET", "/screenshot"))

    def close(self):
        self.send("DELETE", "")
        for process in (self.process, self.display):
            process.terminate()
            process.wait(20)
