"""Grading: releases without leaks, messy files, wrong answers, hostile submissions."""

import csv
import io
import json
import os
import re
import shutil
import stat
import tomllib
import zipfile
from pathlib import Path

import pytest
import torch
from hostile import HOSTILE
from sample_submissions import ONE, answered, from_colab, released
from wrong_answers import WRONG

from resnotes import assignments, grading, sandbox, submissions
from resnotes.sandbox import Limits
from resnotes.submissions import Received

NAMES = sorted(WRONG)
FULL = {"q1": 3, "q2": 3, "q3": 3, "q4": 2, "q5": None}

needs_sandbox = pytest.mark.skipif(
    shutil.which("bwrap") is None and not os.environ.get("CI"),
    reason="bubblewrap is not installed",
)


def sent(student, notebook, name="notebook.ipynb"):
    data = notebook if isinstance(notebook, bytes) else json.dumps(notebook).encode()
    return Received(student, notebooks=[(name, data)])


def points(grade):
    return {name.split("-", 1)[1]: value for name, value in grade.points.items()}


# --- releases ---


# Lines of solutions and probes that the question itself shows: signatures, a call.
HARMLESS = {
    "def forward(self, x):",
    "start_as_identity(branch)",
    "class Block(nn.Module):",
    "def __init__(self, width):",
    "super().__init__()",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_release_holds_nothing_of_the_solution(name):
    text = assignments.release(name)
    assert text == assignments.release(name), "the same bytes each time"
    master = json.loads((assignments.MASTERS / f"{name}.ipynb").read_text("utf-8"))
    strings = "\n".join(
        json.loads(f'"{s}"') for s in re.findall(r'"((?:[^"\\]|\\.)*)"', text)
    )
    hidden = 0
    for cell in master["cells"]:
        source = "".join(cell["source"])
        for what in ("SOLUTION", "HIDDEN TESTS"):
            for part in re.findall(rf"BEGIN {what}\n(.*?)### END {what}", source, re.S):
                for line in filter(None, map(str.strip, part.split("\n"))):
                    hidden += 1
                    if len(line) > assignments.SHORT and line not in HARMLESS:
                        assert line not in strings
        marks = cell["metadata"].get("nbgrader", {})
        if cell["cell_type"] == "markdown" and marks.get("solution"):
            assert all(line not in strings for line in source.split("\n"))
    assert hidden > 30
    notebook = json.loads(text)
    assert not any(cell.get("outputs") for cell in notebook["cells"])
    assert not any(cell.get("execution_count") for cell in notebook["cells"])
    for trace in ("BEGIN SOLUTION", "HIDDEN", "def probe"):
        assert trace not in text


def test_no_solution_stands_in_the_book():
    """Of each solution's lines that tell something, most are in no chapter."""
    book = set()
    for path in (assignments.MASTERS.parent / "chapters").glob("*.ipynb"):
        for cell in json.loads(path.read_text("utf-8"))["cells"]:
            book |= {line.strip() for line in "".join(cell["source"]).split("\n")}
    assert "return x + self.branch(self.norm(x))" in book, "a mend of the museum"
    for name in NAMES:
        master = json.loads((assignments.MASTERS / f"{name}.ipynb").read_text("utf-8"))
        for cell in master["cells"]:
            source = "".join(cell["source"])
            for part in re.findall(r"BEGIN SOLUTION\n(.*?)### END", source, re.S):
                lines = [line.strip() for line in part.split("\n")]
                tell = [
                    line
                    for line in lines
                    if len(line) > assignments.SHORT
                    and not assignments.TELLS_NOTHING.fullmatch(line)
                ]
                known = [line for line in tell if line in book]
                assert len(known) <= len(tell) / 3, (name, cell["id"], known)


def test_a_leaky_master_is_refused(tmp_path):
    master = json.loads((assignments.MASTERS / f"{ONE}.ipynb").read_text("utf-8"))
    line = "(at_the_input,) = torch.autograd.grad(blocks(x), x, grad_outputs=g)"
    assert any(line in "".join(cell["source"]) for cell in master["cells"])
    for leak in (
        lambda m: m["cells"][0].update(source=f"# Hint\n{line}"),
        lambda m: m["cells"][0]["metadata"].update(note=line),
        lambda m: m["metadata"].update(note=[{"deep": line}]),
        lambda m: m["cells"][3].update(attachments={"a.txt": {"text/plain": line}}),
    ):
        leaky = json.loads(json.dumps(master))
        leak(leaky)
        path = tmp_path / "leaky.ipynb"
        path.write_text(json.dumps(leaky))
        with pytest.raises(ValueError, match="would show"):
            assignments.release(path)


def test_broken_masters_are_refused(tmp_path):
    master = json.loads((assignments.MASTERS / f"{ONE}.ipynb").read_text("utf-8"))

    def source(notebook, ident, change):
        for cell in notebook["cells"]:
            if cell["id"] == ident:
                cell["source"] = change("".join(cell["source"]))

    for ident, change, says in [
        ("q1-answer", lambda s: s.replace("### END SOLUTION", ""), "has no END"),
        ("q1-answer", lambda s: s + "\n### END SOLUTION", "without a BEGIN"),
        ("q1-answer", lambda s: s.replace("### END", "### BEGIN"), "inside another"),
        ("given-1", lambda s: "### BEGIN SOLUTION\nx\n### END SOLUTION", "unmarked"),
        (
            "given-1",
            lambda s: "### BEGIN HIDDEN TESTS\nx\n### END HIDDEN TESTS",
            "ungraded",
        ),
        ("q1-check", lambda s: "check.q1(damping)", "no hidden probe"),
    ]:
        broken = json.loads(json.dumps(master))
        source(broken, ident, change)
        if ident == "given-1":
            source(broken, "text-1", lambda s: s)
            broken["cells"][1]["source"] = change("")
        path = tmp_path / "broken.ipynb"
        path.write_text(json.dumps(broken))
        with pytest.raises(ValueError, match=says):
            assignments.read(path)
    with pytest.raises(ValueError, match="1_vanishing_gradients"):
        assignments.read("no_such_assignment")


@pytest.mark.parametrize("name", NAMES)
def test_masters_keep_nbgraders_rules(name):
    """What nbgrader 0.9.6 checks: schema 3, unique ids, points, answers in markdown."""
    cells = released(name)["cells"]
    marks = [c["metadata"]["nbgrader"] for c in cells if "nbgrader" in c["metadata"]]
    ids = [m["grade_id"] for m in marks]
    assert len(set(ids)) == len(ids)
    for cell in cells:
        m = cell["metadata"].get("nbgrader")
        if m is None:
            continue
        assert m["schema_version"] == 3 and re.fullmatch(r"[\w-]+", m["grade_id"])
        assert m["cell_type"] == cell["cell_type"] and m["task"] is False
        assert ("points" in m) == m["grade"]
        if cell["cell_type"] == "markdown":
            assert m["grade"] == m["solution"]
        assert not (m["solution"] and m["locked"])
    graded = [m for m in marks if m["grade"]]
    assert sum(not m["solution"] for m in graded) >= 4
    assert sum(m["solution"] for m in graded) == 1, "one free-text question"


def test_checksums_are_nbgraders():
    """Computed once by nbgrader 0.9.6's generate_assignment from the same cells."""
    cell = {
        "cell_type": "code",
        "source": "check.q1(damping)",
        "metadata": {
            "nbgrader": {
                "grade": True,
                "solution": False,
                "locked": True,
                "points": 3,
                "grade_id": "1-q1",
            }
        },
    }
    assert assignments._checksum(cell) == CHECKSUM


CHECKSUM = "ae8eb407dcd68f5e7b3f46daaaaa2905"


# --- right and wrong answers ---


@needs_sandbox
@pytest.mark.parametrize("name", NAMES)
def test_the_solution_earns_all_and_wrong_answers_lose_exactly_their_points(name):
    assignment = assignments.read(name)
    class_ = [sent("solution", answered(name)), sent("empty", released(name))]
    wrongs = {}
    for question, answers in WRONG[name].items():
        for k, (source, _) in enumerate(answers):
            student = f"{question} wrong {k}"
            wrongs[student] = question
            class_.append(sent(student, answered(name, {question: source})))
    grades = {g.student: g for g in grading.grade(class_, assignment)}
    full = {q.name.split("-", 1)[1]: q.points for q in assignment.questions}
    free = {q.name.split("-", 1)[1] for q in assignment.questions if q.probe is None}
    full = {q: None if q in free else most for q, most in full.items()}
    assert points(grades["solution"]) == full
    assert not grades["solution"].needs_human and grades["solution"].status == "ok"
    assert points(grades["empty"]) == dict.fromkeys(full, 0)
    for student, question in wrongs.items():
        assert points(grades[student]) == full | {question: 0}, student
        assert grades[student].status == "ok", student


def test_a_wrong_expected_point_turns_the_comparison_red():
    expected = {"q": ([2], [1.0, 2.0])}
    assert grading.same_numbers(expected["q"], ([2], [1.0, 2.0])) == ""
    for off in (1.01, -1.0, 0.0, float("nan")):
        assert grading.same_numbers(([2], [off, 2.0]), ([2], [1.0, 2.0]))
        assert grading.same_numbers(expected["q"], ([2], [off, 2.0]))
    assert grading.same_numbers(expected["q"], ([1, 2], [1.0, 2.0]))
    assert grading.same_numbers(expected["q"], ([3], [1.0, 2.0, 0.0]))
    assert grading.same_numbers(([0], []), ([0], [])) == ""


def test_what_sample_answers_state():
    """The numbers in the masters' answers to free text, but for those of training."""
    one, three = (_answers(name) for name in (ONE, "3_paths"))
    exec(next(c for c in assignments.read(ONE).solved if c["demo"])["source"], one)
    text = _sample(ONE)
    lost, gain, variance, default, most = _numbers_in(
        r"is ([\d.]+) decades lost.* deviation of ([\d.]+)/√200 and .* variance of "
        r"([\d.]+), .* PyTorch's ([\d.]+)/√200.* under ([\d.]+) decade",
        text.replace("under one", "under 1").replace("\n", " "),
    )
    decades = one["predicted_decades"]([200] * 31, [200**-0.5] * 30)
    assert round(decades, 1) == -lost and round(3**-0.5, 2) == default
    assert round(one["critical_gain"](torch.tanh, variance), 1) == gain
    assert 0.3 < float(torch.stack(one["lost"]).mean()) < 0.8 * most
    master = (assignments.MASTERS / f"{ONE}.ipynb").read_text("utf-8")
    (forty,) = _numbers_in(r"predicted for 40 layers: ([-\d.]+) decades", master)
    assert round(one["predicted_decades"]([64] * 41, [1 / 8] * 40), 1) == forty

    text = _sample("2_residual_block")
    rate, at_50, scale = _numbers_in(
        r"with the probability ([\d.]+) .* (50) blocks .* multiplied by (\d+)",
        text.replace("\n", " "),
    )
    kept = 1 - rate
    assert "half a percent" in text and abs(kept**at_50 - 0.005) < 2e-4
    assert abs(kept**-at_50 - scale) < 0.5
    assert "at 4 blocks, where two thirds" in text and abs(kept**4 - 2 / 3) < 0.02
    text = _sample("5_bug_hunt")
    assert "two entries in three through 4 blocks" in text
    (share,) = _numbers_in(r"through 50 blocks comes one entry in (\d+)", text)
    assert abs(kept**50 * share - 1) < 0.04

    (single,) = _numbers_in(r"loss by up to ([\d.]+)", _sample("3_paths"))
    assert "up to half of that" in _sample("3_paths")
    effect, pairs = three["single"].abs().max(), three["pairs"].abs().max()
    assert abs(effect - single) < 0.01 and 0.4 < pairs / effect < 0.6

    # Blind guesses at assignment 5, on the page for instructors.
    page = assignments.MASTERS.parent / "chapters" / "for_instructors.md"
    guesses = _numbers_in(
        r"once in ([\d,]+), and once in ([\d,]+)", page.read_text("utf-8")
    )
    hunt = assignments.read("5_bug_hunt")
    (asks,) = (c["source"] for c in hunt.solved if "## 1. Find" in c["source"])
    causes = re.findall(r"^\d\. ", asks, re.M)
    probes = {q.name: q.probe for q in hunt.questions}
    (bugs,) = re.findall(r"torch.randperm\((\d)\)", probes["5-q1"])
    blocks = re.findall(r"^        variant\(", probes["5-q8"], re.M)
    assert guesses == [len(causes) ** int(bugs), 2 ** len(blocks)]


def _sample(name):
    """Return the master's answer to the free-text question."""
    assignment = assignments.read(name)
    (question,) = (q for q in assignment.questions if q.probe is None)
    return grading._asked(assignment, question)[1]


def _numbers_in(pattern, text):
    found = re.search(pattern, text)
    assert found, f"the text no longer says {pattern}"
    return [float(number.replace(",", "")) for number in found.groups()]


def _answers(name):
    """Run a master's cells, checks left out, and return their names."""
    namespace = {}
    for cell in assignments.read(name).solved:
        if cell["kind"] == "code" and not cell["demo"]:
            if "check.q" not in cell["source"]:
                exec(cell["source"], namespace)
    return namespace


@needs_sandbox
def test_each_run_draws_other_inputs():
    assignment = assignments.read(ONE)
    first, second = (
        grading.expected_values(assignment, seed).values for seed in (1, 2)
    )
    for question in first:
        assert grading.same_numbers(first[question], second[question])
    again = grading.expected_values(assignment, 1).values
    assert first == again


# --- messy files ---


def _each(notebook, change):
    for cell in notebook["cells"]:
        change(cell)
    return notebook


def _no_marks(cell):
    cell["metadata"] = {}


def _no_id(cell):
    cell.pop("id")


def _duplicated(notebook):
    notebook["cells"] = [c for c in notebook["cells"] for _ in range(2)]
    return notebook


def _stub_again(notebook):
    stubs = [c for c in released(ONE)["cells"] if c["id"].endswith("-answer")]
    notebook["cells"] = [*stubs, *notebook["cells"], *stubs]
    return notebook


def _only_answers(notebook):
    notebook["cells"] = [
        c for c in notebook["cells"] if c["id"].endswith(("-answer", "q5-text"))
    ]
    return notebook


def _reordered(notebook):
    notebook["cells"].reverse()
    return notebook


def _moved_to_new_cells(notebook):
    """The answers stand in cells of the student's own; the given ones are untouched."""
    stubs = {c["id"]: c["source"] for c in released(ONE)["cells"]}
    cells = []
    for cell in notebook["cells"]:
        if cell["id"].endswith("-answer"):
            cells.append({**cell, "source": stubs[cell["id"]]})
            own = {"cell_type": "code", "metadata": {}, "outputs": []}
            cells.append({**own, "id": f"new{len(cells)}", "source": cell["source"]})
        else:
            cells.append(cell)
    notebook["cells"] = cells
    return notebook


def _helper_cell(notebook):
    """An answer leans on a helper in a cell of its own, before it."""
    for k, cell in enumerate(notebook["cells"]):
        if cell["id"] == "q2-answer":
            cell["source"] = cell["source"].replace("0.5 * math.log10", "half_log")
            helper = "def half_log(v):\n    return 0.5 * math.log10(v)"
            own = {"cell_type": "code", "metadata": {}, "outputs": [], "id": "mine"}
            notebook["cells"].insert(k, {**own, "source": helper})
            return notebook
    raise AssertionError


def _import_added(notebook):
    """An import went into a given cell, and an answer needs it."""
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["id"] == "given-2":
            cell["source"] = source + "\nfrom math import log10 as decades"
        if cell["id"] == "q2-answer":
            cell["source"] = source.replace("math.log10", "decades")
    return notebook


def _magics(notebook):
    own = {"cell_type": "code", "metadata": {}, "outputs": []}
    for k, source in enumerate(
        (
            "%matplotlib inline\n%load_ext autoreload\n%autoreload 2",
            "!pip install -q resnotes",
            "%%time\nx = 1",
            "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()",
            "from google.colab import drive\ndrive.mount('/content')",
            "input('ready? ')",
            "def broken(:",
            "exit()",
            "",
        )
    ):
        cell = {**own, "id": f"m{k}", "source": source}
        notebook["cells"].insert(2 * k, cell)
    return notebook


MESSY = {
    "clean": lambda n: n,
    "metadata lost": lambda n: _each(n, _no_marks),
    "ids lost": lambda n: _each(n, _no_id),
    "both lost": lambda n: _each(_each(n, _no_marks), _no_id),
    "duplicated": _duplicated,
    "duplicated, metadata lost": lambda n: _each(_duplicated(n), _no_marks),
    "stubs pasted again": _stub_again,
    "all else deleted": _only_answers,
    "all else deleted, ids lost": lambda n: _each(_only_answers(n), _no_id),
    "reordered": _reordered,
    "reordered, metadata lost": lambda n: _each(_reordered(n), _no_marks),
    "Colab": from_colab,
    "answers in new cells": _moved_to_new_cells,
    "a helper cell": _helper_cell,
    "an import in a given cell": _import_added,
    "magics and broken cells": _magics,
}


@needs_sandbox
def test_messy_notebooks_grade_as_the_clean_one():
    class_ = [sent(kind, mess(answered(ONE))) for kind, mess in MESSY.items()]
    text = json.dumps(answered(ONE))
    class_.append(sent("with a byte order mark", b"\xef\xbb\xbf" + text.encode()))
    class_.append(sent("renamed", text.encode(), "Final (2) NEW.ipynb"))
    both = sent("two files", released(ONE))
    both.notebooks.append(("b.ipynb", text.encode()))
    class_.append(both)
    for grade in grading.grade(class_, assignments.read(ONE)):
        assert points(grade) == FULL, (grade.student, grade)
        assert grade.status == "ok", grade


def test_repair_reports_what_it_found():
    assignment = assignments.read(ONE)
    notebook = answered(ONE)
    answer = next(c for c in notebook["cells"] if c["id"] == "q1-answer")
    notebook["cells"].append({**answer, "source": answer["source"] + "\n# again"})
    notebook["cells"] = [c for c in notebook["cells"] if c["id"] != "q2-answer"]
    check = next(c for c in notebook["cells"] if c["id"] == "q3-check")
    check["source"] = "pass"
    made = assignments.repair(
        assignment, assignments.parse(json.dumps(notebook).encode())
    )
    assert made.missing == ["1-q2-answer"]
    assert any("answered 2 times" in note for note in made.notes)
    assert any(note.startswith("1-q3: its check was changed") for note in made.notes)
    sources = [source for _, source in made.cells]
    assert sources.index(answer["source"] + "\n# again") > sources.index(
        answer["source"]
    )


def test_strange_cells_do_no_harm():
    assignment = assignments.read(ONE)
    cells = [
        None,
        7,
        {},
        {"cell_type": 3, "source": {"a": 1}, "metadata": []},
        {"cell_type": "code", "source": ["x", 5, None], "metadata": {"nbgrader": 1}},
        {"cell_type": "code", "metadata": {"nbgrader": {"grade_id": ["a"]}}},
        {"cell_type": "code", "id": {}, "source": "\ud800", "metadata": {"tags": 3}},
    ]
    data = json.dumps({"cells": cells}).encode()
    made = assignments.repair(assignment, assignments.parse(data))
    assert len(made.missing) == 5
    for broken in (b"", b"[]", b"{}", b"\xff\xfe", b"[" * 100_000, b'{"cells": 3}'):
        with pytest.raises(ValueError, match="no "):
            assignments.parse(broken)


# --- what learning platforms hand over ---


def make_zip(files):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return stream.getvalue()


def test_every_layout_of_a_download_is_read(tmp_path):
    book = json.dumps(released(ONE)).encode()
    layouts = {
        "flat": {"anna.ipynb": book, "bert.ipynb": book},
        "folders": {"anna/1.ipynb": book, "bert/sub/x.ipynb": book},
        "zips": {"anna.zip": make_zip({"1.ipynb": book}), "bert.ipynb": book},
        "zips in folders": {
            "anna/hw.zip": make_zip({"deep/1.ipynb": book}),
            "bert/1.ipynb": book,
        },
        "a browser's names": {
            "anna.ZIP": make_zip({"1.ipynb.json": book}),
            "bert.json": book,
        },
    }
    for layout, files in layouts.items():
        clutter = {".DS_Store": b"x", "__MACOSX/anna.ipynb": b"x"}
        for name, data in (files | clutter).items():
            path = tmp_path / layout / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        whole = tmp_path / f"{layout}.zip"
        whole.write_bytes(make_zip(files | clutter))
        for source in (tmp_path / layout, whole):
            found = submissions.find(source)
            assert [s.student for s in found] == ["anna", "bert"], (layout, source)
            for student in found:
                assert [data for _, data in student.notebooks] == [book]
                assert not student.problems


def test_limits_hold_for_a_zip_whatever_its_name_and_for_a_class(tmp_path, monkeypatch):
    monkeypatch.setattr(submissions, "NOTEBOOK", 100)
    whole = tmp_path / "class.zip"
    zips = {f"{name}.ZIP": make_zip({"1.ipynb": b"{}"}) for name in ("anna", "bert")}
    whole.write_bytes(make_zip(zips))
    assert min(map(len, zips.values())) > submissions.NOTEBOOK
    assert [len(s.notebooks) for s in submissions.find(whole)] == [1, 1]
    monkeypatch.setattr(submissions, "CLASS", 150)  # room for one
    with pytest.raises(ValueError, match="grade it in parts"):
        submissions.find(whole)


def test_platforms_names_are_understood(tmp_path):
    for name, student, number in [
        ("Ann Lee_12345_assignsubmission_file_/a.ipynb", "Ann Lee", "12345"),
        ("Bo Li_77_assignsubmission_file_a.ipynb", "Bo Li", "77"),
        ("leeann_LATE_555_999_a-1.ipynb", "leeann", "555"),
        ("libo_556_1000_a.ipynb", "libo", "556"),
        ("=cmd().ipynb", "_cmd__", ""),
    ]:
        folder = tmp_path / str(number or "none")
        path = folder / name
        path.parent.mkdir(parents=True)
        path.write_bytes(b"{}")
        (found,) = submissions.find(folder)
        assert (found.student, found.id) == (student, number)


def test_two_students_of_one_name_stay_two(tmp_path):
    for number in ("1", "2"):
        folder = tmp_path / f"Ann Lee_{number}_assignsubmission_file_"
        folder.mkdir()
        (folder / "a.ipynb").write_bytes(b"{}")
    assert len({s.student for s in submissions.find(tmp_path)}) == 2


def test_dangerous_archives_and_links_are_not_followed(tmp_path, monkeypatch):
    monkeypatch.setattr(submissions, "MEMBERS", 10)
    outside = tmp_path / "outside.ipynb"
    outside.write_text("secret")
    folder = tmp_path / "in"
    folder.mkdir()
    link = zipfile.ZipInfo("link.ipynb")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    bomb = b"\0" * (submissions.NOTEBOOK + 2)
    for name, files in {
        "traversal": {"../../outside.ipynb": b"x", "/etc/cron.ipynb": b"x"},
        "windows": {"..\\..\\x.ipynb": b"x", "C:\\x.ipynb": b"x"},
        "link": {link: str(outside)},
        "bomb": {"1.ipynb": bomb},
        "many": {f"{k}.txt": b"" for k in range(submissions.MEMBERS + 1)},
    }.items():
        (folder / f"{name}.zip").write_bytes(make_zip(files))
    (folder / "broken.zip").write_bytes(make_zip({"1.ipynb": b"x" * 99})[:60])
    (folder / "linked.ipynb").symlink_to(outside)
    (folder / "folder").mkdir()
    (folder / "folder" / "linked").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe.ipynb")
    found = {s.student: s for s in submissions.find(folder)}
    for name, unsafe in {
        "traversal": True,
        "windows": True,
        "link": True,
        "bomb": True,
        "many": True,
        "linked": True,
        "folder": True,
        "broken": False,
        "pipe": False,
    }.items():
        assert found[name].notebooks == [], name
        assert found[name].problems and found[name].unsafe == unsafe, found[name]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "outside.ipynb"]
    with pytest.raises(ValueError, match="no submissions"):
        (tmp_path / "nobody").mkdir()
        submissions.find(tmp_path / "nobody")
    with pytest.raises(ValueError, match="neither"):
        submissions.find(tmp_path / "missing")


# --- hostile submissions ---


@needs_sandbox
def test_hostile_submissions_earn_nothing_and_harm_nobody(tmp_path):
    """Each leaves question 4 answered: it gets those points unless it ends the run."""
    assignment = assignments.read(ONE)
    stub = {q: "pass" for q in ("q1", "q2", "q3")}
    class_ = []
    for kind, (source, *_) in HOSTILE.items():
        notebook = answered(ONE, stub | {"q1": source})
        class_.append(sent(kind, notebook))
    for k in range(10):
        right = {} if k % 2 else {"q3": "pass"}
        class_.insert(3 * k, sent(f"honest {k}", answered(ONE, right)))
    unreadable = {
        "truncated": json.dumps(answered(ONE)).encode()[:3000],
        "not a notebook": b"\x89PNG\r\n",
        "another assignment": json.dumps(
            {"cells": [{"cell_type": "code", "source": "1", "metadata": {}}]}
        ).encode(),
    }
    class_ += [sent(kind, data) for kind, data in unreadable.items()]
    class_.append(Received("nothing", problems=["no notebook was handed in"]))

    limits = Limits(cell=6, submission=100, memory=2**30)
    grades = {g.student: g for g in grading.grade(class_, assignment, limits=limits)}
    assert len(grades) == len(class_)
    for k in range(10):
        wanted = FULL if k % 2 else FULL | {"q3": 0}
        assert points(grades[f"honest {k}"]) == wanted
        assert grades[f"honest {k}"].status == "ok"
    for kind, (_, status, *earned) in HOSTILE.items():
        grade = grades[kind]
        wanted = {"q1": 0, "q2": 0, "q3": 0, "q4": 2, "q5": None}
        wanted |= earned[0] if earned else {}
        assert points(grade) == wanted, (kind, grade)
        assert grade.status in status.split("|"), (kind, grade.status, grade.notes)
        assert grade.needs_human == (grade.status != "ok"), kind
    assert not Path("/tmp/owned").exists(), "the pickle bomb has gone off here"
    for kind in [*unreadable, "nothing"]:
        assert grades[kind].status == "unreadable" and grades[kind].total == 0
        assert grades[kind].needs_human


@needs_sandbox
def test_what_a_student_can_see_and_reach(tmp_path, monkeypatch):
    """Nothing of the machine but the interpreter: told by the student's own code."""
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    (tmp_path / "gradebook.db").write_text("mine")
    root = sandbox.HERE.parent
    places = [
        *(str(root / p) for p in ("assignments", "tests", ".git", "chapters")),
        *(str(tmp_path), str(tmp_path / "gradebook.db"), "/etc/passwd", "/etc/shadow"),
        *(
            "/etc",
            "/home",
            "/var",
            "/sys",
            "/proc/sys/kernel",
            "/run",
            "/mnt",
            str(Path.home() / ".ssh"),
        ),
    ]
    writable = [str(sandbox.HERE), str(Path(os.__file__).parent), "/usr/lib"]
    writable += ["/", "/dev", "/usr", "/proc", "/proc/sys"]
    cells = [
        (
            "places",
            f"""
import os
raise Exception([p for p in {places} if os.path.exists(p)])""",
        ),
        (
            "writes",
            f"""
done = []
for folder in {writable}:
    try:
        open(folder + '/planted', 'w')
        done.append(folder)
    except OSError:
        pass
raise Exception(done)""",
        ),
        (
            "environment",
            """
import os
everything = str(dict(os.environ)) + open('/proc/self/environ').read()
raise Exception('hunter2' in everything or 'SECRET' in everything)""",
        ),
        (
            "network",
            """
import socket
reached = []
for address in (('127.0.0.1', 22), ('1.1.1.1', 53), ('10.0.0.1', 80)):
    try:
        socket.create_connection(address, 1)
        reached.append(address)
    except OSError:
        pass
with open('/proc/net/dev') as lines:
    names = [line.split(':')[0].strip() for line in lines if ':' in line]
raise Exception(reached + [name for name in names if name != 'lo'])""",
        ),
        (
            "processes",
            """
import os
pids = [p for p in os.listdir('/proc') if p.isdigit()]
raise Exception(len(pids) <= 5)""",
        ),
        (
            "privileges",
            """
import os, ctypes
status = dict(l.split(':', 1) for l in open('/proc/self/status') if ':' in l)
held = [status[k].strip() for k in ('CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb')]
libc = ctypes.CDLL(None, use_errno=True)
tried = libc.mount(b'none', b'/tmp', b'tmpfs', 0, None), libc.chroot(b'/tmp')
limit = __import__('resource')
try:
    limit.setrlimit(limit.RLIMIT_AS, (-1, -1))
    raised = True
except (ValueError, OSError):
    raised = False
none = set(held) == {'0' * 16}
raise Exception((none, status['NoNewPrivs'].strip(), tried, raised))""",
        ),
        (
            "calls",
            """
import ctypes, os, socket
libc, granted = ctypes.CDLL(None), []
for name, *arguments in (
    ("memfd_create", b"x", 0), ("shmget", 0, 4096, 0o1600), ("msgget", 0, 0o1600),
    ("unshare", 0x10000000), ("mount", b"none", b"/tmp", b"tmpfs", 0, None),
    ("ptrace", 0, 0, None, None),
):
    if getattr(libc, name)(*arguments) != -1:
        granted.append(name)
for family in (socket.AF_VSOCK, socket.AF_ALG, socket.AF_INET, socket.AF_NETLINK):
    try:
        granted.append(socket.socket(family).family.name)
    except OSError:
        pass
try:
    with socket.socket(socket.AF_UNIX) as small:
        granted.append(small.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 10**7))
except OSError:
    pass
wide, size = 1 << 32, ctypes.c_int(10**7)  # the kernel does not look at bit 32
with socket.socket(socket.AF_UNIX) as small:
    for name, *numbers in (
        ("setsockopt", 54, small.fileno(), wide | 1, 7), ("socket", 41, wide | 1, 1),
        ("setsockopt", 54, small.fileno(), 1, wide | 8), ("socket", 41, wide | 38, 5),
        ("clone", 56, wide | 0x10000000 | 17),
    ):
        more = (ctypes.byref(size), 4) if name == "setsockopt" else (0, 0, 0)
        done = libc.syscall(*map(ctypes.c_long, numbers), *more)
        if done == 0 and name == "clone":
            os._exit(0)
        if done != -1:
            granted.append((name, *numbers))
for task in os.listdir('/proc/self/task'):
    status = open(f'/proc/self/task/{task}/status').read()
    if 'Seccomp:\\t2' not in status:
        granted.append('a task without a filter')
raise Exception(granted)""",
        ),
        (
            "buffers",  # bytes that sockets hold and no process maps
            """
import socket
kept, held = [], 0
try:
    while True:
        kept += socket.socketpair()
        for end in kept[-2:]:
            end.setblocking(False)
            try:
                while True:
                    held += end.send(b'x' * 2**16)
            except BlockingIOError:
                pass
except OSError:
    for end in kept:
        end.close()
raise Exception(held)""",
        ),
        (
            "kernel",  # opened only: a grader who is root could set it from there
            """
import os
opened = []
for place, folders, files in os.walk('/proc'):
    folders[:] = [f for f in folders if not f.isdigit() and 'self' not in f]
    for name in files:
        try:
            os.close(os.open(f'{place}/{name}', os.O_WRONLY | os.O_NONBLOCK))
            opened.append(f'{place}/{name}')
        except OSError:
            pass
# Anybody may write to /proc/pressure: it asks to be told of pressure.
raise Exception([o for o in opened if not o.startswith('/proc/pressure/')])""",
        ),
        (
            "honest calls",
            """
import multiprocessing, subprocess, torch
from concurrent.futures import ThreadPoolExecutor
from torch.utils.data import DataLoader
with multiprocessing.get_context('fork').Pool(2) as pool:
    done = pool.map(abs, [-1, 2])
with ThreadPoolExecutor(2) as pool:
    done += pool.map(abs, [-3, 4])
done.append(len(list(DataLoader(torch.ones(9, 3), batch_size=3, num_workers=2))))
done.append(subprocess.run(['echo', '5'], capture_output=True).stdout)
raise Exception(done)""",
        ),
        (
            "descriptors",
            """
import os
kinds = sorted({os.readlink(f'/proc/self/fd/{n}').split(':')[0]
                for n in os.listdir('/proc/self/fd')
                if os.path.exists(f'/proc/self/fd/{n}')})
raise Exception(kinds)""",
        ),
        (
            "modules",
            """
import sys
raise Exception([m for m in sys.modules if m.startswith('resnotes.') and m.split('.')[1]
                 in ('grading', 'assignments', 'sandbox', 'submissions')])""",
        ),
    ]
    said = {}
    for unwarmed in (False, True):
        monkeypatch.setattr(sandbox._Warm, "works", not unwarmed)
        outcome = sandbox.run(cells, [], 1)
        assert not outcome.stopped
        said[unwarmed] = {step: text for step, (_, text) in outcome.errors.items()}
        assert said[unwarmed]["places"] == "[]"
        assert said[unwarmed]["writes"] == "[]"
        assert said[unwarmed]["environment"] == "False"
        assert said[unwarmed]["network"] == "[]"
        assert said[unwarmed]["processes"] == "True"
        assert said[unwarmed]["privileges"] == "(True, '1', (-1, -1), False)"
        assert said[unwarmed]["calls"] == "[]"
        held = int(said[unwarmed]["buffers"]) * Limits.processes
        assert 0.8e9 < held < 1e9, "the page for instructors says about 1 GB"
        assert said[unwarmed]["kernel"] == "[]"
        assert said[unwarmed]["honest calls"] == "[1, 2, 3, 4, 3, b'5\\n']"
        assert said[unwarmed]["descriptors"] in (
            "['/dev/null', 'pipe']",
            "['/dev/null', '/proc/2/fd', 'pipe']",
        )
        assert said[unwarmed]["modules"] == "[]"


@needs_sandbox
def test_sandboxes_share_nothing():
    plant = "open('/tmp/planted', 'w').write('x'); open('/dev/shm/planted', 'w')"
    look = "import os; raise Exception(os.listdir('/tmp') + os.listdir('/dev/shm'))"
    outcome = sandbox.run([("plant", plant)], [], 1)
    assert not outcome.errors
    outcome = sandbox.run([("look", look)], [], 1)
    assert "planted" not in outcome.errors["look"][1]
    patch = "import torch; torch.randn = torch.zeros; torch.Tensor.__eq__ = None"
    assert not sandbox.run([("patch", patch)], [], 1).errors
    look = "import torch; assert torch.randn(2).any(); raise Exception('clean')"
    assert sandbox.run([("look", look)], [], 1).errors["look"][1] == "clean"


@needs_sandbox
def test_forged_replies_must_be_plain_numbers():
    forge = """
import json, os, gc
for n in range(3, 30):
    try:
        if os.readlink(f'/proc/self/fd/{{n}}').startswith('pipe'):
            os.write(n, {line!r})
    except OSError:
        pass
"""
    probe = [("q", "def probe():\n    return 1.0")]
    for line in (
        b'{"shape": [], "values": [NaN]}\n{"ok": true}\n',
        b'{"shape": [9999999], "values": []}\n',
        b'{"ok": true}\n{"shape": [], "values": [7.0]}\n',
        b'{"values": ["1"], "shape": [1]}\n',
        b"[" * 90_000 + b"\n",
        b"no json\n",
        b"x" * 5_000_000,
        b"\n" * 20_000,
    ):
        cell = (
            forge.format(line=line)
            if len(line) < 999
            else forge.replace(
                "{line!r}", f"{line[:1]!r} * {len(line) - 1} + {line[-1:]!r}"
            )
            .replace("{{", "{")
            .replace("}}", "}")
        )
        outcome = sandbox.run([("forge", cell)], probe, 1, Limits(cell=10))
        assert {s for s, _ in outcome.stopped.values()} <= {"tampered", "crashed"}
        assert outcome.stopped, line[:50]
        assert outcome.values.get("q") in (None, ([], [1.0])), line[:50]


def test_numbers_outside_are_checked():
    for reply in (
        {},
        {"shape": [2], "values": [1.0]},
        {"shape": [1], "values": [True]},
        {"shape": [1], "values": ["1"]},
        {"shape": [1], "values": [float("inf")]},
        {"shape": [1], "values": [10**400]},
        {"shape": [-1], "values": []},
        {"shape": [1.0], "values": [1.0]},
        {"shape": [True], "values": [1.0]},
        {"shape": {}, "values": {}},
        {"shape": [0] * 9, "values": []},
    ):
        with pytest.raises(sandbox._StepError):
            sandbox._numbers(reply)
    assert sandbox._numbers({"shape": [1, 2], "values": [1, 2.5]}) == ([1, 2], [1, 2.5])


# --- the whole way ---


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "submissions"
    place.mkdir()
    text = "<script>alert(1)</script> is my answer."
    for name, notebook in {
        "anna": answered(ONE, text=text),
        "bert": answered(ONE, {"q1": "raise Exception('<b>oops</b>')"}),
        "carl": released(ONE),
    }.items():
        (place / f"{name}.ipynb").write_text(json.dumps(notebook))
    (place / "dora.ipynb").write_text("not a notebook")
    return place


def table(path):
    with open(path, newline="", encoding="utf-8") as stream:
        return {row["student"]: row for row in csv.DictReader(stream)}


@needs_sandbox
def test_from_a_folder_to_grades_and_back(folder, capsys, monkeypatch):
    out = folder.with_name("submissions-grades")
    assert grading.main(["grade", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "3 ok" in said and "1 unreadable" in said and "dora" in said
    rows = table(out / "grades.csv")
    assert rows["anna"]["total"] == "11" and rows["anna"]["of"] == "14"
    assert [rows["bert"][f"q{k}"] for k in range(1, 6)] == ["0", "3", "3", "2", ""]
    assert rows["carl"]["total"] == "0" and rows["carl"]["q5"] == "0"
    assert (rows["dora"]["status"], rows["dora"]["needs_human"]) == (
        "unreadable",
        "yes",
    )

    page = (out / "free_text.html").read_text("utf-8")
    assert "&lt;script&gt;alert(1)" in page and "<script" not in page
    assert "## 5. Advise" in page and "7.2 decades" in page, "what to mark against"
    feedback = (out / "feedback" / "bert.html").read_text("utf-8")
    assert "&lt;b&gt;oops&lt;/b&gt;" in feedback and "your answer raised" in feedback
    probes = [q.probe for q in assignments.read(ONE).questions if q.probe]
    every = "".join(p.read_text("utf-8") for p in out.glob("feedback/*.html"))
    for cell in assignments.read(ONE).solved:
        if cell["marks"].get("solution") and cell["kind"] == "code":
            probes.append(cell["source"])
    for line in filter(lambda s: len(s) > 20, "\n".join(probes).split("\n")):
        assert line.strip() not in every
    assert (out / "answers" / "q1-answer" / "anna.py").is_file()

    # A second call has nothing left to run, and gives the same grades.
    before = (out / "grades.csv").read_bytes()
    original = sandbox.run
    ran = []
    monkeypatch.setattr(
        sandbox, "run", lambda *a, **k: ran.append(1) or original(*a, **k)
    )
    assert grading.main(["grade", str(folder)]) == 0
    assert len(ran) == 1, "the master alone"
    assert (out / "grades.csv").read_bytes() == before

    # Marks for free text merge back.
    marks = table(out / "marks.csv")
    assert set(marks) == {"anna", "bert"}
    filled = "student,question,points,of,comment\nanna,q5,2.5,3,good & clear\n"
    (out / "filled.csv").write_text(filled)
    assert grading.main(["merge", str(out), str(out / "filled.csv")]) == 0
    rows = table(out / "grades.csv")
    assert rows["anna"]["total"] == "13.5" and rows["bert"]["q5"] == ""
    assert "good &amp; clear" in (out / "feedback" / "anna.html").read_text("utf-8")

    # Grading again, after a late submission say, keeps marks, merged or not yet, unless
    # the answer has changed.
    sheet = (out / "marks.csv").read_text("utf-8")
    assert "anna,q5,2.5,3,good & clear" in sheet and "bert,q5,,3," in sheet
    (out / "marks.csv").write_text(sheet.replace("bert,q5,,3,", "bert,q5,1,3,"))
    assert grading.main(["grade", str(folder)]) == 0
    rows = table(out / "grades.csv")
    assert rows["anna"]["total"] == "13.5" and rows["bert"]["q5"] == "1"
    assert "good &amp; clear" in (out / "feedback" / "anna.html").read_text("utf-8")
    changed = answered(ONE, text="Another answer.")
    (folder / "anna.ipynb").write_text(json.dumps(changed))
    assert grading.main(["grade", str(folder)]) == 0
    rows = table(out / "grades.csv")
    assert rows["anna"]["q5"] == "" and rows["bert"]["q5"] == "1"
    assert "anna: " not in (out / "free_text.html").read_text("utf-8")
    assert "bert: 1 of 3" in (out / "free_text.html").read_text("utf-8")
    capsys.readouterr()
    for line, says in [
        ("nobody,q5,1,3,", "line 2: no student 'nobody'"),
        ("anna,q9,1,3,", "no student 'anna' with a question 'q9'"),
        ("anna,q5,4,3,", "from 0 to 3"),
        ("anna,q5,nan,3,", "from 0 to 3"),
        ("anna,q5,-1,3,", "from 0 to 3"),
    ]:
        (out / "bad.csv").write_text(f"student,question,points,of,comment\n{line}\n")
        assert grading.main(["merge", str(out), str(out / "bad.csv")]) == 2
        assert says in capsys.readouterr().err


def graded(answers):
    """Return grades as a run gives them: q5 waits for a person, the code is wrong."""
    class_ = []
    for student, text in answers.items():
        open_, code = {"1-q5": None}, {f"1-q{k}": 0.0 for k in range(1, 5)}
        said = dict.fromkeys(code, "wrong") | {"1-q5": grading.BY_HAND}
        both = {"1-q1-answer": f"code of {student}", "1-q5": text}
        class_.append(
            grading.Grade(student, points=code | open_, said=said, answers=both)
        )
    return class_


@pytest.fixture
def marked(tmp_path):
    """A folder of grades, and what writes it again and says which marks were lost."""
    assignment = assignments.read(ONE)

    def again(**answers):
        return grading.write_reports(graded(answers), assignment, tmp_path)

    assert again(anna="one", bert="two", cleo="three") == []
    return tmp_path, again


HEAD = "student,question,points,of,comment\n"
EXCEL = "Anmerkung;comment;student;question;points;of\r\nx;schön; gut;anna;q5;2,5;3\r\n"


@pytest.mark.parametrize(
    "data",
    [
        EXCEL.replace("schön; gut", '"schön; gut"').encode("cp1252"),
        EXCEL.replace("schön; gut", '"schön; gut"').encode("utf-8-sig"),
        (HEAD + 'anna,q5,"2,5",3,"schön; gut",,\n').encode(),
        (HEAD + 'anna,q5,2.5,3,"schön; gut"\n').replace(",", "\t").encode(),
    ],
    ids=["Excel, cp1252", "Excel, UTF-8", "commas", "tabs"],
)
def test_what_spreadsheets_save_is_merged_and_left_as_it_is(marked, data):
    out, again = marked
    data += data.splitlines()[-1].replace(b"anna", b"bert").replace(b"2.5", b"")
    data = data.replace(b'bert,q5,"2,5"', b"bert,q5,").replace(
        b"bert;q5;2,5", b"bert;q5;"
    )
    for file in (out / "marks.csv", out / "other.csv"):
        file.write_bytes(data)
        assert grading.merge(out, file) == 1
        assert file.read_bytes() == data
        rows = table(out / "grades.csv")
        assert (rows["anna"]["q5"], rows["bert"]["q5"]) == ("2.5", "")
        for student in ("anna", "bert"):
            page = (out / "feedback" / f"{student}.html").read_text("utf-8")
            assert "schön; gut" in page
    assert again(anna="one", bert="two", dora="new") == []
    assert (out / "marks.csv.bak1").read_bytes() == data
    assert table(out / "grades.csv")["anna"]["q5"] == "2.5"
    rows = table(out / "marks.csv")
    assert rows["anna"]["points"].replace(",", ".") == "2.5"
    assert rows["bert"]["comment"] == "schön; gut" and rows["dora"]["points"] == ""


def test_a_table_that_is_none_changes_nothing(marked):
    out, again = marked
    for text, says in [
        ("anna,q5,2,3,good\n", "line 1: no column student, question, points"),
        ("", "no column student"),
        (HEAD + "\nanna,q5,,3,\nbert,q5,9,3,\n", "line 4: points '9', expected a"),
        (HEAD + "anna,q5,2,5,3,good\n", "line 2: more cells than columns"),
        (HEAD + 'anna,q5,2,3,"good\nbert,q5,2,3,\n', "line 3: unexpected end"),
    ]:
        (out / "marks.csv").write_text(text)
        before = {path: path.read_bytes() for path in out.rglob("*.*")}
        with pytest.raises(ValueError, match=says):
            grading.merge(out, out / "marks.csv")
        with pytest.raises(ValueError, match=says):
            again(anna="one", bert="two")
        assert before == {path: path.read_bytes() for path in out.rglob("*.*")}


def test_marks_are_merged_where_the_folder_has_no_sheet(marked):
    out, again = marked
    (out / "marks.csv").unlink()
    (out / "mine.csv").write_text(HEAD + "anna,q5,2,3,\n")
    assert grading.merge(out, out / "mine.csv") == 1
    assert again(anna="one", bert="two") == []
    assert table(out / "grades.csv")["anna"]["q5"] == "2"


def test_a_second_run_says_which_marks_it_does_not_keep(marked):
    out, again = marked
    filled = "anna,q5,1,3,\nbert,q5,2,3,\ncleo,q5,,3,see me\nanna,q1,3,3,accepted\n"
    (out / "marks.csv").write_text(HEAD + filled)
    lost = again(anna="one", bert="two, again")
    assert lost == [
        "bert, q5: 2 (another answer now)",
        "cleo, q5: see me (no submission of that name)",
    ]
    assert (out / "marks.csv.bak1").read_text() == HEAD + filled
    for _ in range(2):  # points given by hand to a question of code stay as well
        rows = table(out / "grades.csv")
        assert (rows["anna"]["q1"], rows["anna"]["total"]) == ("3", "4")
        assert again(anna="one", bert="two, again") == []
    (out / "grades.json").unlink()
    lost = again(anna="one")
    assert {line.split("(")[1] for line in lost} == {
        "nothing says which answer it was for)"
    }
    (out / "marks.csv").write_text(HEAD)
    (out / "grades.json").write_text('{"grades": [')
    with pytest.raises(ValueError, match="is broken"):
        again(anna="one")


def test_bad_marks_stop_a_second_run_before_it_runs_anything(
    folder, capsys, monkeypatch
):
    out = folder.with_name("submissions-grades")
    out.mkdir()
    (out / "marks.csv").write_text(HEAD + "\nbert,q5,lots,3,\n")
    monkeypatch.setattr(grading, "grade", lambda *a, **k: pytest.fail("it ran"))
    assert grading.main(["grade", str(folder)]) == 2
    assert "marks.csv, line 3: points 'lots'" in capsys.readouterr().err


def test_a_worker_without_a_sandbox_stops_the_batch(monkeypatch):
    """A worker is another machine: there the check runs again, and is not cached."""
    grading._require_sandbox_here.cache_clear()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with grading._run_all({"anna": ([], [], 1, Limits(), False)}, 1, None) as finished:
        with pytest.raises(sandbox.NoSandboxError, match=r"bubblewrap.*not installed"):
            list(finished)


@needs_sandbox
def test_a_dask_cluster_gives_the_same_grades():
    from distributed import LocalCluster

    class_ = [sent("anna", answered(ONE)), sent("carl", released(ONE))]
    with LocalCluster(
        n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None
    ) as cluster:
        grades = grading.grade(
            class_, assignments.read(ONE), scheduler=cluster.scheduler_address
        )
    assert [g.total for g in grades] == [11, 0]


def test_the_page_for_instructors_agrees_with_the_book():
    chapters = assignments.MASTERS.parent / "chapters"
    page = (chapters / "for_instructors.md").read_text("utf-8")
    for path in sorted(chapters.glob("0*.ipynb")):
        cells = json.loads(path.read_text("utf-8"))["cells"]
        overview = "".join(cells[0]["source"]) + "".join(cells[1]["source"])
        (minutes,) = re.findall(r"(\d+) minutes", overview)
        (row,) = (line for line in page.split("\n") if f"]({path.name})" in line)
        assert row.split("|")[-3].strip() == minutes, row
    readme = (chapters.parent / "README.md").read_text("utf-8")
    (lines,) = re.findall(r"```yaml\n(.*?)```", page, re.S)
    # Another host's address stops the build, unless its provider is named as well.
    assert lines in readme and "url: https://github.com/" in lines
    for name in NAMES:
        text = "".join(assignments.read(name).released[0]["source"])
        points, minutes = re.search(r"(\d+) points, about (\d+) minutes", text).groups()
        assert int(points) == sum(q.points for q in assignments.read(name).questions)
        (row,) = (line for line in page.split("\n") if line.startswith(f"| `{name}`"))
        assert [v.strip() for v in row.split("|")[-3:-1]] == [points, minutes], row


def test_the_extra_for_grading_is_the_version_that_tests_use():
    root = assignments.MASTERS.parent
    extras = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    pins = (root / "requirements.txt").read_text("utf-8").split()
    pinned = [p for p in extras["optional-dependencies"]["grading"] if "==" in p]
    assert pinned and set(pinned) <= set(pins)
    page = (root / "chapters" / "for_instructors.md").read_text("utf-8")
    assert "`resnotes[grading]`" in page


def test_the_page_numbers_its_commands():
    page = (assignments.MASTERS.parent / "chapters" / "for_instructors.md").read_text(
        "utf-8"
    )
    way = page.partition("## The whole way in ")[2].partition("To see it work")[0]
    code = "".join(re.findall(r"```bash\n(.*?)```", way, re.S)).replace("\n", " \n")
    numbers = [int(n) for n in re.findall(r"# (\d+)\.", code)]
    lines = [line for line in code.split("\n") if line.strip() and line[0] != "#"]
    assert numbers == list(range(1, len(lines) + 1)) and len(lines) == 11
    assert way.startswith("eleven commands")


def test_without_bubblewrap_there_is_one_clear_sentence(folder, capsys, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert grading.main(["grade", str(folder)]) == 2
    said = capsys.readouterr().err
    assert "apt install bubblewrap" in said and "--unsafe" in said and "WSL" in said


def test_a_bubblewrap_that_may_not_work_says_what_to_do(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/bwrap")
    monkeypatch.setattr(
        sandbox,
        "_bwrap",
        lambda limits: ["sh", "-c", "echo 'bwrap: No permissions' >&2; exit 1"],
    )
    with pytest.raises(
        sandbox.NoSandboxError, match=r"No permissions.*user namespaces"
    ):
        sandbox.require_sandbox()


@needs_sandbox
def test_a_kernel_that_takes_no_filter_is_told(monkeypatch):
    monkeypatch.setattr(sandbox, "_filter", lambda: "ff" * 8)  # no BPF program
    with pytest.raises(sandbox.NoSandboxError, match="does not filter system calls"):
        sandbox.require_sandbox()


def test_memory_is_counted_on_a_kernel_that_does_not_tell_kinds_apart(monkeypatch):
    if not Path("/proc/self/status").exists():
        pytest.skip("no Linux")
    told = sandbox._resident(os.getpid())
    lines = Path("/proc/self/status").read_text().splitlines(keepends=True)
    short = "".join(line for line in lines if not line.startswith("Rss"))

    def old_kernel(path):
        return io.StringIO(short) if path.endswith("/status") else open(path)

    monkeypatch.setattr(sandbox, "open", old_kernel, raising=False)
    assert 50 * 2**20 < told < sandbox._resident(os.getpid()) < 2**36
    assert sandbox._resident(2**30) == 0, "there is no such process"


def test_unsafe_is_loud_and_works_anywhere(folder, capsys, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    for path in folder.glob("[bcd]*"):
        path.unlink()
    assert grading.main(["grade", str(folder), "--unsafe", "--workers", "1"]) == 0
    assert capsys.readouterr().err.count("UNSAFE") == 1
    assert (
        table(folder.with_name("submissions-grades") / "grades.csv")["anna"]["total"]
        == "11"
    )


def test_release_writes_the_student_version(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert grading.main(["release", ONE]) == 0
    assert json.loads((tmp_path / f"{ONE}.ipynb").read_text("utf-8")) == released(ONE)
    assert grading.main(["release", "nothing"]) == 2
    assert "5_bug_hunt" in capsys.readouterr().err
    monkeypatch.chdir(assignments.MASTERS)
    before = Path(f"{ONE}.ipynb").read_bytes()
    assert grading.main(["release", ONE]) == 2
    assert Path(f"{ONE}.ipynb").read_bytes() == before
