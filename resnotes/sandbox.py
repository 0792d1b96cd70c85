"""Run a student's cells where they can reach nothing, and ask what they compute.

One process per submission, inside bubblewrap: new namespaces for processes, network,
users and mounts; read-only views of the interpreter and its libraries, an empty /tmp of
limited size, no environment, no other file of this machine. There `resnotes.inside`
runs, and a filter in the kernel refuses it the calls that could get around this: more
namespaces, and memory that no process maps, which nobody could count.

The conversation is in lines of JSON over the process's stdin and stdout. The student's
code can forge every reply, so a reply is only ever numbers to compare, and reading one
is limited in time and in size. A step (a cell or a probe) that runs too long, takes too
much memory, starts too many processes or ends the process costs that step alone: the
sandbox is killed, a fresh one runs the other steps again. One that writes what the
runner never would ends the submission.
"""

from __future__ import annotations

import errno
import functools
import json
import math
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
SYSTEM = ("/bin", "/lib", "/lib32", "/lib64", "/usr/bin", "/usr/lib", "/usr/lib64")
LARGEST_REPLY = 4_000_000  # bytes; the largest honest one has a few thousand
PATIENCE = 4  # times its limit that a step may wait for a processor
ENDED = "ended the Python process"
RESTARTS = 6  # fresh sandboxes a submission may cost before it is given up


@dataclass(frozen=True)
class Limits:
    """What one submission may take. Times in seconds of the clock, sizes in bytes.

    Time stands still while a submission's process waits for a processor, so that a
    busy machine makes nobody late.
    """

    cell: float = 30.0
    submission: float = 300.0
    start: float = 120.0
    memory: int = 2 * 2**30
    file: int = 64 * 2**20
    processes: int = 64


class NoSandboxError(RuntimeError):
    """Bubblewrap is missing or may not work here."""


class _StepError(Exception):
    """The running step ended the conversation: `kind` is the status this gives."""

    def __init__(self, kind: str, sentence: str):
        super().__init__(sentence)
        self.kind, self.sentence = kind, sentence


def _bwrap(limits: Limits) -> list[str]:
    """Return the command line that makes a sandbox, up to what runs in it."""
    views = [*SYSTEM, sys.base_prefix, sys.prefix, str(HERE)]
    readable = dict.fromkeys(v for v in views if v != "/usr" and Path(v).exists())
    devices = [f"/dev/{d}" for d in ("null", "zero", "full", "random", "urandom")]
    size = str(4 * limits.file)
    return [
        "bwrap",
        *("--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"),
        *("--hostname", "sandbox", "--clearenv"),
        *("--size", size, "--tmpfs", "/tmp"),  # first: what is bound may lie in it
        *(part for view in readable for part in ("--ro-bind", view, view)),
        *(part for path in devices for part in ("--dev-bind", path, path)),
        *("--proc", "/proc", "--size", size, "--tmpfs", "/dev/shm"),
        # Else code of a grader who is root could set the machine's kernel from here.
        *("--tmpfs", "/proc/sys", "--remount-ro", "/proc/sys"),
        *("--remount-ro", "/"),  # else it is a tmpfs to write to, without a limit
        *("--chdir", "/tmp"),
        *(part for pair in _environment().items() for part in ("--setenv", *pair)),
    ]


RUNNER = [sys.executable, "-I", str(HERE / "inside.py")]

# Memory that no process maps, other namespaces, others' memory, and what honest
# code never calls and kernels have had holes in.
REFUSED = """
memfd_create memfd_secret shmget msgget semget
unshare setns mount umount2 pivot_root chroot fsopen fsmount open_tree move_mount
ptrace process_vm_readv process_vm_writev
io_uring_setup userfaultfd bpf perf_event_open keyctl add_key request_key
""".split()


@functools.cache
def _filter() -> str:
    """Return the kernel's filter of system calls as a BPF program, in hex."""
    import pyseccomp  # for the grader only: students do not have it

    rules = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    refuse = pyseccomp.ERRNO(errno.EPERM)
    for call in REFUSED:
        rules.add_rule(refuse, call)
    new_user = 0x10000000  # CLONE_NEWUSER
    flag = pyseccomp.Arg(0, pyseccomp.MASKED_EQ, new_user, new_user)
    rules.add_rule(refuse, "clone", flag)
    # Its flags lie in memory, where no filter can look. The C library then uses clone.
    rules.add_rule(pyseccomp.ERRNO(errno.ENOSYS), "clone3")
    # The kernel reads these arguments as 32 bits, but a filter compares all 64.
    masked = (pyseccomp.MASKED_EQ, 0xFFFFFFFF)
    for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):  # the usual size will do
        what = (pyseccomp.Arg(1, *masked, socket.SOL_SOCKET),)
        what += (pyseccomp.Arg(2, *masked, buffer),)
        rules.add_rule(refuse, "setsockopt", *what)
    # There is no network to reach, vsock would reach the host of a virtual machine, and
    # a connection over TCP to oneself holds 8 MB that nobody counts.
    family = pyseccomp.Arg(0, pyseccomp.NE, socket.AF_UNIX)
    rules.add_rule(refuse, "socket", family)
    with tempfile.TemporaryFile() as program:
        rules.export_bpf(program)
        program.seek(0)
        return program.read().hex()


def _environment() -> dict[str, str]:
    return {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "HOME": "/tmp",
        "USER": "student",
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "MPLBACKEND": "agg",
        "MPLCONFIGDIR": "/tmp",
        "IPYTHONDIR": "/tmp/.ipython",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def require_sandbox() -> None:
    """Raise NoSandboxError, with what to do, unless bubblewrap works here.

    It needs Linux with user namespaces, or root; many containers have neither.
    """
    advice = (
        "grade on Linux (on Windows: WSL 2, on macOS: a virtual machine) or, if you "
        "trust every submission like a program you run yourself, add --unsafe"
    )
    if shutil.which("bwrap") is None:
        raise NoSandboxError(
            "bubblewrap, the sandbox around students' code, is not installed: "
            f"`apt install bubblewrap` or `dnf install bubblewrap`; else {advice}."
        )
    try:
        _filter()
    except (ImportError, RuntimeError, OSError) as error:
        raise NoSandboxError(
            f"libseccomp, which filters system calls, does not work here ({error}): "
            "`pip install pyseccomp` and `apt install libseccomp2` or "
            f"`dnf install libseccomp`; else {advice}."
        ) from None
    load = f"import runpy; runpy.run_path({RUNNER[-1]!r})['_refuse']({_filter()!r})"
    command = [*_bwrap(Limits()), sys.executable, "-I", "-c", load]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    if tried.returncode:
        said = ["it says nothing", *tried.stderr.strip().splitlines()][-1]
        if "system calls" in said:  # from `_refuse`, so bubblewrap works
            raise NoSandboxError(
                f"this kernel does not filter system calls ({said}); it needs seccomp, "
                f"which every usual Linux since 2012 has; else {advice}."
            )
        raise NoSandboxError(
            f"bubblewrap cannot make a sandbox here ({said}); "
            "on Ubuntu 24.04 and later allow user namespaces by `sudo sysctl -w "
            "kernel.apparmor_restrict_unprivileged_userns=0`; a container needs them "
            "too (for Docker: --privileged, or --security-opt seccomp=unconfined "
            f"--cap-add SYS_ADMIN); else {advice}."
        )


def _descendants(pid: int) -> list[int]:
    """Return all processes under `pid`, whatever became of those in between."""
    found, todo = [], [pid]
    while todo and len(found) < 10_000:
        parent = todo.pop()
        try:
            for task in os.listdir(f"/proc/{parent}/task"):
                with open(f"/proc/{parent}/task/{task}/children") as children:
                    todo += (ids := [int(child) for child in children.read().split()])
                    found += ids
        except (OSError, ValueError):  # gone meanwhile, or no Linux
            continue
    return found


def _starved(pid: int) -> float:
    """Return the seconds for which a process could have run, but others did."""
    try:
        with open(f"/proc/{pid}/schedstat") as times:
            return int(times.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):  # gone, or not counted here
        return 0.0


def _resident(pid: int) -> int:
    """Return the bytes a process holds, shared ones too, but no pages of files.

    Those count as well on a kernel that does not tell them apart.
    """
    try:
        with open(f"/proc/{pid}/status") as lines:
            status = dict(line.split(":", 1) for line in lines)
        if "RssAnon" in status:
            sizes = [status[k].split()[0] for k in ("RssAnon", "RssShmem")]
            return 1024 * sum(map(int, sizes))
        with open(f"/proc/{pid}/statm") as pages:  # of a zombie it says 0
            return int(pages.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, KeyError, IndexError):  # gone meanwhile
        return 0


class _Warm:
    """A process that has imported torch and forks runners into sandboxes.

    Importing takes longer than most submissions run. One serves this whole process.
    """

    lock = threading.Lock()
    one: _Warm | None = None
    works = sys.platform == "linux"

    def __init__(self):
        self.control, theirs = socket.socketpair()
        self.control.settimeout(Limits.start)
        with theirs:
            self.process = subprocess.Popen(
                [*RUNNER, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=_environment(),
                cwd="/",
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        if self.control.recv(100) != b"warm":
            raise OSError("the warm process does not start")

    @classmethod
    def start(cls, inside: int, ends: Sequence[int]) -> int:
        """Put a runner into the sandbox of process `inside`; return its parent's id."""
        with cls.lock:
            if cls.one is None or cls.one.process.poll() is not None:
                cls.one = cls()
            socket.send_fds(cls.one.control, [str(inside).encode()], ends)
            said = json.loads(cls.one.control.recv(1000))
        if "error" in said:
            raise OSError(said["error"])
        return said["keeper"]


class Sandbox:
    """One process that runs one submission's steps, from start to `close`."""

    def __init__(self, limits: Limits, *, unsafe: bool = False):
        self.limits = limits
        self.lines: queue.Queue[bytes | None] = queue.Queue()
        self.holder = ()  # the pipes of what keeps a warm sandbox open
        self.used = 0.0  # seconds
        self.runner = 0  # the process that runs the cells, once it is known
        self.parents = []  # the processes whose descendants are the sandbox's
        try:
            if unsafe:
                self._start(RUNNER)
            elif not self._start_warm():
                self._start([*_bwrap(limits), *RUNNER])
            threading.Thread(target=self._read, daemon=True).start()
            calls = "" if unsafe else _filter()
            self.ask(asdict(limits) | {"refused": calls}, limits.start)
            self.runner = [self.process.pid, *_descendants(self.parents[-1])][-1]
        except BaseException:
            self.close()
            raise

    def _start(self, command: Sequence[str], **more) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"PATH": os.environ.get("PATH", "")} | _environment(),
            start_new_session=True,
            **more,
        )
        self.requests, self.replies = self.process.stdin, self.process.stdout
        self.parents.append(self.process.pid)

    def _start_warm(self) -> bool:
        """Make a sandbox that holds nothing but `cat` and have a runner forked into it.

        Returns False where the kernel lets us make namespaces but not enter them.
        """
        if not _Warm.works:
            return False
        told, tells = os.pipe()
        ours = [os.pipe(), os.pipe()]  # requests, replies
        (theirs_in, self_out), (self_in, theirs_out) = ours
        requests, replies = os.fdopen(self_out, "wb"), os.fdopen(self_in, "rb")
        try:
            info = ("--info-fd", str(tells))
            self._start([*_bwrap(self.limits), *info, "cat"], pass_fds=[tells])
            holder = self.requests, self.replies
            self.requests.write(b"\n")
            self.requests.flush()
            if self.replies.readline() != b"\n":  # it is up when it echoes
                raise OSError("bubblewrap does not start")
            inside = json.loads(os.read(told, 1000))["child-pid"]
            keeper = _Warm.start(inside, [theirs_in, theirs_out])
        except (OSError, ValueError) as error:
            _Warm.works = False
            print(f"sandboxes start cold, which is slower: {error}", file=sys.stderr)
            self.close()
            requests.close()
            replies.close()
            self.parents.clear()
            return False
        finally:
            for end in (told, tells, theirs_in, theirs_out):
                os.close(end)
        self.parents.append(keeper)
        self.holder = holder
        self.requests, self.replies = requests, replies
        return True

    def _read(self) -> None:
        """Hand over complete lines; stop at the first that is too long."""
        stream = self.replies
        for _ in range(10_000):  # honest code sends one line a request
            try:
                line = stream.readline(LARGEST_REPLY)
            except (OSError, ValueError):  # closed while we waited
                line = b""
            if not line.endswith(b"\n"):
                break
            self.lines.put(line)
        else:
            line = b"flood"
        self.lines.put(b"" if line else None)

    def ask(self, request: dict, seconds: float) -> dict:
        """Send a request and return the reply, or raise `_StepError`.

        It may take `seconds`, not counting the time that the runner had to wait for a
        processor; `used` adds up what requests have taken.
        """
        if not self.lines.empty() and self.lines.get() is not None:
            raise _StepError("tampered", "wrote into the grader's channel")
        try:
            self.requests.write(json.dumps(request).encode() + b"\n")
            self.requests.flush()
        except OSError:
            raise _StepError("crashed", ENDED) from None
        line = self._wait(seconds)
        if line is None:
            raise _StepError("crashed", ENDED)
        try:
            reply = json.loads(line)
        except (ValueError, RecursionError):
            reply = None
        if not isinstance(reply, dict):
            raise _StepError("tampered", "wrote into the grader's channel")
        return reply

    def settle(self) -> None:
        """Wait a moment, and raise if what just ran has ended the process after all."""
        try:
            line = self.lines.get(timeout=0.2)
        except queue.Empty:
            return
        if line is None:
            raise _StepError("crashed", ENDED)
        raise _StepError("tampered", "wrote into the grader's channel")

    def _wait(self, seconds: float) -> bytes | None:
        began, before, waited = time.monotonic(), _starved(self.runner), 0.0
        try:
            while True:
                try:
                    return self.lines.get(timeout=0.1)
                except queue.Empty:
                    pass
                # A submission can starve itself, so there is an end to this.
                waited = max(waited, _starved(self.runner) - before)
                waited = min(waited, PATIENCE * seconds)
                if time.monotonic() - began - waited > seconds:
                    raise _StepError("late-cell", "ran longer than a cell may")
                running = [pid for root in self.parents for pid in _descendants(root)]
                if len(running) > self.limits.processes:
                    raise _StepError("crashed", "started more processes than allowed")
                if sum(map(_resident, running)) > 1.5 * self.limits.memory:
                    raise _StepError("crashed", "took more memory than allowed")
        finally:
            self.used += time.monotonic() - began - waited

    def close(self) -> None:
        """Kill the process and everything it started."""
        try:
            if hasattr(os, "killpg"):
                os.killpg(self.process.pid, signal.SIGKILL)
            else:
                self.process.kill()
        except ProcessLookupError:
            pass
        self.process.wait()
        for stream in (*self.holder, self.requests, self.replies):
            try:
                stream.close()
            except OSError:
                pass


@dataclass
class Outcome:
    """What a submission's cells and probes gave. Plain data, to be judged elsewhere.

    `values`: question → (shape, numbers), as the submission's process reported them.
    `errors`: step → (exception's name, its text); steps are cells' names or questions.
    `stopped`: step → (status, sentence) for those that had to be killed.
    """

    values: dict[str, tuple[list[int], list[float]]] = field(default_factory=dict)
    errors: dict[str, tuple[str, str]] = field(default_factory=dict)
    stopped: dict[str, tuple[str, str]] = field(default_factory=dict)
    seconds: float = 0.0


def run(
    cells: Sequence[tuple[str, str]],
    probes: Sequence[tuple[str, str]],
    seed: int,
    limits: Limits | None = None,
    *,
    unsafe: bool = False,
) -> Outcome:
    """Run (name, source) cells, then (question, source) probes, in sandboxes.

    No probe leaves this process before all cells have run, and none before the answer
    to the one before it is here. A step that has to be stopped is left out and all
    others run again in a fresh sandbox, until the submission's time is up.
    """
    limits = limits or Limits()
    outcome = Outcome()
    for attempt in range(RESTARTS):
        if _converse(cells, probes, seed, limits, unsafe, outcome, attempt > 0):
            break
    else:
        outcome.stopped.setdefault("submission", ("crashed", "kept ending the process"))
    return outcome


def _converse(cells, probes, seed, limits, unsafe, outcome, careful) -> bool:
    """Run what is left to run in one sandbox; return whether it came to an end.

    A process can end a little after the step that is to blame (it killed the sandbox,
    say). So the first end blames nobody, and then we are careful: after each step we
    wait whether it ends the process.
    """
    box, step = None, "start"

    def left() -> float:
        return min(limits.cell, limits.submission - outcome.seconds - box.used)

    try:
        box = Sandbox(limits, unsafe=unsafe)
        for step, source in cells:
            if step in outcome.stopped:
                continue
            reply = box.ask({"cell": source}, left())
            if not _note_error(outcome, step, reply) and reply != {"ok": True}:
                raise _StepError("tampered", "wrote into the grader's channel")
            if careful:
                box.settle()
        for step, source in probes:
            if step in outcome.stopped or step in outcome.values:
                continue
            request = {"probe": source, "seed": seed}
            reply = box.ask(request, left())
            if not _note_error(outcome, step, reply):
                outcome.values[step] = _numbers(reply)
            if careful:
                box.settle()
        return True
    except _StepError as stop:
        if stop.sentence == ENDED and step != "start" and not careful:
            return False
        late = box is not None and left() <= 0
        if late:
            outcome.stopped["submission"] = ("timeout", "took longer than it may")
        outcome.stopped[step] = (stop.kind, stop.sentence)
        return late or step == "start" or stop.kind == "tampered"
    finally:
        if box is not None:
            outcome.seconds += box.used
            box.close()


def _note_error(outcome: Outcome, step: str, reply: dict) -> bool:
    if "error" not in reply:
        outcome.errors.pop(step, None)
        return False
    texts = (str(reply["error"])[:80], str(reply.get("text", ""))[:300])
    outcome.errors[step] = tuple(t.encode("utf-8", "replace").decode() for t in texts)
    return True


def _numbers(reply: dict) -> tuple[list[int], list[float]]:
    """Return the reply's shape and numbers if they are just that, else raise."""
    shape, values = reply.get("shape"), reply.get("values")
    plain = (
        isinstance(shape, list)
        and len(shape) <= 8
        and all(type(n) is int and 0 <= n <= 10**6 for n in shape)
        and isinstance(values, list)
        and len(values) == math.prod(shape)
        and all(type(v) in (int, float) and abs(v) != math.inf for v in values)
    )
    if not plain:
        raise _StepError("tampered", "sent something other than numbers")
    try:
        return shape, [float(v) for v in values]
    except OverflowError:
        raise _StepError("tampered", "sent something other than numbers") from None
