"""Measure the built pages in Chromium: weight, first paint, shifts, explorer steps.

Own bytes are a page's HTML, gzipped, since figures and explorers are in it. Times are
of this machine, once as it is and once with the processor slowed four times; a step is
from the change of a slider to the next frame that the browser could have shown. Shifts
(CLS) are those until the formulas are set, and those when the explorers start.

A single paint is noisy: each is the median of three loads, or of as many as you say.

    python tests/benchmarks/bench_pages.py 5
"""

import functools
import gzip
import http.server
import statistics
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from browser import browser

HTML = Path(__file__).parents[2] / "_build" / "html"

WATCH = """window.lcp = window.cls = 0;
  new PerformanceObserver(list => list.getEntries().forEach(e => lcp = e.startTime))
    .observe({type: 'largest-contentful-paint', buffered: true});
  new PerformanceObserver(list => list.getEntries().forEach(
    e => { if (!e.hadRecentInput) cls += e.value }))
    .observe({type: 'layout-shift', buffered: true});"""

PAINT = """async () => {
  await window.MathJax?.startup?.promise;
  await new Promise(done => setTimeout(done, 500));
  return [lcp, cls] }"""

START = """async () => {
  const before = cls;
  for (const root of document.querySelectorAll('.rn-explorer, .rn-figure')) {
    root.scrollIntoView();
    await root.rnReady?.();
    await new Promise(done => setTimeout(done, 50));
  }
  return cls - before }"""

# The work of a step: the handler, style, layout. (Painting is the compositor's.)
STEPS = """async () => {
  let worst = 0;
  for (const root of document.querySelectorAll('.rn-explorer')) {
    root.scrollIntoView();
    await root.rnReady();
    for (const slider of root.querySelectorAll('[type=range]')) {
      const size = Number(slider.max);
      for (let k = 0; k <= size; k++) {
        slider.value = k;
        await new Promise(requestAnimationFrame);
        const start = performance.now();
        slider.dispatchEvent(new Event('input', {bubbles: true}));
        root.getBoundingClientRect();
        worst = Math.max(worst, performance.now() - start);
      }
    }
  }
  return worst }"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A static server that does not print each request."""

    def log_message(self, *args):
        """Say nothing."""


def load(running, address, slowdown):
    page = running.new_page(viewport={"width": 1280, "height": 900})
    page.add_init_script(WATCH)
    session = page.context.new_cdp_session(page)
    session.send("Emulation.setCPUThrottlingRate", {"rate": slowdown})
    page.goto(address)
    return page


def measure(running, address, slowdown, loads):
    """Return largest paint, shifts, shifts when explorers start, and the worst step."""
    paints = []
    for _ in range(loads):
        page = load(running, address, slowdown)
        paints.append(page.evaluate(PAINT))
        start = page.evaluate(START)
        if len(paints) == loads:
            worst = page.evaluate(STEPS)
        page.close()
    lcp, cls = map(statistics.median, zip(*paints, strict=True))
    return lcp, cls, start, worst


def main(loads=3):
    """Print one line a page."""
    handler = functools.partial(Quiet, directory=HTML)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    root = f"http://127.0.0.1:{server.server_address[1]}"
    print(
        f"{'':24}{'kB':>6}{'LCP ms':>8}{'LCP 4x':>8}{'CLS':>7}{'explorers':>11}", end=""
    )
    print(f"{'step ms':>9}{'step 4x':>9}")
    with browser() as running:
        for path in sorted(HTML.glob("chapters/*.html")):
            address = f"{root}/chapters/{path.name}"
            size = len(gzip.compress(path.read_bytes())) / 1000
            lcp, cls, start, worst = measure(running, address, 1, loads)
            slow_lcp, _, _, slow_worst = measure(running, address, 4, loads)
            print(f"{path.stem:24}{size:6.0f}{lcp:8.0f}{slow_lcp:8.0f}", end="")
            print(f"{cls:7.3f}{start:11.3f}{worst:9.1f}{slow_worst:9.1f}", flush=True)
    server.shutdown()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
