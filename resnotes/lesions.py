"""Take blocks out of a network, or run them in another order, and see what is left.

A lesion is an *order*: the indices of the blocks to run, first to last. Deleting a
block leaves its index out; swapping two swaps their indices. A lesioned network is a
new, light module that holds the very same blocks in that order. The network itself is
never touched, so there is nothing to undo, whatever goes wrong in between.
"""

import copy
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import nn

from .arguments import whole

Order = tuple[int, ...]


def lesion(model: nn.Module, order: Sequence[int]) -> nn.Module:
    """Return a network that runs only the blocks in `order`, in that order.

    `model` is an `nn.Sequential` of blocks, or a module with one named `blocks` (such
    as `resnotes.blocks.classifier` makes). Nothing is copied: parameters, buffers and
    modes are shared with `model`, which still runs all its blocks.

    Raises TypeError if the model has no such stack or an index is not an int, and
    ValueError for an index that is not between 0 and L − 1.

    Source: Veit et al. 2016, arXiv 1605.06431, Section 4.

    >>> stack = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.ReLU())
    >>> lesion(stack, [0, 2])
    Sequential(
      (0): Linear(in_features=2, out_features=2, bias=True)
      (1): ReLU()
    )
    """
    blocks = _blocks(model)
    kept = nn.Sequential(*[blocks[_index(k, len(blocks))] for k in order])
    kept.training = blocks.training
    if blocks is model:
        return kept
    twin = copy.copy(model)
    twin._modules = {**model._modules, "blocks": kept}  # not shared with the model
    return twin


def _blocks(model: nn.Module) -> nn.Sequential:
    stack = getattr(model, "blocks", model)
    if not isinstance(stack, nn.Sequential):
        raise TypeError(
            f"model is a {type(model).__name__}, expected an nn.Sequential of blocks "
            "or a module whose attribute `blocks` is one."
        )
    return stack


def _index(k: int, depth: int) -> int:
    """Return k if it is the index of a block in a stack of `depth`."""
    whole("depth", depth)
    return whole("block", k, least=0, most=depth - 1)


def without(depth: int, *blocks: int) -> Order:
    """Return the order of a stack of `depth` blocks with some of them deleted.

    Raises TypeError for an index or a depth that is not whole, ValueError for an index
    that is not between 0 and `depth` − 1 and a depth below 1.

    >>> without(5, 0, 3)
    (1, 2, 4)
    """
    deleted = {_index(k, depth) for k in blocks}
    return tuple(k for k in range(whole("depth", depth)) if k not in deleted)


def swapped(depth: int, i: int, j: int) -> Order:
    """Return the order in which blocks i and j have changed places.

    Raises TypeError for an index or a depth that is not whole, ValueError for an index
    that is not between 0 and `depth` − 1 and a depth below 1.

    >>> swapped(5, 1, 3)
    (0, 3, 2, 1, 4)
    """
    i, j = _index(i, depth), _index(j, depth)
    order = list(range(depth))
    order[i], order[j] = order[j], order[i]
    return tuple(order)


def random_deletions(depth: int, count: int, *, seed: int) -> Order:
    """Return an order with `count` blocks deleted, drawn without replacement.

    The draw hangs on `seed` alone; the global random state is neither read nor changed.

    Raises TypeError for a count or a depth that is not whole, ValueError for a count
    that is not between 0 and `depth` and a depth below 1.

    >>> len(random_deletions(54, 10, seed=0))
    44
    """
    whole("count", count, least=0, most=whole("depth", depth))
    generator = torch.Generator().manual_seed(seed)
    return without(
        depth,
        *torch.randperm(depth, generator=generator, device="cpu")[:count].tolist(),
    )


def random_swaps(depth: int, count: int, *, seed: int) -> Order:
    """Return the order after `count` swaps of two random, different blocks.

    The draw hangs on `seed` alone; the global random state is neither read nor changed.

    Raises TypeError for a count or a depth that is not whole, ValueError for a negative
    count and a depth below 2.

    >>> sorted(random_swaps(10, 3, seed=0)) == list(range(10))
    True
    """
    whole("count", count, least=0), whole("depth", depth, least=2)
    generator = torch.Generator().manual_seed(seed)
    order = list(range(depth))
    for _ in range(count):
        i, j = torch.randperm(depth, generator=generator, device="cpu")[:2].tolist()
        order[i], order[j] = order[j], order[i]
    return tuple(order)


def kendall_tau(order: Sequence[int]) -> float:
    """Return Kendall's τ between `order` and the blocks' own order.

        τ = 1 − 2 · (pairs that are reversed) / (all pairs)

    1 for the order as built, −1 for the reverse, about 0 for a random one.

    Raises ValueError for fewer than two blocks.

    >>> kendall_tau([0, 1, 2, 3]), kendall_tau([3, 2, 1, 0])
    (1.0, -1.0)
    """
    if len(order) < 2:
        raise ValueError(f"order has {len(order)} blocks, expected at least 2.")
    pairs = [(a, b) for i, a in enumerate(order) for b in order[i + 1 :]]
    return 1 - 2 * sum(a > b for a, b in pairs) / len(pairs)


def lesion_study(
    model: nn.Module,
    evaluate: Callable[[nn.Module], float],
    orders: Iterable[Sequence[int]],
    *,
    progress: bool = False,
) -> list[dict]:
    """Evaluate one lesioned network for each order; return one row (a dict) for each.

    Each row has `order`, `deleted` (the indices left out), `left` (the number of blocks
    that run), `paths_left` (the share of the 2^L paths that survive: each deletion
    halves it), `kendall_tau` and `score`, what `evaluate` returned. The network is in
    eval mode without gradients while it is evaluated; its modes are put back even if
    `evaluate` raises. `progress` shows a bar.

    Raises what `lesion` does, and what `evaluate` does.

    >>> stack = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.ReLU())
    >>> rows = lesion_study(stack, len, [without(3), without(3, 1)])
    >>> [(row["deleted"], row["paths_left"], row["score"]) for row in rows]
    [((), 1.0, 3), ((1,), 0.5, 2)]
    """
    orders = [tuple(order) for order in orders]
    depth = len(_blocks(model))
    if progress:
        from tqdm.auto import tqdm

        orders = tqdm(orders, desc="lesions", leave=False)
    modes = [(module, module.training) for module in model.modules()]
    rows = []
    try:
        model.eval()
        with torch.no_grad():
            for order in orders:
                deleted = tuple(k for k in range(depth) if k not in order)
                rows.append(
                    {
                        "order": order,
                        "deleted": deleted,
                        "left": len(order),
                        "paths_left": 0.5 ** len(deleted),
                        "kendall_tau": kendall_tau(order) if len(order) > 1 else 1.0,
                        "score": evaluate(lesion(model, order)),
                    }
                )
    finally:
        for module, training in modes:
            module.training = training
    return rows
