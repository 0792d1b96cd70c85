"""Is `chain_jacobian` ever slower than `torch.autograd.functional.jacobian`?

Prints milliseconds (best of several) and the ratio peer / ours, both measured in turn
in one run: above 1 means that ours is quicker. Two peers: the function as it comes, one
backward pass a row, and the same with vectorize=True.
"""

import torch
from measure import best
from torch.autograd.functional import jacobian

from resnotes.blocks import mlp_stack
from resnotes.jacobians import chain_jacobian, singular_values, singular_values_by_depth

WIDTHS = (16, 64, 256)
DEPTHS = (1, 10, 100)


def main() -> None:
    """Print the two tables."""
    torch.set_num_threads(1)
    print("activation width depth | ours ms | peer/ours | vectorized peer/ours")
    for activation in ("tanh", "relu", "gelu"):
        for width in WIDTHS:
            for depth in DEPTHS:
                torch.manual_seed(0)
                net = mlp_stack(depth, width, residual=True, activation=activation)
                x = torch.randn(width)
                ours, peer, vectorized = best(
                    [
                        lambda net=net, x=x: chain_jacobian(net, x),
                        lambda net=net, x=x: jacobian(net, x),
                        lambda net=net, x=x: jacobian(net, x, vectorize=True),
                    ]
                )
                print(
                    f"{activation:>10} {width:5d} {depth:5d} | {ours:7.2f} | "
                    f"{peer / ours:9.2f} | {vectorized / ours:9.2f}",
                    flush=True,
                )

    net, x = mlp_stack(100, 64, residual=True).double(), torch.randn(64).double()
    sweep, single = best(
        [
            lambda: singular_values_by_depth(net, x),
            lambda: [singular_values(net[:k], x) for k in range(1, 101)],
        ],
        seconds=5,
    )
    print(f"singular values at every depth 1..100, width 64: {sweep:.0f} ms,")
    print(f"a call for each depth takes {single / sweep:.1f} times as long")


if __name__ == "__main__":
    main()
