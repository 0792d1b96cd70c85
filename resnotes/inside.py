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
        ("RLIMIT_NOFILE", 64),  # a socket can hold 0.2 MB that nobody counts
        ("RLIMIT_CORE", 0),
    ):
        try:
            resource.setrlimit(getattr(resource, name), (value, value))
        except (AttributeError, ValueError, OSError):  # macOS has no RLIMIT_AS
            continue


def _refuse(program: str) -> None:
    """Have the kernel filter all system calls to come by a BPF program, for good."""
    import ctypes

    code = bytes.fromhex(program)

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]

    libc = ctypes.CDLL(None, use_errno=True)
    wanted = Program(len(code) // 8, code)
    if libc.prctl(22, 2, ctypes.byref(wanted), 0, 0):  # PR_SET_SECCOMP, by a filter
        raise OSError(ctypes.get_errno(), "the filter of system calls was not taken")


def _shell():
    """Return what runs notebook cells: IPython without history, hooks or colours."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    class Shell(InteractiveShell):
        system = InteractiveShell.system_raw  # the usual one needs a terminal

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


def _warm_up() -> None:
    """Import what notebooks import, which takes longer than most of them run."""
    import IPython.core.interactiveshell  # noqa: F401
    import torch

    import resnotes.check  # noqa: F401

    torch.set_num_threads(1)
    torch.optim.Adam([torch.zeros(1)])  # these two import a lot when first used
    torch.func.jvp(torch.sin, (torch.zeros(1),), (torch.zeros(1),))


def answer(requests, replies) -> None:
    """Answer requests until there are no more; the first one is the limits."""
    shell = _shell()

    def reply(message: dict) -> None:
        replies.write(json.dumps(message).encode() + b"\n")
        replies.flush()

    limits = json.loads(requests.readline())
    _limit(limits)
    if limits["refused"]:
        _refuse(limits["refused"])
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


# --- the warm start: import once, fork for each submission, enter its sandbox ---


def serve(control) -> None:
    """Fork a runner into a sandbox for each request on the socket `control`.

    A request is the id of a process inside the sandbox, with the two ends of a
    conversation attached. This process runs no student's code and holds no secret: its
    copies inherit nothing but modules.
    """
    import signal
    import socket

    _warm_up()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the runners
    control.send(b"warm")
    while True:
        message, ends, *_ = socket.recv_fds(control, 100, 2)
        if not message:
            return
        keeper = os.fork()
        if keeper == 0:
            try:
                _keep_runner(int(message), ends, control)
            finally:
                os._exit(1)
        for end in ends:
            os.close(end)


def _keep_runner(inside: int, ends: list[int], control) -> None:
    """Enter the sandbox's namespaces and start the runner there; wait for its end.

    A process namespace holds for children only, so this process stays outside of it,
    and runs nothing else.
    """
    import signal

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        _enter(inside)
    except OSError as error:
        control.send(json.dumps({"error": str(error)}).encode())
        return
    runner = os.fork()
    if runner == 0:
        try:
            for k, end in enumerate(ends):
                os.dup2(end, k)
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
            _give_up_privileges()
            answer(*_channel())
        finally:
            os._exit(0)
    control.send(json.dumps({"keeper": os.getpid()}).encode())
    os.closerange(0, os.sysconf("SC_OPEN_MAX"))
    os.waitpid(runner, 0)


def _enter(inside: int) -> None:
    """Join every namespace of the process `inside`, and its root, as nsenter does."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    handles = []
    for name in ("user", "ipc", "uts", "net", "cgroup", "pid", "mnt"):
        theirs = f"/proc/{inside}/ns/{name}"
        if os.readlink(theirs) != os.readlink(f"/proc/self/ns/{name}"):
            handles.append(os.open(theirs, os.O_RDONLY))
    root = os.open(f"/proc/{inside}/root", os.O_RDONLY)
    for handle in handles:
        if libc.setns(handle, 0):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    os.fchdir(root)
    os.chroot(".")
    os.chdir("/tmp")


def _give_up_privileges() -> None:
    """Drop all capabilities for good, as bubblewrap does for what it starts."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    os.setsid()
    for capability in range(64):
        libc.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3
    none = (ctypes.c_uint32 * 6)()
    failed = libc.capset(header, none)
    failed |= libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    if failed:
        raise OSError("could not give up privileges")


if __name__ == "__main__":
    package = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [p for p in sys.path if os.path.abspath(p or ".") != package]
    sys.path.insert(0, os.path.dirname(package))
    if sys.argv[1:]:
        import socket

        serve(socket.socket(fileno=int(sys.argv[1])))
    else:
        _warm_up()
        answer(*_channel())
