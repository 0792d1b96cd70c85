"""Assignments as notebooks: one master, the student version made from it, the answers.

A master is a notebook with nbgrader's cell metadata (schema 3), and its markers for
what students do not get: `### BEGIN SOLUTION`, `### BEGIN HIDDEN TESTS` and their ENDs.
A question is a graded cell. For code that is a test cell: what stands before its hidden
part is the public check, and the hidden part defines `probe()`, which calls the answer
with freshly drawn inputs and returns numbers, never an expected value. The cells above
it, back to the question before, that are marked as solutions are its answer. For free
text the graded cell is the answer itself.

`release` gives what `nbgrader generate_assignment` gives, byte for byte the same each
time. `repair` puts a student's answers back into the released notebook, whatever has
happened to the file.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

MASTERS = Path(__file__).resolve().parent.parent / "assignments"
CODE_STUB = "# YOUR CODE HERE\nraise NotImplementedError()"
TEXT_STUB = "YOUR ANSWER HERE"
DEMO = "not-graded"  # tag of given cells that take long and that no answer needs
SHORT = 12  # a stripped line this short (`return x`) may stand elsewhere by chance
# Lines that tell nothing: a signature, a call with nothing but names.
TELLS_NOTHING = re.compile(r"(?:def|class) .*:|super\(\).*|\w+\([\w, ]*\)")


# --- a notebook's cells, as plain dicts ---


def parse(data: bytes) -> list[dict]:
    """Return the cells of a notebook's bytes, tolerating what students' tools do.

    Raises ValueError with a sentence for the student if it is no notebook of format 4.
    """
    try:
        notebook = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        raise ValueError("the file is no complete notebook") from None
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list):
        raise ValueError("the file is no notebook of format 4")
    return [_tidy(cell) for cell in cells if isinstance(cell, dict)]


def _tidy(cell: dict) -> dict:
    """Return kind, source, id and nbgrader metadata, each of its proper type."""
    source, metadata = cell.get("source", ""), cell.get("metadata")
    if isinstance(source, list):
        source = "".join(part for part in source if isinstance(part, str))
    metadata = metadata if isinstance(metadata, dict) else {}
    marks = metadata.get("nbgrader")
    identity = cell.get("id") or metadata.get("id")
    return {
        "kind": str(cell.get("cell_type")),
        "source": _text(source),
        "id": identity if isinstance(identity, str) else None,
        "marks": marks if isinstance(marks, dict) else {},
        "demo": isinstance(tags := metadata.get("tags"), list) and DEMO in tags,
    }


def _text(source) -> str:
    """Return text that any file can hold: no lone surrogates."""
    text = source if isinstance(source, str) else ""
    return text.encode("utf-8", "replace").decode()


def _cut(source: str, what: str, stub: str | None) -> tuple[str, list[str]]:
    """Return the source without its marked regions, and the lines that were in them."""
    kept: list[str] = []
    removed: list[str] = []
    inside = False
    for line in source.split("\n"):
        if f"BEGIN {what}" in line:
            if inside:
                raise ValueError(f"BEGIN {what} stands inside another")
            inside = True
            if stub is not None:
                indent = line[: len(line) - len(line.lstrip())]
                kept += [indent + part for part in stub.split("\n")]
        elif f"END {what}" in line:
            if not inside:
                raise ValueError(f"END {what} stands without a BEGIN")
            inside = False
        else:
            (removed if inside else kept).append(line)
    if inside:
        raise ValueError(f"BEGIN {what} has no END")
    return "\n".join(kept), removed


# --- masters ---


@dataclass(frozen=True)
class Question:
    """One graded idea: `probe` is the hidden check's source, None for free text."""

    name: str
    points: float
    probe: str | None


@dataclass(frozen=True)
class Assignment:
    """A master, read: its cells with and without the answers, and its questions."""

    name: str
    solved: list[dict]
    released: list[dict]
    questions: list[Question]


def read(master: str | Path) -> Assignment:
    """Read the master at a path, or by its name from the folder of masters.

    Raises ValueError if a mark, a probe or a pair of markers is missing or doubled.
    """
    path = _find(master)
    notebook = json.loads(path.read_text(encoding="utf-8"))
    released, _ = _strip(notebook)
    solved = [_tidy(cell) for cell in notebook["cells"]]
    questions = []
    for cell in solved:
        marks = cell["marks"]
        if marks.get("grade"):
            name, probe = marks["grade_id"], None
            if not marks["solution"]:
                cell["source"], lines = _cut(cell["source"], "HIDDEN TESTS", None)
                probe = "\n".join(lines)
                if "def probe()" not in probe:
                    raise ValueError(f"{path.name}: {name} has no hidden probe()")
            questions.append(Question(name, float(marks["points"]), probe))
    if not questions:
        raise ValueError(f"{path.name} has no graded cell; is it a master?")
    return Assignment(
        path.stem, solved, [_tidy(cell) for cell in released["cells"]], questions
    )


def masters(folder: Path = MASTERS) -> list[Path]:
    """Return the paths of all masters, in order."""
    return sorted(folder.glob("*.ipynb"))


def _find(master: str | Path) -> Path:
    for path in (Path(master), MASTERS / f"{master}.ipynb"):
        if path.is_file():
            return path
    known = ", ".join(path.stem for path in masters()) or "none"
    raise ValueError(f"there is no master {master!r}; in {MASTERS}: {known}")


def _strip(notebook: dict) -> tuple[dict, list[str]]:
    """Return the student version of a master, and all lines that it must not hold."""
    notebook, names = copy.deepcopy(notebook), []
    removed: list[str] = []
    for cell in notebook["cells"]:
        cell["source"] = "".join(cell["source"])
        code = cell["cell_type"] == "code"
        if code:
            cell["outputs"], cell["execution_count"] = [], None
        marks = cell.get("metadata", {}).get("nbgrader", {})
        stub = CODE_STUB if code else TEXT_STUB
        source, lines = _cut(cell["source"], "SOLUTION", stub)
        if lines and not marks.get("solution"):
            raise ValueError(f"a solution stands in an unmarked cell: {lines[0]!r}")
        if marks.get("solution") and not lines:
            source, lines = stub, cell["source"].split("\n")
        source, hidden = _cut(source, "HIDDEN TESTS", None)
        if hidden and not marks.get("grade"):
            raise ValueError(f"a hidden test stands in an ungraded cell: {hidden[0]!r}")
        cell["source"], removed = source, removed + lines + hidden
        if marks.get("solution") or marks.get("grade") or marks.get("locked"):
            names.append(marks["grade_id"])
            marks["cell_type"] = cell["cell_type"]
            marks["checksum"] = _checksum(cell)
            cell["metadata"]["deletable"] = False
            if not marks.get("solution"):
                cell["metadata"]["editable"] = False
    if len(set(names)) < len(names):
        raise ValueError("a grade_id stands twice")
    return notebook, removed


def _checksum(cell: dict) -> str:
    """Return nbgrader's own checksum of a cell (nbgrader.utils.compute_checksum)."""
    marks = cell["metadata"]["nbgrader"]
    grade, solution = bool(marks.get("grade")), bool(marks.get("solution"))
    locked = not solution and (grade or bool(marks.get("locked")))
    parts = [cell["source"], cell["cell_type"], grade, solution, locked]
    parts += [marks["grade_id"], *([float(marks["points"])] if grade else [])]
    return hashlib.md5("".join(map(str, parts)).encode()).hexdigest()


def release(master: str | Path) -> str:
    """Return the student version of a master as a notebook's text.

    Raises ValueError if a line of a solution or of a hidden test would be in it.
    """
    notebook = json.loads(_find(master).read_text(encoding="utf-8"))
    notebook, removed = _strip(notebook)
    leaked = leaks(notebook, removed)
    if leaked:
        raise ValueError(f"the student version would show {leaked[0]!r}")
    for cell in notebook["cells"]:
        cell["source"] = cell["source"].splitlines(keepends=True)
    text = json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False)
    return text + "\n"


def leaks(notebook: dict, removed: Sequence[str]) -> list[str]:
    """Return the removed lines that any string in the notebook still holds."""
    texts = []

    def collect(value):
        if isinstance(value, dict):
            for key, entry in value.items():
                collect(key)
                collect(entry)
        elif isinstance(value, list):
            for entry in value:
                collect(entry)
        elif isinstance(value, str):
            texts.append(value)

    collect(notebook)
    everything = "\n".join(texts)
    return [
        line
        for line in map(str.strip, removed)
        if len(line) > SHORT
        and line in everything
        and not TELLS_NOTHING.fullmatch(line)
    ]


# --- students' notebooks ---

DEFINED = re.compile(r"^(?:def|class)\s+(\w+)|^(\w+)\s*=(?!=)", re.MULTILINE)


@dataclass
class Submission:
    """A student's answers in the released notebook's order, and what was mended.

    `cells`: (name, source) of the code to run, test cells left out.
    `answers`: question or answer cell → the student's source, free text included.
    """

    cells: list[tuple[str, str]] = field(default_factory=list)
    answers: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def repair(assignment: Assignment, cells: Sequence[dict]) -> Submission:
    """Put a student's answers into the released notebook's places.

    A cell is recognised by its grade_id, else by its cell id, else by its text, else
    (an answer) by the names it defines or by the cell before it. Given cells come from
    the release; cells that the student added stay where they stood, and so does a given
    cell that was changed, just before the real one. Of several answers to one question
    all run, in the student's order, so that the last one counts, as in the notebook.
    """
    released, made = assignment.released, Submission()
    places = _recognise(released, cells)
    answers = {
        place: _different(cells, _standing(places, place), given["source"])
        for place, given in enumerate(released)
        if given["marks"].get("solution")
    }
    extra: dict[int, list[int]] = {}  # place → student's cells that run before it
    upcoming = len(released)
    for at in reversed(range(len(cells))):
        place = places[at]
        if place is None:
            runs = cells[at]["kind"] == "code"
        else:
            upcoming, given = place, released[place]
            runs = place not in answers and given["kind"] == "code"
            runs = runs and _changed(cells[at], given, made)
        if runs and cells[at]["source"].strip():
            extra.setdefault(upcoming, []).insert(0, at)

    for place, given in enumerate(released):
        made.cells += _own(cells, extra.get(place, []))
        name, source = given["marks"].get("grade_id"), given["source"]
        found = answers.get(place, [])
        if place in answers:
            made.answers[name] = "\n\n".join(cells[at]["source"] for at in found)
            if not found:
                made.missing.append(name)
            elif given["kind"] == "code":
                source = cells[found[0]]["source"]
            if len(found) > 1:
                made.notes.append(
                    f"{name}: answered {len(found)} times, the last counts"
                )
        if given["kind"] == "code" and not _is_test(given) and not given["demo"]:
            made.cells.append((name or f"given cell {place + 1}", source))
            made.cells += _own(cells, found[1:])
    made.cells += _own(cells, extra.get(len(released), []))
    return made


def code(cells: Sequence[dict]) -> list[tuple[str, str]]:
    """Return (name, source) of the cells that grading runs: no check, no long demo."""
    return [
        (cell["marks"].get("grade_id", f"given cell {k + 1}"), cell["source"])
        for k, cell in enumerate(cells)
        if cell["kind"] == "code" and not _is_test(cell) and not cell["demo"]
    ]


def known_cells(assignment: Assignment, cells: Sequence[dict]) -> int:
    """Return how many of the assignment's cells a notebook holds."""
    return len(set(_recognise(assignment.released, cells)) - {None})


def _own(cells, positions) -> list[tuple[str, str]]:
    return [(f"your cell {at + 1}", cells[at]["source"]) for at in positions]


def _is_test(cell: dict) -> bool:
    return bool(cell["marks"].get("grade")) and not cell["marks"].get("solution")


def _changed(cell: dict, given: dict, made: Submission) -> bool:
    """Note a given cell that was changed; return whether the change should run."""
    if given["demo"] or cell["source"].strip() == given["source"].strip():
        return False
    if _is_test(given):
        name = given["marks"]["grade_id"]
        made.notes.append(f"{name}: its check was changed; the grader uses its own")
        return False
    made.notes.append("a given cell was changed: it runs before the real one")
    return True


def _standing(places: Sequence[int | None], place: int) -> list[int]:
    return [at for at, p in enumerate(places) if p == place]


def _different(cells, positions: Sequence[int], stub: str) -> list[int]:
    """Return the positions of real answers: no stub, no exact repeat of an earlier."""
    seen, kept = {stub.strip(), ""}, []
    for at in positions:
        source = cells[at]["source"].strip()
        if source not in seen:
            seen.add(source)
            kept.append(at)
    return kept


def _recognise(released: Sequence[dict], cells: Sequence[dict]) -> list[int | None]:
    """Return, for each of a student's cells, the released cell that it is."""
    by_mark = {c["marks"]["grade_id"]: k for k, c in enumerate(released) if c["marks"]}
    by_id = {c["id"]: k for k, c in enumerate(released) if c["id"]}
    by_text = {c["source"].strip(): k for k, c in enumerate(released)}
    places: list[int | None] = []
    for cell in cells:
        mark = cell["marks"].get("grade_id")
        place = by_mark.get(mark) if isinstance(mark, str) else None
        if place is None:
            place = by_id.get(cell["id"])
        if place is None:
            place = by_text.get(cell["source"].strip())
        places.append(place)

    for place, given in enumerate(released):
        if not given["marks"].get("solution"):
            continue
        if _different(cells, _standing(places, place), given["source"]):
            continue
        if given["kind"] == "code":
            names = _names(given["source"])
            for at, cell in enumerate(cells):
                if places[at] is None and names and names <= _names(cell["source"]):
                    places[at] = place
        else:
            for at, before in enumerate(places[:-1]):
                if before == place - 1 and places[at + 1] is None:
                    places[at + 1] = place
                    break
    return places


def _names(source: str) -> set[str]:
    return {a or b for a, b in DEFINED.findall(source)}
