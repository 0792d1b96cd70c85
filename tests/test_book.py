"""What the build does to pages and downloads; the built book's weight."""

import base64
import gzip
import io
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import nbformat
import pytest
import yaml
from fontTools import ttLib
from jupyter_book.config import get_final_config

from resnotes import book

BUILD = Path(__file__).parent.parent / "_build"


def test_slim_takes_out_what_asks_the_network_and_what_makes_a_page_wait():
    page = """<link rel="preload" as="font" type="font/woff2" href="a.woff2">
<script>document.documentElement.dataset.theme = localStorage.getItem("theme") || "auto"
</script><script>const THEBE_JS_URL = "https://unpkg.com/thebe"; const x = 1</script>
<script async src="../_static/sphinx-thebe.js?v=1"></script>
<script src="../_static/vendor/fontawesome/6.5.2/js/all.min.js?digest=d"></script>
<script src="../_static/documentation_options.js"></script>
<script src="../_static/doctools.js"></script><p>thebe</p>
<div class="article-header-buttons">"""
    slimmed = book.slim(page)
    for gone in ("unpkg", "woff2", "fontawesome", "rn-code"):
        assert gone not in slimmed
    assert '<script defer src="../_static/doctools.js">' in slimmed
    assert '<script src="../_static/documentation_options.js">' in slimmed
    assert "prefers-color-scheme" in slimmed and "<p>thebe</p>" in slimmed
    assert book.slim(slimmed) == slimmed
    with_code = book.slim(page + '<div class="cell_input">')
    assert with_code.count("rn-code") == 1 and book.slim(with_code) == with_code


def test_a_formula_has_its_room_before_it_is_set():
    known = r'<span class="math notranslate nohighlight">\(\frac{1}{2}\)</span>, so'
    unknown = r'<div class="math notranslate nohighlight">\[\lVert a\\ b\]</div>'
    half, rows = book.reserve(known), book.reserve(unknown)
    # As high as MathJax sets a half in a line, 1.5 em; two rows as two lines.
    height = float(half.split("--height:")[1].split("em")[0])
    assert 1.2 < height < 1.8
    assert "--height:3.20em" in rows
    assert (
        half.startswith('<span class="rn-together">') and "</span>,</span> so" in half
    )
    assert book.reserve(half) == half and book.reserve(rows) == rows


def test_icons_in_use_are_in_the_style_sheet_and_no_others(tmp_path):
    css = tmp_path / "_static" / "vendor" / "fontawesome" / "6.5.2" / "css"
    css.mkdir(parents=True)
    (css / "all.min.css").touch()
    (tmp_path / "a.html").write_text('<i class="fa-solid fa-bars"></i>')
    book.keep_icons(tmp_path)
    sheet = (css / "all.min.css").read_text()
    assert ".fa-bars:before" in sheet and ".fa-anchor:before" not in sheet
    assert "url(../" not in sheet and "Awesome\\ 6 Brands;font-style" not in sheet
    font = base64.b64decode(sheet.split("font/woff;base64,")[1].split(")")[0])
    assert 0xF0C9 in ttLib.TTFont(io.BytesIO(font)).getBestCmap()


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


def test_launch_buttons_need_the_lines_that_the_readme_gives_and_no_others():
    root = Path(__file__).parent.parent
    lines = re.search(r"```yaml\n(.*?)```", (root / "README.md").read_text(), re.S)[1]
    config = yaml.safe_load((root / "_config.yml").read_text())
    said = yaml.safe_load(lines)
    for part, values in said.items():
        config.setdefault(part, {}).update(values)
    final, _ = get_final_config(
        user_yaml=config, cli_config={"latex_individualpages": False}
    )
    options = final["html_theme_options"]
    assert said["launch_buttons"].items() <= options["launch_buttons"].items()
    assert options["repository_url"] == said["repository"]["url"]
    assert options["logo"] == {"text": "Residual Notes"}
    assert final["html_baseurl"] == said["html"]["baseurl"]


@pytest.mark.browser  # with the browser tests, since these too need the built book
class TestBuilt:
    def test_a_page_weighs_at_most_400_kb(self):
        pages = sorted((BUILD / "html" / "chapters").glob("*.html"))
        assert pages, "build it first: make book"
        sizes = {p.name: len(gzip.compress(p.read_bytes())) for p in pages}
        print(sizes)
        assert {n: s for n, s in sizes.items() if s > 400_000} == {}

    def test_a_page_says_what_it_is(self):
        seen = {}
        for page in (BUILD / "html" / "chapters").glob("*.html"):
            text = page.read_text()
            (description,) = re.findall('name="description" content="([^"]*)"', text)
            (title,) = re.findall('property="og:title" content="([^"]*)"', text)
            assert 40 < len(description) <= 200 and title in text.split("</title>")[0]
            assert 'lang="en"' in text and "og:image" not in text  # no address is set
            assert seen.setdefault(description, page) == page

    def test_every_local_link_leads_somewhere(self):
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
