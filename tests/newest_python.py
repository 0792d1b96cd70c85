"""Run the numerics and one chapter on the newest Python that this machine has.

`make test` runs on one Python, as a rule the oldest that is supported; this takes the
newest (on the PATH or from pyenv) that PyTorch's pinned version has wheels for, in an
environment of its own that is kept for the next time. With CI=true it is an error if
there is none; elsewhere it says so and is done.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
OLDEST, NEWEST = 11, 14  # minor versions that torch 2.13 has wheels for and we support
TESTS = """
    tests/test_api.py tests/test_blocks.py tests/test_fuzz.py tests/test_gradients.py
    tests/test_jacobians.py tests/test_lesions.py tests/test_paths.py
    tests/test_recipes.py tests/test_sweeps.py
    tests/test_training.py tests/test_transformers.py
    resnotes/arguments.py resnotes/blocks.py resnotes/explore.py
    resnotes/gradients.py resnotes/jacobians.py
    resnotes/lesions.py resnotes/paths.py resnotes/recipes.py resnotes/style.py
    resnotes/training.py resnotes/transformers.py
""".split()
CHAPTER = "chapters/03_identity_jacobian.ipynb"


def works(python: str, minor: int) -> bool:
    """Say whether a program is Python 3.minor; pyenv's stand-ins often are none."""
    check = f"import sys, venv; sys.exit(sys.version_info[:2] != (3, {minor}))"
    return not subprocess.run([python, "-c", check], capture_output=True).returncode


def find() -> tuple[int, str] | None:
    """Return the newest Python above the oldest, as its minor version and its path."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for minor in range(NEWEST, OLDEST, -1):
        found = [shutil.which(f"python3.{minor}")]
        found += map(str, sorted(pyenv.glob(f"3.{minor}.*/bin/python3"), reverse=True))
        for python in filter(None, found):
            if works(python, minor):
                return minor, python
    return None


def environment(minor: int, base: str) -> Path:
    """Return the Python of an environment with the pinned packages."""
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    pins = "\n".join(line for line in lines if not line.startswith("-e"))
    name = f"3.{minor}-{hashlib.sha256(pins.encode()).hexdigest()[:12]}"
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    folder = cache / "residual-notes" / name
    ready = folder / "installed"
    if not ready.exists():
        subprocess.run([base, "-m", "venv", "--clear", folder], check=True)
        wanted = folder / "requirements.txt"
        wanted.write_text(pins, encoding="utf-8")
        pip = [folder / "bin" / "python", "-m", "pip", "install", "-q", "-r", wanted]
        subprocess.run(pip, check=True)
        ready.touch()
    # The package itself is another in each copy of the repository.
    python = folder / "bin" / "python"
    editable = ["install", "-q", "--no-deps", "--no-build-isolation", "-e", ROOT]
    subprocess.run([python, "-m", "pip", *editable], check=True)
    return python


def main() -> int:
    """Find it, install, run."""
    found = find()
    if found is None:
        print(f"no Python from 3.{OLDEST + 1} to 3.{NEWEST} here, so none was tested")
        return 1 if os.environ.get("CI") else 0
    print(f"the newest Python here is 3.{found[0]}, {found[1]}", flush=True)
    python = environment(*found)
    settings = os.environ | {"OMP_NUM_THREADS": "1"}
    common = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    for arguments in (
        ["-n", "2", "-m", "not browser", *TESTS],
        ["--nbval", "--nbval-current-env", CHAPTER],
    ):
        run = subprocess.run([*common, *arguments], cwd=ROOT, env=settings)
        if run.returncode:
            return run.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
