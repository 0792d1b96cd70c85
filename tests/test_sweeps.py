"""Sweeps: whole cells, nothing twice, nothing lost, whatever is killed."""

import json
import math
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

from resnotes import grids, sweeps
from resnotes.blocks import classifier, mlp_stack
from resnotes.grids import SWEEPS
from resnotes.sweeps import MEASUREMENTS, Sweep, check, load, main, run
from resnotes.training import History, mnist1d

# A sweep of arithmetic that also counts how often each cell was run, and that can be
# told to do something dreadful first. It is text, so that other processes can have it.
TOY = """
import os, pathlib, time
from resnotes.sweeps import Sweep

LOG = pathlib.Path(os.environ["TOY_LOG"])

def measure(letter, number):
    '''Add and multiply.'''
    with LOG.open("a") as log:
        log.write(f"{letter}{number}\\n")
    exec(os.environ.get("TOY_FIRST", ""))
    return [
        {"step": step, "value": number / 3 + step, "status": "ok"}
        for step in range(number)
    ]

toy = Sweep(
    name="toy",
    about="arithmetic",
    grid={"letter": ("a", "b"), "number": (1, 2, 3, 4)},
    run=measure,
    checked=({"letter": "b", "number": 2},),
    tolerance={"value": 1e-3},
)
"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """The toy sweep as a module that worker processes can import too."""
    (tmp_path / "toy_sweep.py").write_text(TOY)
    monkeypatch.setenv("TOY_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("toy_sweep", None)
    import toy_sweep

    return toy_sweep.toy


def runs(tmp_path) -> list[str]:
    return (tmp_path / "log").read_text().split()


EXPECTED = "letter,number,step,value,status\n" + "".join(
    f"{letter},{number},{step},{number / 3 + step:.6g},ok\n"
    for letter in "ab"
    for number in (1, 2, 3, 4)
    for step in range(number)
)


def test_a_sweep_is_its_grid_in_order(toy, tmp_path):
    path = run(toy, directory=tmp_path / "out")
    assert path.read_text() == EXPECTED
    assert sorted(runs(tmp_path)) == [f"{c}{n}" for c in "ab" for n in (1, 2, 3, 4)]
    left = sorted(p.name for p in path.parent.iterdir())
    assert left == ["toy.csv", "toy.json"]


def test_running_again_runs_nothing(toy, tmp_path):
    path = run(toy, directory=tmp_path)
    before = path.read_bytes()
    run(toy, directory=tmp_path)
    assert len(runs(tmp_path)) == 8 and path.read_bytes() == before


def test_what_is_missing_is_run_and_only_that(toy, tmp_path):
    path = run(toy, directory=tmp_path)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not line.startswith("a,3")))
    run(toy, directory=tmp_path)
    assert path.read_text() == EXPECTED
    assert runs(tmp_path)[8:] == ["a3"]


@pytest.mark.parametrize("after", [1, 3])
def test_sigkill_half_way_then_restart(toy, tmp_path, after):
    """The process is killed in the middle of a cell, without a chance to tidy up."""
    die = f"if len(LOG.read_text().split()) > {after}:\n"
    die += "    time.sleep(0.5); os.kill(os.getpid(), 9)"  # the last result is saved
    script = "import toy_sweep; from resnotes.sweeps import run; run(toy_sweep.toy, "
    script += f"directory={str(tmp_path / 'out')!r})"
    killed = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "TOY_FIRST": die},
        capture_output=True,
    )
    assert killed.returncode == -signal.SIGKILL
    half = (tmp_path / "out" / "toy.csv").read_text()
    assert half.count("\n") > 1 and half != EXPECTED
    assert set(half.splitlines()) <= set(EXPECTED.splitlines())
    finished = {tuple(line.split(",")[:2]) for line in half.splitlines()[1:]}
    path = run(toy, directory=tmp_path / "out")
    assert path.read_text() == EXPECTED
    again = runs(tmp_path)[after + 1 :]
    assert len(again) == 8 - len(finished)
    assert not {(cell[0], cell[1]) for cell in again} & finished


def test_a_worker_process_is_killed_and_its_cell_retried(toy, tmp_path, monkeypatch):
    first = "letter == 'a' and number == 3 and LOG.read_text().split().count('a3') == 1"
    monkeypatch.setenv("TOY_FIRST", f"if {first}: os.kill(os.getpid(), 9)")
    path = run(toy, directory=tmp_path / "out", workers=2)
    assert path.read_text() == EXPECTED
    assert runs(tmp_path).count("a3") == 2


def test_an_existing_cluster(toy, tmp_path):
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=1,
        threads_per_worker=1,
        processes=False,
        dashboard_address="127.0.0.1:0",
    ) as cluster:
        path = run(toy, directory=tmp_path / "out", scheduler=cluster.scheduler_address)
    assert path.read_text() == EXPECTED
    assert json.loads(path.with_suffix(".json").read_text())["hardware"]["workers"] == (
        "a cluster"
    )


def test_a_cell_that_raises_is_told_after_the_others_are_saved(
    toy, tmp_path, monkeypatch
):
    monkeypatch.setenv("TOY_FIRST", "if number == 2: raise KeyError('lost')")
    with pytest.raises(RuntimeError, match=r"2 of 8 cells failed(.|\n)*lost"):
        run(toy, directory=tmp_path)
    kept = [line for line in EXPECTED.splitlines() if line.split(",")[1] != "2"]
    assert (tmp_path / "toy.csv").read_text().splitlines() == kept
    monkeypatch.setenv("TOY_FIRST", "")
    assert run(toy, directory=tmp_path).read_text() == EXPECTED


def test_two_processes_do_not_write_one_file(toy, tmp_path):
    with (
        sweeps._alone(tmp_path / "toy.csv"),
        pytest.raises(ValueError, match="Another process"),
    ):
        run(toy, directory=tmp_path)


def test_rows_of_another_recipe_are_not_mixed_in(toy, tmp_path):
    path = run(toy, directory=tmp_path)
    beside = path.with_suffix(".json")
    told = json.loads(beside.read_text())
    beside.write_text(json.dumps({**told, "recipe": "Something else."}))
    with pytest.raises(ValueError, match="another recipe"):
        run(toy, directory=tmp_path)
    beside.unlink()
    with pytest.raises(ValueError, match="another recipe"):
        run(toy, directory=tmp_path)


def test_a_grid_may_grow(toy, tmp_path):
    run(toy, directory=tmp_path)
    more = {**vars(toy), "grid": {"letter": ("0", "a", "b"), "number": (1, 2, 3, 4)}}
    path = run(Sweep(**more), directory=tmp_path)
    assert len(runs(tmp_path)) == 12
    assert path.read_text().startswith("letter,number,step,value,status\n0,1,0,0.33")
    assert path.read_text().endswith(EXPECTED.split("\n", 1)[1])


def test_provenance_says_how_and_not_where(toy, tmp_path):
    text = run(toy, directory=tmp_path).with_suffix(".json").read_text()
    told = json.loads(text)
    assert told["finished"] == told["cells"] == 8
    assert told["grid"] == {"letter": ["a", "b"], "number": [1, 2, 3, 4]}
    assert torch.__version__.startswith(told["packages"]["torch"])  # or 2.13.0+cpu
    assert told["recipe"] == "Add and multiply."
    assert os.uname().nodename not in text
    assert str(tmp_path) not in text and str(sweeps.ROOT) not in text


def test_provenance_keeps_what_an_interrupted_run_was_made_with(toy, tmp_path):
    path = run(toy, directory=tmp_path)
    beside = path.with_suffix(".json")
    told = json.loads(beside.read_text())
    assert told["resumed"] == []
    other = {**told, "hardware": {"processor": "another"}, "finished": 5}
    beside.write_text(json.dumps(other))
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not line.startswith("b,4")))
    run(toy, directory=tmp_path)
    again = json.loads(beside.read_text())
    (earlier,) = again["resumed"]
    assert earlier["hardware"] == {"processor": "another"} and earlier["finished"] == 5
    assert again["hardware"] == told["hardware"] and again["finished"] == 8


# check


def test_check_compares_within_the_stated_tolerance(toy, tmp_path):
    path = run(toy, directory=tmp_path)
    assert check(toy, directory=tmp_path) == []
    path.write_text(path.read_text().replace("b,2,1,1.66667", "b,2,1,1.66700"))
    assert check(toy, directory=tmp_path) == []
    path.write_text(path.read_text().replace("b,2,1,1.66700", "b,2,1,1.68000"))
    (found,) = check(toy, directory=tmp_path)
    assert "value was 1.68000, is 1.66667" in found
    path.write_text(EXPECTED.replace("b,2,1,1.66667,ok\n", ""))
    assert "1 rows stored, 2 now" in check(toy, directory=tmp_path)[0]
    path.write_text(EXPECTED.replace("b,2", "b,7"))
    assert "not in the CSV" in check(toy, directory=tmp_path)[0]


def test_a_relative_tolerance_is_a_share_of_the_number(toy, tmp_path):
    path = run(toy, directory=tmp_path)
    loose = Sweep(**{**vars(toy), "tolerance": {}, "relative": {"value": 0.01}})
    path.write_text(path.read_text().replace("b,2,0,0.666667", "b,2,0,0.6700"))
    assert check(loose, directory=tmp_path) == []
    path.write_text(path.read_text().replace("b,2,0,0.6700", "b,2,0,0.6600"))
    (found,) = check(loose, directory=tmp_path)
    assert "value was 0.6600, is 0.666667" in found
    exact = Sweep(**{**vars(toy), "tolerance": {}})
    assert "value was 0.6600" in check(exact, directory=tmp_path)[0]


def test_every_sweep_of_the_book_can_be_checked():
    for sweep in SWEEPS.values():
        assert sweep.checked, sweep.name
        assert all(cell in sweep.cells() for cell in sweep.checked), sweep.name
        measured = set(load(sweep.name).dtype.names) - set(sweep.grid)
        assert {*sweep.tolerance, *sweep.relative} <= measured, sweep.name


def test_a_cheap_check_of_the_book():
    """Two cells of a sweep, run again as a reader would; the others take minutes."""
    checked = subprocess.run(
        [sys.executable, "-m", "resnotes.sweeps", "check", "degradation_gradients"],
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "2 cells again, all agree (gradient_norm ±10 %)" in checked.stdout


def test_a_changed_csv_fails_the_check(tmp_path, capsys):
    text = (MEASUREMENTS / "degradation_gradients.csv").read_text()
    row = next(line for line in text.splitlines() if line.startswith("plain,20,0,7,"))
    cell, value = row.rsplit(",", 1)
    changed = text.replace(row, f"{cell},{1.2 * float(value):.6g}")
    (tmp_path / "degradation_gradients.csv").write_text(changed)
    assert main(["check", "degradation_gradients", "--directory", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "row 8: gradient_norm was" in out and "some differ" in out


# The command line


def test_the_command_line(toy, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(grids, "SWEEPS", {"toy": toy})
    directory = ["--directory", str(tmp_path)]
    assert main(["list", *directory]) == 0
    assert "toy: 0 of 8 cells; arithmetic" in capsys.readouterr().out
    assert main(["run", "toy", *directory]) == 0
    seen = capsys.readouterr()
    assert seen.out == "" and "8/8" in seen.err
    assert main(["list", *directory]) == 0
    assert "toy: 8 of 8 cells" in capsys.readouterr().out
    assert main(["check", "toy", *directory]) == 0
    assert "1 cells again, all agree (value ±0.001)" in capsys.readouterr().out
    csv = tmp_path / "toy.csv"
    csv.write_text(csv.read_text().replace("b,2,0,0.666667", "b,2,0,0.7"))
    assert main(["check", "toy", *directory]) == 1
    with pytest.raises(SystemExit):
        main(["run", "no such sweep", *directory])


# What the book's own sweeps measure


def test_a_diverged_run_is_a_row_that_says_so():
    history = History([2.3, math.inf], [1], [2.3], [0.1], [2.3], [0.1])
    history.diverged, history.reason = True, "the training loss was inf at step 2"
    rows = grids._epoch_rows(history, 1)
    assert [row["epoch"] for row in rows] == [1, 2]
    assert rows[0]["status"] == "ok" and math.isnan(rows[1]["train_loss"])
    assert rows[1]["status"] == "diverged: the training loss was inf at step 2"


def test_load_names_what_there_is(tmp_path):
    with pytest.raises(ValueError, match=r"'nothing'.*degradation"):
        load("nothing")


def test_every_sweep_of_the_book_is_complete():
    for sweep in SWEEPS.values():
        done = sweeps._read(sweep, MEASUREMENTS / f"{sweep.name}.csv")
        assert len(done) == len(sweep.cells()), sweep.name
        told = json.loads((MEASUREMENTS / f"{sweep.name}.json").read_text())
        assert told["finished"] == len(done)
        assert told["grid"] == json.loads(json.dumps(sweep.grid)), sweep.name
        assert told["tolerance"] == sweep.tolerance
        assert told["relative_tolerance"] == sweep.relative


def test_case_degradation():
    """The case's bands, for every one of the five seeds."""
    rows = load("degradation")
    last = rows[rows["epoch"] == 15]

    def accuracy(kind, depth):
        chosen = (last["kind"] == kind) & (last["depth"] == depth)
        assert chosen.sum() == 5
        return last["train_accuracy"][chosen]

    plain = accuracy("plain", 20)
    assert 0.4 <= plain.min() and plain.max() <= 0.7
    assert accuracy("plain", 56).max() < 0.2
    assert accuracy("residual", 56).min() > 0.75


def test_degradation_gradients_against_hooks():
    """The same norms by backward hooks on a net built by hand."""
    torch.manual_seed(0)
    stack = mlp_stack(56, 64, residual=False, norm="batch", activation="relu")
    model, data = classifier(stack, 40, 64, 10), mnist1d()
    seen = {}
    for k, block in enumerate(model.blocks, 1):
        block.register_full_backward_hook(
            lambda module, grads_in, grads_out, k=k: seen.update(
                {k: float(grads_out[0].norm())}
            )
        )
    logits = model(data.x_train[:128])
    picked = logits.log_softmax(1)[torch.arange(128), data.y_train[:128]]
    (-picked.mean()).backward()
    rows = grids.degradation_gradients("plain", 56, 0)
    assert [row["block"] for row in rows] == list(range(57))
    ours = [row["gradient_norm"] for row in rows[1:]]
    np.testing.assert_allclose(ours, [seen[k] for k in range(1, 57)], rtol=1e-3)
