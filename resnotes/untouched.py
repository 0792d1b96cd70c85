"""Run modules that belong to somebody else, and leave everything as it was.

Read from the top: what an input must be, what a chain of blocks must be, the context in
which all is put back, one call of one block, which says where it failed, and the way
back through it.
"""

import random
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parameter import is_lazy

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

CONTAINERS = {list, dict, set, OrderedDict}  # hooks are in such a one, too

# Only one thread at a time: random numbers and the modules' attributes are put back at
# the end, and two that overlap would put back each other's.
_ALONE = threading.RLock()


def check_input(x: Any, name: str = "x") -> None:
    """Raise unless x is a tensor of finite floating-point numbers, at least one."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} is a {type(x).__name__}, expected a tensor.")
    if x.dtype not in FLOATS:
        raise TypeError(
            f"{name} has dtype {x.dtype}, expected floating point, which a gradient "
            f"needs: use {name}.float(), or start after the embedding."
        )
    if x.layout is not torch.strided or x.is_meta:
        kind = "on the meta device" if x.is_meta else f"{x.layout}"
        raise TypeError(
            f"{name} is {kind}, expected one that is dense and holds numbers."
        )
    if x.numel() == 0:
        raise ValueError(
            f"{name} has shape {tuple(x.shape)}, expected at least one number."
        )
    bad = x.numel() - int(x.isfinite().sum())
    if bad:
        raise ValueError(
            f"{name} holds {bad} non-finite of {x.numel()} numbers, expected finite "
            "ones: look for a division by zero or a missing value in the input."
        )


def runs_in_order(model: Any) -> TypeGuard[nn.Sequential]:
    """Say whether a model does nothing but run its blocks one after the other."""
    return (
        isinstance(model, nn.Sequential)
        and type(model).forward is nn.Sequential.forward
        and "forward" not in vars(model)
        and not (model._forward_hooks or model._forward_pre_hooks)
    )


def check_chain(model: Any, name: str = "model") -> None:
    """Raise unless a model is an `nn.Sequential` that runs its blocks in order."""
    if not isinstance(model, nn.Sequential):
        raise TypeError(
            f"{name} is a {type(model).__name__}, expected an nn.Sequential of "
            "blocks: wrap the blocks with nn.Sequential(*blocks)."
        )
    if not runs_in_order(model):
        raise TypeError(
            f"{name} is a {type(model).__name__} with a forward or with hooks of its "
            "own, which a run block by block would leave out, expected a plain "
            f"nn.Sequential: nn.Sequential(*{name}) has the blocks alone."
        )


@contextmanager
def random_numbers_kept(device: torch.device) -> Iterator[None]:
    """Put back the global random numbers of Python, NumPy and PyTorch.

    PyTorch's are those of the CPU and of `device`, unless that is Apple's GPU. A second
    thread waits, or the two would draw each other's.
    """
    own = [] if device.type in ("cpu", "mps") else [device]
    kind = own[0].type if own else "cuda"
    with _ALONE, torch.random.fork_rng(own, device_type=kind):
        python, numpy = random.getstate(), np.random.get_state()
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def seed_torch(n: int, device: torch.device) -> None:
    """Seed PyTorch's random numbers on the CPU and on `device`.

    `torch.manual_seed` seeds every other device as well, and nobody puts those back.
    """
    torch.default_generator.manual_seed(n)
    if device.type == "mps":
        torch.mps.manual_seed(n)
    elif device.type != "cpu":
        generators = torch.get_device_module(device).default_generators
        generators[device.index].manual_seed(n)


@contextmanager
def untouched(
    x: Tensor, models: Iterable[Any] = (), dtype: torch.dtype | None = None
) -> Iterator[None]:
    """Record gradients whatever the caller does, and put everything back at the end.

    Put back are the global random numbers and, of every module in `models`, every
    attribute, running statistics and other buffers, hooks, and what lists, dicts and
    sets held. What lies deeper is not: a list in a list, an object of one's own, and a
    weight that a forward pass writes into, since weights are not copied. What is no
    module is passed over. With `dtype` the modules work in it, parameters and buffers,
    while it lasts. Autocast is off: the numbers are those of the dtype that x has.
    """
    modules = {
        module
        for model in models
        if isinstance(model, nn.Module)
        for module in model.modules()
    }
    with (
        random_numbers_kept(x.device),
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast(x.device.type, enabled=False),
        sdpa_kernel(SDPBackend.MATH),  # vmap would take the fused ones row by row
    ):
        kept = {module: module.__dict__ for module in modules}
        copies: dict[int, Tensor] = {}  # by id: what is tied stays tied
        held: dict[int, Any] = {}
        empty: list[Any] = []  # most containers, hooks above all: cheaper to clear

        def copy(tensor: Tensor | None, new: bool) -> Tensor | None:
            if tensor is None:
                return None
            if id(tensor) not in copies:
                to = dtype if dtype and tensor.is_floating_point() else tensor.dtype
                copies[id(tensor)] = tensor.detach().to(to, copy=new)
            return copies[id(tensor)]

        def container(value: Any) -> Any:
            if id(value) not in held:
                held[id(value)] = value.copy()
            return held[id(value)]

        try:
            for module, own in kept.items():
                weights = dict(own["_parameters"])
                if any(is_lazy(weight) for weight in weights.values()):
                    raise ValueError(
                        f"a {type(module).__name__} has not seen an input yet and has "
                        "no weights, expected a model that is ready: call it once."
                    )
                if dtype:
                    weights = {name: copy(w, False) for name, w in weights.items()}
                buffers = {name: copy(b, True) for name, b in own["_buffers"].items()}
                working = dict(own)
                for name, value in own.items():
                    if type(value) in CONTAINERS:
                        if value:
                            working[name] = container(value)
                        else:
                            empty.append(value)
                working |= {"_parameters": weights, "_buffers": buffers}
                object.__setattr__(module, "__dict__", working)
            yield
        finally:
            for module, own in kept.items():
                object.__setattr__(module, "__dict__", own)
            for value in empty:
                value.clear()


def run(
    block: Callable[[Tensor], Any], h: Tensor, name: str, index: int | None = None
) -> Tensor:
    """Return block(h), one floating-point tensor, or say which block failed on what.

    `name` is what the caller knows the block by, as in "model[3]", and `index` is its
    place among the blocks. The block gets a copy, as it may work in place.
    """
    kind = f"a {type(block).__name__}"
    where = f"{name} ({kind})" if index is None else f"block {index} ({name}, {kind})"
    try:
        out = block(h.clone())
    except Exception as error:
        _run_parts(block, h, name, index)
        raise ValueError(f"{where} {_why(block, h, error)}") from error
    if isinstance(out, Tensor) and out.dtype in FLOATS and not out.is_meta:
        return out
    _run_parts(block, h, name, index)
    what = f"returned a {type(out).__name__}"
    if isinstance(out, Tensor):
        what = f"returned dtype {out.dtype} on the {out.device.type} device"
    raise TypeError(
        f"{where} {what}, expected one tensor of floating-point numbers: wrap it in a "
        "module that returns the stream alone."
    )


def _run_parts(block: Any, h: Tensor, name: str, index: int | None) -> None:
    """Run a chain that failed part by part, so that the part at fault is named."""
    if runs_in_order(block):
        for k, part in enumerate(block):
            h = run(part, h, f"{name}[{k}]", k if index is None else index)


def pull_back(y: Tensor, x: Tensor, rows: Tensor) -> Tensor:
    """Return vᵀ ∂y/∂x for each row v, in one batched backward pass."""
    if not (y.requires_grad and len(rows)):  # y is constant, or nothing is asked
        return x.new_zeros(len(rows), *x.shape)

    def one(v: Tensor) -> Tensor:
        return torch.autograd.grad(y, x, v, retain_graph=True, materialize_grads=True)[
            0
        ]

    try:
        pulled = vmap(one)(rows)
        # The identity hands back the very rows, which the caller may write into.
        alias = pulled.untyped_storage().data_ptr() == rows.untyped_storage().data_ptr()
        return pulled.clone() if alias else pulled
    except RuntimeError:  # a backward pass that cannot be batched
        return torch.stack([one(v) for v in rows])


def _why(block: Any, h: Tensor, error: Exception) -> str:
    """Say what a block was given, what it holds, why that failed and what helps."""
    modules = list(block.modules()) if isinstance(block, nn.Module) else []
    weights = dict(block.named_parameters()) if modules else {}
    advice = "Give x, or what the block before returns, the shape it takes."
    dtypes = {weight.dtype for weight in weights.values()} - {h.dtype}
    if "more than 1 value per channel" in str(error):
        advice = (
            "BatchNorm in train mode has no variance to divide by in one sample: call "
            "model.eval() first, or give more samples."
        )
    if dtypes:
        advice = f"Its parameters are {dtypes.pop()}: give x in that dtype."
    shapes = [
        f"{name} {tuple(weight.shape)}"
        for name, weight in weights.items()
        if name.endswith("weight") and not is_lazy(weight)
    ]
    holds = f"; its weights are {', '.join(shapes[:3])}" if shapes else ""
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    return (
        f"cannot take a stream of shape {tuple(h.shape)} and {h.dtype}{holds}: "
        f"{reason}. {advice}"
    )
