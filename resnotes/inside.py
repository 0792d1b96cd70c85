"""The part of the grader that runs beside a student's code, inside the sandbox.

`resnotes.sandbox` starts this file as a process of its own and talks to it in lines of
JSON: run this cell, then, when all cells have run, answer this probe. A probe calls
what the student wrote with inputs drawn from a seed and returns numbers. Nothing here
knows a right answer, and nothing here is trusted: the student's code shares the process
and may change every line of it while it runs.
"""

import json
import os
import sys


def _channel():
    """Take over stdin and stdout for the messages; students' output goes nowhere."""
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    return requests, replies


def _limit(limits: dict) -> None:
    """Lower this process's limits; without privileges they cannot be raised again.

    Memory is counted on top of the address space that torch takes when imported, which
    differs a lot between its CPU and its GPU builds.
    """
    try:
        import resource
    except ImportError:  # Windows, --unsafe
        return
    taken = 0
    if os.path.exists("/proc/self/statm"):
        with open("/proc/self/statm") as pages:
            taken = int(pages.read().split()[0]) * resource.getpagesize()
    for name, value in (
        ("RLIMIT_AS", taken + limits["memory"]),
        ("RLIMIT_FSIZE", limits["file"]),
        ("RLIMIT_NOFILE", 256),
        ("RLIMIT_CORE", 0),
    ):
        try:
            resource.setrlimit(getattr(resource, name), (value, value))
        except (AttributeError, ValueError, OSError):  # macOS has no RLIMIT_AS
            continue


def _shell():
    """Return what runs notebook cells: IPython without history, hooks or colours."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    class Shell(InteractiveShell):
        def enable_gui(self, gui=None):  # `%matplotlib inline` asks for it
            pass

    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    return Shell.instance(config=config)


def _describe(error: BaseException) -> dict:
    try:
        text = str(error)
    except BaseException:
        text = ""
    return {"error": type(error).__name__[:80], "text": text[:300]}


def _plain(value) -> dict:
    """Return {"shape": [...], "values": [...]} of a number, array, tensor or list."""
    import numpy as np
    import torch

    def array(part):
        if isinstance(part, torch.Tensor):
            return part.detach().to("cpu", torch.float64).numpy()
        if isinstance(part, (list, tuple)):
            return np.stack([array(entry) for entry in part])
        return np.asarray(part, dtype=np.float64)

    whole = array(value)
    return {"shape": list(whole.shape), "values": whole.ravel().tolist()}


def _probe(source: str, seed: int, namespace: dict) -> dict:
    """Define `probe` beside the student's names and return its numbers."""
    import random

    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    scope = dict(namespace)
    exec(compile(source, "<probe>", "exec"), scope)
    return _plain(scope["probe"]())


def main() -> None:
    """Answer requests until there are no more."""
    requests, replies = _channel()

    def reply(message: dict) -> None:
        replies.write(json.dumps(message).encode() + b"\n")
        replies.flush()

    import torch

    import resnotes  # noqa: F401

    torch.set_num_threads(1)
    shell = _shell()
    _limit(json.loads(requests.readline()))
    reply({"ready": True})
    for line in requests:
        request = json.loads(line)
        try:
            if "cell" in request:
                done = shell.run_cell(request["cell"], store_history=False)
                error = done.error_before_exec or done.error_in_exec
                reply(_describe(error) if error else {"ok": True})
            else:
                reply(_probe(request["probe"], request["seed"], shell.user_ns))
        except BaseException as error:
            reply(_describe(error))


if __name__ == "__main__":
    package = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [p for p in sys.path if os.path.abspath(p or ".") != package]
    sys.path.insert(0, os.path.dirname(package))
    main()
