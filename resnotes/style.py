"""How a figure looks, and how it gets onto the page.

A figure is drawn once with matplotlib and shown as SVG whose colours are CSS variables,
so that it follows the page's light or dark theme. Pyplot is not used: a figure made
here belongs to nobody but its caller and can be drawn again and again.
"""

from __future__ import annotations

import base64
import hashlib
import html
import io
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HERE = Path(__file__).parent

# Okabe–Ito hues, shifted until text in them reads on white (4.5:1) and, the second of
# each pair, on the dark page. The names are what chapters use; the page's style sheet
# holds the same pairs under --rn-NAME.
THEME = {
    "plain": ("#b84a00", "#f08a45"),
    "residual": ("#0069a6", "#5bb8ee"),
    "pre": ("#007a59", "#35c99b"),
    "post": ("#a33f7c", "#e59bc8"),
    "a": ("#8f5f00", "#e6a82e"),
    "b": ("#1f77a8", "#8fd0f5"),
    "c": ("#6b5b95", "#b8a9e0"),
    "d": ("#6a6a00", "#d8cf4a"),
    "grey": ("#767676", "#9a9a9a"),
}
COLORS = {name: light for name, (light, _) in THEME.items()}
GREY = COLORS["grey"]
CMAP = "cividis"  # even in brightness and safe for colour-blind readers

# Colour is never the only sign: each of the four also has its own dash.
DASHES = {
    "plain": (0, (5, 2)),
    "residual": "-",
    "pre": (0, (7, 1.5, 1.5, 1.5)),
    "post": (0, (1.5, 1.5)),
}


def line(name: str) -> dict:
    """Return `ax.plot` keywords for one of the book's four fixed lines.

    Parameters
    ----------
    name
        `"plain"`, `"residual"`, `"pre"` or `"post"`.

    Raises
    ------
    ValueError
        For any other name.

    Examples
    --------
    >>> line("residual")
    {'color': '#0069a6', 'linestyle': '-', 'label': 'residual'}
    """
    if name not in DASHES:
        raise ValueError(f"name is {name!r}; expected one of {', '.join(DASHES)}")
    return {"color": COLORS[name], "linestyle": DASHES[name], "label": name}


def figure(nrows: int = 1, ncols: int = 1, height: float = 3.0, **kwargs):
    """Make a figure in the house style, 5.2 inches wide, and its axes.

    Returns `(figure, axes)` with `axes` as from matplotlib's `Figure.subplots`, which
    gets `kwargs`. Panels are best stacked (`nrows`), since half of the readers hold a
    phone.

    The house style is written into `matplotlib.rcParams`, where it stays: it holds for
    whatever this process draws afterwards.

    Examples
    --------
    >>> fig, axes = figure(nrows=2, height=4.0)
    >>> fig.get_size_inches().tolist(), axes.shape
    ([5.2, 4.0], (2,))
    """
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams.update(
        matplotlib.rc_params_from_file(
            HERE / "house.mplstyle", use_default_template=False
        )
    )
    width = 5.2
    fig = Figure(figsize=(width, height))
    axes = fig.subplots(nrows, ncols, **kwargs)
    # Fixed margins in inches: the frames of an explorer must not jump.
    fig.subplots_adjust(
        left=0.8 / width,
        right=1 - 0.2 / width,
        bottom=0.54 / height,
        top=1 - 0.15 / height,
        hspace=0.4,
        wspace=0.35,
    )
    return fig, axes


def svg(fig: Figure, uid: str) -> str:
    """Return the figure as an SVG element: small, the same every time, themed by CSS.

    Ids get the prefix `uid`, so that several figures can stand on one page.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    for ax in fig.axes:
        for axis in (ax.xaxis, ax.yaxis):
            _plain_powers(axis)
    out = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "resnotes"}):
        no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        fig.patch.set_alpha(0)
        for ax in fig.axes:
            ax.patch.set_alpha(0)
        FigureCanvasSVG(fig).print_svg(out, metadata=no_metadata)
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<style type.*?</style>|<!--.*?-->", "", text, flags=re.S)
    text = re.sub(r'<g id="[^"]*"', "<g", text)  # group names: nothing refers to them
    text = re.sub(r'\bid="', f'id="{uid}-', text)
    text = re.sub(r'(href="|url\()#', rf"\1#{uid}-", text)
    # The page's own fonts: keep size and weight, drop the family.
    text = re.sub(r"font: ((?:\w+ )*)([\d.]+px) [^;\"]*", _font, text)
    text = re.sub(r"font-family:[^;\"]*;?", "", text)
    for name, light in COLORS.items():
        text = text.replace(light, f"var(--rn-{name})")
    text = text.replace("#000000", "currentColor")
    text = text.replace("#ffffff", "var(--rn-paper)")
    # Two decimals are finer than a pixel; text between tags is left alone.
    text = re.sub(r"<[^>]+>", lambda tag: _DECIMALS.sub(_two_decimals, tag[0]), text)
    text = re.sub(r">\s+<", "><", text)
    width, height = (72 * inches for inches in fig.get_size_inches())
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" '
        f'xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}">'
    )
    return head + text[text.index(">") + 1 :].strip()


def number(value: float, digits: int = 2) -> str:
    """Write a number for a sentence, with two significant digits and no "e-10".

    Examples
    --------
    >>> number(9.2033e-10), number(157.52), number(0.0353), number(2.0)
    ('9.2 × 10⁻¹⁰', '160', '0.035', '2')
    """
    value = float(value)
    short = f"{value:.{digits}g}"
    if "e" not in short or not math.isfinite(value):
        return short
    mantissa, exponent = (float(part) for part in short.split("e"))
    if -4 < exponent < 6:
        return f"{float(short):,.0f}" if exponent > 0 else short
    return f"{mantissa:g} × 10{str(int(exponent)).translate(SUPERSCRIPT)}"


def _plain_powers(axis) -> None:
    """Label a log axis with 10⁻³ as text: the page's font, and five times as fast."""
    from matplotlib.ticker import FuncFormatter, LogFormatterSciNotation, NullFormatter

    if isinstance(axis.get_major_formatter(), LogFormatterSciNotation):
        axis.set_major_formatter(FuncFormatter(_power))
        axis.set_minor_formatter(NullFormatter())


def _power(value: float, _position=None) -> str:
    if value <= 0:
        return ""
    exponent = math.log10(value)
    if abs(exponent - round(exponent)) > 1e-6:
        return f"{value:g}"
    if -2 <= exponent <= 3:
        return f"{value:g}"
    return "10" + str(round(exponent)).translate(SUPERSCRIPT)


SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_DECIMALS = re.compile(r"-?\d+\.\d{3,}(?:e-?\d+)?")


def _two_decimals(number: re.Match) -> str:
    text = f"{float(number[0]):.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _font(font: re.Match) -> str:
    weight = "; font-weight: bold" if "bold" in font[1] or "700" in font[1] else ""
    return f"font-size: {font[2]}{weight}"


# Where SVG stands alone (JavaScript off, a code host's preview) it cannot see the
# page's style sheet: it brings the light colours and a white ground of its own.
_ALONE = (
    "<style>svg:root{background:#fff;color:#1a1a1a;--rn-paper:#fff;"
    + "".join(f"--rn-{name}:{light};" for name, light in COLORS.items())
    + "font-family:sans-serif}svg:root text{fill:currentColor}</style>"
)


def picture(svg_text: str, alt: str) -> str:
    """Return an `<img>` that shows the SVG anywhere; the page's script unfolds it."""
    size = re.search(r'width="([\d.]+)" height="([\d.]+)"', svg_text)
    assert size  # our own SVG
    start = svg_text.index(">") + 1
    data = base64.b64encode(
        (svg_text[:start] + _ALONE + svg_text[start:]).encode()
    ).decode()
    return (
        f'<img alt="{html.escape(alt)}" width="{size[1]}" height="{size[2]}" '
        f'src="data:image/svg+xml;base64,{data}">'
    )


def css() -> str:
    """Return the style sheet of figures and explorers as an element."""
    sheet = (HERE / "explore.css").read_text(encoding="utf-8")
    return f'<style class="rn-assets">{sheet}</style>'


def with_assets(body: str) -> str:
    """Return a figure's HTML with the style sheet before it and the script behind it.

    The sheet comes first, so that nothing on the page moves when it is read.
    """
    script = (HERE / "explore.js").read_text(encoding="utf-8")
    return f'{css()}{body}<script class="rn-assets">{script}</script>'


def without_assets(page: str) -> str:
    """Return the HTML that `with_assets` got."""
    return re.sub(r'<(style|script) class="rn-assets">.*?</\1>', "", page, flags=re.S)


def unique(*parts: str) -> str:
    """Return a short id that depends on nothing but `parts`."""
    return "rn" + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8]


def show(fig: Figure, *, title: str, alt: str) -> None:
    """Put a figure on the page.

    Parameters
    ----------
    fig
        A matplotlib figure, best made by `figure`.
    title
        One sentence that states the finding; it stands above the figure.
    alt
        The finding with its numbers, for a reader who cannot see the figure.

    Raises
    ------
    ValueError
        If `title` or `alt` is empty or no text.
    TypeError
        If `fig` is no matplotlib figure.

    Examples
    --------
    Outside a notebook it prints the words alone.

    >>> fig, ax = figure()
    >>> lines = ax.plot([1, 2], [1, 4], **line("residual"))
    >>> show(fig, title="It grows.", alt="From 1 to 4.")
    Figure. It grows. From 1 to 4.
    """
    for name, value in {"title": title, "alt": alt}.items():
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"show: {name} is {value!r}; expected a sentence")
    if not hasattr(fig, "get_size_inches"):
        raise TypeError(
            f"show: fig is a {type(fig).__name__}; expected a matplotlib Figure, "
            "for example the first thing that style.figure() returns"
        )
    drawing = picture(svg(fig, unique(title, alt)), alt)
    page = with_assets(
        f'<figure class="rn-figure"><figcaption class="rn-title">{html.escape(title)}'
        f'</figcaption><div class="rn-picture">{drawing}</div></figure>'
    )
    bundle = {"text/html": page, "text/plain": f"Figure. {title} {alt}"}
    put(bundle)


def put(bundle: dict) -> None:
    """Hand a bundle of MIME types to the notebook; without one print its text."""
    from IPython import get_ipython
    from IPython.display import display

    if get_ipython() is None:
        print(bundle["text/plain"])
    else:
        display(bundle, raw=True)
