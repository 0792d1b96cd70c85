"""A Sphinx extension: what the built book needs beyond Jupyter Book's own.

The folder of pages must be complete when it is opened from a disk with no network, and
still be enough to run the notebooks. So each page links the package's functions, at
their first mention, to their place in the API, and after each build

- pages say what they are to a search engine and to whoever shares a link;
- pages lose what they do not use and what would ask the network;
- formulas get their room before they are set, so that nothing moves when they are;
- of thousands of icons the dozen in use stay, in the style sheet itself;
- the folder gains a wheel of `resnotes`, and each notebook offered for download a first
  cell that says how to install it;
- everything is packed into one zip beside the folder, for a course page.
"""

from __future__ import annotations

import base64
import html
import io
import logging
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms.post_transforms import SphinxPostTransform

ROOT = Path(__file__).parent.parent
PREVIEW_ALT = (
    "Gradient norms in two networks of 80 blocks: the plain one's dies on its way back "
    "to the input, the residual one's arrives."
)

# thebe (a live kernel from a CDN) and its settings; icons as a script of 1.5 MB and as
# font files announced in a way that browsers refuse on a disk: see `keep_icons`.
UNUSED = re.compile(
    r'<link rel="stylesheet"[^>]*sphinx-thebe\.css[^>]*>'
    r"|<script[^>]*sphinx-thebe\.js[^>]*></script>"
    r"|<script>const THEBE_JS_URL.*?</script>"
    r'|<script type="text/x-thebe-config">.*?</script>'
    r"|<script[^>]*fontawesome[^>]*></script>"
    r'|<link rel="preload"[^>]*(?:as="font"|fontawesome)[^>]*>',
    flags=re.S,
)
# Scripts that stop the page from being drawn while they load. All but the first, which
# the page's own lines change, wait for the page anyway and run just as well later.
BLOCKING = re.compile(r'<script (?=[^>]*src=")(?![^>]*(?:defer|async|_options\.js))')

# Until a script at the page's end says light or dark, the theme shows neither: a flash
# of white in the dark, and two logos. The first script can know it, and whether the
# reader has hidden the code.
FIRST = 'document.documentElement.dataset.theme = localStorage.getItem("theme") || '
KNOWN = (
    'document.documentElement.dataset.code = localStorage.getItem("code") || "on";'
    + FIRST
    + '(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")'
)
BUTTONS = '<div class="article-header-buttons">'
CODE_BUTTON = (
    '<button class="btn btn-sm rn-code" type="button" aria-pressed="false" '
    'title="Hide the code" aria-label="Hide the code">'
    '<i class="fa-solid fa-code"></i></button>'
)

CLASS = 'class="math notranslate nohighlight"'

# Files that no page loads: source maps, the theme's translations, its thebe.
UNUSED_FILES = ("*.map", "locales", "sphinx-thebe.*", "*webpack-macros.html")
# Of MathJax's combined files the pages load tex-chtml.js, and that loads the rest.
MATHJAX_KEPT = {"tex-chtml.js", "output", "a11y", "sre", "input", "ui"}

FIRST_CELL = """\
# This notebook needs the package resnotes. If the lines below stop, download
# {wheel} from the book's page "Run it yourself".
# Then, in a terminal, in the folder where you saved it, type:
#
#     python -m pip install {wheel} jupyterlab ipywidgets
try:
    import resnotes
except ModuleNotFoundError:
    raise SystemExit(
        "resnotes is not installed. Download {wheel} from the book's page "
        "'Run it yourself', and in a terminal, where you saved it, type: "
        "python -m pip install {wheel} jupyterlab ipywidgets"
    ) from None
"""


def describe(app, pagename, templatename, context, doctree) -> None:
    """Give a page its description, and the title and picture of a shared link."""
    if doctree is None:
        return
    text = ""
    for paragraph in doctree.findall(nodes.paragraph):
        if not isinstance(paragraph.parent, nodes.section | nodes.list_item):
            continue
        text += " " + " ".join(paragraph.astext().replace("\\", "").split())
        if len(text) > 120:
            break
    tags = {
        "og:type": "article",
        "og:site_name": app.config.html_title,
        "og:title": html.unescape(re.sub(r"<.*?>", "", context["title"])),
        "og:description": textwrap.shorten(text, 200, placeholder=" …"),
    }
    if base := app.config.html_baseurl.rstrip("/"):  # only the host knows it
        tags["og:url"] = f"{base}/{pagename}.html"
        tags["og:image"] = f"{base}/_static/preview.png"
        tags["og:image:alt"] = PREVIEW_ALT
        tags["twitter:card"] = "summary_large_image"
    metas = [
        f'property="{name}" content="{html.escape(v)}"' for name, v in tags.items()
    ]
    metas.append(f'name="description" content="{html.escape(tags["og:description"])}"')
    context["metatags"] += "".join(f"<meta {meta} />\n" for meta in metas)


def finish(app, exception) -> None:
    """Make the built folder complete and small, and pack it."""
    if exception or app.builder.format != "html":
        return
    out = Path(app.outdir)
    for pattern in UNUSED_FILES:
        for path in list((out / "_static").rglob(pattern)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for part in (out / "_static" / "mathjax").iterdir():
        if part.name not in MATHJAX_KEPT:
            shutil.rmtree(part) if part.is_dir() else part.unlink()
    for page in out.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        page.write_text(reserve(slim(text)), encoding="utf-8")
    keep_icons(out)
    wheel = build_wheel(out / "_static")
    for notebook in (out / "_sources").rglob("*.ipynb"):
        explain(notebook, wheel)
    shutil.make_archive(str(out.parent / "residual-notes"), "zip", out)


# A name in prose: `chain_jacobian`, `resnotes.seed` or `train(model, data)`. One plain
# word, such as `seed`, is as often an argument, so it needs the bracket or the package.
_NAME = re.compile(r"(resnotes\.)?(\w+)(\(.*\))?", flags=re.S)


class LinkToApi(SphinxPostTransform):
    """Link the first mention of each public name on a page to its entry in the API."""

    default_priority = 200  # after the page's own links are made

    def run(self, **kwargs) -> None:
        """Do it for one page."""
        entries = {
            name.rpartition(".")[2]: (page, anchor)
            for name, _, kind, page, anchor, _ in self.env.domains["py"].get_objects()
            if name.startswith("resnotes.") and kind in ("function", "class")
        }
        for literal in list(self.document.findall(nodes.literal)):
            match = _NAME.fullmatch(literal.astext())
            if not match or match[2] not in entries or not is_prose(literal):
                continue
            package, name, brackets = match.groups()
            if not (package or brackets or "_" in name or name[0].isupper()):
                continue
            page, anchor = entries.pop(name)
            if page == self.env.docname:
                continue
            address = self.app.builder.get_relative_uri(self.env.docname, page)
            link = nodes.reference("", "", refuri=f"{address}#{anchor}")
            link["internal"] = True
            literal.replace_self(link)
            link += literal


def is_prose(node: nodes.Node) -> bool:
    """Say whether a node stands in running text: no heading, link or signature."""
    while node.parent is not None:
        node = node.parent
        if isinstance(node, nodes.title | nodes.reference | addnodes.desc_signature):
            return False
    return True


def slim(page: str) -> str:
    """Return a page's HTML without what it does not use."""
    page = BLOCKING.sub("<script defer ", UNUSED.sub("", page))
    page = page.replace(FIRST + '"auto"', KNOWN)
    if "cell_input" in page and "rn-code" not in page:
        page = page.replace(BUTTONS, BUTTONS + CODE_BUTTON)
    # A list of sources whose items have a role of their own is no list to ARIA.
    return page.replace('<div role="list" class="citation-list">', "<div>")


def reserve(page: str) -> str:
    """Return the HTML with the size of each formula, as matplotlib would set it.

    MathJax sets formulas after the page is first drawn. The style sheet hides the TeX
    until then and gives it this room (where scripts are off, it shows the TeX).
    Punctuation that follows a formula stays on its line.
    """

    def sized(found: re.Match) -> str:
        tag, formula, mark = found.groups()
        sized = f"<{tag} {_room(formula)} {CLASS}{formula}</{tag}>"
        return f'<span class="rn-together">{sized}{mark}</span>' if mark else sized

    return re.sub(
        f"<(span|div) {CLASS}(.*?)</\\1>([.,;:?!)]*)", sized, page, flags=re.S
    )


def _room(formula: str) -> str:
    """Return the size of a formula in TeX between delimiters, as an attribute."""
    tex = html.unescape(re.sub(r"<.*?>", "", formula.split(">", 1)[1])).strip()
    try:
        width, height = _set(" ".join(tex[2:-2].split()))
    except ValueError:  # TeX that matplotlib does not know: count what is drawn
        rows = tex.count(r"\\") + 1
        width = 0.6 * len(re.sub(r"\\[a-zA-Z]+|[{}^_&$\\\s]", "", tex))
        height = 1.6 * rows
    return f'style="--width:{width:.2f}em;--height:{height:.2f}em"'


def _set(tex: str) -> tuple[float, float]:
    """Return width and height in em of a formula set in Computer Modern."""
    import matplotlib
    from matplotlib.font_manager import FontProperties
    from matplotlib.mathtext import MathTextParser

    with matplotlib.rc_context({"mathtext.fontset": "cm"}):
        box = MathTextParser("path").parse(f"${tex}$", 72, FontProperties(size=10))
    return 0.118 * box[0], 0.118 * box[1]  # MathJax enlarges by 1.18 beside our font


def keep_icons(out: Path) -> None:
    """Put the icons that pages use into the icons' style sheet, and drop all others.

    Nothing is fetched for an icon then, and none comes late and moves its neighbours.
    """
    import pydata_sphinx_theme

    (path,) = (out / "_static" / "vendor").rglob("all.min.css")
    theme = Path(pydata_sphinx_theme.__file__).parent / "theme" / "pydata_sphinx_theme"
    folder = theme / "static" / path.relative_to(out / "_static").parents[1]
    sheet = (folder / "css" / "all.min.css").read_text(encoding="utf-8")
    pages = "".join(p.read_text(encoding="utf-8") for p in out.rglob("*.html"))
    names = set(re.findall(r"\bfa-[a-z0-9-]+", pages)) | {"fa-xmark"}  # a script's
    styles = "".join(
        p.read_text(encoding="utf-8")
        for p in (out / "_static" / "styles").glob("*.css")
    )
    signs = {ord(c) for c in re.findall("[\ue000-\uf8ff]", styles)}
    signs |= {int(c, 16) for c in re.findall(r'"\\(f[0-9a-f]{3})"', styles)}

    def rule(match: re.Match) -> str:
        if names.isdisjoint(re.findall(r"(fa-[\w-]+):", match[0])):
            return ""
        signs.add(int(match[1], 16))
        return match[0]

    sheet = re.sub(r'(?:\.fa-[\w-]+:before,?)+\{content:"\\(\w+)"\}', rule, sheet)
    fonts = {f.stem: _subset(f, signs) for f in (folder / "webfonts").glob("*.ttf")}

    def face(match: re.Match) -> str:
        name, *_ = re.findall(r"/([\w-]+)\.ttf", match[0])
        font = fonts[name]
        source = f'src:url(data:font/woff;base64,{font}) format("woff")'
        return re.sub(r"src:[^;}]*", source, match[0]) if font else ""

    sheet = re.sub(r"@font-face\{[^}]*\}", face, sheet)
    path.write_text(sheet, encoding="utf-8")
    for unused in ("webfonts", "js"):
        shutil.rmtree(path.parents[1] / unused, ignore_errors=True)


def _subset(path: Path, signs: set[int]) -> str:
    """Return the part of a font that draws `signs`, as WOFF in base64; else nothing."""
    from fontTools import subset, ttLib

    logging.getLogger("fontTools").setLevel("WARNING")
    font = ttLib.TTFont(path)
    if signs.isdisjoint(font.getBestCmap()):
        return ""
    subsetter = subset.Subsetter()
    subsetter.populate(unicodes=signs)
    subsetter.subset(font)
    font.flavor = "woff"
    file = io.BytesIO()
    font.save(file)
    return base64.b64encode(file.getvalue()).decode()


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
    app.connect("html-page-context", describe)
    app.add_post_transform(LinkToApi)
    # After every other extension, or MathJax would be copied once more.
    app.connect("build-finished", finish, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
