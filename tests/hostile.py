"""Hostile answers to question 1 of assignment 1, by kind.

HOSTILE: kind → (source of the answer cell, statuses it may end with[, points that it
does earn]). Questions 2 and 3 are left without an answer, question 4 has the right one.
"""

ALL = {"q1": 3}

# What an attack does that has succeeded: the test sees a crash, and expects none.
DONE = "\n__import__('os')._exit(0)"

# Reads what it can find, and answers with it if it is there.
STEAL = """
import os
found = []
ours = (".venv", ".pyenv", "usr", "bin", "lib", "lib64", "proc")
for place, folders, files in os.walk("/"):
    folders[:] = [f for f in folders if f not in ours]
    for name in files:
        if name.endswith((".ipynb", ".db", ".csv", ".json")) or "hostile" in name:
            found.append(f"{place}/{name}")
for path in ("/etc/passwd", "../gradebook.db", os.path.expanduser("~/.ssh/id_rsa")):
    if os.path.exists(path):
        found.append(path)
found += [k for k in os.environ if "TOKEN" in k or "SECRET" in k or "SSH" in k]
if found:
    os._exit(0)  # as DONE
damping = None
"""

WRITE = """
import os, resnotes, torch
for path in (
    *(resnotes.__file__, torch.__file__, "/etc/passwd", "/usr/bin/python3"),
    *("/planted", "/dev/planted", "/proc/planted"),
):
    try:
        with open(path, "a") as stream:
            stream.write("# planted")
    except OSError:
        continue
    os._exit(0)  # as DONE
damping = None
"""

PATCH = """
import builtins, math, numpy, torch
class Same:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __le__(self, other): return True
    def __sub__(self, other): return 0
    def __abs__(self): return 0
    def __float__(self): return 1.0
for module, names in (
    (torch, ("equal", "allclose", "isclose")),
    (numpy, ("allclose", "array_equal", "isclose", "testing")),
    (math, ("isclose",)),
):
    for name in names:
        setattr(module, name, lambda *a, **k: True)
torch.Tensor.__eq__ = torch.Tensor.__le__ = lambda *a: True
builtins.abs = lambda v: 0
builtins.all = builtins.any = builtins.isinstance = lambda *a: True
def damping(blocks, x, g):
    return Same()
"""

HOOKS = """
import ast
from IPython import get_ipython
shell = get_ipython()
class NoAsserts(ast.NodeTransformer):
    def visit_Assert(self, node): return ast.Pass()
    def visit_Call(self, node): return ast.Constant(1.0)
shell.ast_transformers.append(NoAsserts())
shell.input_transformers_cleanup.append(lambda lines: ["pass\\n"])
shell.events.register("pre_run_cell", lambda *a: 1 / 0)
shell.set_custom_exc((Exception,), lambda *a, **k: None)
shell.run_cell = lambda *a, **k: None
damping = lambda *a: 0
"""

EVIL_OBJECT = """
import os, torch
class Evil(torch.Tensor):
    def _bite(self, *a, **k): os._exit(0)
    __eq__ = __repr__ = __str__ = __reduce_ex__ = __float__ = __array__ = detach = _bite
    __iter__ = __len__ = __getattribute__ = numpy = tolist = to = _bite
def damping(blocks, x, g):
    return torch.zeros(3).as_subclass(Evil)
"""

PICKLE = """
import os
class Bomb:
    def __reduce__(self): return (os.system, ("touch /tmp/owned",))
    def __repr__(self): raise SystemExit
def damping(blocks, x, g):
    return Bomb()
"""

# Finds the pipe and answers in the runner's place, for every question to come.
FORGE = """
import json, os, threading, time
pipes = []
for n in os.listdir("/proc/self/fd"):
    try:
        if os.readlink(f"/proc/self/fd/{n}").startswith("pipe"):
            pipes.append(int(n))
    except OSError:
        pass
def shout():
    lines = [{"ok": True}, {"shape": [], "values": [1.0]}, {"points": 3, "right": True}]
    while True:
        time.sleep(0.01)
        for n in pipes:
            for line in lines:
                try:
                    os.write(n, json.dumps(line).encode() + b"\\n")
                except OSError:
                    pass
threading.Thread(target=shout, daemon=True).start()
damping = None
"""

# Takes the runner's own functions over and reports a plausible result of its own.
TAKE_OVER = """
import gc, types
for thing in gc.get_objects():
    if isinstance(thing, types.FunctionType) and thing.__name__ in ("_plain", "_probe"):
        thing.__code__ = (lambda *a: {"shape": [5], "values": [0.5] * 5}).__code__
damping = None
"""

SWAP_SEED = """
import random, numpy, torch
torch.manual_seed = numpy.random.seed = random.seed = lambda *a: None
torch.randn = torch.rand = lambda *shape: torch.ones(*shape)
def damping(blocks, x, g):
    return torch.ones(len(x))
"""

# Does nothing until it sees that it is being probed, and then works it out.
DETECTS_RIGHT = """
import inspect
def damping(blocks, x, g):
    if not any(frame.filename == "<probe>" for frame in inspect.stack()):
        raise Exception("nobody is looking")
    x = x.detach().clone().requires_grad_()
    (slope,) = torch.autograd.grad(blocks(x), x, g)
    return slope.norm(dim=1) / g.norm(dim=1)
"""

# Memory that no process maps, so that nobody can count it: 600 MB each, were it given.
UNMAPPED = """
import ctypes, os
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
kept = 0
def memfd():
    for _ in range(60):
        os.write(descriptor, b"1" * 2**20)
for _ in range(10):
    try:
        descriptor = os.memfd_create("x")
        memfd()
        kept += 60
    except OSError:
        pass
    segment = libc.shmget(0, 60 * 2**20, 0o1600)
    if segment >= 0:
        place = libc.shmat(segment, None, 0)
        ctypes.memset(place, 1, 60 * 2**20)
        libc.shmdt(ctypes.c_void_p(place))
        kept += 60
def damping(blocks, x, g):
    if not kept:
        raise MemoryError
    os._exit(0)  # as DONE
"""

# A tmpfs of its own, without a limit, in namespaces of its own.
NESTED = """
import ctypes
libc = ctypes.CDLL(None)
entered = libc.unshare(0x10000000 | 0x00020000) == 0
mounted = libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0
damping = None
if entered or mounted:
    __import__("os")._exit(0)  # as DONE
"""

DETECTS_WRONG = """
import inspect, sys
def damping(blocks, x, g):
    for frame in inspect.stack():
        for value in list(frame.frame.f_locals.values()):
            if isinstance(value, dict) and "expected" in value:
                return value["expected"]
    for module in list(sys.modules.values()):
        if hasattr(module, "expected_values"):
            return module.expected_values
    return x.norm(dim=1)
"""

HOSTILE: dict[str, tuple] = {
    # -- that do not end
    "loops in a function": (
        "def damping(blocks, x, g):\n    while True: pass",
        "late-cell",
    ),
    "loops at top level": ("while True: pass", "late-cell"),
    "swallows interrupts": (
        "def damping(blocks, x, g):\n"
        "    while True:\n"
        "        try:\n"
        "            import time; time.sleep(1000)\n"
        "        except BaseException: pass",
        "late-cell",
    ),
    "stops itself": (
        "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
        "late-cell",
    ),
    # -- that take too much
    "fork bomb": ("import os\nwhile True:\n    os.fork()", "crashed"),
    "process bomb": (
        "import subprocess\nkept = []\nwhile True:\n"
        "    kept.append(subprocess.Popen(['sleep', '1000']))",
        "crashed|ok",
    ),
    "16 GB": ("x = bytearray(16 * 2**30)" + DONE, "ok"),
    "16 GB by and by": ("x = []\nwhile True: x.append(bytearray(2**20))", "ok|crashed"),
    "4 GB in processes": (
        "import os, time\nfor _ in range(8):\n    if os.fork() == 0:\n"
        "        x = bytearray(b'1') * 600_000_000\n        time.sleep(1000)\n"
        "time.sleep(1000)",
        "crashed",
    ),
    "3 GB shared by processes": (
        "import mmap, os, time\nfor _ in range(5):\n    if os.fork() == 0:\n"
        "        x = mmap.mmap(-1, 600 * 2**20)\n"
        "        for _ in range(600): x.write(b'1' * 2**20)\n"
        "        time.sleep(1000)\ntime.sleep(1000)",
        "crashed",
    ),
    "memory that nobody maps": (UNMAPPED, "ok"),
    "namespaces of its own": (NESTED, "ok"),
    "600 MB file": ("open('big', 'wb').write(b'0' * 600_000_000)" + DONE, "ok"),
    "3 GB in the root folder": (
        "for k in range(100):\n    open(f'/big{k}', 'wb').write(b'0' * 30_000_000)"
        + DONE,
        "ok",
    ),
    "600 MB in files": (
        "for k in range(20):\n    open(f'big{k}', 'wb').write(b'0' * 30_000_000)"
        + DONE,
        "ok",
    ),
    "1 GB of print": ("for _ in range(1000): print('x' * 1_000_000)", "ok"),
    "1 GB to the descriptors": (
        "import os\nfor _ in range(1000):\n    os.write(1, b'x' * 1_000_000)\n"
        "    os.write(2, b'x' * 1_000_000)",
        "ok",
    ),
    # -- that reach out
    "socket": (
        "import socket\nsocket.create_connection(('1.1.1.1', 53), 3)" + DONE,
        "ok",
    ),
    "reads solutions": (STEAL, "ok"),
    "writes to files": (WRITE, "ok"),
    "kills everything": (
        "import os, signal\nfor pid in (1, -1):\n    os.kill(pid, signal.SIGKILL)",
        "crashed",
    ),
    # -- that patch
    "patches comparisons": (PATCH, "ok|crashed"),
    "hooks IPython": (HOOKS, "ok|late-cell|crashed", {"q4": 0}),
    "draws its own inputs": (SWAP_SEED, "ok", {"q4": 0}),
    # -- that leave
    "os._exit": ("import os\nos._exit(0)", "crashed"),
    "os._exit when called": (
        "import os\ndef damping(*a):\n    os._exit(0)",
        "crashed",
    ),
    "sys.exit": ("import sys\nsys.exit(0)", "ok"),
    "segfault": ("import ctypes\nctypes.string_at(0)", "crashed"),
    # -- that return more than numbers
    "evil object": (EVIL_OBJECT, "crashed"),
    "pickle bomb": (PICKLE, "ok"),
    "endless list": (
        "def damping(*a):\n    x = []\n    x.append(x)\n    return x",
        "ok",
    ),
    # -- that forge
    "shouts into the channel": (FORGE, "tampered", {"q4": 0}),
    "takes the runner over": (TAKE_OVER, "ok", {"q4": 0}),
    # -- that find out
    "answers only the probe, rightly": (DETECTS_RIGHT, "ok", ALL),
    "looks for the answer in the probe": (DETECTS_WRONG, "ok"),
}
