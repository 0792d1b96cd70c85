"""All 2^L ways through a residual stack, sorted by length: exactly, not by sampling.

For h_l = h_{l−1} + F_l(h_{l−1}) the Jacobian at one input is a product that multiplies
out into 2^L terms, one for each choice of "shortcut" or "branch" at every block:

    ∂h_L/∂h_0 = (I + J_L) ⋯ (I + J_1) = Σ over subsets S of Π_{l ∈ S} J_l

Nobody can list 2^54 terms, and nobody needs to. Keep one gradient for each path
*length* and walk back from the last block to the first: a path that arrives with m
branches either had m and took the shortcut, or had m − 1 and took the branch.

    V_m ← V_m + J_lᵀ V_{m−1}

That is L(L+1)/2 products with a Jacobian. All rows go through a block's backward pass
together, and every branch runs forward once.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from .arguments import whole
from .blocks import Residual
from .untouched import check_input, pull_back, run, untouched

Branch = Callable[[Tensor], Tensor]

BRUTE_FORCE_LIMIT = 12  # 2^12 = 4,096 paths; each block more doubles them
ELEMENTS_AT_ONCE = 2**22  # of cotangents in one backward pass: bounds the extra memory


class _Scaled(nn.Module):
    """The branch of a block that scales it: h ↦ scale · F(h)."""

    def __init__(self, branch: nn.Module, scale):
        super().__init__()
        self.branch, self.scale = branch, scale

    def forward(self, h):
        return self.scale * self.branch(h)


def branches_of(stack: nn.Sequential) -> list[nn.Module]:
    """Take the F_l, scale included, out of a stack of `Residual` blocks.

    The modules are the stack's own, not copies.

    Raises TypeError for a block that is not a `Residual`, and ValueError for one whose
    shortcut is not the identity: that block has no term that passes unchanged.

    >>> from resnotes.blocks import mlp_stack
    >>> len(branches_of(mlp_stack(54, 64, residual=True)))
    54
    """
    branches = []
    for k, block in enumerate(stack):
        if not isinstance(block, Residual):
            raise TypeError(
                f"stack[{k}] is a {type(block).__name__}, expected a Residual block; "
                "for other blocks write the list of branches yourself."
            )
        hooks = block._forward_hooks or block._forward_pre_hooks
        if hooks or type(block).forward is not Residual.forward:
            raise TypeError(
                f"stack[{k}] has a forward or hooks of its own, which its branch alone "
                "would leave out; write the list of branches yourself."
            )
        if not isinstance(block.shortcut, nn.Identity):
            raise ValueError(
                f"stack[{k}] has a {type(block.shortcut).__name__} on its shortcut; "
                "paths are counted for h + F(h), so the shortcut must be the identity."
            )
        plain = isinstance(block.scale, float | int) and block.scale == 1
        branches.append(block.branch if plain else _Scaled(block.branch, block.scale))
    return branches


def _check(branches, x: Tensor, grad_output: Tensor) -> list[Branch]:
    """Return the branches as a list, or say in one sentence what is wrong."""
    branches = list(branches)
    if not branches:
        raise ValueError(
            "branches is empty: a stack needs at least one block (L = 0 has only "
            "the path that is the gradient itself)."
        )
    for k, branch in enumerate(branches):
        if isinstance(branch, Residual):
            raise TypeError(
                f"branches[{k}] is a Residual block, expected its branch F alone; "
                "branches_of(stack) takes the branches out of a stack."
            )
        if not callable(branch):
            raise TypeError(
                f"branches[{k}] is a {type(branch).__name__}, expected a module or a "
                "function that maps the stream to what the block adds."
            )
        for part in branch.modules() if isinstance(branch, nn.Module) else ():
            couples = part.training or getattr(part, "running_mean", None) is None
            if isinstance(part, nn.modules.batchnorm._BatchNorm) and couples:
                raise ValueError(
                    f"branches[{k}] has {type(part).__name__} that uses the batch's "
                    "own statistics: samples would leak into each other's paths; "
                    "call .eval() on the model (with running statistics) first."
                )
    check_input(x)
    check_input(grad_output, "grad_output")
    if grad_output.shape != x.shape:
        raise ValueError(
            f"grad_output has shape {tuple(grad_output.shape)} but x has shape "
            f"{tuple(x.shape)}; it is the gradient at the last block's output, which "
            "has the shape of x."
        )
    return branches


def _forward(branches: list[Branch], x: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Run each branch once; return (h_{l−1}, F_l(h_{l−1})), each with its own graph."""
    tape, h = [], x.detach()
    for k, branch in enumerate(branches):
        h = h.detach().clone().requires_grad_()
        added = run(branch, h, f"branches[{k}]", k)
        if added.shape != h.shape:
            raise ValueError(
                f"branches[{k}] maps shape {tuple(h.shape)} to {tuple(added.shape)}; "
                "h + F(h) needs a branch that keeps the shape."
            )
        tape.append((h, added))
        h = h + added
    if not h.isfinite().all():
        bad = [k for k, (_, added) in enumerate(tape) if not added.isfinite().all()]
        k = bad[0] if bad else len(tape) - 1
        raise ValueError(
            f"branches[{k}] returns values that are not finite; scale the branches "
            "down or use float64."
        )
    return tape


def _norms(rows: Tensor) -> Tensor:
    """Take the norm of each row over everything in it."""
    return torch.linalg.vector_norm(rows.reshape(len(rows), -1), dim=1)


def _pull_wide(added: Tensor, h: Tensor, rows: Tensor) -> Tensor:
    """Jᵀ applied to rows that may be too small or too large for the branch's dtype.

    A product of fifty small Jacobians leaves float32. Jᵀ is linear, so each row is
    brought to about 1 by a power of two, which is exact, and brought back after.
    """
    if rows.dtype == added.dtype:
        return pull_back(added, h, rows)
    largest = rows.reshape(len(rows), -1).abs().amax(1)
    exponent = torch.frexp(largest).exponent.clamp(-1000, 1000)
    power = torch.ldexp(torch.ones_like(largest), exponent).view(-1, *[1] * h.dim())
    return pull_back(added, h, (rows / power).to(added.dtype)) * power


def _parts(count: int, h: Tensor) -> list[slice]:
    """Split `count` rows into parts of bounded size, the last part first."""
    size = max(1, ELEMENTS_AT_ONCE // max(1, h.numel()))
    starts = range(0, count, size)
    return [slice(start, min(start + size, count)) for start in reversed(starts)]


def _wide(x: Tensor) -> torch.dtype:
    """float64, or float32 on the one device that has no float64."""
    return torch.float32 if x.device.type == "mps" else torch.float64


def _by_length(branches, x: Tensor, grad_output: Tensor) -> Tensor:
    """Compute the rows of `path_gradients` in float64."""
    branches = _check(branches, x, grad_output)
    with untouched(x, branches):
        tape = _forward(branches, x)
        rows = x.new_zeros(len(branches) + 1, *x.shape, dtype=_wide(x))
        rows[0] = grad_output.detach()
        for n in range(1, len(branches) + 1):
            h, added = tape.pop()  # frees this block's graph when the next is taken
            for part in _parts(n, h):  # longest first: a row is read before it changes
                pulled = _pull_wide(added, h, rows[part])
                rows[part.start + 1 : part.stop + 1] += pulled
    return rows


def path_gradients(
    branches: Sequence[Branch],
    x: Float[Tensor, "*shape"],
    grad_output: Float[Tensor, "*shape"],
) -> Float[Tensor, "lengths ..."]:
    """Return the gradient at x carried by all paths of each length, m = 0 … L.

    Row m is the sum over the C(L, m) subsets S of m blocks::

        V_m = Σ_S ( Π_{l ∈ S} J_l )ᵀ g,    Σ_m V_m = ∂⟨g, h_L⟩/∂h_0

    for h_l = h_{l−1} + F_l(h_{l−1}), with J_l the Jacobian of F_l at h_{l−1} and
    g = `grad_output` the gradient at h_L. `branches` holds the F_l (not the blocks), in
    order; any module or function that keeps the shape of its input will do. Returns
    one gradient of the shape of x for each length, in the dtype and on the device of x.

    Cost: one forward pass, L(L+1)/2 products with a Jacobian, in L batched backward
    passes. Memory: the L graphs of one forward pass and 8 bytes for each number
    returned. The rows are summed in float64, and the branches work in their own dtype
    on rows scaled by powers of two, so a row does not underflow on its way. It still
    does when it is returned in float32: `gradient_by_length` returns float64.

    Model, gradients, modes, buffers and the random state are left as they were.

    Raises ValueError for no branches, a branch that changes the shape, BatchNorm that
    uses the batch's statistics, values that are not finite, and a grad_output unlike x;
    TypeError for a `Residual` block in place of its branch.

    Source: the expansion is Veit et al. 2016, arXiv 1605.06431, Section 3; the
    recurrence by length is ours.

    >>> x, g = torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    >>> halve = lambda h: 0.5 * h
    >>> path_gradients([halve] * 3, x, g)[:, 0].tolist()  # C(3, m) / 2^m
    [1.0, 1.5, 0.75, 0.125]
    """
    return _by_length(branches, x, grad_output).to(x.dtype)


def gradient_by_length(
    branches: Sequence[Branch],
    x: Float[Tensor, "*shape"],
    grad_output: Float[Tensor, "*shape"],
) -> Float[Tensor, " lengths"]:
    """Return ‖V_m‖₂ for m = 0 … L: how much gradient each path length carries.

    The norm is taken over the whole batch, of the rows of `path_gradients`, in float64
    whatever the dtype of x, so lengths that carry 1e-60 are still told apart. The norms
    do not add up to the norm of the gradient: the rows point in different directions.

    Raises what `path_gradients` raises.

    >>> x = torch.zeros(2)
    >>> norms = gradient_by_length([lambda h: 1e-3 * h] * 20, x, torch.ones(2))
    >>> f"{norms[20]:.2e}"  # √2 · 1e-60, far below float32
    '1.41e-60'
    """
    return _norms(_by_length(branches, x, grad_output))


def every_path(
    branches: Sequence[Branch],
    x: Float[Tensor, "*shape"],
    grad_output: Float[Tensor, "*shape"],
) -> tuple[Bool[Tensor, "paths L"], Float[Tensor, "paths ..."]]:
    """List all 2^L paths one by one: the slow way, which `path_gradients` must match.

    Returns (taken, gradients): `taken[i, l]` says whether path i goes through branch
    l + 1, and `gradients[i]` is ( Π_{l ∈ S_i} J_l )ᵀ g in the dtype of x. Path 0 takes
    no branch, the last path takes all.

    Raises ValueError above L = 12, and what `path_gradients` raises.

    >>> x = torch.zeros(1)
    >>> taken, carried = every_path([lambda h: 2 * h, lambda h: 3 * h], x, x + 1)
    >>> taken.int().tolist(), carried.flatten().tolist()
    ([[0, 0], [1, 0], [0, 1], [1, 1]], [1.0, 2.0, 3.0, 6.0])
    """
    branches = _check(branches, x, grad_output)
    depth = len(branches)
    if depth > BRUTE_FORCE_LIMIT:
        raise ValueError(
            f"branches has {depth} entries, so 2^{depth} paths; listing them stops at "
            f"{BRUTE_FORCE_LIMIT}: path_gradients sums them by length at any depth."
        )
    numbers = torch.arange(2**depth, device=x.device)
    taken = (numbers[:, None] >> torch.arange(depth, device=x.device)) & 1 == 1
    with untouched(x, branches):
        carried = _along(taken, _forward(branches, x), grad_output)
    return taken, carried.to(x.dtype)


def _along(taken: Tensor, tape, grad_output: Tensor) -> Tensor:
    """Follow single paths; taken: (paths, L) → gradients (paths, *shape of x)."""
    wide = grad_output.detach().to(_wide(grad_output))
    rows = wide.repeat(len(taken), *[1] * wide.dim())
    for k in reversed(range(len(tape))):
        h, added = tape.pop()
        through = taken[:, k].nonzero().squeeze(1)
        for part in _parts(len(through), h):
            rows[through[part]] = _pull_wide(added, h, rows[through[part]])
    return rows


def sample_path_norms(
    branches: Sequence[Branch],
    x: Float[Tensor, "*shape"],
    grad_output: Float[Tensor, "*shape"],
    *,
    samples: int = 20,
    uniform: bool = False,
    seed: int = 0,
) -> Float[Tensor, "lengths samples"]:
    """Estimate what the paths of each length carry if each is counted by itself.

    The mean over a row m is an unbiased estimate of Σ ‖( Π_{l ∈ S} J_l )ᵀ g‖₂ over all
    subsets S of m blocks, from `samples` single paths. It is at least ‖V_m‖₂, by the
    triangle inequality; the two agree only if all paths of a length point one way.

    With `uniform`, every path of a length is as likely as any other and its norm is
    multiplied by C(L, m), as Veit et al. did. Where blocks differ, a few paths hold
    most of the sum and uniform draws miss them. So by default a path is drawn with
    probability proportional to the product of its blocks' gains w_l, measured in one
    backward pass, and its norm is divided by that probability: the better the norm of
    a path is foretold by its blocks, the less the estimates spread.

    Returns (L + 1, samples) in float64. The random state is left as it was.

    Raises ValueError for samples below 1, and what `path_gradients` raises.

    Source: Veit et al. 2016, arXiv 1605.06431, Section 5; the weights are ours.

    >>> sums = sample_path_norms([lambda h: h / 2] * 5, torch.zeros(1), torch.ones(1))
    >>> sums.mean(1).tolist()  # C(5, m) / 2^m
    [1.0, 2.5, 2.5, 1.25, 0.3125, 0.03125]
    """
    branches = _check(branches, x, grad_output)
    whole("samples", samples)
    with untouched(x, branches):
        tape = _forward(branches, x)
        gains = _gains(tape, grad_output, uniform)
        taken, factors = _drawn_paths(gains, samples, seed)
        norms = _norms(_along(taken.to(x.device), tape, grad_output)).cpu().double()
    return (factors * norms).view(-1, samples)


def _gains(tape, grad_output: Tensor, uniform: bool) -> Tensor:
    """Return by how much each branch stretches the gradient that arrives at it."""
    gains = torch.ones(len(tape), dtype=torch.float64, device="cpu")
    if uniform:
        return gains
    arriving = grad_output.detach().to(_wide(grad_output))[None]
    for k in reversed(range(len(tape))):
        h, added = tape[k]
        pulled = _pull_wide(added, h, arriving)
        gains[k] = _norms(pulled)[0] / _norms(arriving)[0]
        arriving = arriving + pulled
    return gains.nan_to_num().clamp(min=1e-9)  # every path can be drawn


def _drawn_paths(gains: Tensor, samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw paths of each length by their gains; return them and 1 / probability."""
    depth = len(gains)
    # sums[k, m] = Σ of Π w_l over all choices of m of the first k blocks
    sums = gains.new_zeros(depth + 1, depth + 1)
    sums[:, 0] = 1
    for k in range(1, depth + 1):
        sums[k, 1:] = sums[k - 1, 1:] + gains[k - 1] * sums[k - 1, :-1]
    draws = torch.Generator().manual_seed(seed)
    lengths = torch.arange(depth + 1, device="cpu")
    left = lengths.repeat_interleave(samples)  # branches yet to take
    taken = gains.new_zeros(len(left), depth, dtype=torch.bool)
    for k in reversed(range(depth)):
        chance = gains[k] * sums[k][(left - 1).clamp(min=0)] / sums[k + 1][left]
        draw = torch.rand(len(left), generator=draws, dtype=torch.float64, device="cpu")
        taken[:, k] = (draw < chance) & (left > 0)
        left = left - taken[:, k].long()
    weights = torch.where(taken, gains, 1.0).prod(1)
    return taken, sums[depth].repeat_interleave(samples) / weights


def path_length_distribution(
    L: int, p: float | Sequence[float] = 0.5
) -> Float[Tensor, " lengths"]:
    """Return the share of paths of each length m = 0 … L, in float64.

        P(m) = C(L, m) p^m (1 − p)^(L−m)

    when a path takes each block with probability p, independently; p = ½ counts all
    2^L paths alike. A list of L probabilities gives each block its own, as the survival
    probabilities of stochastic depth do.

    Raises ValueError for L below 0, a p outside [0, 1], and a list that is not L long;
    TypeError for a p that is no number and holds none.

    >>> path_length_distribution(4).mul(2**4).tolist()
    [1.0, 4.0, 6.0, 4.0, 1.0]
    >>> f"{path_length_distribution(54)[5:18].sum():.4%}"
    '0.4537%'
    """
    L = whole("L", L, least=0)
    listed = list(p) if isinstance(p, Iterable) and not hasattr(p, "__len__") else p
    try:
        given = torch.as_tensor(listed, dtype=torch.float64, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(
            f"p={listed!r}, expected a number, or one for each block."
        ) from None
    chances = (given.expand(L) if given.ndim == 0 else given).tolist()
    if len(chances) != L:
        raise ValueError(f"p has {len(chances)} entries, expected one for each of {L}.")
    for q in chances:
        if not (isinstance(q, float) and 0 <= q <= 1):
            raise ValueError(f"p={q} must be a probability, between 0 and 1.")
    shares = torch.zeros(L + 1, dtype=torch.float64)
    shares[0] = 1
    for q in chances:  # the recurrence of path_gradients, with numbers for matrices
        shares[1:] = (1 - q) * shares[1:] + q * shares[:-1]
        shares[0] *= 1 - q
    return shares


def effective_lengths(
    carried: Float[Tensor, " lengths"] | Sequence[float], share: float = 0.95
) -> tuple[int, int]:
    """Return (first, last): the shortest range of lengths that carries `share` of all.

    `carried[m]` is what length m carries, such as `gradient_by_length(...)`; of several
    shortest ranges, the one that carries most, and of equals the first.

    Raises ValueError for a share outside (0, 1], and for values that are negative, not
    finite or all zero; TypeError for complex ones.

    >>> effective_lengths(torch.tensor([1.0, 40.0, 50.0, 8.0, 1.0]), share=0.9)
    (1, 2)
    >>> effective_lengths(path_length_distribution(54))
    (20, 34)
    """
    if not 0 < share <= 1:
        raise ValueError(f"share={share} must be above 0 and at most 1.")
    if not isinstance(carried, Tensor):  # plain numbers would become float32
        carried = torch.from_numpy(np.asarray(carried))
    if carried.is_complex():
        raise TypeError(f"carried has dtype {carried.dtype}, expected real numbers.")
    carried = carried.detach().to("cpu", torch.float64)
    if carried.dim() != 1 or not carried.numel():
        raise ValueError(
            f"carried has shape {tuple(carried.shape)}, expected one value a length."
        )
    if not carried.isfinite().all() or (carried < 0).any() or carried.sum() == 0:
        raise ValueError(
            "carried must be finite, at least 0 and somewhere above 0; pass norms."
        )
    sums = torch.cat([carried.new_zeros(1), carried.cumsum(0)])  # sums[i] = first i
    # A share of exactly 1 must not be lost to the last bit of a sum.
    needed = share * sums[-1] * (1 - 1e-12)
    for size in range(1, len(carried) + 1):
        windows = sums[size:] - sums[:-size]  # windows[i] = carried[i : i + size]
        if windows.max() >= needed:
            break
    # The first of equals, also where rounding makes them a little unequal.
    first = int((windows >= windows.max() * (1 - 1e-9)).nonzero()[0])
    return first, first + size - 1
