"""Gradients along the stream of a stack of blocks, block by block and depth by depth.

Read from the top: one forward pass, the loss, the gradient at every block, the gradient
for every depth, and how alike the gradients of neighbouring inputs are.
"""

import math
import operator
import warnings
from collections.abc import Callable, Iterable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import vmap

from .untouched import check_chain, check_input, run, untouched

Loss = Callable[[Tensor], Tensor]

# Depths that join in one batched backward pass. Fewer means more Python between the
# passes, more means rows that carry nothing yet: 20 was quickest for depths 1 … 100.
DEPTHS_A_PASS = 20

# A loss whose gradient passes the last block this much weaker than a random one does
# is constant on what that block can give.
DEGENERATE = 1e-4


def _check(name: str, blocks: nn.Sequential, x: Tensor) -> None:
    check_chain(blocks, name)
    if len(blocks) == 0:
        raise ValueError(f"{name} is empty, expected an nn.Sequential of ≥ 1 blocks.")
    check_input(x)


def _check_graph(out: Tensor, what: str) -> None:
    if not out.requires_grad:
        raise ValueError(
            f"{what} returned a tensor that is cut off from its input, expected one "
            "that depends on it: look for detach() or no_grad()."
        )


def _stream(name: str, blocks: Sequence[nn.Module], x: Tensor) -> list[Tensor]:
    """Return h_0 … h_L in one graph."""
    stream = [x.detach().clone().requires_grad_()]
    for k, block in enumerate(blocks):
        place = f"{name}[{k}]"
        out = run(block, stream[-1], place, k)
        _check_graph(out, f"block {k} ({place}, a {type(block).__name__})")
        stream.append(out)
    return stream


def _loss_value(loss: Loss | None, output: Tensor, depth: int) -> Tensor:
    value = output.sum() if loss is None else loss(output.clone())  # may work in place
    if not isinstance(value, Tensor):
        raise TypeError(
            f"loss returned a {type(value).__name__}, expected a scalar tensor."
        )
    if value.numel() != 1:
        raise ValueError(
            f"loss returned shape {tuple(value.shape)} for the output of block "
            f"{depth - 1}, of shape {tuple(output.shape)}; expected a scalar: take "
            "its sum or its mean."
        )
    if not value.is_floating_point():
        raise TypeError(f"loss returned dtype {value.dtype}, expected floating point.")
    if not value.requires_grad:
        raise ValueError(
            "loss returned a number that does not depend on the output, so it has no "
            "gradient: look for detach(), item() or a comparison in the loss."
        )
    return value.reshape(()) if value.ndim else value


def _gradient(of: Sequence[Tensor] | Tensor, at: Tensor, sent=None) -> Tensor:
    """Return a gradient at a tensor, 0 if `of`, itself in a graph, is no part of it.

    Keeps the graph.
    """
    return torch.autograd.grad(of, at, sent, retain_graph=True, materialize_grads=True)[
        0
    ]


def _norm(gradients: Tensor) -> Tensor:
    """Return the 2-norm of every row of (n, …), where squares would under- or overflow.

    A gradient of 1e-24, as a plain stack of 100 layers has it, squares to 0 in float32.
    """
    rows = gradients.reshape(len(gradients), -1)
    largest = rows.abs().amax(1)
    divisor = torch.where((largest > 0) & largest.isfinite(), largest, 1)
    return largest.where(
        ~(largest > 0), divisor * (rows / divisor[:, None]).norm(dim=1)
    )


def _is_degenerate(value: Tensor, before: Tensor, after: Tensor) -> bool:
    """Say whether a block stops this loss's gradient, though it lets others pass."""
    generator = torch.Generator().manual_seed(0)
    probe = torch.randn(after.shape, generator=generator, device="cpu").to(after)
    sent = _gradient(value, after)
    arrived, passed = (_gradient(after, before, v) for v in (sent, probe))
    limit = max(DEGENERATE, torch.finfo(after.dtype).eps)  # bfloat16 rounds at 8e-3
    for_loss, for_probe = (
        float(_norm(came[None])) / (float(_norm(went[None])) or 1.0)
        for went, came in ((sent, arrived), (probe, passed))
    )
    return for_loss < limit * for_probe


def _warn_degenerate(what: str) -> None:
    warnings.warn(
        f"loss is degenerate for {what}: its gradient is not 0 at the output, but "
        "nothing of it passes the block before, as after a LayerNorm, a train-mode "
        "BatchNorm or a softmax the plain sum and the sum of squares are constant. "
        "What is left is rounding. Use loss=cross-entropy, or the sum of the output "
        "times a fixed random tensor.",
        stacklevel=3,
    )


def gradient_norms(
    model: nn.Sequential, x: Float[Tensor, " batch *shape"], loss: Loss | None = None
) -> Float[Tensor, " depth_plus_1"]:
    """Return ‖∂ℓ/∂h_k‖₂ for k = 0 … L: how large the gradient is at every block.

    h_0 = x and h_k = block_k(h_{k−1}) for the L blocks of `model`; ℓ = loss(h_L), the
    sum of the output unless given. The norm runs over the whole batch; its unit is
    that of ℓ per unit of h. One forward and one backward pass.

    The model, its gradients, mode and buffers and the random numbers stay as they were;
    dropout and BatchNorm act as the mode says.

    Raises TypeError or ValueError for what is not an `nn.Sequential` of at least one
    block, an x that is not finite floating point, a block that does not take what the
    block before gives, and a loss that is not a scalar. Warns where the loss is
    degenerate: the sum of a LayerNorm's output is constant and has no gradient.

    Source: backpropagation, Rumelhart, Hinton & Williams 1986.

    >>> halve = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.constant_(halve.weight, 0.5)
    >>> gradient_norms(nn.Sequential(halve, halve, halve), torch.ones(1, 1)).tolist()
    [0.125, 0.25, 0.5, 1.0]
    """
    _check("model", model, x)
    with untouched(x, model):
        stream = _stream("model", list(model), x)
        value = _loss_value(loss, stream[-1], len(model))
        gradients = torch.autograd.grad(
            value, stream, retain_graph=True, materialize_grads=True
        )
        norms = torch.cat([_norm(gradient[None]).to(x.dtype) for gradient in gradients])
        # Few blocks shrink a gradient this much, so the sure test seldom runs.
        weak = norms[:-1] < 100 * DEGENERATE * norms[1:]
        degenerate = any(
            _is_degenerate(value, *stream[k : k + 2])
            for k in weak.nonzero().flatten().tolist()
        )
    if degenerate:
        _warn_degenerate("this model")
    return norms


def _depths(depths: Iterable[int], deepest: int) -> list[int]:
    if isinstance(depths, Tensor):
        depths = depths.tolist()
    if not isinstance(depths, Iterable):
        raise TypeError(
            f"depths is a {type(depths).__name__}, expected several whole numbers, "
            "like range(1, 101) or [20, 56]."
        )
    checked = []
    for depth in depths:
        try:
            if isinstance(depth, bool):
                raise TypeError
            depth = operator.index(depth)
        except TypeError:
            raise TypeError(
                f"depths holds {depth!r}, expected whole numbers."
            ) from None
        if not 1 <= depth <= deepest:
            raise ValueError(
                f"depths holds {depth}, expected whole numbers from 1 to {deepest}, "
                "the number of blocks."
            )
        checked.append(depth)
    return checked


def _sweep_back(stream: list[Tensor], values: dict[int, Tensor]) -> Tensor:
    """Return ∂values[L]/∂h_0 for every depth L, in the order of `values`: ascending."""
    depths = list(values)
    last = stream[depths[-1]]
    carried = last.new_zeros(0, *last.shape)  # (deeper depths, *shape of h_stop)
    for first in reversed(range(0, len(depths), DEPTHS_A_PASS)):
        joining = depths[first : first + DEPTHS_A_PASS]
        start, stop = depths[first - 1] if first else 0, joining[-1]
        ends = [torch.stack([values[L] for L in joining]), stream[stop]]

        def pull_back(own: Tensor, arriving: Tensor, ends=ends, start=start) -> Tensor:
            return _gradient(ends, stream[start], [own, arriving])

        rows = len(joining) + len(carried)
        own = torch.eye(rows, len(joining), dtype=ends[0].dtype, device=ends[0].device)
        arriving = torch.cat(
            [carried.new_zeros(len(joining), *carried.shape[1:]), carried]
        )
        carried = vmap(pull_back)(own, arriving)  # (rows, *shape of h_start)
    return carried


def _input_gradients(stream: list[Tensor], values: dict[int, Tensor]) -> Tensor:
    """Return what `_sweep_back` does, whatever the blocks hold."""
    try:
        gradients = _sweep_back(stream, values)
    except RuntimeError:  # a custom backward that vmap cannot batch
        return torch.stack([_gradient(value, stream[0]) for value in values.values()])
    # Past an infinite derivative a row that carries nothing yet turns 0 · inf into nan.
    finite = gradients.flatten(1).isfinite().all(1).tolist()
    return torch.stack(
        [
            row if ok else _gradient(value, stream[0])
            for row, ok, value in zip(gradients, finite, values.values(), strict=True)
        ]
    )


def depth_sweep(
    blocks: nn.Sequential,
    x: Float[Tensor, " batch *shape"],
    depths: Iterable[int],
    loss: Loss | None = None,
) -> Float[Tensor, " depths"]:
    """Return ‖∂ℓ_L/∂x‖₂ of the first L blocks, for every L in `depths`.

    ℓ_L = loss(h_L), h_0 = x, h_k = block_k(h_{k−1}): what `gradient_norms(blocks[:L],
    x, loss)[0]` gives, without a pass a depth. Each depth has a gradient of its own to
    send back through blocks L … 1. They travel together: one backward sweep from the
    deepest block, which every depth joins at its own output, carried through the blocks
    in one batch. That is L batched block products where a loop takes L²/2 single ones.
    Exact for every block that autograd can go through, BatchNorm in train mode too.

    Changes and raises as little as `gradient_norms`; a depth below 1 or above the
    number of blocks is a ValueError. Memory: the gradients of all depths at one block.

    >>> halve = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.constant_(halve.weight, 0.5)
    >>> blocks = nn.Sequential(*[halve] * 20)
    >>> depth_sweep(blocks, torch.ones(1, 1), [1, 10, 20]).tolist()
    [0.5, 0.0009765625, 9.5367431640625e-07]
    """
    _check("blocks", blocks, x)
    depths = _depths(depths, len(blocks))
    if not depths:
        return x.new_zeros(0)
    wanted = sorted(set(depths))
    with untouched(x, blocks):
        stream = _stream("blocks", list(blocks)[: wanted[-1]], x)
        values = {depth: _loss_value(loss, stream[depth], depth) for depth in wanted}
        norms = _norm(_input_gradients(stream, values))

        def degenerate_at(depth: int) -> bool:
            return _is_degenerate(values[depth], *stream[depth - 1 : depth + 1])

        # A test costs passes through a block, so only where it may fail: at both ends,
        # and where the gradient falls off a cliff.
        cliff = (norms[1:] < 10 * DEGENERATE * norms[:-1]).nonzero().flatten() + 1
        suspects = [wanted[i] for i in {0, len(wanted) - 1, *cliff.tolist()}]
        degenerate = []
        if any(degenerate_at(depth) for depth in suspects):
            degenerate = [depth for depth in wanted if degenerate_at(depth)]
    if degenerate:
        listed = ", ".join(map(str, degenerate[:5])) + ", …" * (len(degenerate) > 5)
        _warn_degenerate(f"the stack cut at depth {listed}")
    return norms[[wanted.index(depth) for depth in depths]]


def gradient_autocorrelation(
    model: nn.Module, line: Float[Tensor, " points features"]
) -> Float[Tensor, " points"]:
    """Return how alike the gradients of points k apart on a line are, for k = 0, 1, ….

    g_i = ∂Σy/∂x_i at point i, less the mean over the line;
    r_k = Σ_i ⟨g_i, g_{i+k}⟩ / Σ_i ⟨g_i, g_i⟩, so r_0 = 1. A gradient like brown noise
    falls slowly, one like white noise is near 0 from k = 1 on: it is shattered.

    `line` holds points in order and evenly spaced. It goes in as one batch, so
    BatchNorm in train mode normalises over it, and g_i takes in what point i does to
    the others.

    Raises TypeError for a model that is no module and a line that is not floating
    point; ValueError for fewer than 3 points, for a model that detaches its output, and
    for a gradient that is the same (or not finite) everywhere, which has no
    autocorrelation.

    Source: Balduzzi et al. 2017, arXiv 1702.08591, Fig. 1 and 2.

    >>> line = torch.linspace(-1, 1, 100)[:, None]
    >>> round(gradient_autocorrelation(nn.Softplus(), line)[1].item(), 2)
    0.97
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}, expected an nn.Module.")
    check_input(line, "line")
    if line.ndim < 2 or len(line) < 3:
        raise ValueError(
            f"line has shape {tuple(line.shape)}, expected (points, features) with at "
            "least 3 points."
        )
    with untouched(line, [model]):
        leaf = line.detach().clone().requires_grad_()
        out = run(model, leaf, "model")
        _check_graph(out, f"model (a {type(model).__name__})")
        gradient = _gradient(out.sum(), leaf)
    g = gradient.flatten(1).double()
    g = g - g.mean(0)
    size = float(g.square().sum())
    constant = size <= 1e-20 * float(gradient.double().square().sum())
    if constant or not math.isfinite(size):
        raise ValueError(
            "the gradient is the same or not finite at every point of the line, so it "
            "has no autocorrelation: give a model that is not linear along it."
        )
    spectrum = torch.fft.rfft(g, n=2 * len(g), dim=0).abs().square()
    return torch.fft.irfft(spectrum, dim=0)[: len(g)].sum(1).div(size).to(line.dtype)
