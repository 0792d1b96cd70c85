"""How the benchmarks take time and memory: ratios within one run, so on any machine."""

import ctypes
import platform
import time
from collections.abc import Callable
from pathlib import Path


def best(functions: list[Callable], seconds: float = 0.6) -> list[float]:
    """Return the least processor time of each in ms, calling them in turn.

    A busy machine disturbs processor time less than the clock, and the least of several
    less than their mean.
    """
    times: list[list[float]] = [[] for _ in functions]
    for function in functions:
        function()
    start = time.process_time()
    while time.process_time() - start < seconds or len(times[0]) < 3:
        for function, record in zip(functions, times, strict=True):
            begin = time.process_time()
            function()
            record.append(1e3 * (time.process_time() - begin))
    return [min(record) for record in times]


def peak(function: Callable) -> float:
    """Return by how many MB the memory of this process grows while the function runs.

    Linux only: what was freed goes back to the system first, and the kernel's record of
    the highest use is reset.
    """
    function()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    function()
    return (_status("VmHWM") - before) / 1024


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def machine() -> str:
    """Say what the numbers were measured on."""
    import torch

    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return (
        f"{names[0] if names else platform.processor()}, one thread, "
        f"Python {platform.python_version()}, PyTorch {torch.__version__}"
    )
