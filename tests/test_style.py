"""Figures: small, the same every time, in colours that can be read."""

import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

from resnotes import show, style


def drawing():
    fig, ax = style.figure()
    for name in style.DASHES:
        ax.plot([1, 2, 3], [1e-9, 2e-3, 3e4], **style.line(name))
    ax.set(yscale="log", xlabel="depth", ylabel="‖∂y/∂h‖₂")
    return fig


def test_the_svg_is_well_formed_and_themed():
    text = style.svg(drawing(), "rn0")
    ET.fromstring(text)
    for name in style.DASHES:
        assert f"var(--rn-{name})" in text
    left = set(re.findall(r"#[0-9a-f]{6}\b", text))
    assert left == set(), "a colour that does not follow the theme"


def test_ids_carry_the_prefix_and_every_reference_is_met():
    text = style.svg(drawing(), "rn0")
    ids = re.findall(r'\bid="([^"]+)"', text)
    references = re.findall(r"(?:href=\"|url\()#([^\")]+)", text)
    assert len(ids) == len(set(ids)) and all(i.startswith("rn0-") for i in ids)
    assert set(references) <= set(ids) and references


def test_same_figure_same_bytes():
    assert style.svg(drawing(), "rn0") == style.svg(drawing(), "rn0")


def test_labels_are_text_and_keep_their_digits():
    fig, ax = style.figure()
    ax.text(0.5, 0.5, "measured 0.123456789")
    text = style.svg(fig, "rn0")
    assert "measured 0.123456789" in text
    assert "10⁻⁹" in style.svg(drawing(), "rn0")
    assert "font-family" not in text


def test_coordinates_have_two_decimals():
    inside = "".join(re.findall(r"<[^>]+>", style.svg(drawing(), "rn0")))
    assert not re.search(r"\d\.\d{3}", inside)


@pytest.mark.parametrize("paper", ["#ffffff", "#f7f8fa", "#14181e", "#1b2027"])
def test_colours_have_the_contrast_of_text(paper):
    """WCAG 2.2, 1.4.3: at least 4.5 to 1, on the page and on an explorer's card."""

    def luminance(colour):
        parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        r, g, b = (
            p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts
        )
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    dark_page = luminance(paper) < 0.5
    for name, pair in style.THEME.items():
        low, high = sorted([luminance(pair[dark_page]), luminance(paper)])
        contrast = (high + 0.05) / (low + 0.05)
        needed = 3 if name == "grey" else 4.5  # grey draws grids and ticks, no text
        assert contrast >= needed, f"{name} on {paper}: {contrast:.2f}"


def test_the_style_sheet_has_the_same_colours():
    css = (style.HERE / "explore.css").read_text()
    for name, (light, dark) in style.THEME.items():
        assert re.findall(rf"--rn-{name}:(#\w+)", css) == [light, dark]


def test_no_pyplot():
    code = """import sys
from resnotes import style
fig, ax = style.figure()
style.svg(fig, "rn0")
print("matplotlib.pyplot" in sys.modules)"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout == "False\n", run.stderr


def test_show_puts_title_and_alt_on_the_page(capsys):
    show(drawing(), title="Gradients grow.", alt="From 1e-9 to 3e4 <over> 3 blocks.")
    printed = capsys.readouterr().out
    assert "Gradients grow." in printed


def test_the_picture_carries_its_alt_text():
    html = style.picture(style.svg(drawing(), "rn0"), 'From 1 to "3" <ok>')
    assert 'alt="From 1 to &quot;3&quot; &lt;ok&gt;"' in html


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"title": "", "alt": "x"}, ValueError),
        ({"title": "x", "alt": " "}, ValueError),
        ({"title": "x", "alt": None}, ValueError),
    ],
)
def test_show_needs_its_words(arguments, error):
    with pytest.raises(error, match="expected a sentence"):
        show(drawing(), **arguments)


def test_show_needs_a_figure():
    with pytest.raises(TypeError, match="expected a matplotlib Figure"):
        show("no figure", title="x", alt="y")


def test_a_line_that_is_not_in_the_book():
    with pytest.raises(ValueError, match="expected one of plain, residual, pre, post"):
        style.line("prenorm")
