"""What the build does to pages and downloads; the built book's weight."""

import gzip
import subprocess
import sys
import zipfile
from pathlib import Path

import nbformat
import pytest

from resnotes import book

BUILD = Path(__file__).parent.parent / "_build"


def test_slim_takes_out_what_asks_the_network_and_leaves_the_rest():
    page = """<link rel="preload" as="font" type="font/woff2" href="a.woff2">
<script>const THEBE_JS_URL = "https://unpkg.com/thebe"; const x = 1</script>
<script async src="../_static/sphinx-thebe.js?v=1"></script>
<script src="../_static/vendor/fontawesome/6.5.2/js/all.min.js?digest=d"></script>
<script src="../_static/doctools.js"></script><p>thebe</p>"""
    slimmed = book.slim(page)
    assert "unpkg" not in slimmed and "woff2" not in slimmed
    assert "doctools.js" in slimmed and "<p>thebe</p>" in slimmed
    assert '<script defer src="../_static/vendor/fontawesome' in slimmed
    assert book.slim(slimmed) == slimmed


def test_a_downloaded_notebook_says_what_it_needs(tmp_path):
    path = tmp_path / "a.ipynb"
    cells = [nbformat.v4.new_code_cell("x = 1", id="a")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    book.explain(path, "resnotes-1.whl")
    book.explain(path, "resnotes-1.whl")  # a second build adds nothing
    first, second = nbformat.read(path, as_version=4).cells
    assert second.source == "x = 1"
    # In a Python that has no resnotes the cell stops with what to do.
    blocked = "import sys; sys.modules['resnotes'] = None\n" + first.source
    run = subprocess.run(
        [sys.executable, "-c", blocked], capture_output=True, text=True
    )
    assert run.returncode == 1
    assert "pip install resnotes-1.whl" in run.stderr and "Traceback" not in run.stderr


@pytest.mark.browser  # with the browser tests, since these too need the built book
class TestBuilt:
    def test_a_page_weighs_at_most_400_kb(self):
        pages = sorted((BUILD / "html" / "chapters").glob("*.html"))
        assert pages, "build it first: make book"
        sizes = {p.name: len(gzip.compress(p.read_bytes())) for p in pages}
        print(sizes)
        assert {n: s for n, s in sizes.items() if s > 400_000} == {}

    def test_every_local_link_leads_somewhere(self):
        import re

        html = BUILD / "html"
        for page in html.rglob("*.html"):
            for link in re.findall(r'(?:href|src)="([^"]+)"', page.read_text()):
                if link.startswith(("#", "data:", "http", "mailto:", "javascript:")):
                    continue
                target = page.parent / re.split(r"[?#]", link)[0]
                assert target.exists(), f"{page.name} links to {link}"

    def test_the_zip_holds_the_book_and_the_wheel_holds_the_measurements(self):
        with zipfile.ZipFile(BUILD / "residual-notes.zip") as packed:
            names = packed.namelist()
        assert "index.html" in names and "chapters/index.html" in names
        (wheel,) = (BUILD / "html" / "_static").glob("resnotes-*.whl")
        with zipfile.ZipFile(wheel) as packed:
            names = packed.namelist()
        assert "resnotes/explore.js" in names
        assert any(n.startswith("resnotes/measurements/") for n in names)
        assert not any("assignments/" in n for n in names)
