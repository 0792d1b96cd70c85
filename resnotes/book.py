"""A Sphinx extension: what the built book needs beyond Jupyter Book's own.

The folder of pages must be complete when it is opened from a disk with no network, and
still be enough to run the notebooks. So after each build

- pages lose what they do not use and what would ask the network;
- MathJax loses the parts that no page loads;
- the folder gains a wheel of `resnotes`, and each notebook offered for download a first
  cell that says how to install it;
- everything is packed into one zip beside the folder, for a course page.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent

# thebe (a live kernel from a CDN) and its settings; font files announced in a way that
# browsers refuse on a disk (the icons are SVG and need no font).
UNUSED = re.compile(
    r'<link rel="stylesheet"[^>]*sphinx-thebe\.css[^>]*>'
    r"|<script[^>]*sphinx-thebe\.js[^>]*></script>"
    r"|<script>const THEBE_JS_URL.*?</script>"
    r'|<script type="text/x-thebe-config">.*?</script>'
    r'|<link rel="preload" as="font"[^>]*>',
    flags=re.S,
)
# The icons' script is the largest on a page and nothing waits for it.
ICONS = re.compile(r'<script (src="[^"]*fontawesome[^"]*\.js[^"]*")>')

# Of MathJax's combined files the pages load tex-chtml.js, and that loads the rest.
MATHJAX_KEPT = {"tex-chtml.js", "output", "a11y", "sre", "input", "ui"}

FIRST_CELL = """\
# This notebook needs the package resnotes. If the next line fails, download {wheel}
# (next to this notebook on the page "Run it yourself"), and in a terminal, in the
# folder where you saved it, type:
#
#     python -m pip install {wheel} jupyterlab ipywidgets
try:
    import resnotes
except ModuleNotFoundError:
    raise SystemExit(
        "resnotes is not installed. Download {wheel} from the page 'Run it yourself', "
        "then type: python -m pip install {wheel} jupyterlab ipywidgets"
    ) from None
"""


def finish(app, exception) -> None:
    """Make the built folder complete and small, and pack it."""
    if exception or app.builder.format != "html":
        return
    out = Path(app.outdir)
    for template in (out / "_static").glob("*webpack-macros.html"):
        template.unlink()  # the themes' own, copied by mistake
    for page in out.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        page.write_text(slim(text), encoding="utf-8")
    for part in (out / "_static" / "mathjax").iterdir():
        if part.name not in MATHJAX_KEPT:
            shutil.rmtree(part) if part.is_dir() else part.unlink()
    wheel = build_wheel(out / "_static")
    for notebook in (out / "_sources").rglob("*.ipynb"):
        explain(notebook, wheel)
    shutil.make_archive(str(out.parent / "residual-notes"), "zip", out)


def slim(page: str) -> str:
    """Return a page's HTML without what it does not use."""
    page = ICONS.sub(r"<script defer \1>", UNUSED.sub("", page))
    # A list of sources whose items have a role of their own is no list to ARIA.
    return page.replace('<div role="list" class="citation-list">', "<div>")


def build_wheel(folder: Path) -> str:
    """Put a wheel of `resnotes` into `folder` and return its name."""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    with tempfile.TemporaryDirectory() as copy:  # setuptools leaves its build behind
        for part in ("resnotes", "chapters/measurements"):
            shutil.copytree(ROOT / part, Path(copy, part))
        for part in ("pyproject.toml", "README.md", "LICENSE", "LICENSE-CONTENT"):
            shutil.copy(ROOT / part, copy)
        subprocess.run(
            [*pip, "--no-build-isolation", "--wheel-dir", str(folder), copy],
            check=True,
        )
    return next(folder.glob("resnotes-*.whl")).name


def explain(path: Path, wheel: str) -> None:
    """Put a first cell into a notebook for download: what it needs, how to get it."""
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    source = FIRST_CELL.format(wheel=wheel)
    cell = nbformat.v4.new_code_cell(source, id="needs-resnotes")
    if notebook.cells[0].id != cell.id:
        notebook.cells.insert(0, cell)
        nbformat.write(notebook, path)


def setup(app) -> dict:
    """Register with Sphinx."""
    # After every other extension, or MathJax would be copied once more.
    app.connect("build-finished", finish, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
