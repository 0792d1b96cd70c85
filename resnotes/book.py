"""A Sphinx extension: what the built pages need beyond Jupyter Book's own.

The pages must be complete when opened from a folder with no network. Three things that
the theme brings would ask for more: thebe (a live kernel, from a CDN), and font files
announced in a way that browsers refuse for local files. The icons are SVG and need no
font.
"""

from __future__ import annotations

import re
from pathlib import Path

# thebe's style sheet, its scripts, its settings; font announcements.
UNUSED = re.compile(
    r'<link rel="stylesheet"[^>]*sphinx-thebe\.css[^>]*>'
    r"|<script[^>]*sphinx-thebe\.js[^>]*></script>"
    r"|<script>const THEBE_JS_URL.*?</script>"
    r'|<script type="text/x-thebe-config">.*?</script>'
    r'|<link rel="preload" as="font"[^>]*>',
    flags=re.S,
)


def slim(app, exception) -> None:
    """Take out of each page what it does not use."""
    if exception or app.builder.format != "html":
        return
    for page in Path(app.outdir).rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        slimmed = UNUSED.sub("", text)
        if slimmed != text:
            page.write_text(slimmed, encoding="utf-8")


def setup(app) -> dict:
    """Register with Sphinx."""
    app.connect("build-finished", slim)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
