"""What every notebook of the book must be, whoever wrote it."""

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "chapters").glob("*.ipynb"))
CHAPTERS = [path for path in NOTEBOOKS if path.name[0].isdigit()]

# In the order in which they stand; between Overview and the claims come the lessons.
SECTIONS = ["Overview", "Claims checked", "Summary", "Exercises", "Read on"]


def each(paths):
    return pytest.mark.parametrize("path", paths, ids=lambda path: path.stem)


def read(path):
    return nbformat.read(path, as_version=4)


def code(path):
    return [cell for cell in read(path).cells if cell.cell_type == "code"]


def prose(path):
    return [cell for cell in read(path).cells if cell.cell_type == "markdown"]


def outputs(path):
    return [(cell, output) for cell in code(path) for output in cell.outputs]


def pages(path):
    """Return the HTML outputs that are figures or explorers."""
    html = [o.get("data", {}).get("text/html", "") for _, o in outputs(path)]
    return [page for page in html if 'class="rn-' in page]


def test_the_book_holds_every_notebook():
    toc = (ROOT / "_toc.yml").read_text()
    assert NOTEBOOKS and CHAPTERS
    for path in NOTEBOOKS:
        assert f"chapters/{path.stem}" in toc


@each(NOTEBOOKS)
def test_it_was_run_from_top_to_bottom(path):
    counts = [cell.execution_count for cell in code(path) if cell.source.strip()]
    assert counts == list(range(1, len(counts) + 1))


@each(NOTEBOOKS)
def test_no_output_is_an_error_or_a_warning(path):
    for cell, output in outputs(path):
        assert output.output_type != "error", cell.source
        assert output.get("name") != "stderr", output.get("text")
        assert output.output_type != "execute_result", f"Out[…] in {cell.source}"


@each(NOTEBOOKS)
def test_no_output_tells_of_the_machine(path):
    for cell, output in outputs(path):
        data = output.get("data", {})
        text = output.get("text", "") + data.get("text/plain", "")
        assert not re.search(r"\b0x[0-9a-f]{6,}", text), cell.source
        assert not re.search(r"(/home/|/root/|/tmp/|/work/|[A-Z]:\\)", text), text


@each(NOTEBOOKS)
def test_it_is_stored_as_refresh_stores_it(path):
    """Cell ids unique, no times, no widget models, no kernel of one machine."""
    from resnotes.notebooks import METADATA

    notebook = read(path)
    ids = [cell.id for cell in notebook.cells]
    assert len(ids) == len(set(ids))
    assert notebook.metadata == METADATA
    for cell in notebook.cells:
        assert set(cell.metadata) <= {"tags"}
    assert "widget-view" not in path.read_text()


@each(NOTEBOOKS)
def test_every_picture_has_words(path):
    """Alt text that gives the finding: a sentence, not "plot of"."""
    for page in pages(path):
        alts = re.findall(r'<img alt="([^"]*)"', page)
        titles = re.findall(r'class="rn-title">([^<]*)<', page)
        assert len(alts) == len(titles) == 1
        for text in (*alts, *titles):
            assert len(text.split()) >= 4, text
            assert not re.match(r"(a |the )?(plot|figure|graph|chart)\b", text, re.I)
        assert titles[0].rstrip()[-1] in ".?!", titles[0]
    for _, output in outputs(path):
        assert not {"image/png", "image/svg+xml"} & set(output.get("data", {})), (
            "a picture without alt text; use resnotes.show"
        )


@each(NOTEBOOKS)
def test_stored_pictures_have_the_present_script(path):
    from resnotes.style import with_assets, without_assets

    for page in pages(path):
        assert page == with_assets(without_assets(page)), "run `make assets`"


@each(NOTEBOOKS)
def test_few_outputs_are_exempt_from_comparison(path):
    with_output = [cell for cell in code(path) if cell.outputs]
    exempt = [
        cell
        for cell in code(path)
        if {"nbval-ignore-output", "nbval-skip"} & set(cell.metadata.get("tags", []))
    ]
    assert len(exempt) <= 0.15 * len(with_output), [cell.source for cell in exempt]


@each(NOTEBOOKS)
def test_code_fits_the_page(path):
    for cell in code(path):
        for line in cell.source.splitlines():
            assert len(line) <= 88, line


@each(NOTEBOOKS)
def test_claims_are_asserted(path):
    text = [cell.source for cell in read(path).cells]
    start = next(k for k, t in enumerate(text) if "## Claims checked" in t)
    checks = "\n".join(text[start:])
    assert "assert" in checks
    printed = "".join(o.get("text", "") for _, o in outputs(path))
    assert int(re.search(r"(\d+) claims checked", printed)[1]) >= 3


@each(CHAPTERS)
def test_the_template_is_kept(path):
    headings = [
        line.removeprefix("## ").strip()
        for cell in prose(path)
        for line in cell.source.splitlines()
        if line.startswith("## ")
    ]
    places = [headings.index(name) for name in SECTIONS]
    assert places == sorted(places)
    assert prose(path)[0].source.startswith("# ")


@each(CHAPTERS)
def test_exercises_have_solutions(path):
    text = "\n".join(cell.source for cell in prose(path))
    labels = re.findall(r"\{exercise\}.*?:label: (\S+)", text, re.S)
    solved = re.findall(r"\{solution\} (\S+)", text)
    assert len(labels) >= 5
    assert sorted(labels) == sorted(solved)


@each(CHAPTERS)
def test_the_reader_predicts_first_and_can_touch_something(path):
    text = "\n".join(cell.source for cell in prose(path))
    assert len(re.findall(r"\{dropdown\} Predict first", text)) >= 2
    assert sum("rn-explorer" in page for page in pages(path)) >= 1
    assert re.search(r"\b[Tt]ry:?\*?\*?:? ", text)
    assert "{cite" in text


@each(NOTEBOOKS)
def test_one_sentence_a_line(path):
    """Readable diffs: no markdown line holds two sentences."""
    for cell in prose(path):
        fenced = False
        for line in cell.source.splitlines():
            if line.lstrip().startswith("```"):
                fenced = not fenced
            if fenced or line.lstrip().startswith(("|", ":", "- [", "$$")):
                continue
            plain = re.sub(r"`[^`]*`|\$[^$]*\$|\([^)]*\)|\"[^\"]*\"|“[^”]*”", "", line)
            plain = re.sub(r"\b(et al|e\.g|i\.e|vs|Fig|Eq|Sec|cf|ch)\.", "", plain)
            assert not re.search(r"[a-z]{3,}[.?!] [A-Z][a-z]", plain), line


@each(NOTEBOOKS + sorted((ROOT / "assignments").glob("*.ipynb")))
def test_spelling(path, tmp_path):
    """Codespell on the prose and the code, not on packed pictures."""
    words = tmp_path / f"{path.stem}.txt"
    words.write_text("\n\n".join(cell.source for cell in read(path).cells))
    found = subprocess.run(
        [sys.executable, "-m", "codespell_lib", str(words)],
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stdout
