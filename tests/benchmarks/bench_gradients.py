"""How much quicker a depth sweep is than a backward pass a depth. Ratios in one run."""

import functools

import torch
from measure import best

from resnotes.blocks import mlp_stack
from resnotes.gradients import depth_sweep


def a_pass_a_depth(blocks, x, depths):
    """What a reader would write: the gradient at the input, depth by depth."""
    norms = []
    for depth in depths:
        leaf = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(blocks[:depth](leaf).sum(), leaf)
        norms.append(gradient.norm())
    return torch.stack(norms)


def floor(blocks, x):
    """Multiply as many gradients with as many matrices, and do nothing else."""
    rows = x.repeat(len(blocks), 1, 1)
    weights = [w.detach() for name, w in blocks.named_parameters() if w.ndim == 2]
    for count, weight in enumerate(reversed(weights), 1):
        rows[:count].flatten(0, 1) @ weight


def main():
    """Print one line a stack: depths 1 … 100, one thread."""
    torch.set_num_threads(1)
    print(f"{'depths 1 … 100':42}{'loop':>9}{'sweep':>9}{'ratio':>8}{'floor':>9}")
    for width, batch, options in [
        (64, 8, dict(residual=False)),
        (64, 8, dict(residual=True)),
        (64, 8, dict(residual=False, activation="gelu", norm="layer", init="he")),
        (64, 8, dict(residual=False, activation="relu", norm="batch", init="he")),
        (16, 8, dict(residual=False)),
        (128, 32, dict(residual=False)),
    ]:
        torch.manual_seed(0)
        blocks, x = mlp_stack(100, width, **options), torch.randn(batch, width)
        depths = range(1, 101)
        loss = None if "norm" not in options else (lambda h: h[:, 0].square().sum())
        sweep, loop, matrices = best(
            [
                functools.partial(depth_sweep, blocks, x, depths, loss),
                functools.partial(a_pass_a_depth, blocks, x, depths),
                functools.partial(floor, blocks, x),
            ]
        )
        what = ", ".join(str(v) for v in options.values())
        print(
            f"width {width}, batch {batch}, {what:22.22}"[:42].ljust(42)
            + f"{loop:6.0f} ms{sweep:6.0f} ms{loop / sweep:7.1f}×{matrices:6.0f} ms"
        )


if __name__ == "__main__":
    main()
