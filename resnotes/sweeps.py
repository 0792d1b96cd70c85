"""Grids of training runs that are too long for a page, on Dask.

    python -m resnotes.sweeps list
    python -m resnotes.sweeps run degradation               # in this process
    python -m resnotes.sweeps run degradation --workers 4   # four local processes
    python -m resnotes.sweeps run degradation --scheduler tcp://address:8786
    python -m resnotes.sweeps check degradation             # re-run a few cells

A sweep is a grid and a function that turns one cell of it into rows. `run` writes
`chapters/measurements/NAME.csv`, the rows in the order of the grid, and `NAME.json`
beside it, which says where the numbers come from. Both files are replaced as a whole
after each cell, so what is there is always whole cells: kill a run at any moment, start
it again, and it does what is missing. The chapters read the CSV with `load`.

This is the engine; the book's own sweeps are in `resnotes.grids`.
"""

import argparse
import contextlib
import csv
import datetime
import io
import itertools
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
MEASUREMENTS = ROOT / "chapters" / "measurements"
if not MEASUREMENTS.is_dir():  # an installed package carries its own copy
    MEASUREMENTS = Path(__file__).resolve().parent / "measurements"


@dataclass(frozen=True)
class Sweep:
    """A grid of runs: one call of `run` for each combination of the grid's values.

    `run(**cell)` returns that cell's rows, each a dict of what was measured. `checked`
    are the cells that `check` runs again; a number may then differ from the CSV's by
    `tolerance[column]`, or by the share `relative[column]` of it (for columns that span
    decades), and everything that has neither must be the same text.
    """

    name: str
    about: str
    grid: dict[str, tuple]
    run: Callable[..., list[dict]]
    checked: tuple[dict, ...]
    tolerance: dict[str, float] = field(default_factory=dict)
    relative: dict[str, float] = field(default_factory=dict)

    def cells(self) -> list[dict]:
        """Every combination of the grid, the last axis running fastest."""
        combinations = itertools.product(*self.grid.values())
        return [dict(zip(self.grid, values, strict=True)) for values in combinations]


# Reading and writing


def load(name: str, directory: Path = MEASUREMENTS) -> np.ndarray:
    """Read a sweep's CSV as a structured array: `rows["depth"]`, `rows[mask]`.

    Raises ValueError if there is no such file, with the names there are.

    Examples
    --------
    >>> rows = load("degradation")
    >>> last = rows[(rows["epoch"] == 15) & (rows["depth"] == 56)]
    >>> plain = last["train_accuracy"][last["kind"] == "plain"]
    >>> residual = last["train_accuracy"][last["kind"] == "residual"]
    >>> len(plain), bool(plain.max() < residual.min())
    (5, True)
    """
    path = Path(directory) / f"{name}.csv"
    if not path.exists():
        known = sorted(p.stem for p in Path(directory).glob("*.csv"))
        raise ValueError(f"No measurements are called {name!r}; there are {known}.")
    return np.genfromtxt(path, delimiter=",", names=True, dtype=None, encoding="utf-8")


def _text(value) -> str:
    """Write a value as the CSV has it: six significant digits say enough."""
    return f"{value:.6g}" if isinstance(value, float) else str(value).replace(",", ";")


def _key(sweep: Sweep, cell: dict) -> tuple[str, ...]:
    return tuple(_text(cell[axis]) for axis in sweep.grid)


def _table(sweep: Sweep, cell: dict, rows: list[dict]) -> list[dict]:
    """Put the cell's values in front of each of its rows, all as text."""
    return [{k: _text(v) for k, v in {**cell, **row}.items()} for row in rows]


def _read(sweep: Sweep, path: Path) -> dict[tuple, list[dict]]:
    """Return the rows of each finished cell of the grid."""
    done: dict[tuple, list[dict]] = {}
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                done.setdefault(_key(sweep, row), []).append(row)
    wanted = {_key(sweep, cell) for cell in sweep.cells()}
    return {key: rows for key, rows in done.items() if key in wanted}


def _replace(path: Path, text: str) -> None:
    """Write a whole file, or nothing: a reader and a kill never see half of it."""
    beside = path.with_name(f".{path.name}.new")
    with beside.open("w", newline="", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def _write(sweep: Sweep, path: Path, done: dict[tuple, list[dict]]) -> None:
    keys = [_key(sweep, cell) for cell in sweep.cells()]
    rows = [row for key in keys if key in done for row in done[key]]
    if not rows:
        return
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    _replace(path, text.getvalue())


# Provenance


def _git(*arguments: str) -> str:
    """Return git's answer about this source tree, or nothing where it has none."""
    try:
        answer = subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True
        )
    except FileNotFoundError:
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""


def _processor() -> str:
    """Name the processor's model; the kernel knows it better than Python."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _provenance(sweep: Sweep, where: str) -> dict:
    packages = ("resnotes", "torch", "numpy", "mnist1d", "distributed")
    return {
        "sweep": sweep.name,
        "about": sweep.about,
        "recipe": " ".join((sweep.run.__doc__ or "").split()),
        "grid": {axis: list(values) for axis, values in sweep.grid.items()},
        "tolerance": sweep.tolerance,
        "relative_tolerance": sweep.relative,
        "code": {
            "commit": _git("rev-parse", "HEAD"),
            "changed_since": bool(_git("status", "--porcelain", "--", "resnotes")),
        },
        "python": platform.python_version(),
        "packages": {package: version(package) for package in packages},
        "hardware": {
            "processor": _processor(),
            "logical_cores": os.cpu_count(),
            "instructions": torch.backends.cpu.get_cpu_capability(),
            "workers": where,
        },
        "started": _now(),
    }


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


# Running


@contextlib.contextmanager
def _client(workers: int, scheduler: str | None) -> Iterator:
    """Connect to a cluster, or start one that lives as long as the run."""
    from distributed import Client, LocalCluster

    if scheduler is not None:
        with Client(scheduler) as client:
            yield client
        return
    with (
        LocalCluster(
            n_workers=max(workers, 1),
            threads_per_worker=1,
            processes=workers > 0,
            dashboard_address="127.0.0.1:0",
            memory_limit=0,
            silence_logs=50,
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def _timed(function: Callable[..., list[dict]], cell: dict) -> tuple[list[dict], float]:
    start = time.perf_counter()
    rows = function(**cell)
    return rows, time.perf_counter() - start


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold the sweep's lock; the system frees it when a process is killed."""
    from filelock import FileLock, Timeout

    lock = FileLock(path.with_name(f".{path.name}.lock"), timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise ValueError(f"Another process is writing {path}.") from None
    try:
        yield
    finally:
        lock.release()
        Path(lock.lock_file).unlink(missing_ok=True)


def run(
    sweep: Sweep,
    *,
    directory: Path = MEASUREMENTS,
    workers: int = 0,
    scheduler: str | None = None,
    progress: bool = False,
) -> Path:
    """Run what is missing of a sweep and return the path of its CSV.

    By default the cells run one after the other in this process; with `workers` in
    that many local processes; with `scheduler` on a Dask cluster that already exists
    (its workers need this package, and one thread each: `train` makes a second thread
    of the same process wait). A cell whose worker dies is given to another one,
    up to three times.

    Raises
    ------
    RuntimeError
        After everything else is done and saved, if a cell raised an error, with it.
    ValueError
        If another process is running the same sweep, or the CSV comes from another
        recipe or grid axes.
    """
    from distributed import as_completed
    from tqdm import tqdm

    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{sweep.name}.csv"
    where = f"{workers} local processes" if workers else "this process"
    provenance = _provenance(sweep, "a cluster" if scheduler else where)
    with _alone(path):
        before = _resumable(sweep, path, provenance)
        seconds = before.get("compute_seconds", 0.0)
        provenance["started"] = before.get("started", provenance["started"])
        provenance["resumed"] = _earlier(before, provenance)
        done = _read(sweep, path)
        cells = sweep.cells()
        missing = [cell for cell in cells if _key(sweep, cell) not in done]
        failed: dict[tuple, str] = {}

        def save() -> None:
            told = {"cells": len(cells), "finished": len(done), "updated": _now()}
            told["compute_seconds"] = round(seconds, 1)
            text = json.dumps({**provenance, **told}, indent=1, ensure_ascii=False)
            _replace(path.with_suffix(".json"), text + "\n")
            _write(sweep, path, done)

        with contextlib.ExitStack() as stack:
            bar = stack.enter_context(
                tqdm(
                    total=len(cells),
                    initial=len(done),
                    disable=not progress,
                    file=sys.stderr,
                    desc=sweep.name,
                )
            )
            if missing:
                client = stack.enter_context(_client(workers, scheduler))
                cell_of = {
                    client.submit(_timed, sweep.run, cell, pure=False): cell
                    for cell in missing
                }
                for future in as_completed(list(cell_of)):
                    cell = cell_of.pop(future)
                    if future.status != "finished":
                        failed[_key(sweep, cell)] = repr(future.exception())
                        continue
                    rows, took = future.result()
                    seconds += took
                    done[_key(sweep, cell)] = _table(sweep, cell, rows)
                    save()
                    bar.update()
    if failed:
        lines = "\n".join(f"  {key}: {error}" for key, error in failed.items())
        raise RuntimeError(f"{len(failed)} of {len(cells)} cells failed:\n{lines}")
    return path


def _resumable(sweep: Sweep, path: Path, provenance: dict) -> dict:
    """Return the provenance of what is there, if it belongs to this sweep."""
    if not path.exists():
        return {}
    beside = path.with_suffix(".json")
    before = json.loads(beside.read_text(encoding="utf-8")) if beside.exists() else {}
    if (list(before.get("grid", ())), before.get("recipe")) != (
        list(sweep.grid),
        provenance["recipe"],
    ):
        raise ValueError(
            f"{path} was made by another recipe; move it away to start again."
        )
    return before


def _earlier(before: dict, provenance: dict) -> list[dict]:
    """List what finished cells were run with, where that was something else."""
    earlier = before.get("resumed", [])
    used = ("code", "python", "packages", "hardware")
    if before and any(before[name] != provenance[name] for name in used):
        told = (*used, "finished", "updated")
        earlier = [*earlier, {name: before[name] for name in told}]
    return earlier


def check(sweep: Sweep, *, directory: Path = MEASUREMENTS) -> list[str]:
    """Run the `checked` cells again and return what differs from the CSV, in words."""
    done = _read(sweep, Path(directory) / f"{sweep.name}.csv")
    found = []
    for cell in sweep.checked:
        stored = done.get(_key(sweep, cell))
        if stored is None:
            found.append(f"{cell}: not in the CSV")
            continue
        fresh = _table(sweep, cell, sweep.run(**cell))
        if len(stored) != len(fresh):
            found.append(f"{cell}: {len(stored)} rows stored, {len(fresh)} now")
            continue
        for k, (old, new) in enumerate(zip(stored, fresh, strict=True), 1):
            found += [
                f"{cell}, row {k}: {column} was {old.get(column)}, is {new[column]}"
                for column in new
                if not _close(sweep, column, old.get(column), new[column])
            ]
    return found


def _close(sweep: Sweep, column: str, old: str | None, new: str) -> bool:
    absolute, relative = sweep.tolerance.get(column), sweep.relative.get(column)
    if old is None or (absolute is None and relative is None):
        return old == new
    allowed = dict(atol=absolute or 0.0, rtol=relative or 0.0)
    return bool(np.isclose(float(new), float(old), **allowed, equal_nan=True))


# The command line


def main(arguments: list[str] | None = None) -> int:
    """List the sweeps, run one, or check one; the exit status says whether it held."""
    from resnotes.grids import SWEEPS  # here, because grids are made of `Sweep`s

    parser = argparse.ArgumentParser(prog="python -m resnotes.sweeps")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="what there is, and how much of it is done")
    running = commands.add_parser("run", help="run what is missing of a sweep")
    checking = commands.add_parser("check", help="run a few cells again and compare")
    for command in (running, checking):
        command.add_argument("name", choices=SWEEPS)
    for command in commands.choices.values():
        command.add_argument("--directory", type=Path, default=MEASUREMENTS)
    where = running.add_mutually_exclusive_group()
    where.add_argument("--workers", type=int, default=0, help="local processes")
    where.add_argument(
        "--scheduler", help="address of a Dask scheduler (one thread a worker)"
    )
    chosen = parser.parse_args(arguments)

    if chosen.command == "list":
        for sweep in SWEEPS.values():
            done = len(_read(sweep, chosen.directory / f"{sweep.name}.csv"))
            print(f"{sweep.name}: {done} of {len(sweep.cells())} cells; {sweep.about}")
        return 0
    sweep = SWEEPS[chosen.name]
    if chosen.command == "run":
        run(
            sweep,
            directory=chosen.directory,
            workers=chosen.workers,
            scheduler=chosen.scheduler,
            progress=True,
        )
        return 0
    found = check(sweep, directory=chosen.directory)
    for line in found:
        print(line)
    allowed = [f"{k} ±{v:g}" for k, v in sweep.tolerance.items()]
    allowed += [f"{k} ±{100 * v:g} %" for k, v in sweep.relative.items()]
    verdict = "some differ" if found else "all agree"
    again = f"{len(sweep.checked)} cells again, {verdict}"
    print(f"{sweep.name}: {again} ({', '.join(allowed)})")
    return bool(found)


if __name__ == "__main__":
    # Workers import what they are sent: it has to come from the module with a name.
    from resnotes import sweeps

    sys.exit(sweeps.main())
