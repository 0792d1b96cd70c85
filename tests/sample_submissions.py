"""Make a folder of sample submissions to assignment 1: honest, messy and hostile.

    python tests/sample_submissions.py FOLDER

The tests grade such notebooks; an instructor can see what becomes of them.
"""

import json
import sys
import zipfile
from pathlib import Path

from hostile import HOSTILE
from wrong_answers import WRONG

from resnotes import assignments

ONE = "1_vanishing_gradients"


def released(name: str) -> dict:
    """Return the student version of a master."""
    return json.loads(assignments.release(name))


def answered(name: str, answers: dict | None = None, text: str = "My answer.") -> dict:
    """Return a release answered by the master, or by `answers`: question → source."""
    notebook = released(name)
    solved = {
        cell["marks"]["grade_id"]: cell["source"]
        for cell in assignments.read(name).solved
        if cell["marks"].get("solution") and cell["kind"] == "code"
    }
    for cell in notebook["cells"]:
        marks = cell["metadata"].get("nbgrader", {})
        if marks.get("solution"):
            full = marks["grade_id"]
            short = full.split("-", 1)[1].removesuffix("-answer")
            cell["source"] = (answers or {}).get(short, solved.get(full, text))
    return notebook


def from_colab(notebook: dict) -> dict:
    """Return a notebook as Colab saves it: format 4.4, its own ids, no nbgrader."""
    notebook["nbformat_minor"] = 4
    notebook["metadata"] = {"colab": {"provenance": []}}
    for cell in notebook["cells"]:
        cell["metadata"] = {"id": cell.pop("id"), "colab": {"base_uri": "x"}}
    return notebook


def write(folder: Path) -> None:
    """Write the samples, as a learning platform's download has them."""
    folder.mkdir(parents=True)
    wrong = {question: answers[0][0] for question, answers in WRONG[ONE].items()}
    shuffled = answered(ONE)
    shuffled["cells"].reverse()
    hostile = {
        f"eve{k}": answered(ONE, {"q1": HOSTILE[kind][0]})
        for k, kind in enumerate(
            (
                "loops at top level",
                "fork bomb",
                "patches comparisons",
                "reads solutions",
            )
        )
    }
    for student, notebook in {
        "anna": answered(ONE),
        "bert": answered(ONE, wrong),
        "carl": answered(ONE, {"q2": wrong["q2"]}, "Depth alone does not do it."),
        "dora": from_colab(answered(ONE)),
        "emil": shuffled,
        "fay": released(ONE),
        **hostile,
    }.items():
        (folder / f"{student}.ipynb").write_text(json.dumps(notebook), "utf-8")
    with zipfile.ZipFile(folder / "gus.zip", "w") as archive:
        archive.writestr("homework/Final (2).ipynb", json.dumps(answered(ONE)))
    (folder / "hal.ipynb").write_text(json.dumps(answered(ONE))[:5000], "utf-8")
    print(f"{folder}: {len(list(folder.iterdir()))} submissions")


if __name__ == "__main__":
    if len(sys.argv) != 2 or Path(sys.argv[1]).exists():
        sys.exit("usage: python tests/sample_submissions.py NEW_FOLDER")
    write(Path(sys.argv[1]))
