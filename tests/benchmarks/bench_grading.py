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


def ours(count: int, workers: int, warm: bool, name: str = ONE) -> float:
    """Grade `count` copies; the start and the master's own run are counted in."""
    sandbox._Warm.one, sandbox._Warm.works = None, warm
    data = json.dumps(answered(name)).encode()
    class_ = [Received(f"s{k}", notebooks=[("a.ipynb", data)]) for k in range(count)]
    assignment = assignments.read(name)
    began = time.perf_counter()
    grades = grading.grade(class_, assignment, workers=workers)
    seconds = (time.perf_counter() - began) / count
    most = sum(q.points for q in assignment.questions if q.probe is not None)
    assert all(grade.total == most for grade in grades)
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
    """Print the tables."""
    os.environ["OMP_NUM_THREADS"] = "1"
    print("seconds a submission, 12 copies    2 workers  1 worker")
    for path in assignments.masters():
        pair = (ours(12, workers, True, path.stem) for workers in (2, 1))
        print(f"{path.stem:34} {next(pair):9.2f} {next(pair):9.2f}", flush=True)
    rows = {
        "warm, 2 workers": ours(12, 2, True),
        "warm, 1 worker": ours(12, 1, True),
        "cold, 1 worker": ours(6, 1, False),
    }
    if shutil.which("nbgrader"):
        rows["nbgrader autograde"] = theirs(6)
    best = rows["warm, 2 workers"]
    print(ONE)
    for label, seconds in rows.items():
        print(f"{label:20} {seconds:6.2f} s a submission  {seconds / best:5.1f} ×")


if __name__ == "__main__":
    main()
