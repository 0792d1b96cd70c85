"""Find the students' notebooks in whatever a learning platform's download looks like.

One file a student, or one folder a student; zipped or not, once or twice; Moodle's and
Canvas's names. Archives are read in memory and never unpacked to disk, so that a path
or a link in one has nowhere to go. Everything is limited in size.
"""

from __future__ import annotations

import io
import os
import re
import stat
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

NOTEBOOK = 20 * 2**20  # bytes a notebook may have
ARCHIVE = 200 * 2**20  # bytes a student's zip may have, and what is read out of it
CLASS = 4 * 2**30  # bytes read out of a class's zip and held: 2 MB each for 2,000
MEMBERS = 20_000  # files in a zip: ten each for 2,000
NOTEBOOKS = (".ipynb", ".json")  # some browsers save x.ipynb as x.ipynb.json
MOODLE = re.compile(r"^(?P<name>[^_]+)_(?P<id>\d+)_assignsubmission_[a-z]+_?")
CANVAS = re.compile(r"^(?P<name>[^_]+)_(?:LATE_)?(?P<id>\d+)_\d+_")


@dataclass
class Received:
    """What one student handed in: (file's name, its bytes) of each notebook found.

    `problems` says what could not be read; `unsafe` that an archive or a link tried to
    reach outside its place.
    """

    student: str
    id: str = ""
    notebooks: list[tuple[str, bytes]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    unsafe: bool = False


def find(folder: str | Path) -> list[Received]:
    """Return a `Received` for each student in a folder, or in a zip of one.

    Raises ValueError if there is nothing at all, or more than memory should hold.
    """
    folder = Path(folder)
    if folder.is_file() and zipfile.is_zipfile(folder):
        entries = _top_of_zip(folder)
    elif folder.is_dir():
        entries = _top_of_folder(folder)
    else:
        raise ValueError(f"{folder} is neither a folder nor a zip file")
    students: dict[str, Received] = {}
    for top, is_folder, files in entries:
        name, number = _who(top, is_folder)
        if name in students and students[name].id != number:  # two of one name
            name = f"{name} {number}"
        student = students.setdefault(name, Received(name, number))
        for path, data in files:
            _add(student, path, data)
    if not students:
        raise ValueError(f"{folder} holds no submissions")
    for student in students.values():
        if not student.notebooks and not student.problems:
            student.problems.append("no notebook was handed in")
    return [students[name] for name in sorted(students)]


def _who(top: str, is_folder: bool) -> tuple[str, str]:
    """Return a student's name, safe in a path and a spreadsheet, and platform id."""
    found = MOODLE.match(top) or CANVAS.match(top)
    name = found["name"] if found else top if is_folder else PurePosixPath(top).stem
    name = re.sub(r"[^\w .,@+-]", "_", name).strip(" .")
    name = re.sub(r"^[-+=@]+", "_", name)[:100]
    return name or "unnamed", found["id"] if found else ""


def _skip(name: str) -> bool:
    return name.startswith(".") or name in ("__MACOSX", "Thumbs.db")


Files = Iterator[tuple[str, bytes | str]]  # a file's bytes, or why it is not read


def _top_of_folder(folder: Path) -> Iterator[tuple[str, bool, Files]]:
    for path in sorted(folder.iterdir()):
        if not _skip(path.name):
            inner = path.is_dir() and not path.is_symlink()
            yield path.name, inner, _walk(path) if inner else iter([_load(path)])


def _walk(folder: Path) -> Files:
    for place, folders, files in os.walk(folder, followlinks=False):
        links = [f for f in folders if (Path(place) / f).is_symlink()]
        folders[:] = sorted(f for f in folders if not _skip(f))
        for name in sorted(files) + links:
            if not _skip(name):
                yield _load(Path(place) / name)


def _load(path: Path) -> tuple[str, bytes | str]:
    """Read a regular file; a link could be anything on this machine."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | _NONBLOCK)
    except OSError:
        return path.name, "unsafe: a link" if path.is_symlink() else "cannot be read"
    with os.fdopen(handle, "rb") as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            return path.name, "is no regular file"
        limit = _limit(path.name)
        data = stream.read(limit + 1)
    return path.name, "is too large" if len(data) > limit else data


def _limit(name: str) -> int:
    return ARCHIVE if name.lower().endswith(".zip") else NOTEBOOK


_NONBLOCK = getattr(os, "O_NONBLOCK", 0)  # a pipe in the folder must not hold us up


def _top_of_zip(archive: Path) -> Iterator[tuple[str, bool, Files]]:
    """Group a platform's zip by its first folder; files at its top are a student's."""
    groups: dict[tuple[str, bool], list] = {}
    held = 0
    for name, data in _unzip(archive, CLASS + ARCHIVE):
        held += len(data)
        if held > CLASS:
            raise ValueError(
                f"{archive} holds more than {CLASS / 2**30:g} GB of notebooks: look "
                "for the largest, or grade it in parts"
            )
        parts = PurePosixPath(name).parts
        top = (parts[0], len(parts) > 1) if parts else ("unnamed", False)
        groups.setdefault(top, []).append((parts[-1] if parts else name, data))
    for (name, is_folder), files in sorted(groups.items()):
        yield name, is_folder, iter(files)


def _unzip(archive, room: int) -> Files:
    """Yield the files of a zip, counting what really comes out of it."""
    try:
        with zipfile.ZipFile(archive) as opened:
            members = opened.infolist()
            if len(members) > MEMBERS:
                yield "zip", "unsafe: a zip of too many files"
                return
            for member in members:
                parts = PurePosixPath(member.filename.replace("\\", "/")).parts
                if member.is_dir() or any(_skip(p) for p in parts if p != ".."):
                    continue
                name = "/".join(parts)
                if ".." in parts or name.startswith("/") or ":" in parts[0]:
                    yield PurePosixPath(name).name, "unsafe: a path out of the zip"
                elif stat.S_ISLNK(member.external_attr >> 16):
                    yield name, "unsafe: a link"
                elif name.lower().endswith((*NOTEBOOKS, ".zip")):
                    limit = min(room, _limit(name))
                    with opened.open(member) as stream:
                        data = stream.read(limit + 1)
                    room -= len(data)
                    if len(data) > limit:
                        yield name, "unsafe: too large once unpacked"
                    else:
                        yield name, data
    except (
        zipfile.BadZipFile,
        zlib.error,
        NotImplementedError,
        RuntimeError,  # encrypted
        OSError,
        EOFError,
        ValueError,
    ):
        yield "zip", "cannot be unpacked"


def _add(student: Received, name: str, data: bytes | str) -> None:
    """File one file of a student's; a zip is opened, but no zip within it."""
    if isinstance(data, str):
        _note(student, name, data)
    elif name.lower().endswith(".zip"):
        for inner, content in _unzip(io.BytesIO(data), ARCHIVE):
            if isinstance(content, str):
                _note(student, inner, content)
            elif inner.lower().endswith(NOTEBOOKS):
                student.notebooks.append((inner, content))
    elif name.lower().endswith(NOTEBOOKS):
        student.notebooks.append((name, data))


def _note(student: Received, name: str, why: str) -> None:
    student.unsafe |= why.startswith("unsafe")
    student.problems.append(f"a file {why.removeprefix('unsafe: ')}")
