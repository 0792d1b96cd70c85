"""How deep a transformer trains while a reader waits, and what made that possible.

Each row switches one thing back to what one writes first; all in one run, so that the
ratios hold on any machine. Times are processor time, which a busy machine disturbs less
than the clock; the second thread's waiting counts, as it keeps a core from others. The
last line is the depth whose 200 steps take 20 seconds of one core.
"""

import functools
import time

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from resnotes.blocks import PreNormBlock
from resnotes.training import mnist1d, seed, train
from resnotes.transformers import transformer

DEPTH, STEPS = 50, 10


def ours(threads=1, optimizer=None):
    """Seconds a step of `train`, one evaluation of 640 examples among ten steps."""
    data = mnist1d()
    few = data._replace(x_test=data.x_test[:1], y_test=data.y_test[:1])
    few = few._replace(x_train=few.x_train[:640], y_train=few.y_train[:640])
    seed(0)
    model = transformer(DEPTH, "pre")
    start = time.process_time()
    train(
        model,
        few,
        steps=STEPS,
        lr=1e-3,
        batch_size=64,
        threads=threads,
        optimizer=optimizer,
    )
    return (time.process_time() - start) / STEPS


def torch_attention():
    """The same with `nn.MultiheadAttention`'s own call."""
    faster = PreNormBlock.attend
    PreNormBlock.attend = lambda block, x: block.attention(x, x, x, need_weights=False)[
        0
    ]
    try:
        return ours()
    finally:
        PreNormBlock.attend = faster


def written_first(threads):
    """Write the loop as in most tutorials: DataLoader, default Adam, `loss.item()`."""
    data = mnist1d()
    seed(0)
    model = transformer(DEPTH, "pre")
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    pairs = TensorDataset(data.x_train[:640], data.y_train[:640])
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    start = time.process_time()
    total = 0.0
    for x, y in DataLoader(pairs, batch_size=64, shuffle=True):
        loss = F.cross_entropy(model(x), y)
        adam.zero_grad()
        loss.backward()
        adam.step()
        total += loss.item()
    seconds = time.process_time() - start
    torch.set_num_threads(before)
    return seconds / STEPS


def main():
    """Print a table of seconds and ratios."""
    ours()  # warm
    adam = functools.partial(torch.optim.Adam, foreach=False)
    cores = max(2, torch.get_num_threads())
    rows = {
        "resnotes.training.train": ours,
        f"… with {cores} threads": lambda: ours(threads=cores),
        "… with Adam in a loop": lambda: ours(optimizer=adam),
        "… with nn.MultiheadAttention's call": torch_attention,
        f"loop as first written, {cores} threads": lambda: written_first(cores),
    }
    rounds = [{name: row() for name, row in rows.items()} for _ in range(4)]
    seconds = {name: min(one[name] for one in rounds) for name in rows}
    reference = seconds["resnotes.training.train"]
    print(f"{DEPTH} pre-norm blocks, batch 64, processor milliseconds a step")
    for name, value in seconds.items():
        print(f"{name:42} {1e3 * value:7.1f}  ×{value / reference:.2f}")
    print(f"depth that trains 200 steps in 20 s: {DEPTH * 0.1 / reference:.0f} blocks")


if __name__ == "__main__":
    main()
