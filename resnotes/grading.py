"""Assignments: student versions from masters, and a folder of submissions to grades.

    python -m resnotes.grading release NAME          → NAME.ipynb for the students
    python -m resnotes.grading grade FOLDER          → grades.csv, feedback, free text
    python -m resnotes.grading merge GRADES MARKS    → the marks for free text, added

Grading a submission takes four steps, each in a module of its own. `submissions` finds
the notebooks in a download and reads them without unpacking anything. `assignments`
puts the answers back into the released notebook. `sandbox` runs the cells where they
can reach nothing and asks probes what the functions compute, for inputs drawn from a
seed that is new in every run. This module judges: the master's solution has answered
the same probes in a sandbox of its own, and numbers are compared with numbers, here,
where no student's code runs.

So a forged reply earns nothing unless it holds the right values for this run's inputs,
which a submission can only compute; what it learns of a probe it learns after its cells
have run, without a way out, and the feedback it gets is a verdict for each question.
"""

from __future__ import annotations

import argparse
import builtins
import csv
import functools
import hashlib
import html
import io
import json
import math
import os
import platform
import re
import secrets
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from . import assignments, sandbox, submissions
from .assignments import Assignment, Question, Submission
from .sandbox import Limits, Outcome
from .submissions import Received

RELATIVE, ABSOLUTE = 1e-3, 1e-4  # of the value, and of the largest in its array


# --- one submission ---


@dataclass
class Grade:
    """A student's result. `points` and `said`: question → points and the reason why.

    Points are None where a person has yet to mark. `status` is the gravest of ok,
    late-cell, crashed, timeout, tampered, unreadable.
    """

    student: str
    id: str = ""
    status: str = "ok"
    points: dict[str, float | None] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)
    needs_human: bool = False
    answers: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def total(self) -> float:
        """The points so far."""
        return sum(points for points in self.points.values() if points is not None)


NOT_ANSWERED, BY_HAND = "not answered", "marked by a person"
GRAVITY = ("ok", "late-cell", "crashed", "timeout", "tampered", "unreadable")


def same_numbers(expected, got) -> str:
    """Compare two (shape, numbers) pairs: "" if they agree, else what differs.

    |got − expected| ≤ 1e-3 |expected| + 1e-4 max|expected|, entry by entry.

    >>> same_numbers(([2], [1.0, 2.0]), ([2], [1.0, 2.001]))
    ''
    >>> same_numbers(([2], [1.0, 2.0]), ([], [1.0]))
    'the result has another shape than it should'
    """
    (shape, values), (got_shape, got_values) = expected, got
    if list(shape) != list(got_shape) or len(values) != len(got_values):
        return "the result has another shape than it should"
    room = ABSOLUTE * max((abs(v) for v in values), default=0.0)
    for value, other in zip(values, got_values, strict=True):
        if not abs(other - value) <= RELATIVE * abs(value) + room:
            return "the values are not right for inputs drawn afresh"
    return ""


def best_notebook(assignment: Assignment, received: Received) -> tuple[Submission, int]:
    """Return a student's answers from the notebook that holds most of them.

    The second value is how many notebooks could have been meant. Raises ValueError,
    with a sentence, if none can be read or none belongs to the assignment.
    """
    candidates, problem = [], "no notebook was handed in"
    for _, data in received.notebooks:
        try:
            cells = assignments.parse(data)
        except ValueError as error:
            problem = str(error)
            continue
        if assignments.known_cells(assignment, cells) == 0:
            problem = f"the notebook has no cell of {assignment.name}"
            continue
        made = assignments.repair(assignment, cells)
        answered = sum(map(bool, made.answers.values()))
        candidates.append((answered, made))
    if not candidates:
        raise ValueError(problem)
    return max(candidates, key=lambda pair: pair[0])[1], len(candidates)


def judge(
    assignment: Assignment, expected: Outcome, made: Submission, outcome: Outcome
) -> Grade:
    """Turn what a submission's probes returned into points and sentences."""
    grade = Grade("", seconds=round(outcome.seconds, 2), answers=made.answers)
    grade.notes = list(made.notes)
    for question in assignment.questions:
        points, said = _judge_one(question, expected, made, outcome)
        grade.points[question.name], grade.said[question.name] = points, said
    probed = {question.name for question in assignment.questions}
    grade.errors = {
        step: f"{kind}: {text}"
        for step, (kind, text) in outcome.errors.items()
        if step not in probed  # a probe's error could tell what the probe is
    }
    for step, (status, sentence) in outcome.stopped.items():
        grade.status = max(grade.status, status, key=GRAVITY.index)
        grade.notes.append(f"{step} {sentence}")
    return grade


def _judge_one(question: Question, expected, made, outcome):
    name = question.name
    answers = [k for k in made.answers if k in (name, f"{name}-answer")]
    unanswered = all(k in made.missing for k in answers)
    if question.probe is None:
        return (0.0, NOT_ANSWERED) if unanswered else (None, BY_HAND)
    if unanswered:
        return 0.0, NOT_ANSWERED
    if name in outcome.stopped:
        return 0.0, f"your answer {outcome.stopped[name][1]}"
    if name in outcome.errors:
        kind = outcome.errors[name][0]
        known = isinstance(getattr(builtins, kind, None), type)
        return 0.0, f"your answer raised {kind if known else 'an error'} when called"
    if name not in outcome.values:
        return 0.0, "your notebook did not get as far as this answer"
    wrong = same_numbers(expected.values[name], outcome.values[name])
    return (0.0, wrong) if wrong else (question.points, "right")


# --- a folder of submissions ---


def _task(cells, probes, seed: int, limits: Limits, unsafe: bool) -> Outcome:
    """Run one submission; on a Dask worker this is what travels."""
    if not unsafe:
        _require_sandbox_here()
    return sandbox.run(cells, probes, seed, limits, unsafe=unsafe)


@functools.cache
def _require_sandbox_here() -> None:
    """Raise NoSandboxError if this machine, a worker perhaps, can make no sandbox."""
    try:
        sandbox.require_sandbox()
    except sandbox.NoSandboxError as error:
        raise sandbox.NoSandboxError(f"{platform.node()}: {error}") from None


def _probes(assignment: Assignment) -> list[tuple[str, str]]:
    return [(q.name, q.probe) for q in assignment.questions if q.probe is not None]


def expected_values(
    assignment: Assignment,
    seed: int,
    limits: Limits | None = None,
    *,
    unsafe: bool = False,
) -> Outcome:
    """Return what the master's own solution answers to the probes.

    Raises RuntimeError if it fails, or gives anything but finite, telling numbers.
    """
    cells = assignments.code(assignment.solved)
    outcome = sandbox.run(cells, _probes(assignment), seed, limits, unsafe=unsafe)
    if outcome.errors or outcome.stopped:
        raise RuntimeError(
            f"the master {assignment.name} does not run: "
            f"{outcome.errors or outcome.stopped}"
        )
    for name, (_, values) in outcome.values.items():
        if not all(map(math.isfinite, values)) or not any(values):
            raise RuntimeError(f"{assignment.name}: probe {name} gives {values[:5]}")
    return outcome


def grade(
    received: Sequence[Received],
    assignment: Assignment,
    *,
    seed: int | None = None,
    limits: Limits | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    unsafe: bool = False,
    done: Path | None = None,
    progress: bool = False,
) -> list[Grade]:
    """Grade all submissions; one that fails in any way fails alone.

    `workers` submissions run at a time (default: one per core), or as many as the Dask
    cluster at `scheduler` takes. With a folder `done`, outcomes are kept there and a
    second call takes up where the first was stopped.
    """
    limits = limits or Limits()
    if not unsafe:
        sandbox.require_sandbox()
    seed = _seed(done) if seed is None else seed
    expected = expected_values(assignment, seed, limits, unsafe=unsafe)
    grades: dict[str, Grade] = {}
    waiting: dict[str, tuple[Submission, list, str]] = {}
    outcomes: dict[str, Outcome] = {}
    for student in received:
        try:
            made, choice = best_notebook(assignment, student)
        except ValueError as error:
            grades[student.student] = _unreadable(assignment, str(error))
            continue
        if choice > 1:
            made.notes.append(f"{choice} notebooks; the one with most answers counts")
        key = _digest(made, assignment, seed)
        waiting[student.student] = (made, made.cells, key)
        kept = _kept(done, key)
        if kept:
            outcomes[student.student] = kept

    tasks = {
        name: (cells, _probes(assignment), seed, limits, unsafe)
        for name, (_, cells, _) in waiting.items()
        if name not in outcomes
    }
    bar = _bar(len(received), len(received) - len(tasks), progress)
    with bar, _run_all(tasks, workers, scheduler) as finished:
        for name, outcome in finished:
            outcomes[name] = outcome
            _keep(done, waiting[name][2], outcome)
            bar.update()
    for name, (made, _, _) in waiting.items():
        grades[name] = judge(assignment, expected, made, outcomes[name])
    for student in received:
        _finish(grades[student.student], student)
    return [grades[student.student] for student in received]


def _finish(grade: Grade, student: Received) -> None:
    grade.student, grade.id = student.student, student.id
    grade.notes += sorted(set(student.problems))
    if student.unsafe:
        grade.status = max(grade.status, "tampered", key=GRAVITY.index)
    grade.needs_human = grade.status != "ok" or bool(grade.notes)


def _unreadable(assignment: Assignment, why: str) -> Grade:
    grade = Grade("", status="unreadable", notes=[why])
    for question in assignment.questions:
        grade.points[question.name], grade.said[question.name] = 0.0, why
    return grade


class _run_all:
    """A context that yields (name, outcome) as submissions finish, here or on Dask."""

    def __init__(self, tasks: dict, workers: int | None, scheduler: str | None):
        self.tasks, self.scheduler = tasks, scheduler
        self.workers = workers or os.cpu_count() or 1

    def __enter__(self) -> Iterator[tuple[str, Outcome]]:
        self.pool: Any
        completed: Any
        if self.scheduler:
            from distributed import Client
            from distributed import as_completed as as_finished

            self.pool, completed = Client(self.scheduler), as_finished
        else:  # threads only wait: the work is in the sandboxes' processes
            self.pool, completed = ThreadPoolExecutor(self.workers), as_completed
        pure = {"pure": False} if self.scheduler else {}
        names = {
            self.pool.submit(_task, *task, **pure): name
            for name, task in self.tasks.items()
        }
        return self._results(names, completed)

    def _results(self, names, completed):
        for future in completed(names):
            try:
                outcome = future.result()
            except sandbox.NoSandboxError:
                raise
            except Exception as error:  # of ours or of the cluster's, for one student
                outcome = Outcome()
                sentence = f"could not be run ({type(error).__name__})"
                outcome.stopped["submission"] = ("crashed", sentence)
            yield names[future], outcome

    def __exit__(self, *error):
        if self.scheduler:
            self.pool.close()
        else:
            self.pool.shutdown(wait=True, cancel_futures=True)


def _bar(total: int, initial: int, progress: bool):
    from tqdm import tqdm

    return tqdm(
        total=total, initial=initial, disable=not progress, desc="graded", unit=""
    )


# --- what is kept between two runs ---


def _seed(done: Path | None) -> int:
    """Return this run's seed: a fresh one, or the one of the run being resumed."""
    if done is None:
        return secrets.randbits(31)
    done.mkdir(parents=True, exist_ok=True)
    path = done / "seed"
    if not path.exists():
        path.write_text(str(secrets.randbits(31)))
    return int(path.read_text())


def _digest(made: Submission, assignment: Assignment, seed: int) -> str:
    what = json.dumps([made.cells, _probes(assignment), seed])
    return hashlib.sha256(what.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _kept(done: Path | None, key: str) -> Outcome | None:
    if done is None:
        return None
    try:
        return Outcome(**json.loads((done / f"{key}.json").read_text()))
    except (TypeError, OSError, ValueError):  # never run, or cut off while written
        return None


def _keep(done: Path | None, key: str, outcome: Outcome) -> None:
    if done is not None:
        partial = done / f"{key}.partial"
        partial.write_text(json.dumps(asdict(outcome)))
        partial.replace(done / f"{key}.json")


# --- reports ---


def _short(name: str) -> str:
    """Return a question's name without its assignment: 1-q2 → q2."""
    return name.split("-", 1)[-1]


def _number(points: float | None) -> str:
    return "" if points is None else f"{points:g}"


def write_reports(
    grades: Sequence[Grade], assignment: Assignment, out: str | Path
) -> list[str]:
    """Write grades.csv, grades.json, feedback/, free_text.html, marks.csv, answers/.

    Marks that `out` holds from an earlier run are kept where the answer is the same.
    Returns a sentence for each that is not; a copy of the earlier marks.csv has it.
    """
    out = Path(out)
    kept, lost = _keep_marks(grades, assignment, out)
    for folder in ("feedback", "answers"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    _write_grades(grades, assignment.questions, assignment.name, out)
    _write_free_text(grades, assignment, out)
    by_hand = [q for q in assignment.questions if q.probe is None]
    _write_marks(_rows_to_fill(grades, by_hand) | kept, out)
    for grade in grades:
        for name, source in grade.answers.items():
            place = out / "answers" / _short(name)
            place.mkdir(exist_ok=True)
            path = place / f"{grade.student}.{'py' if 'answer' in name else 'txt'}"
            path.write_text(source, encoding="utf-8", errors="replace")
    return lost


def _write_grades(grades, questions: Sequence[Question], name: str, out: Path) -> None:
    with open(out / "grades.csv", "w", newline="", encoding="utf-8") as stream:
        table = csv.writer(stream)
        columns = [_short(q.name) for q in questions]
        table.writerow(
            ["student", "id", "status", "needs_human", *columns, "total", "of"]
        )
        most = sum(q.points for q in questions)
        for grade in grades:
            points = [_number(grade.points[q.name]) for q in questions]
            human = "yes" if grade.needs_human else ""
            row = [grade.student, grade.id, grade.status, human, *points]
            table.writerow([*row, _number(grade.total), _number(most)])
    for grade in grades:
        page = feedback_page(grade, questions, name)
        (out / "feedback" / f"{grade.student}.html").write_text(page, encoding="utf-8")
    everything = {
        "assignment": name,
        "questions": [{"name": q.name, "points": q.points} for q in questions],
        "grades": [asdict(grade) for grade in grades],
    }
    text = json.dumps(everything, indent=1, ensure_ascii=True)
    (out / "grades.json").write_text(text, encoding="utf-8")


PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 44rem; margin: 2rem auto;
 padding: 0 1rem; }}
h1, td {{ overflow-wrap: anywhere; }}
th, td {{ text-align: left; padding: .2rem 1rem .2rem 0; vertical-align: top; }}
pre {{ white-space: pre-wrap; overflow-wrap: anywhere; border-left: 3px solid;
 padding-left: 1rem; }}
</style>
<h1>{title}</h1>
{body}
</html>
"""


def feedback_page(grade: Grade, questions: Sequence[Question], name: str) -> str:
    """Return a student's page: verdicts and what was mended, no check, no solution."""
    rows = "".join(
        f"<tr><th>{_short(q.name)}<td>{_number(grade.points[q.name]) or 'open'} "
        f"of {q.points:g}<td>{html.escape(grade.said[q.name])}"
        for q in questions
    )
    most = sum(q.points for q in questions)
    body = [
        f"<p>{html.escape(grade.student)}: {grade.total:g} of {most:g} points.",
        f"<table>{rows}</table>",
        "<p>A question is right if your answer gives the right numbers for inputs "
        "drawn afresh. <code>check</code> in your notebook names the likely cause "
        "where it does not.",
    ]
    if grade.status != "ok" or grade.notes:
        body.append(f"<h2>Reading your file ({grade.status})</h2><ul>")
        body += [f"<li>{html.escape(note)}" for note in grade.notes]
        body.append("</ul>")
    if grade.errors:
        body.append("<h2>Cells that ended in an error</h2>")
        for step, text in grade.errors.items():
            body.append(f"<p>{html.escape(step)}<pre>{html.escape(text)}</pre>")
    title = html.escape(f"{name}: feedback")
    return PAGE.format(title=title, body="\n".join(body))


# --- marks that a person gave ---


MARKS = ("student", "question", "points", "of", "comment")
Row = dict[str, str]  # a row of marks.csv, with its "line" there
Rows = dict[tuple[str, str], Row]  # by student and question


def _read_marks(path: Path) -> Rows:
    """Return the rows of a marks.csv, with commas, semicolons or tabs between cells.

    It is UTF-8 or, as Excel saves it in Europe, Windows' encoding. Raises ValueError,
    with a sentence, for what is no such table.
    """
    data = path.read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("cp1252", "replace")
    header = text.partition("\n")[0]
    between = max(",;\t", key=header.count)
    stream = io.StringIO(text, newline="")
    table = csv.DictReader(stream, delimiter=between, restval="", strict=True)
    rows = {}
    try:
        if missing := [c for c in MARKS if c not in (table.fieldnames or ())]:
            raise ValueError(
                f"{path}, line 1: no column {', '.join(missing)}; a table of marks has "
                f"the columns {', '.join(MARKS)}"
            )
        for row in table:
            if any(row.pop(None, ())):
                raise ValueError(
                    f"{path}, line {table.line_num}: more cells than columns; a comma "
                    "within a cell needs quotes around the cell"
                )
            row = {column: row[column].strip() for column in MARKS}
            row["line"] = str(table.line_num)
            rows[row["student"], row["question"]] = row
    except csv.Error as error:
        raise ValueError(f"{path}, line {table.reader.line_num}: {error}") from None
    return rows


def _points(row: Row, question: Question, path: Path) -> float | None:
    """Return a row's points, None if a person has yet to give them."""
    text = row["points"].replace(",", ".")
    if not text:
        return None
    points = float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else -1.0
    if not 0 <= points <= question.points:
        raise ValueError(
            f"{path}, line {row['line']}: points {text!r}, expected a number from 0 "
            f"to {question.points:g}"
        )
    return points


def _apply(row: Row, grade: Grade, question: Question, path: Path) -> None:
    points = _points(row, question, path)
    if points is not None:
        grade.points[question.name] = points
    if points is not None or row["comment"]:
        grade.said[question.name] = row["comment"] or BY_HAND


def _earlier(assignment: Assignment, out: Path) -> tuple[Rows, dict]:
    """Return the marks in `out`, and student → the answers that they were given for.

    Raises ValueError, with a sentence, if either cannot be read or a mark is none.
    """
    sheet, path = out / "marks.csv", out / "grades.json"
    if not sheet.exists():
        return {}, {}
    rows = _read_marks(sheet)
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        answers = {grade["student"]: grade["answers"] for grade in stored["grades"]}
    except FileNotFoundError:
        answers = {}
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path} is broken; remove it, and grade again") from None
    asked = {_short(q.name): q for q in assignment.questions}
    for (_, short), row in rows.items():
        if short in asked:
            _points(row, asked[short], sheet)
    return rows, answers


def _keep_marks(grades, assignment: Assignment, out: Path) -> tuple[Rows, list[str]]:
    """Put the marks of an earlier run into the grades; return which, and which not."""
    rows, before = _earlier(assignment, out)
    mine = {grade.student: grade for grade in grades}
    asked = {_short(q.name): q for q in assignment.questions}
    kept: Rows = {}
    lost = []
    for (student, short), row in rows.items():
        grade, question = mine.get(student), asked.get(short)
        if not row["points"] and not row["comment"]:
            continue
        if grade is None:
            why = "no submission of that name"
        elif question is None:
            why = "no such question"
        elif student not in before:
            why = "nothing says which answer it was for"
        elif _answer(before[student], question) != _answer(grade.answers, question):
            why = "another answer now"
        else:
            _apply(row, grade, question, out / "marks.csv")
            kept[student, short] = row
            continue
        lost.append(f"{student}, {short}: {row['points'] or row['comment']} ({why})")
    return kept, lost


def _answer(answers: dict[str, str], question: Question) -> list[str | None]:
    """Return what was answered to a question: text, or code in a cell before it."""
    return [answers.get(k) for k in (question.name, f"{question.name}-answer")]


def _rows_to_fill(grades, questions: Sequence[Question]) -> Rows:
    """Return a row for each answer that a person marks."""
    rows = {}
    for question in questions:
        for grade in grades:
            said = grade.said[question.name]
            if said != NOT_ANSWERED and grade.status != "unreadable":
                key = grade.student, _short(question.name)
                row = (*key, "", _number(question.points), "")
                rows[key] = dict(zip(MARKS, row, strict=True))
    return rows


def _write_marks(rows: Rows, out: Path) -> None:
    """Write marks.csv; what was there, perhaps hours of marking, stays as a copy."""
    stream, path = io.StringIO(), out / "marks.csv"
    table = csv.DictWriter(stream, MARKS, extrasaction="ignore")
    table.writeheader()
    table.writerows(rows.values())
    data = stream.getvalue().encode()
    if path.exists():
        if path.read_bytes() == data:
            return
        number = 1
        while (copy := out / f"marks.csv.bak{number}").exists():
            number += 1
        path.rename(copy)
    path.write_bytes(data)


def _asked(assignment: Assignment, question: Question) -> tuple[str, str]:
    """Return the text of a free-text question and the master's answer to it."""
    before = ""
    for cell in assignment.solved:
        if cell["marks"].get("grade_id") == question.name:
            return before, cell["source"]
        before = cell["source"]
    raise ValueError(f"{assignment.name} has no question {question.name}")


def _write_free_text(grades, assignment: Assignment, out: Path) -> None:
    """Write the page to mark from."""
    body = []
    for question in assignment.questions:
        if question.probe is not None:
            continue
        short = _short(question.name)
        body.append(f"<h2>{short}, {question.points:g} points</h2>")
        texts = (
            f"<pre>{html.escape(text)}</pre>" for text in _asked(assignment, question)
        )
        body.append("<details><summary>The question, and a good answer</summary>")
        body += [*texts, "</details>"]
        for grade in grades:
            if grade.said[question.name] != NOT_ANSWERED and grade.answers:
                text = html.escape(grade.answers[question.name])
                points = grade.points[question.name]
                marked = (
                    "" if points is None else f": {points:g} of {question.points:g}"
                )
                who = html.escape(f"{grade.student}{marked}")
                body.append(f"<h3>{who}</h3><pre>{text}</pre>")
    title = html.escape(f"{assignment.name}: free text to mark")
    page = PAGE.format(title=title, body="\n".join(body))
    page = page.encode("utf-8", "replace").decode()
    (out / "free_text.html").write_text(page, encoding="utf-8")


def merge(out: str | Path, marks: str | Path) -> int:
    """Add the points of a filled-in marks.csv to the grades in `out`; return how many.

    Rows without points are left open; a comment counts without points. Raises
    ValueError, with the line's number, for a student or question that is not there and
    for points out of range, before anything is written. `marks` is never written to;
    from another file the marks are noted in `out`/marks.csv, for the next `grade`.
    """
    out, marks = Path(out), Path(marks)
    stored = json.loads((out / "grades.json").read_text(encoding="utf-8"))
    grades = {g["student"]: Grade(**g) for g in stored["grades"]}
    questions = [Question(q["name"], q["points"], None) for q in stored["questions"]]
    asked = {_short(q.name): q for q in questions}
    rows = _read_marks(marks)
    filled = {k: row for k, row in rows.items() if row["points"] or row["comment"]}
    for (student, short), row in filled.items():
        if student not in grades or short not in asked:
            raise ValueError(
                f"{marks}, line {row['line']}: no student {student!r} with a "
                f"question {short!r} in the grades"
            )
        _apply(row, grades[student], asked[short], marks)
    sheet = out / "marks.csv"
    own = sheet.exists() and sheet.samefile(marks)
    noted = _read_marks(sheet) if sheet.exists() and not own else {}
    _write_grades(list(grades.values()), questions, stored["assignment"], out)
    if not own:
        for key, row in filled.items():
            given = {column: cell for column, cell in row.items() if cell}
            noted[key] = noted.get(key, row) | given
        _write_marks(noted, out)
    return sum(bool(row["points"]) for row in filled.values())


# --- the command line ---


def which_assignment(received: Iterable[Received]) -> Assignment:
    """Return the assignment that most cells of some submissions belong to."""
    known = [assignments.read(path) for path in assignments.masters()]
    votes = [0] * len(known)
    for student in list(received)[:30]:
        for _, data in student.notebooks:
            try:
                cells = assignments.parse(data)
            except ValueError:
                continue
            counts = [assignments.known_cells(a, cells) for a in known]
            votes[counts.index(max(counts))] += max(counts) > 0
    if not any(votes):
        raise ValueError("no submission belongs to a known assignment")
    return known[votes.index(max(votes))]


def _release(chosen) -> None:
    text = assignments.release(chosen.name)
    path = chosen.out or Path(f"{Path(chosen.name).stem}.ipynb")
    if path.exists() and path.resolve().parent == assignments.MASTERS:
        raise ValueError(f"{path} is the master; choose another --out")
    path.write_text(text, encoding="utf-8", newline="\n")
    print(f"{path}: hand this file out.")


def _grade(chosen) -> None:
    received = submissions.find(chosen.folder)
    if chosen.assignment:
        assignment = assignments.read(chosen.assignment)
    else:
        assignment = which_assignment(received)
    out = chosen.out or chosen.folder.with_name(f"{chosen.folder.stem}-grades")
    limits = Limits(
        cell=chosen.cell_seconds,
        submission=chosen.submission_seconds,
        memory=int(chosen.memory_gb * 2**30),
    )
    if chosen.unsafe:
        print(
            "UNSAFE: students' code runs as you, with your files and your network. "
            "Stop this now if you have not read every submission.",
            file=sys.stderr,
        )
    print(f"{len(received)} submissions to {assignment.name}", file=sys.stderr)
    _earlier(assignment, out)  # a mark that cannot be read is better told before hours
    grades = grade(
        received,
        assignment,
        limits=limits,
        workers=chosen.workers,
        scheduler=chosen.scheduler,
        unsafe=chosen.unsafe,
        done=out / "done",
        progress=True,
    )
    lost = write_reports(grades, assignment, out)
    for status in GRAVITY:
        if count := sum(g.status == status for g in grades):
            print(f"{count:5} {status}")
    people = [g.student for g in grades if g.needs_human]
    if people:
        print(f"Look at these yourself: {', '.join(people)}.")
    if lost:
        print("Earlier marks not kept; the last marks.csv.bak has them:")
        print(*(f"  {mark}" for mark in lost), sep="\n")
    print(f"Grades: {out / 'grades.csv'}. A page a student: {out / 'feedback'}.")
    if any(q.probe is None for q in assignment.questions):
        print(
            f"Free text: read {out / 'free_text.html'}, fill in {out / 'marks.csv'}, "
            f"then `python -m resnotes.grading merge {out} {out / 'marks.csv'}`."
        )


def _merge(chosen) -> None:
    count = merge(chosen.grades, chosen.marks)
    print(f"{count} marks added to {chosen.grades / 'grades.csv'}.")


def main(arguments: list[str] | None = None) -> int:
    """Run `release`, `grade` or `merge` from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m resnotes.grading", description=__doc__.partition("\n")[0]
    )
    commands = parser.add_subparsers(required=True)
    add = commands.add_parser("release", help="make the student version of a master")
    add.add_argument("name", help="1_vanishing_gradients, …, or a path")
    add.add_argument("--out", type=Path, help="default: NAME.ipynb in this folder")
    add.set_defaults(run=_release)
    add = commands.add_parser("grade", help="grade a folder or zip of submissions")
    add.add_argument("folder", type=Path)
    add.add_argument("--assignment", help="default: the one most submissions belong to")
    add.add_argument("--out", type=Path, help="default: FOLDER-grades")
    add.add_argument("--workers", type=int, help="default: one per core")
    add.add_argument("--scheduler", help="address of a Dask cluster to spread over")
    add.add_argument("--cell-seconds", type=float, default=Limits.cell)
    add.add_argument("--submission-seconds", type=float, default=Limits.submission)
    add.add_argument("--memory-gb", type=float, default=Limits.memory / 2**30)
    add.add_argument("--unsafe", action="store_true", help="without a sandbox")
    add.set_defaults(run=_grade)
    add = commands.add_parser("merge", help="add marks for free text to the grades")
    add.add_argument("grades", type=Path, help="the folder that holds grades.json")
    add.add_argument("marks", type=Path, help="a filled-in marks.csv")
    add.set_defaults(run=_merge)
    chosen = parser.parse_args(arguments)
    try:
        chosen.run(chosen)
    except (ValueError, OSError, sandbox.NoSandboxError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
