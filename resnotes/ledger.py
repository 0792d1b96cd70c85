"""The ledger: every published number that the book mentions, and ours beside it.

The published side is `chapters/reproductions.toml`. Our side is said by the notebook
that measures it, with `record`, and kept in its stored output. `python -m
resnotes.ledger` compares the two and writes the page, `chapters/reproductions.md`.
"""

from __future__ import annotations

import re
import sys
import tomllib
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

import numpy as np

from resnotes.style import SUPERSCRIPT

CHAPTERS = Path(__file__).parent.parent / "chapters"
DATA = CHAPTERS / "reproductions.toml"
PAGE = CHAPTERS / "reproductions.md"


# --- the notebooks' side ---


class Value(NamedTuple):
    """One number of ours: the middle, and the lowest and highest of several runs."""

    middle: str
    low: str
    high: str
    runs: int

    def __str__(self):
        if self.runs == 1:
            return self.middle
        return f"{self.middle} ({self.low} … {self.high}, {self.runs} runs)"


def record(row: str, *values, form: str = ".3g") -> None:
    """Print what this notebook measured for one row of the ledger.

    Parameters
    ----------
    row
        The row's name in `chapters/reproductions.toml`.
    values
        As many as the row compares. Each is one number, or the numbers of several runs:
        of these the median, the lowest and the highest are kept.
    form
        How to round, as in `format`; coarse enough to be the same on another processor.

    Raises
    ------
    ValueError
        If there is no value, or one that is not finite.

    Examples
    --------
    >>> record("veit-short-share", 0.45367)
    veit-short-share: 0.454
    >>> record("xiong-warm-up", [0.10, 0.11, 0.09], [0.2, 0.1, 0.15], form=".2f")
    xiong-warm-up: 0.10 (0.09 … 0.11, 3 runs); 0.15 (0.10 … 0.20, 3 runs)
    """
    if not values:
        raise ValueError(f"record: no value for {row!r}")
    said = []
    for value in values:
        runs = np.asarray(value, dtype=float).ravel()
        if not (runs.size and np.isfinite(runs).all()):
            raise ValueError(f"record: {row!r} got {value!r}; expected finite numbers")
        middle, low, high = (
            _rounded(f(runs), form) for f in (np.median, np.min, np.max)
        )
        said.append(str(Value(middle, low, high, runs.size)))
    print(f"{row}: {'; '.join(said)}")


def _rounded(number: float, form: str) -> str:
    text = format(number, form)
    return text.removeprefix("-") if float(text) == 0 else text


_VALUE = re.compile(r"([^\s;]+)(?: \((\S+) … (\S+), (\d+) runs\))?")
_LINE = re.compile(rf"([a-z0-9-]+): ({_VALUE.pattern}(?:; {_VALUE.pattern})*)")


def recorded(notebook) -> dict[str, list[Value]]:
    """Return what the stored outputs of a notebook's ledger cell say, row by row."""
    found: dict[str, list[Value]] = {}
    for cell in notebook.cells:
        if cell.cell_type != "code" or "ledger import record" not in cell.source:
            continue
        for line in "".join(o.get("text", "") for o in cell.outputs).splitlines():
            match = _LINE.fullmatch(line)
            if not match or match[1] in found:
                raise ValueError(f"the ledger cannot read {line!r}, or has it twice")
            found[match[1]] = [
                Value(middle, low or middle, high or middle, int(runs or 1))
                for middle, low, high, runs in _VALUE.findall(match[2])
            ]
    return found


def all_recorded() -> dict[str, tuple[str, list[Value]]]:
    """Return each recorded row with the stem of its notebook and its values."""
    import nbformat

    found: dict[str, tuple[str, list[Value]]] = {}
    for path in sorted(CHAPTERS.glob("*.ipynb")):
        for name, values in recorded(nbformat.read(path, as_version=4)).items():
            if name in found:
                raise ValueError(f"{path.stem} and {found[name][0]} both record {name}")
            found[name] = (path.stem, values)
    return found


# --- the published side ---

_NUMBER = re.compile(
    r"(?<![\w.])(?<!\w-)-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[-+]?\d+)?"
)


def numerals(text: str) -> list[str]:
    """Return the numbers in a text as written there, without thousands' commas.

    Examples
    --------
    >>> numerals("−0.0082, 1.4e-06 and 10,000 layers")
    ['-0.0082', '1.4e-06', '10000']
    """
    return [n.replace(",", "") for n in _NUMBER.findall(text.replace("−", "-"))]


def rows() -> dict[str, dict]:
    """Return the rows of `chapters/reproductions.toml` in their order, by name."""
    return tomllib.loads(DATA.read_text(encoding="utf-8"))


def compared(row: dict) -> list[str]:
    """Return the printed numbers that ours are compared with, as written."""
    return row.get("numbers", numerals(row["printed"]))


def agrees(compare: str, printed: list[str], ours: list[Value]) -> bool:
    """Say whether our numbers agree with printed ones.

    Parameters
    ----------
    compare
        How: `"to the printed digits"` (half a unit of the last one), `"to the last
        digit"` (a whole unit), `"within 5 %"`, `"within 0.2"`, `"as a range"` (all our
        runs inside of two printed numbers), `"as a lower bound"` (all above one),
        `"as one of our runs"` (the printed number between our lowest and highest),
        `"by direction: rises"` or `"by direction: falls"` (from each of ours to the
        next).
    printed
        The printed numbers, as text, since the digits count.
    ours
        One value for each printed number, except for a range and a direction.

    Raises
    ------
    ValueError
        If `compare` is none of these, or the numbers do not fit it.

    Examples
    --------
    >>> agrees("to the printed digits", ["0.45"], [Value("0.454", "0.454", "0.454", 1)])
    True
    """
    middles = [float(value.middle) for value in ours]
    lows, highs = ([float(v[k]) for v in ours] for k in (1, 2))
    if direction := re.fullmatch(r"by direction: (rises|falls)", compare):
        if len(ours) < 2:
            raise ValueError(f"{compare!r} needs two numbers of ours or more")
        steps = np.diff(middles)
        return bool((steps > 0).all() if direction[1] == "rises" else (steps < 0).all())

    theirs = [float(number) for number in printed]
    if len(printed) != (2 if compare == "as a range" else len(ours)):
        raise ValueError(f"{compare!r}: {len(printed)} printed, {len(ours)} of ours")
    pairs = zip(theirs, lows, highs, strict=False)
    if compare == "as a range":
        return theirs[0] <= min(lows) and max(highs) <= theirs[1]
    if compare == "as a lower bound":
        return all(low > bound for bound, low, _ in pairs)
    if compare == "as one of our runs":
        return all(low <= number <= high for number, low, high in pairs)
    room = [_room(compare, number) for number in printed]
    gaps = [abs(a - b) for a, b in zip(theirs, middles, strict=True)]
    return all(gap <= r * (1 + 1e-9) for gap, r in zip(gaps, room, strict=True))


def _room(compare: str, number: str) -> float:
    """Return by how much ours may differ from one printed number."""
    unit = 10.0 ** int(Decimal(number).as_tuple().exponent)
    if compare == "to the printed digits":
        return unit / 2
    if compare == "to the last digit":
        return unit
    if not (within := re.fullmatch(r"within ([\d.]+)( %)?", compare)):
        raise ValueError(f"the ledger knows no way to compare {compare!r}")
    return float(within[1]) * (abs(float(number)) / 100 if within[2] else 1)


def verdict(row: dict, ours: list[Value] | None) -> str:
    """Return "agrees", "differs" or "not attempted", from the two sides' numbers."""
    if ("not_attempted" in row) == (ours is not None):
        raise ValueError(
            f"{row['what']!r}: a row has either a recorded value or not_attempted"
        )
    if ours is None:
        return "not attempted"
    right = agrees(row["compare"], compared(row), ours)
    return "agrees" if right else "differs"


# --- the page ---

HEAD = """\
% Written by `python -m resnotes.ledger` from reproductions.toml and the notebooks.

# Reproductions

Every number that this book takes from a paper, a book or a note, and ours beside it.

{summary}

Our side is read from the outputs of the notebooks, and the verdict is computed from \
the two numbers; under each verdict stands how they were compared.
Of several runs you see the median and, in brackets, the lowest and the highest.
*Reported* means that we know the printed number second-hand, from summaries that agree.
*Not attempted* says why.

Where our number differs from the printed one:

{differs}
"""

TITLES = {
    0: "The landing page",
    1: "[Vanishing gradients](01_vanishing_gradients.ipynb)",
    2: "[The residual connection](02_residual_connection.ipynb)",
    3: "[The identity Jacobian](03_identity_jacobian.ipynb)",
    4: "[Path ensembles](04_path_ensembles.ipynb)",
    5: "[Pre-norm and post-norm](05_pre_vs_post_norm.ipynb)",
    6: "[Recipes](06_recipes.ipynb)",
    7: "[After ResNet](07_after_resnet.ipynb)",
}

SIGNS = {"agrees": "✓", "differs": "≠", "not attempted": "–"}

TABLE = """
```{list-table}
:class: ledger
:header-rows: 1
:widths: 34 20 24 22

* - what, and where
  - printed
  - ours
  - verdict
"""


def page() -> str:
    """Return the page, made of the data file and the notebooks' stored outputs."""
    table, ours = rows(), {name: values for name, (_, values) in all_recorded().items()}
    if unknown := ours.keys() - table.keys():
        raise ValueError(f"recorded, but no row of {DATA.name}: {sorted(unknown)}")
    if untitled := {row["chapter"] for row in table.values()} - TITLES.keys():
        raise ValueError(f"add chapters {sorted(untitled)} to TITLES in {__name__}")
    verdicts = {name: verdict(row, ours.get(name)) for name, row in table.items()}

    count = list(verdicts.values()).count
    directions = sum(
        said == "agrees" and "direction" in table[name]["compare"]
        for name, said in verdicts.items()
    )
    summary = (
        f"**Of {len(table)} rows {count('agrees')} agree, {directions} of them in "
        f"direction only, {count('differs')} differ, and {count('not attempted')} were "
        "not attempted.**"
    )
    differs = "\n".join(
        f"- [{table[name]['what']}](#{name})"
        for name, said in verdicts.items()
        if said == "differs"
    )
    text = HEAD.format(summary=summary, differs=differs)
    for chapter, title in TITLES.items():
        text += f"\n## {chapter}. {title}\n" if chapter else f"\n## {title}\n"
        text += TABLE
        for name, row in table.items():
            if row["chapter"] == chapter:
                text += _table_row(name, row, ours.get(name), verdicts[name])
        text += "```\n"
    return text


def _table_row(name: str, row: dict, ours: list[Value] | None, said: str) -> str:
    unit = f" {row['unit']}" if "unit" in row else ""
    source = [f"{{cite}}`{row['cite']}`"] if "cite" in row else []
    source += [row["where"]] if "where" in row else []
    reported = "reported: " if row.get("known") == "reported" else ""
    if ours is None:
        found, why = ["–"], [row["not_attempted"]]
    else:
        between = " → " if "direction" in row["compare"] else ", "
        found = [between.join(map(_plain, ours)) + unit, row["setup"]]
        aims = _powers(" and ".join(row.get("numbers", [])))
        why = [f"compared {f'with {aims}, ' if aims else ''}{row['compare']}"]
    why += [row["note"]] if "note" in row else []
    cells = [
        [f"({name})=", row["what"], ", ".join(source)],
        [reported + _powers(row["printed"])],
        found,
        [f"{SIGNS[said]} **{said}**", *why],
    ]
    return "".join(
        f"{start} - " + "\n\n    ".join(parts) + "\n"
        for start, parts in zip("*   ", cells, strict=True)
    )


def _powers(text: str) -> str:
    """Write 9.2e-10 as 9.2 × 10⁻¹⁰ in one piece, and a true minus."""
    times = "\N{NO-BREAK SPACE}×\N{NO-BREAK SPACE}10"
    text = re.sub(
        r"(?<=\d)e([-+]?\d+)",
        lambda e: times + str(int(e[1])).translate(SUPERSCRIPT),
        text,
    )
    return re.sub(r"(?<![\w⁻])-(?=\d)", "−", text)


def _plain(value: Value) -> str:
    """Write a value without the 1.3e+02 that rounding to two digits makes of 130."""
    short = re.sub(r"[\d.]+e\+0[1-5]\b", lambda v: f"{float(v[0]):,.0f}", str(value))
    return _powers(short)


def name_rows(app, doctree) -> None:
    """Let a chapter link to a row as to a heading, the only anchors that MyST knows."""
    if app.env.docname == f"{CHAPTERS.name}/{PAGE.stem}":
        app.env.metadata[app.env.docname]["myst_slugs"] = {
            name: (None, name, row["what"]) for name, row in rows().items()
        }


def setup(app) -> dict:
    """Register with Sphinx."""
    app.connect("doctree-read", name_rows)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def main() -> int:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8", newline="\n")
    print(f"wrote {PAGE.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
