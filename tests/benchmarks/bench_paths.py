"""All 2^L paths by length: growth with L, the price of it, and the floor.

Residual tanh MLPs of width 64, batch 64, one thread. "backward" is one ordinary forward
and backward pass to the input. "one by one" is the same recurrence with one backward
pass for each of the L(L+1)/2 products. "floor" is the arithmetic that no method with
this recurrence can avoid: each row times each weight matrix above it, and nothing else
(no activation, no sums, no autograd). "listed" walks all 2^L paths.
"""

import functools

import torch
from measure import best

from resnotes.blocks import mlp_stack
from resnotes.paths import branches_of, every_path, path_gradients


def one_by_one(branches, x, grad_output):
    """Compute the rows with one backward pass a product."""
    tape, h = [], x
    for branch in branches:
        h = h.detach().requires_grad_()
        added = branch(h)
        tape.append((h, added))
        h = h + added
    rows = x.new_zeros(len(branches) + 1, *x.shape)
    rows[0] = grad_output
    for n, (h, added) in enumerate(reversed(tape), 1):
        for m in range(n, 0, -1):
            pulled = torch.autograd.grad(added, h, rows[m - 1], retain_graph=True)
            rows[m] += pulled[0]
    return rows


def floor(branches, x, grad_output):
    """Multiply as many rows with as many matrices, and do nothing else."""
    rows = grad_output.repeat(len(branches) + 1, 1, 1)
    for n, branch in enumerate(reversed(branches), 1):
        rows[:n].flatten(0, 1) @ branch[0].weight


def backward(stack, x, grad_output):
    """Run one ordinary forward and backward pass."""
    x = x.clone().requires_grad_()
    return torch.autograd.grad(stack(x), x, grad_output)[0]


def main():
    """Print one line a depth, for float32 and float64."""
    torch.set_num_threads(1)
    for dtype in (torch.float32, torch.float64):
        print(
            f"\n{dtype}: milliseconds, and ratios to path_gradients at half the depth"
        )
        print(f"{'L':>4}{'paths':>9}{'ours':>9}{'grows':>7}{'backward':>10}", end="")
        print(f"{'ours/bw':>9}{'floor':>8}{'one by one':>12}{'listed':>9}{'error':>9}")
        before = None
        for depth in (3, 6, 12, 27, 54, 108):
            torch.manual_seed(0)
            stack = mlp_stack(depth, 64, residual=True).to(dtype)
            branches = branches_of(stack)
            x, g = torch.randn(2, 64, 64, dtype=dtype)
            calls = [
                functools.partial(path_gradients, branches, x, g),
                functools.partial(backward, stack, x, g),
                functools.partial(floor, branches, x, g),
                functools.partial(one_by_one, branches, x, g),
            ]
            ours, usual, least, alone = best(calls)
            listed = "-"
            if depth <= 12:
                listing = functools.partial(every_path, branches, x, g)
                listed = f"{best([listing])[0]:.0f}"
            right = backward(stack, x, g)
            error = (path_gradients(branches, x, g).sum(0) - right).norm()
            print(
                f"{depth:4}{f'2^{depth}':>9}{ours:9.1f}"
                f"{f'{ours / before:.1f}×' if before else '':>7}"
                f"{usual:10.1f}{f'{ours / usual:.0f}×':>9}"
                f"{least:8.1f}{alone:12.0f}"
                f"{listed:>9}{float(error / right.norm()):9.0e}",
                flush=True,
            )
            before = ours


if __name__ == "__main__":
    main()
