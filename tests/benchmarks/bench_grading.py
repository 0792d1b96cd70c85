"""Seconds a submission: this grader, warm and cold, beside bare nbgrader.

    python tests/benchmarks/bench_grading.py

nbgrader runs too if its program is on PATH (`pip install nbgrader==0.9.6` into an
environment that also has torch and resnotes). All grade the same submission.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sample_submissions import ONE, answered

from resnotes import assignments, grading, sandbox
from resnotes.submissions import Received


def ours(count: int, workers: int, warm: bool) -> float:
    """Grade `count` copies; the start and the master's own run are counted in."""
    sandbox._Warm.one, sandbox._Warm.works = None, warm
    data = json.dumps(answered(ONE)).encode()
    class_ = [Received(f"s{k}", notebooks=[("a.ipynb", data)]) for k in range(count)]
    began = time.perf_counter()
    grades = grading.grade(class_, assignments.read(ONE), workers=workers)
    seconds = (time.perf_counter() - began) / count
    assert all(grade.total == 11 for grade in grades)
    return seconds


def theirs(count: int) -> float:
    """Let nbgrader autograde `count` copies, one after the other as it does."""
    with tempfile.TemporaryDirectory() as name:
        course = Path(name)
        source = course / "source" / ONE
        source.mkdir(parents=True)
        shutil.copy(assignments.MASTERS / f"{ONE}.ipynb", source)
        run = {"cwd": course, "capture_output": True, "check": True}
        make = ["nbgrader", "generate_assignment", ONE, "--create", "--force"]
        subprocess.run(make, **run)
        for k in range(count):
            place = course / "submitted" / f"s{k}" / ONE
            place.mkdir(parents=True)
            (place / f"{ONE}.ipynb").write_text(json.dumps(answered(ONE)), "utf-8")
        began = time.perf_counter()
        subprocess.run(["nbgrader", "autograde", ONE], **run)
        return (time.perf_counter() - began) / count


def main() -> None:
    """Print the table."""
    os.environ["OMP_NUM_THREADS"] = "1"
    rows = {
        "warm, 2 workers": ours(12, 2, True),
        "warm, 1 worker": ours(12, 1, True),
        "cold, 1 worker": ours(6, 1, False),
    }
    if shutil.which("nbgrader"):
        rows["nbgrader autograde"] = theirs(6)
    best = rows["warm, 2 workers"]
    for label, seconds in rows.items():
        print(f"{label:20} {seconds:6.2f} s a submission  {seconds / best:5.1f} ×")


if __name__ == "__main__":
    main()
