"""Keep the notebooks as the book needs them: executed, normalised, comparable.

`python -m resnotes.notebooks refresh chapters/*.ipynb` runs each in a fresh kernel and
stores it without anything that differs between two runs. `assets` only normalises, and
renews the style sheet and script inside stored figures, after resnotes/explore.css or
.js changed. `text` prints what a reviewer reads.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import html
import json
import math
import re
import sys
from pathlib import Path

import nbformat

from .style import with_assets, without_assets

WIDGET = "application/vnd.jupyter.widget-view+json"
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python", "pygments_lexer": "ipython3"},
}


def normalise(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Drop, in place, what differs between two runs of the same notebook; return it.

    Kept: sources, cell ids, tags, nbgrader's marks, outputs. Dropped: times, versions,
    widget models.
    """
    notebook.metadata = nbformat.from_dict(METADATA)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for cell in notebook.cells:
        kept = {name: cell.metadata.get(name) for name in ("tags", "nbgrader")}
        cell.metadata = nbformat.from_dict({k: v for k, v in kept.items() if v})
        merged: list[nbformat.NotebookNode] = []
        for output in cell.get("outputs", []):
            if "data" in output:
                output.data.pop(WIDGET, None)
                output.metadata = nbformat.from_dict({})
            # Where a printed text is cut in two is a matter of time.
            last = merged[-1] if merged else nbformat.NotebookNode()
            if output.get("name") and output.get("name") == last.get("name"):
                last.text += output.text
            else:
                merged.append(output)
        if "outputs" in cell:
            cell.outputs = merged
    return notebook


def refresh(path: Path) -> None:
    """Run the notebook at `path` in a fresh kernel and store it normalised.

    Raises
    ------
    nbclient.exceptions.CellExecutionError
        If a cell fails; the file is then left as it was.
    """
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
    ).execute()
    _write(normalise(notebook), path)


def renew_assets(path: Path) -> None:
    """Put the present style sheet and script into the stored figures of a notebook."""
    notebook = normalise(nbformat.read(path, as_version=4))
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            page = output.get("data", {}).get("text/html", "")
            if 'class="rn-assets"' in page:
                output.data["text/html"] = with_assets(without_assets(page))
    _write(notebook, path)


def as_text(path: Path) -> str:
    """Return a notebook as a reviewer reads it: sources, printed text, pictures' words.

    With `git config diff.notebook.textconv ".venv/bin/python -m resnotes.notebooks
    text"`, `git diff` compares this instead of the JSON.
    """
    lines = []
    for cell in nbformat.read(path, as_version=4).cells:
        tags = " ".join(cell.metadata.get("tags", []))
        lines += ["", f"--- {cell.cell_type} {cell.id} {tags}".rstrip(), cell.source]
        for output in cell.get("outputs", []):
            page = output.get("data", {}).get("text/html", "")
            words = re.findall(r'class="rn-title">([^<]*)<|<img alt="([^"]*)"', page)
            said = [html.unescape(title or alt) for title, alt in words]
            printed = output.get("text") or "\n".join(said) or "(no words)"
            lines += [f"> {line}" for line in printed.splitlines()]
    return "\n".join(lines) + "\n"


def _write(notebook: nbformat.NotebookNode, path: Path) -> None:
    nbformat.validate(notebook)
    text = nbformat.writes(notebook)
    path.write_text(text.rstrip("\n") + "\n", encoding="utf-8", newline="\n")


# --- two runs of one figure, compared ---

_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?", re.I)


def same_picture(stored: str, fresh: str, pixels: float = 1.5, share: float = 0.02):
    """Say where two figures or explorers differ: a sentence, or None if they agree.

    Two processors round the last bit differently, so that coordinates move by a hair.
    Everything but numbers must be equal; a number may differ by `pixels` (in drawings)
    or by the fraction `share` (in sentences).
    """
    pairs = [_parts(page) for page in (stored, fresh)]
    if len(pairs[0]) != len(pairs[1]):
        return f"{len(pairs[0]) // 2} frames stored, {len(pairs[1]) // 2} now"
    for k, (old, new) in enumerate(zip(*pairs, strict=True)):
        if _NUMBER.sub("#", old) != _NUMBER.sub("#", new):
            return f"part {k} is drawn or said differently: {_first(old, new)}"
        drawing = old.startswith("<svg")
        for a, b in zip(_NUMBER.findall(old), _NUMBER.findall(new), strict=True):
            gap = abs(float(a) - float(b))
            room = pixels if drawing else share * abs(float(a))
            if not (gap <= room or math.isclose(float(a), float(b), rel_tol=share)):
                return f"part {k} has {b} where {a} is stored"
    return None


def _parts(page: str) -> list[str]:
    """Take a figure apart: the HTML around, then the drawings and sentences."""
    page = without_assets(page)
    packed = re.search(r'class="rn-frames">([^<]+)<', page)
    drawings = re.findall(r"data:image/svg\+xml;base64,([^\"]+)", page)
    around = re.sub(r"base64,[^\"]+", "", page)
    around = re.sub(r'class="rn-frames">[^<]+<', "<", around)
    parts = [html.unescape(around)]
    parts += [base64.b64decode(data).decode() for data in drawings]
    if packed:
        frames = json.loads(gzip.decompress(base64.b64decode(packed[1])))
        parts += frames["svg"] + frames["text"]
    # Ids hang on the coordinates they name: their hash is no part of the picture.
    return [re.sub(r"(rn[0-9a-f]{8}-)?[mpChi][0-9a-f]{10}", "id", p) for p in parts]


def _first(old: str, new: str) -> str:
    at = next(
        (k for k, (a, b) in enumerate(zip(old, new, strict=False)) if a != b),
        min(len(old), len(new)),
    )
    at = max(0, at - 20)
    return f"{old[at : at + 60]!r} became {new[at : at + 60]!r}"


def main(arguments: list[str] | None = None) -> int:
    """Run `refresh`, `assets` or `text` on the notebooks named on the command line."""
    parser = argparse.ArgumentParser(prog="python -m resnotes.notebooks")
    parser.add_argument("what", choices=["refresh", "assets", "text"])
    parser.add_argument("notebooks", nargs="+", type=Path)
    chosen = parser.parse_args(arguments)
    for path in chosen.notebooks:
        if not path.is_file():
            print(f"{path} is no file; name one or more .ipynb files", file=sys.stderr)
            return 2
        if chosen.what == "text":
            print(as_text(path))
            continue
        print(path, flush=True)
        (refresh if chosen.what == "refresh" else renew_assets)(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
