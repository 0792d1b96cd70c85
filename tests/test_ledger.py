"""The ledger: what is printed elsewhere, what is ours, and the sentences between."""

import re
from pathlib import Path

import nbformat
import pytest

from resnotes import ledger
from resnotes.ledger import Value, agrees, numerals, record, recorded, verdict

ROOT = Path(__file__).parent.parent
CHAPTERS = ROOT / "chapters"
NOTEBOOKS = sorted(CHAPTERS.glob("*.ipynb"))
ASSIGNMENTS = sorted((ROOT / "assignments").glob("*.ipynb"))
ROWS = ledger.rows()

# What makes a sentence one about a published number, if it holds a number.
QUOTES = re.compile(
    r"\{cite|\bet al\.|\breport(s|ed)?\b|\b(the|their|this) (paper|abstract)\b"
    r"|\btheir table\b|\btutorial\b|\bprint(s|ed)\b|\bpublished\b",
    re.I,
)
LINK = re.compile(r"\[([^\]]*)\]\(reproductions\.md#([a-z0-9-]+)\)")
# Numbers that are no measurement: names, places in a text, years, formulas, code.
NO_NUMBER = re.compile(
    r"\{cite[^`]*`[^`]*`|`[^`]*`|\]\([^)]*\)|\$[^$]*[A-Za-z][^$]*\$"
    r"|\b[A-Za-z]+-\d+[A-Za-z]*\b|\b(19|20)\d\d\b"
    r"|(\b(table|fig\.|figure|section|chapter|lemma|theorem|exhibit|seed|exercise)|§) ?"
    r"\d+(\.\d+)*",
    re.I,
)


def sentences(path):
    """Return the lines of a notebook's prose; a line holds one sentence."""
    cells = nbformat.read(path, as_version=4).cells
    prose = [cell.source for cell in cells if cell.cell_type == "markdown"]
    return [line for text in prose for line in text.splitlines()]


def unlinked(lines):
    """Return the sentences that quote a number and link to no row."""
    return [
        line
        for line in lines
        if QUOTES.search(line)
        and re.search(r"\d", NO_NUMBER.sub("", line))
        and not LINK.search(line)
    ]


def unknown(line):
    """Return the numbers of a quoting sentence that no row it links to has.

    In a table this goes cell by cell, since ours stand in the next one.
    """
    found = []
    for part in line.split("|") if line.startswith("|") else [line]:
        rows = [ROWS[name] for _, name in LINK.findall(part) if name in ROWS]
        if QUOTES.search(part):
            said = (row.get(key, "") for row in rows for key in ("what", "where"))
            known = numerals(" ".join([*said, *(row["printed"] for row in rows)]))
            known += [number for row in rows for number in row.get("numbers", [])]
            here = numerals(NO_NUMBER.sub("", part))
            found += [number for number in here if number not in known]
    return found


def each(paths):
    return pytest.mark.parametrize("path", paths, ids=lambda path: path.stem)


@pytest.fixture(scope="module")
def ours():
    return ledger.all_recorded()


# --- the page, the notebooks and the prose hold together ---


def test_the_page_is_that_of_the_notebooks_and_the_data():
    """Red when a row, a stored output or the page was changed without the others."""
    assert ledger.PAGE.read_text(encoding="utf-8") == ledger.page(), (
        "run python -m resnotes.ledger"
    )


def test_a_recorded_value_and_its_row_are_in_the_same_chapter(ours):
    for name, (stem, _) in ours.items():
        assert name in ROWS, f"{stem} records {name}, which has no row"
        assert stem.startswith(f"{ROWS[name]['chapter']:02d}_"), name


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_whole(name, ours):
    """Measured or not attempted, never both; sources that the bibliography has."""
    row = ROWS[name]
    fields = {"chapter", "what", "printed"}
    fields |= {"not_attempted"} if "not_attempted" in row else {"compare", "setup"}
    optional = {"cite", "where", "known", "numbers", "unit", "note"}
    assert fields <= row.keys() <= fields | optional
    assert {"cite", "where"} & row.keys()
    assert row.get("known", "reported") == "reported"
    bibliography = (CHAPTERS / "references.bib").read_text(encoding="utf-8")
    for key in row.get("cite", "").split(",") if "cite" in row else []:
        assert f"{{{key}," in bibliography
    verdict(row, ours.get(name, (None, None))[1])


@each(NOTEBOOKS)
def test_a_sentence_that_quotes_a_number_links_to_its_row(path):
    assert unlinked(sentences(path)) == []
    assert {line: found for line in sentences(path) if (found := unknown(line))} == {}


@each(NOTEBOOKS)
def test_a_link_names_a_number_of_its_row(path):
    for line in sentences(path):
        for text, name in LINK.findall(line):
            assert name in ROWS, f"no row {name}: {line}"
            row = ROWS[name]
            known = {*numerals(row["printed"]), *row.get("numbers", [])}
            # Code is struck out elsewhere, but a linked `1.4e-06` is a number.
            said = numerals(NO_NUMBER.sub("", text.replace("`", "")))
            assert set(said) <= known, f"{name} prints {known}: {line}"


@each(ASSIGNMENTS)
def test_an_assignment_quotes_what_the_ledger_has(path):
    """It is handed out without the book, so it cannot link."""
    known = {number for row in ROWS.values() for number in numerals(row["printed"])}
    for line in unlinked(sentences(path)):
        assert set(numerals(NO_NUMBER.sub("", line))) <= known, line


def test_every_row_is_quoted_in_its_chapter():
    linked = {
        (path.name[:2], name)
        for path in NOTEBOOKS
        for _, name in LINK.findall("\n".join(sentences(path)))
    }
    for name, row in ROWS.items():
        stem = f"{row['chapter']:02d}" if row["chapter"] else "in"  # index
        assert (stem, name) in linked, f"{name}: no link in chapter {row['chapter']}"


@pytest.mark.browser  # with the browser tests, since it too needs the built book
def test_links_to_rows_arrive():
    built = ROOT / "_build" / "html" / "chapters"
    anchors = re.findall(r'id="([^"]+)"', (built / "reproductions.html").read_text())
    assert set(ROWS) <= set(anchors)
    for path in NOTEBOOKS:
        page = (built / f"{path.stem}.html").read_text()
        for _, name in LINK.findall("\n".join(sentences(path))):
            assert f'href="reproductions.html#{name}"' in page


# --- what must be found is found ---


def notebook(output, source="from resnotes.ledger import record"):
    stream = nbformat.v4.new_output("stream", name="stdout", text=output)
    cell = nbformat.v4.new_code_cell(source, outputs=[stream])
    return nbformat.v4.new_notebook(cells=[cell])


@pytest.fixture
def a_copy(tmp_path, monkeypatch):
    """Point the ledger at a copy of the chapters and return its folder."""
    for path in [*NOTEBOOKS, ledger.DATA, ledger.PAGE]:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(ledger, "CHAPTERS", tmp_path)
    monkeypatch.setattr(ledger, "DATA", tmp_path / ledger.DATA.name)
    monkeypatch.setattr(ledger, "PAGE", tmp_path / ledger.PAGE.name)
    return tmp_path


def change(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_a_changed_output_changes_the_page_and_the_verdict(a_copy):
    before = ledger.page()
    assert before == ledger.PAGE.read_text(encoding="utf-8")
    path = a_copy / "04_path_ensembles.ipynb"
    change(path, '"veit-short-share: 0.454', '"veit-short-share: 0.464')
    after = ledger.page()
    assert after != before
    assert after.count("**differs**") == before.count("**differs**") + 1


def test_a_row_without_a_value_and_a_value_without_a_row_are_errors(a_copy):
    change(ledger.DATA, "[veit-short-share]", "[veit-other-share]")
    with pytest.raises(ValueError, match=r"no row .*veit-short-share"):
        ledger.page()
    path = a_copy / "04_path_ensembles.ipynb"
    change(path, '"veit-short-share: 0.454\\n",', "")
    with pytest.raises(ValueError, match="either a recorded value or not_attempted"):
        ledger.page()


def test_a_row_of_a_chapter_that_the_page_has_no_heading_for_is_an_error(a_copy):
    change(ledger.DATA, "[sun-half]\nchapter = 7", "[sun-half]\nchapter = 8")
    with pytest.raises(ValueError, match=r"add chapters \[8\] to TITLES"):
        ledger.page()


def test_a_row_is_not_both_measured_and_not_attempted():
    row = {"what": "x", "printed": "1", "not_attempted": "why"}
    assert verdict(row, None) == "not attempted"
    with pytest.raises(ValueError, match="either a recorded value or not_attempted"):
        verdict(row, [Value("1", "1", "1", 1)])


def test_a_number_recorded_twice_or_unreadable_is_an_error():
    with pytest.raises(ValueError, match="twice"):
        recorded(notebook("a: 1\na: 2\n"))
    with pytest.raises(ValueError, match="cannot read 'nonsense'"):
        recorded(notebook("nonsense\n"))
    assert recorded(notebook("nonsense\n", "print('nonsense')")) == {}


@pytest.mark.parametrize(
    ("line", "quotes"),
    [
        ("He et al. report an error of 6.43 %.", True),
        ("They reach 4.91 % {cite}`huang2016deep`.", True),
        ("The paper has $4.91\\,\\%$ there.", True),
        ("They reach [4.91 %](reproductions.md#huang-cifar) {cite}`huang2016deep`.", 0),
        ("See Table 1 and section 4.4 of {cite}`he2016identity`, from 2016.", False),
        ("They trained a ResNet-110 on CIFAR-10 {cite}`he2016identity`.", False),
        ("It is $1/\\sqrt{N}$ for $N = 2L$ sums {cite}`radford2019language`.", False),
        ("Ours has 6.43 %.", False),
    ],
)
def test_what_counts_as_quoting_a_number(line, quotes):
    assert bool(unlinked([line])) == bool(quotes)


def test_a_second_number_beside_a_linked_one_is_found():
    link = "[4.91 %](reproductions.md#huang-cifar)"
    assert unknown(f"Huang et al. report {link} and 5.23 %.") == ["5.23"]
    assert unknown(f"Huang et al. report {link} with 1202 layers.") == []
    assert unknown(f"| reported: {link} | here 37 % |") == []


# --- recording and comparing ---


def test_what_is_recorded_is_read_back(capsys):
    record("a-row", 9.2033e-10)
    record("several", -0.0, [3.0, 1.0, 2.0], form=".1f")
    said = capsys.readouterr().out
    assert said == "a-row: 9.2e-10\nseveral: 0.0; 2.0 (1.0 … 3.0, 3 runs)\n"
    assert recorded(notebook(said)) == {
        "a-row": [Value("9.2e-10", "9.2e-10", "9.2e-10", 1)],
        "several": [Value("0.0", "0.0", "0.0", 1), Value("2.0", "1.0", "3.0", 3)],
    }


@pytest.mark.parametrize("bad", [(), (float("nan"),), ([],), ([1.0, float("inf")],)])
def test_only_finite_numbers_are_recorded(bad):
    with pytest.raises(ValueError, match="record: "):
        record("a-row", *bad)


def one(number):
    return Value(number, number, number, 1)


@pytest.mark.parametrize(
    ("compare", "printed", "right", "wrong"),
    [
        ("to the printed digits", ["0.45"], ["0.454"], ["0.456"]),
        ("to the printed digits", ["1.2011e-4"], ["1.2011e-04"], ["1.2012e-04"]),
        ("to the printed digits", ["1.40"], ["1.4"], ["1.41"]),
        ("to the printed digits", ["1", "2"], ["1", "2"], ["1", "3"]),
        ("to the last digit", ["63.5118"], ["63.5117"], ["63.5116"]),
        ("within 5 %", ["-0.5"], ["-0.48"], ["-0.47"]),
        ("within 0.15", ["0"], ["0.09"], ["-0.16"]),
        ("as a range", ["25", "73"], ["66"], ["74"]),
        ("as a lower bound", ["95"], ["98"], ["95"]),
        ("by direction: rises", [], ["1", "2", "3"], ["1", "3", "2"]),
        ("by direction: falls", [], ["2", "1"], ["1", "1"]),
    ],
)
def test_each_way_to_compare(compare, printed, right, wrong):
    assert agrees(compare, printed, [one(v) for v in right])
    assert not agrees(compare, printed, [one(v) for v in wrong])


def test_runs_count_where_bounds_do():
    runs = Value("66", "24", "70", 5)
    assert not agrees("as a range", ["25", "73"], [runs])
    assert not agrees("as a lower bound", ["24"], [runs])
    assert agrees("as one of our runs", ["24"], [runs])
    assert not agrees("as one of our runs", ["71"], [runs])
    assert agrees("within 1", ["66"], [runs])  # the middle


@pytest.mark.parametrize(
    ("compare", "printed", "ours"),
    [
        ("somehow", ["1"], ["1"]),
        ("within 5 %", ["1", "2"], ["1"]),
        ("as a range", ["1"], ["1"]),
        ("by direction: rises", [], ["1"]),
    ],
)
def test_what_cannot_be_compared_is_an_error(compare, printed, ours):
    with pytest.raises(ValueError):
        agrees(compare, printed, [one(value) for value in ours])


def test_the_page_counts_what_its_rows_say():
    text = ledger.page()
    summary = next(line for line in text.splitlines() if line.startswith("**Of "))
    total, agree, directions, differ, none = map(int, re.findall(r"\d+", summary))
    assert total == len(ROWS) == agree + differ + none
    for said, count in (
        ("agrees", agree),
        ("differs", differ),
        ("not attempted", none),
    ):
        assert text.count(f"**{said}**") == count
    assert 0 < directions < agree
