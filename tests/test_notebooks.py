"""Refreshing, normalising and comparing notebooks."""

import inspect
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import test_chapters
from nbformat import v4

from resnotes import notebooks, style
from resnotes.explore import Explorer
from resnotes.notebooks import same_picture

ROOT = Path(__file__).parent.parent


def write(path, *sources, **tags):
    cells = [v4.new_code_cell(source) for source in sources]
    for k, cell in enumerate(cells):
        cell.id = f"cell-{k}"
    nbformat.write(v4.new_notebook(cells=cells), path)
    return path


EXPLORER = """
from resnotes import explore, style
fig, ax = style.figure()
(line,) = ax.plot([], [])
ax.set(xlim=(0, 10), ylim=(0, 10))
def draw(depth):
    line.set_data([0, depth], [0, depth])
    return fig, f"Depth is {depth}."
explore(draw, title="A line grows.", depth=range(1, 5))
"""


def test_refresh_twice_gives_the_same_bytes(tmp_path):
    path = write(
        tmp_path / "a.ipynb",
        EXPLORER,
        "import torch; torch.manual_seed(0); print(f'{torch.randn(3).sum():.3f}')",
        "import sys; print('to stderr', file=sys.stderr)",
    )
    notebooks.refresh(path)
    once = path.read_bytes()
    notebooks.refresh(path)
    assert path.read_bytes() == once
    assert b"widget-view" not in once and b"rn-explorer" in once


def test_the_landing_page_refreshes_to_itself(tmp_path):
    """The promise of `make refresh`, on a page of the book."""
    stored = ROOT / "chapters" / "index.ipynb"
    copy = tmp_path / "index.ipynb"
    copy.write_bytes(stored.read_bytes())
    notebooks.refresh(copy)
    once = copy.read_bytes()
    notebooks.refresh(copy)
    assert copy.read_bytes() == once


def test_a_failing_cell_leaves_the_file_alone(tmp_path):
    from nbclient.exceptions import CellExecutionError

    path = write(tmp_path / "a.ipynb", "1 / 0")
    before = path.read_bytes()
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        notebooks.refresh(path)
    assert path.read_bytes() == before


def test_normalise_keeps_tags_and_drops_the_rest():
    cell = v4.new_code_cell("x", metadata={"tags": ["hide-input"], "x": 1})
    book = v4.new_notebook(cells=[cell], metadata={"widgets": {}, "vscode": 1})
    notebooks.normalise(book)
    assert cell.metadata == {"tags": ["hide-input"]}
    assert set(book.metadata) == {"kernelspec", "language_info"}


def test_printed_text_is_stored_in_one_piece():
    streams = [("stdout", "a\n"), ("stdout", "b\n"), ("stderr", "c"), ("stdout", "d")]
    outputs = [v4.new_output("stream", name=n, text=t) for n, t in streams]
    book = v4.new_notebook(cells=[v4.new_code_cell("x", outputs=outputs)])
    notebooks.normalise(book)
    stored = [(o.name, o.text) for o in book.cells[0].outputs]
    assert stored == [("stdout", "a\nb\n"), ("stderr", "c"), ("stdout", "d")]


def test_assets_are_renewed_without_running(tmp_path):
    path = write(tmp_path / "a.ipynb", EXPLORER)
    notebooks.refresh(path)
    fresh = path.read_text()
    path.write_text(fresh.replace("min-height:2.9em", "min-height:1em"))
    assert path.read_text() != fresh
    notebooks.renew_assets(path)
    assert path.read_text() == fresh


def test_command_line_names_a_missing_file(capsys):
    assert notebooks.main(["refresh", "nowhere.ipynb"]) == 2
    assert "nowhere.ipynb is no file" in capsys.readouterr().err


# --- two runs compared ---


def page(shift=0.0, value=0.12345, depth=3):
    fig, ax = style.figure()
    (line,) = ax.plot([], [])
    ax.set(xlim=(0, 10), ylim=(0, 10))

    def draw(depth):
        line.set_data([0, depth], [0, depth + shift])
        return fig, f"Depth {depth} gives {value:.4g}."

    return Explorer(draw, title="t", depth=range(1, depth + 1)).html()


def test_a_hair_is_no_difference():
    assert same_picture(page(), page(shift=0.01, value=0.1235)) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"shift": 0.5}, "is stored"),
        ({"value": 0.2}, "is stored"),
        ({"depth": 4}, "frames"),
    ],
)
def test_a_difference_is_found_and_named(change, said):
    assert said in same_picture(page(), page(**change))


def test_another_title_is_a_difference():
    other = page().replace('class="rn-title">t<', 'class="rn-title">u<')
    assert "differently" in same_picture(page(), other)


def test_a_new_style_sheet_is_no_difference():
    assert same_picture(page(), page().replace("min-height:2.9em", "")) is None


# --- nbval sees what it must see ---


def nbval(path):
    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *("--nbval", "--nbval-current-env", "--rootdir", str(ROOT), str(path)),
            *("-p", "conftest"),
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**__import__("os").environ, "PYTHONPATH": str(ROOT)},
    )


def test_nbval_is_green_on_a_true_notebook_and_red_on_a_false_one(tmp_path):
    path = write(tmp_path / "a.ipynb", EXPLORER, "print(6 * 7)", "assert 6 * 7 == 42")
    notebooks.refresh(path)
    true = path.read_text()
    assert nbval(path).returncode == 0

    path.write_text(true.replace('"42\\n"', '"43\\n"'))
    red = nbval(path)
    assert red.returncode == 1 and "43" in red.stdout

    path.write_text(true.replace("== 42", "== 43"))
    red = nbval(path)
    assert red.returncode == 1 and "AssertionError" in red.stdout

    path.write_text(true.replace("[0, depth])", "[0, depth + 1])"))
    red = nbval(path)
    assert red.returncode == 1 and "is stored" in red.stdout


# The template that a new chapter starts from

TEMPLATE = Path(__file__).parent / "chapter_template.ipynb"
GUARDS = {
    name.removeprefix("test_"): guard
    for name, guard in vars(test_chapters).items()
    if name.startswith("test_") and "path" in inspect.signature(guard).parameters
}


@pytest.mark.parametrize("guard", GUARDS)
def test_the_template_passes_every_guard_of_a_chapter(guard, tmp_path):
    wanted = inspect.signature(GUARDS[guard]).parameters
    given = {"path": TEMPLATE, "tmp_path": tmp_path}
    GUARDS[guard](**{name: given[name] for name in wanted})


def test_as_text_a_reviewer_sees_sources_prints_and_the_words_of_pictures():
    text = notebooks.as_text(TEMPLATE)
    assert "--- code checks hide-input\nchecked = 0" in text
    assert "> 3 claims checked" in text
    assert "> At a gain of one half a plain stack loses the gradient" in text
    assert "base64" not in text and len(text) < 20_000
