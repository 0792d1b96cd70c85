"""How much quicker a depth sweep is than a backward pass a depth. Ratios in one run."""

import time

import torch

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


def seconds(function, *arguments, repeats):
    """Median processor seconds, which a busy machine disturbs less than the clock."""
    function(*arguments)
    times = []
    for _ in range(repeats):
        start = time.process_time()
        function(*arguments)
        times.append(time.process_time() - start)
    return sorted(times)[repeats // 2]


def main():
    """Print one line a stack: depths 1 … 100, one thread."""
    torch.set_num_threads(1)
    print(f"{'depths 1 … 100':42}{'loop':>9}{'sweep':>9}{'ratio':>8}")
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
        loop = seconds(a_pass_a_depth, blocks, x, depths, repeats=3)
        sweep = seconds(depth_sweep, blocks, x, depths, loss, repeats=7)
        what = ", ".join(str(v) for v in options.values())
        print(
            f"width {width}, batch {batch}, {what:22.22}"[:42].ljust(42)
            + f"{loop * 1e3:6.0f} ms{sweep * 1e3:6.0f} ms{loop / sweep:7.1f}×"
        )


if __name__ == "__main__":
    main()
