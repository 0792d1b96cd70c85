"""One small training loop, and real data that needs no download.

Deep stacks of tiny layers are slow on a CPU for dull reasons: many small kernels, so
threads only get in each other's way, and an optimiser that visits every parameter one
by one. The loop below uses one thread, a fused Adam, one shuffle of the data per
epoch instead of a `DataLoader`, and waits for a number only when it evaluates.
"""

import contextlib
import functools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from .arguments import whole
from .blocks import Residual
from .untouched import random_numbers_kept, seed_torch


def seed(n: int) -> None:
    """Seed Python's, NumPy's and PyTorch's global random numbers with `n`.

    Raises TypeError or ValueError for what is no whole number from 0 to 2³² − 1.

    Examples
    --------
    >>> seed(0); a = torch.rand(1); seed(0); bool(a == torch.rand(1))
    True
    """
    random.seed(n)
    np.random.seed(n)
    torch.manual_seed(n)


class Data(NamedTuple):
    """Inputs and labels, split into a training and a test set.

    Examples
    --------
    >>> x, y = torch.randn(6, 40), torch.tensor([0, 1, 2, 0, 1, 2])
    >>> data = Data(x[:4], y[:4], x[4:], y[4:])
    >>> data.y_test.tolist()
    [1, 2]
    """

    x_train: Float[Tensor, "train features"]
    y_train: Int[Tensor, " train"]
    x_test: Float[Tensor, "test features"]
    y_test: Int[Tensor, " test"]


def mnist1d() -> Data:
    """MNIST-1D: ten digits drawn as noisy, shifted, sheared curves of 40 points.

    4,000 training and 1,000 test examples, float32, zero mean and unit variance over
    the whole set. The `mnist1d` package *generates* the data (its default arguments,
    seed 42), so nothing is downloaded; the first call in a process takes about two
    seconds, later ones none. The global random state is left as it was. Each call
    returns fresh tensors, so changing them harms nobody.

    Source: Greydanus and Kobak, "Scaling down deep learning with MNIST-1D" (2020).

    Examples
    --------
    >>> data = mnist1d()
    >>> tuple(data.x_train.shape), tuple(data.x_test.shape)
    ((4000, 40), (1000, 40))
    >>> sorted(set(data.y_train.tolist()))
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    with random_numbers_kept(torch.device("cpu")):  # made by one thread alone
        return Data(*(tensor.clone() for tensor in _generate_mnist1d()))


@functools.cache
def _generate_mnist1d() -> Data:
    from mnist1d.data import make_dataset

    made = make_dataset()  # seeds Python and NumPy globally
    return Data(
        torch.tensor(made["x"], dtype=torch.float32),
        torch.tensor(made["y"], dtype=torch.int64),
        torch.tensor(made["x_test"], dtype=torch.float32),
        torch.tensor(made["y_test"], dtype=torch.int64),
    )


@dataclass
class History:
    """What happened in a training run.

    `step_loss` has the mini-batch loss of every step, in training mode. The other
    lists have one entry per evaluation: after `step[i]` steps, the mean cross-entropy
    (nats) and the accuracy (0 to 1) over the whole training and test set, in
    evaluation mode. A run whose loss stops being a finite number has `diverged` set
    and says in `reason` when; its lists end there.

    Examples
    --------
    >>> history = History(step=[31, 62], test_accuracy=[0.3, 0.4])
    >>> dict(zip(history.step, history.test_accuracy, strict=True))
    {31: 0.3, 62: 0.4}
    """

    step_loss: list[float] = field(default_factory=list)
    step: list[int] = field(default_factory=list)
    train_loss: list[float] = field(default_factory=list)
    train_accuracy: list[float] = field(default_factory=list)
    test_loss: list[float] = field(default_factory=list)
    test_accuracy: list[float] = field(default_factory=list)
    diverged: bool = False
    reason: str = ""


def train(
    model: nn.Module,
    data: Data,
    *,
    epochs: int | None = None,
    steps: int | None = None,
    lr: float = 2e-3,
    batch_size: int = 128,
    warmup_steps: int = 0,
    survival: float = 1.0,
    seed: int = 0,
    evaluate_every: int | None = None,
    optimizer: Callable[..., torch.optim.Optimizer] | None = None,
    progress: bool = False,
    threads: int | None = 1,
) -> History:
    r"""Train a classifier with Adam on cross-entropy, in place, and return its curves.

    Step t = 1, 2, … uses the learning rate

        lr_t = lr · min(1, t / warmup_steps)        (lr_t = lr without warm-up)

    With `survival` p < 1, stochastic depth: in each step block l of the L `Residual`
    blocks keeps its branch with probability

        p_l = 1 − (l / L) · (1 − p)

    and is its shortcut otherwise; evaluation, and the trained model, multiply the
    branch by p_l instead (Huang et al. 2016, section 3, the linear decay rule).

    Every epoch is one pass over a fresh shuffle in batches of equal size; what is left
    over sits that epoch out. Same model, data and `seed`: same result, bit for bit on
    one machine. The global random state, the number of threads and the mode
    (train or eval) of each module are put back at the end; gradients are cleared.

    One thread trains at a time, since random numbers are global: another thread's
    `train`, and whatever else here keeps random numbers (`gradient_norms`, say), waits
    until this run ends. To train several at once use processes.

    Parameters
    ----------
    model
        Maps (batch, features) to (batch, classes). Its parameters are changed.
    data
        Tensors on the model's device.
    epochs, steps
        How long: give exactly one of them.
    lr, batch_size, warmup_steps, survival
        As above.
    seed
        Draws the shuffles, the dropped blocks and the model's own dropout.
    evaluate_every
        Steps between evaluations; an epoch by default. The last step is always
        evaluated.
    optimizer
        Called with the parameters and `lr=`; a fused `torch.optim.Adam` by default.
    progress
        Show a bar on stderr while training (it would end up in a stored output).
    threads
        CPU threads while training; `None` leaves the setting alone. One is the
        fastest for layers as narrow as ours, and gives the same sums everywhere.

    Returns
    -------
    History
        See there. A run that diverges stops and says so; it does not raise.

    Raises
    ------
    ValueError
        If an argument is out of its range, inputs and labels do not match, labels are
        not int64, data and model are on two devices, or `survival` has no blocks to
        drop.
    TypeError
        If a count (epochs, steps, batch_size, warmup_steps, evaluate_every) is not a
        whole number.

    Examples
    --------
    >>> from resnotes.blocks import classifier, mlp_stack
    >>> seed(0)
    >>> model = classifier(mlp_stack(2, 32, residual=True), 40, 32, 10)
    >>> history = train(model, mnist1d(), epochs=2)
    >>> history.step, history.diverged, history.train_accuracy[-1] > 0.2
    ([31, 62], False, True)
    """
    _check(model, data, lr, batch_size, warmup_steps, survival)
    batch_size = min(batch_size, len(data.x_train))
    per_epoch = len(data.x_train) // batch_size
    total = _total_steps(epochs, steps, per_epoch)
    if evaluate_every is None:
        evaluate_every = per_epoch
    evaluate_every = min(whole("evaluate_every", evaluate_every), total)

    blocks = [m for m in model.modules() if isinstance(m, Residual)]
    depth = len(blocks)
    keep = [1 - k / depth * (1 - survival) for k in range(1, depth + 1)]
    if survival < 1:
        _check_droppable(blocks)

    shuffles = torch.Generator().manual_seed(seed)
    drops = random.Random(seed)
    make_optimizer = optimizer or functools.partial(torch.optim.Adam, fused=True)
    opt = make_optimizer(model.parameters(), lr=lr)
    history = History()
    losses = []  # since the last evaluation; read there, so that no step waits

    with _settings(model, seed, threads), _bar(total, progress) as bar:
        model.train()
        for step in range(1, total + 1):
            place = (step - 1) % per_epoch
            if place == 0:
                order = torch.randperm(
                    len(data.x_train), generator=shuffles, device="cpu"
                )
                order = order.to(data.x_train.device)
                x_epoch, y_epoch = data.x_train[order], data.y_train[order]
            batch = slice(place * batch_size, (place + 1) * batch_size)
            if warmup_steps:
                for group in opt.param_groups:
                    group["lr"] = lr * min(1.0, step / warmup_steps)

            kept = [survival == 1 or drops.random() < p for p in keep]
            with _dropped(blocks, kept):
                loss = F.cross_entropy(model(x_epoch[batch]), y_epoch[batch])
                opt.zero_grad()
                loss.backward()
            opt.step()
            losses.append(loss.detach())
            bar.update()

            if step % evaluate_every == 0 or step == total:
                history.step_loss += torch.stack(losses).tolist()
                losses.clear()
                with _weighted(blocks, keep, survival):
                    _evaluate(model, data, step, history)
                if history.diverged:
                    break
                bar.set_postfix(train_accuracy=f"{history.train_accuracy[-1]:.3f}")
        opt.zero_grad()
    _weigh(blocks, keep, survival)
    return history


def _total_steps(epochs: int | None, steps: int | None, per_epoch: int) -> int:
    if epochs is not None and steps is None:
        return whole("epochs", epochs) * per_epoch
    if steps is not None and epochs is None:
        return whole("steps", steps)
    raise ValueError(f"epochs={epochs} and steps={steps}: give exactly one of the two.")


def _check(model, data, lr, batch_size, warmup_steps, survival) -> None:
    whole("batch_size", batch_size), whole("warmup_steps", warmup_steps, least=0)
    if not lr > 0:
        raise ValueError(f"lr={lr} must be above 0.")
    if not 0 < survival <= 1:
        raise ValueError(f"survival={survival} must be above 0 and at most 1.")
    for split in ("train", "test"):
        x, y = getattr(data, f"x_{split}"), getattr(data, f"y_{split}")
        if len(x) != len(y):
            raise ValueError(
                f"data needs one label per input; x_{split} has shape "
                f"{tuple(x.shape)} and y_{split} has shape {tuple(y.shape)}."
            )
        if len(x) == 0 or y.dtype != torch.int64:
            raise ValueError(
                f"data has x_{split} of shape {tuple(x.shape)} and y_{split} of "
                f"{y.dtype}, expected at least one example and int64 labels."
            )
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    if not trained:
        raise ValueError("model has no parameter that asks for a gradient to train.")
    if data.x_train.device != trained[0].device:
        raise ValueError(
            f"data is on {data.x_train.device} and model on {trained[0].device}: "
            "move one."
        )


def _check_droppable(blocks) -> None:
    if not blocks:
        raise ValueError("`survival` below 1 needs a model with `Residual` blocks.")
    if any(isinstance(block.scale, Tensor) for block in blocks):
        raise ValueError(
            "`survival` below 1 needs blocks whose `scale` is a plain number; "
            "this model learns it."
        )


@contextlib.contextmanager
def _settings(model, seed, threads):
    """Borrow the random state, the thread count and the modes, and give them back."""
    modes = [(module, module.training) for module in model.modules()]
    threads_before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        device = next(model.parameters()).device
        with (
            random_numbers_kept(device),
            torch.inference_mode(False),
            torch.enable_grad(),
        ):
            seed_torch(seed, device)
            yield
    finally:
        torch.set_num_threads(threads_before)
        for module, training in modes:
            module.training = training


def _bar(total, progress):
    import sys

    from tqdm import tqdm

    return tqdm(total=total, disable=not progress, leave=False, file=sys.stderr)


@contextlib.contextmanager
def _dropped(blocks, kept):
    """Within the context, the blocks that are not kept are their shortcut alone."""
    dropped = [block for block, keep in zip(blocks, kept, strict=True) if not keep]
    for block in dropped:
        block.forward = block.shortcut.forward
    try:
        yield
    finally:
        for block in dropped:
            del block.forward  # the class's own forward shows again


def _weigh(blocks, keep, survival) -> None:
    """Multiply each branch by the share of steps it was there for."""
    if survival < 1:
        for block, p in zip(blocks, keep, strict=True):
            block.scale = block.scale * p


@contextlib.contextmanager
def _weighted(blocks, keep, survival):
    scales = [block.scale for block in blocks]
    _weigh(blocks, keep, survival)
    try:
        yield
    finally:
        for block, scale in zip(blocks, scales, strict=True):
            block.scale = scale


@torch.no_grad()
def _evaluate(model, data, step, history) -> None:
    """Append one evaluation to the history, or the reason why there is none."""
    first_bad = next(
        (t for t, value in enumerate(history.step_loss, 1) if not np.isfinite(value)),
        None,
    )
    if first_bad:
        value = history.step_loss[first_bad - 1]
        del history.step_loss[first_bad:]
        history.diverged = True
        history.reason = f"the training loss was {value} at step {first_bad}"
        return
    model.eval()
    sums = {}
    for split in ("train", "test"):
        x, y = getattr(data, f"x_{split}"), getattr(data, f"y_{split}")
        loss = hits = torch.zeros((), device=x.device)
        for xs, ys in zip(x.split(1000), y.split(1000), strict=True):
            logits = model(xs)
            loss = loss + F.cross_entropy(logits, ys, reduction="sum")
            hits = hits + (logits.argmax(1) == ys).sum()
        sums[split] = float(loss) / len(x), float(hits) / len(x)
    model.train()
    history.step.append(step)
    history.train_loss.append(sums["train"][0])
    history.train_accuracy.append(sums["train"][1])
    history.test_loss.append(sums["test"][0])
    history.test_accuracy.append(sums["test"][1])
    if not np.isfinite(history.train_loss[-1]):
        history.diverged = True
        history.reason = (
            f"the loss over the training set was {history.train_loss[-1]} "
            f"after step {step}"
        )
