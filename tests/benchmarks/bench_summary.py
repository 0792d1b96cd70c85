"""Each function of the package beside what one would write or pick instead.

Prints the table of chapters/benchmarks.md: milliseconds of ours, how many times as
long each rival takes (below 1 it is the quicker one), peak memory, and by how much ours
grows when depth, width or batch are doubled. All ratios are taken within one run.
"""

import copy
import functools

import torch
from bench_gradients import a_pass_a_depth
from bench_paths import one_by_one
from measure import best, machine, peak
from torch import nn
from torch.autograd.functional import jacobian

import resnotes as rn


def stack(depth=54, width=64, batch=64, activation="tanh"):
    """Return a residual stack and an input for it."""
    torch.manual_seed(0)
    net = rn.mlp_stack(depth, width, residual=True, activation=activation)
    return net, torch.randn(batch, width)


def retained(net, x):
    """Gradient norms as one writes them first, with retain_grad."""
    stream = [x.clone().requires_grad_()]
    for block in net:
        stream.append(block(stream[-1]))
        stream[-1].retain_grad()
    stream[-1].sum().backward()
    norms = torch.stack([h.grad.norm() for h in stream])
    net.zero_grad()
    return norms


def hooked(net, x):
    """Gradient norms through a backward hook on each block."""
    norms = []
    handles = [
        block.register_full_backward_hook(
            lambda block, before, after: norms.append(after[0].norm())
        )
        for block in net
    ]
    net(x.clone().requires_grad_()).sum().backward()
    for handle in handles:
        handle.remove()
    net.zero_grad()
    return norms


def each_lag(net, line):
    """Autocorrelation by its definition, one product of slices a lag."""
    leaf = line.clone().requires_grad_()
    (g,) = torch.autograd.grad(net(leaf).sum(), leaf)
    g = g - g.mean(0)
    lags = [(g[: len(g) - k] * g[k:]).sum() for k in range(len(g))]
    return torch.stack(lags) / lags[0]


def block_by_block(net, x):
    """Jacobians of the blocks through torch.func."""
    jacobians = []
    for block in net:
        jacobians.append(torch.func.jacrev(block)(x))
        x = block(x)
    return jacobians


def every_depth(net, x):
    """Singular values by a call for each depth."""
    return [rn.singular_values(net[:k], x) for k in range(1, len(net) + 1)]


def copied(net, x, orders):
    """Lesions by hand: a deep copy without some blocks."""
    scores = []
    for order in orders:
        damaged = nn.Sequential(*[copy.deepcopy(net[k]) for k in order])
        with torch.no_grad():
            scores.append(float(damaged(x).sum()))
    return scores


def one_run_after_another(lrs, seeds, data):
    """First steps, a training run for each rate and seed."""
    for lr in lrs:
        for seed in seeds:
            torch.manual_seed(seed)
            net = rn.recipe_net("ReZero", 16)
            rn.train(net, data, steps=10, lr=lr, seed=seed)


def rows():
    """Yield (function, make(**sizes) -> arguments, ours, rivals)."""
    yield (
        "gradient_norms",
        functools.partial(stack, batch=8, depth=100),
        rn.gradient_norms,
        {"retain_grad": retained, "backward hooks": hooked},
    )
    yield (
        "depth_sweep",
        functools.partial(stack, batch=8, depth=100),
        lambda net, x: rn.depth_sweep(net, x, range(1, len(net) + 1)),
        {
            "a pass a depth": lambda net, x: a_pass_a_depth(
                net, x, range(1, len(net) + 1)
            )
        },
    )
    yield (
        "gradient_autocorrelation",
        functools.partial(stack, batch=256, depth=24),
        rn.gradient_autocorrelation,
        {"lag by lag": each_lag},
    )
    for activation in ("tanh", "relu", "gelu"):
        yield (
            f"chain_jacobian, {activation}",
            functools.partial(stack, depth=20, activation=activation),
            lambda net, x: rn.chain_jacobian(net, x[0]),
            {
                "functional.jacobian": lambda net, x: jacobian(net, x[0]),
                "vectorize=True": lambda net, x: jacobian(net, x[0], vectorize=True),
                "func.jacrev": lambda net, x: torch.func.jacrev(net)(x[0]),
            },
        )
    yield (
        "block_jacobians",
        functools.partial(stack, depth=20),
        lambda net, x: rn.block_jacobians(net, x[0]),
        {"func.jacrev a block": lambda net, x: block_by_block(net, x[0])},
    )
    yield (
        "singular_values",
        functools.partial(stack, depth=20),
        lambda net, x: rn.singular_values(net, x[0]),
        {
            "svdvals of func.jacrev": lambda net, x: torch.linalg.svdvals(
                torch.func.jacrev(net)(x[0])
            )
        },
    )
    yield (
        "singular_values_by_depth",
        functools.partial(stack, depth=50),
        lambda net, x: rn.singular_values_by_depth(net, x[0]),
        {"a call a depth": lambda net, x: every_depth(net, x[0])},
    )
    for depth in (12, 54):
        rivals = {
            "one by one": lambda net, x: one_by_one(rn.branches_of(net), x, x),
            "one backward pass": lambda net, x: torch.autograd.grad(
                net(leaf := x.clone().requires_grad_()), leaf, x
            ),
        }
        if depth == 12:
            rivals["all 2^12 paths"] = lambda net, x: rn.every_path(
                rn.branches_of(net), x, x
            )
        yield (
            f"path_gradients, L = {depth}",
            functools.partial(stack, depth=depth),
            lambda net, x: rn.path_gradients(rn.branches_of(net), x, x),
            rivals,
        )
    orders = [rn.without(54, k) for k in range(0, 54, 9)]
    yield (
        "lesion_study",
        stack,
        lambda net, x: rn.lesion_study(net, lambda m: float(m(x).sum()), orders),
        {"deep copies": lambda net, x: copied(net, x, orders)},
    )
    data = rn.mnist1d()
    lrs, seeds = [1e-3, 1e-2], [0, 1, 2]
    yield (
        "first_steps, 6 runs",
        lambda **sizes: (None, None),
        lambda net, x: rn.first_steps("ReZero", 16, lrs=lrs, seeds=seeds, steps=10),
        {"run by run": lambda net, x: one_run_after_another(lrs, seeds, data)},
    )


def growth(make, ours) -> list[str]:
    """Say by how much ours grows with twice the depth, width and batch."""
    defaults = {"depth": 54, "width": 64, "batch": 64} | getattr(make, "keywords", {})
    grown = []
    for what in ("depth", "width", "batch"):
        small = make()
        large = make(**{what: 2 * defaults[what]})
        one, two = best(
            [functools.partial(ours, *small), functools.partial(ours, *large)], 0.2
        )
        grown.append(f"×{two / one:.1f}")
    return grown


def main() -> None:
    """Print the table in Markdown."""
    torch.set_num_threads(1)
    print(f"{machine()}\n")
    print("| function | ours, ms | rivals | peak, MB | depth | width | batch |")
    print("|---|--:|---|--:|--:|--:|--:|")
    for name, make, ours, rivals in rows():
        arguments = make()
        calls = [functools.partial(f, *arguments) for f in (ours, *rivals.values())]
        mine, *others = best(calls)
        beside = ", ".join(
            f"{rival} ×{time / mine:{'.0f' if time > 10 * mine else '.2g'}}"
            for rival, time in zip(rivals, others, strict=True)
        )
        fixed = name.startswith(("lesion", "first"))  # their sizes are in the call
        grown = ["–"] * 3 if fixed else growth(make, ours)
        print(
            f"| {name} | {mine:.3g} | {beside} | {peak(calls[0]):.0f} "
            f"| {' | '.join(grown)} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
