"""Measure the built pages in Chromium: weight, first paint, shifts, explorer steps.

Own bytes are a page's HTML, gzipped, since figures and explorers are in it. Times are
of this machine, once as it is and once with the processor slowed four times; a step is
from the change of a slider to the next frame that the browser could have shown.
"""

import functools
import gzip
import http.server
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from browser import browser

HTML = Path(__file__).parents[2] / "_build" / "html"

PAINT = """() => new Promise(done => {
  let lcp = 0, cls = 0;
  new PerformanceObserver(list => list.getEntries().forEach(e => lcp = e.startTime))
    .observe({type: 'largest-contentful-paint', buffered: true});
  new PerformanceObserver(list => list.getEntries().forEach(
    e => { if (!e.hadRecentInput) cls += e.value }))
    .observe({type: 'layout-shift', buffered: true});
  setTimeout(() => done([lcp, cls]), 500) })"""

# The work of a step: the handler, style, layout. (Painting is the compositor's.)
STEPS = """async () => {
  let worst = 0, steps = 0;
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
        steps++;
      }
    }
  }
  return [worst, steps] }"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A static server that does not print each request."""

    def log_message(self, *args):
        """Say nothing."""


def measure(running, address, slowdown):
    page = running.new_page(viewport={"width": 1280, "height": 900})
    session = page.context.new_cdp_session(page)
    session.send("Emulation.setCPUThrottlingRate", {"rate": slowdown})
    page.goto(address)
    page.wait_for_timeout(500)
    lcp, cls = page.evaluate(PAINT)
    worst, steps = page.evaluate(STEPS)
    page.close()
    return lcp, cls, worst, steps


def main():
    handler = functools.partial(Quiet, directory=HTML)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    root = f"http://127.0.0.1:{server.server_address[1]}"
    print(f"{'page':26}{'kB':>6}{'LCP ms':>8}{'LCP 4x':>8}{'CLS':>7}", end="")
    print(f"{'steps':>7}{'worst ms':>10}{'worst 4x':>10}")
    with browser() as running:
        for path in sorted(HTML.glob("chapters/*.html")):
            address = f"{root}/chapters/{path.name}"
            size = len(gzip.compress(path.read_bytes())) / 1000
            lcp, cls, worst, steps = measure(running, address, 1)
            slow_lcp, _, slow_worst, _ = measure(running, address, 4)
            print(f"{path.stem:26}{size:6.0f}{lcp:8.0f}{slow_lcp:8.0f}", end="")
            print(f"{cls:7.3f}{steps:7}{worst:10.1f}{slow_worst:10.1f}", flush=True)
    server.shutdown()


if __name__ == "__main__":
    main()
