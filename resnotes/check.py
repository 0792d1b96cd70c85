"""Instant feedback on the assignments: a tick, or the misconception and a hint.

    from resnotes.check import vanishing as check
    check.q1(damping)

Each check tries a small example whose answer can be worked out on paper. A wrong answer
raises `NotYet`, which notebooks show as one line: what came, and where it matches what
a known misconception gives, which one. The checks are for learning: passing them is no
grade, and they hold examples, not solutions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class NotYet(AssertionError):
    """An answer is not right yet. Shown as its sentence, without a traceback."""

    def _render_traceback_(self):
        return [f"✗ {self}"]


def _tick(sentence: str) -> None:
    print(f"✓ {sentence}")


def _call(function: Callable, *arguments):
    """Return function(*arguments), or say in a sentence why there is nothing."""
    try:
        return function(*arguments)
    except NotImplementedError:
        raise NotYet("not answered yet: replace the line that raises") from None
    except Exception as error:
        name = getattr(function, "__name__", "it")
        raise NotYet(f"{name} raised {type(error).__name__}: {error}") from None


def _tensor(value, like: Tensor | None = None) -> Tensor:
    """Return a number, list or tensor as float64, or say what came instead."""
    if value is None:
        raise NotYet("nothing came back: is there a `return`?")
    try:
        return torch.as_tensor(value, dtype=torch.float64).detach()
    except Exception:
        kind = type(value).__name__
        raise NotYet(f"a {kind} came back, expected numbers") from None


def _close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-3, atol=1e-6)


def _compare(got, right, misconceptions: dict[str, object] | None = None) -> None:
    """Pass if `got` is `right`; else name the misconception whose value it is."""
    got, right = _tensor(got), _tensor(right)
    if _close(got, right):
        return
    for sentence, value in (misconceptions or {}).items():
        if _close(got, _tensor(value)):
            raise NotYet(sentence)
    if got.shape != right.shape:
        raise NotYet(f"shape {tuple(got.shape)} came, expected {tuple(right.shape)}")
    if not got.isfinite().all():
        raise NotYet(f"{_say(got)} came: something is divided by 0 or logs a 0")
    raise NotYet(f"the example gives {_say(right)}, and {_say(got)} came")


def _say(values: Tensor) -> str:
    numbers = [f"{v:.4g}" for v in values.flatten().tolist()[:6]]
    more = ", …" if values.numel() > 6 else ""
    return numbers[0] if values.dim() == 0 else f"[{', '.join(numbers)}{more}]"


def _unchanged(x: Tensor, before: Tensor, name: str) -> None:
    if not torch.equal(x, before):
        raise NotYet(
            f"{name} was changed in place: the caller's tensor is no longer what it "
            "was (`+=`, `relu_` and the like write into it)"
        )


def _scaling(*factors: float) -> nn.Linear:
    """Return a linear layer that multiplies entry i by factors[i]; float64."""
    layer = nn.Linear(len(factors), len(factors), bias=False).double()
    with torch.no_grad():
        layer.weight.copy_(torch.diag(torch.tensor(factors)))
    return layer


class vanishing:
    """Assignment 1: vanishing gradients."""

    @staticmethod
    def q1(damping: Callable) -> None:
        """Scale twice in a row, so that each example's factor is a product."""
        blocks = nn.Sequential(_scaling(0.5, 1.0), _scaling(0.2, 3.0))
        x = torch.tensor([[1.0, 2.0], [3.0, 4.0], [0.0, 1.0]]).double()
        g = torch.tensor([[2.0, 0.0], [0.0, 5.0], [3.0, 4.0]]).double()
        before = x.clone()
        got = _call(damping, blocks, x, g)
        _unchanged(x, before, "x")
        gradients = g * torch.tensor([0.1, 3.0])
        norms, sizes = gradients.norm(dim=1), g.norm(dim=1)
        right = torch.tensor([0.1, 3.0, math.hypot(0.3, 12.0) / 5])
        _compare(
            got,
            right,
            {
                "these are the gradients' norms: divide by the norm of g": norms,
                "one number for the whole batch: give one for each example, the norm "
                "over dim=1": norms.norm() / sizes.norm(),
                "this is the gradient of the output's sum: send g back instead": (
                    torch.full((3,), math.hypot(0.1, 3.0)) / sizes
                ),
                "this is the gradient itself, not its length": gradients,
                "upside down: divide the gradient at the input by g": 1 / right,
            },
        )
        if any(p.grad is not None for p in blocks.parameters()):
            raise NotYet(
                "the blocks' parameters were left with a .grad: the next backward adds "
                "to it; torch.autograd.grad(…, x) touches x alone"
            )
        _compare(
            _call(damping, blocks, x, g),
            right,
            {"the second call gives twice as much: x.grad adds up": 2 * right},
        )
        _tick("one factor for each example, and nothing left behind")

    @staticmethod
    def q2(predicted_decades: Callable) -> None:
        """Take one layer that narrows and one that widens."""
        got = _call(predicted_decades, [100, 25, 400], [0.3, 0.5])

        def decades(factor):
            return 0.5 * math.log10(factor)

        right = decades(100 * 0.03) + decades(25 * 0.25 / 3)
        _compare(
            got,
            right,
            {
                "going back a layer's gradient is a sum over its outputs for each of "
                "its inputs: n_in numbers come out, so n_in is what multiplies the "
                "variance": decades(25 * 0.03) + decades(400 * 0.25 / 3),
                "uniform in (−b, b) has the variance b²/3, not b²": (
                    decades(100 * 0.09) + decades(25 * 0.25)
                ),
                "this predicts the squared norm: halve it": 2 * right,
                "decades are log10, not ln": right * math.log(10),
                "the sign: a factor above 1 is a growing gradient": -right,
            },
        )
        _tick("the variance, the fan and the square root are all in place")

    @staticmethod
    def q3(critical_gain: Callable) -> None:
        """Take the sine, whose means are known: E[sin²] = (1 − e^(−2q)) / 2."""

        def gain(q):
            return math.sqrt(2 / (1 + math.exp(-2 * q)))

        for q in (0.5, 0.8):
            variance = q - math.tanh(q)  # then both equations hold
            _compare(
                _call(critical_gain, torch.sin, variance),
                gain(q),
                {
                    "this is σ_w², not σ_w": gain(q) ** 2,
                    "this takes σ_b² for q: q is larger, the weights add to it": gain(
                        variance
                    ),
                    "this is the gain at q = 1, whatever q settles at": gain(1.0),
                    "this is the gain at q = 0: with biases q settles above it": 1.0,
                },
            )
        _tick("χ is 1 at the q that settles")

    @staticmethod
    def q4(decades_per_block: Callable) -> None:
        """Fit a straight line in the logarithm, a bent one, one that underflows."""
        straight = [1e-6, 1e-5, 1e-4, 1e-3]
        _compare(
            _call(decades_per_block, torch.tensor(straight)),
            1.0,
            {
                "the sign: norms[0] is the input's, and a loss on the way to it counts "
                "as positive": -1.0,
                "decades are log10, not ln": math.log(10),
                "this is the whole loss: divide by blocks, one fewer than norms": 3.0,
                "4 norms have 3 blocks between them": 0.75,
            },
        )
        _compare(
            _call(decades_per_block, torch.tensor([1e-6, 1e-6, 1e-6, 1.0])),
            1.8,
            {"only the two ends count here: fit a line through all norms": 2.0},
        )
        _compare(
            _call(decades_per_block, torch.tensor([0.0, 0.0, 1e-4, 1e-2, 1.0])),
            2.0,
        )
        _tick("a line through all norms that are not 0")


class block:
    """Assignment 2: the residual block."""

    @staticmethod
    def q1(make_shortcut: Callable) -> None:
        """Try shortcuts that change nothing, channels, length, and both."""
        x = torch.arange(24.0).view(1, 3, 8)
        same = _call(make_shortcut, 3, 3, 1)
        if list(same.parameters()):
            raise NotYet("3 → 3 channels, stride 1: nothing changes, so no weights")
        if not torch.equal(_call(same, x), x):
            raise NotYet("3 → 3 channels, stride 1: the input should come out as it is")
        wider = _call(make_shortcut, 3, 5, 1)
        count = sum(p.numel() for p in wider.parameters())
        _compare(
            count,
            15,
            {
                "3 → 5 channels takes 15 weights; 20 came: leave the bias out": 20,
                "3 → 5 channels takes 15 weights; 45 came: the kernel is 1 wide": 45,
                "3 → 5 channels: the number of channels has to change": 0,
            },
        )
        longer = _call(make_shortcut, 3, 3, 2)
        if list(longer.parameters()):
            raise NotYet("3 → 3 channels, stride 2: repeating needs no weights")
        _compare(
            _call(longer, x)[:, :1, :6],
            [[[0.0, 0, 1, 1, 2, 2]]],
            {
                "the whole signal is repeated; each position should be, side by side": (
                    [[[0.0, 1, 2, 3, 4, 5]]]
                ),
                "this draws lines between the positions instead of repeating them": (
                    [[[0.0, 0.25, 0.75, 1.25, 1.75, 2.25]]]
                ),
                "this leaves zeros between the positions": [[[0.0, 0, 1, 0, 2, 0]]],
            },
        )
        both = _call(_call(make_shortcut, 6, 3, 2), torch.zeros(1, 6, 4))
        if both.shape != (1, 3, 8):
            raise NotYet(f"6 → 3 channels, stride 2: {tuple(both.shape)} came")
        _tick("it repeats, maps channels only if it must, and has no weight too many")

    @staticmethod
    def q2(centred: Callable) -> None:
        """Look at the start, at the gradients, and at what is left after a change."""
        branch = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4)).double()
        for k, parameter in enumerate(branch.parameters()):
            angles = torch.arange(1.0, 1 + parameter.numel()).double() + k
            parameter.data = angles.sin().view_as(parameter)
        x = torch.arange(12.0).double().view(3, 4).cos().requires_grad_()
        plain = branch(x).detach()
        module = _call(centred, branch)
        y = _call(module, x)
        _compare(
            y,
            torch.zeros(3, 4),
            {
                "this is F(x): what it is at the start has to be subtracted": plain,
                "this is x + G(x): G alone is wanted": x,
            },
        )
        own = list(branch.parameters())
        if not all(p.requires_grad for p in own):
            raise NotYet("the branch itself is frozen: only its copy should be")
        learns = {id(p) for p in module.parameters() if p.requires_grad}
        if learns - {id(p) for p in own}:
            raise NotYet("the copy would learn too: freeze its parameters")
        if not y.requires_grad:
            raise NotYet("no gradient can pass at all")
        sent = torch.autograd.grad(
            y, [*own, x], torch.ones_like(y), allow_unused=True, retain_graph=True
        )
        if any(g is None or not g.any() for g in sent[:-1]):
            raise NotYet(
                "not every layer gets a gradient in the first step: is a layer set to "
                "zero, or the same branch subtracted from itself?"
            )
        if sent[-1] is None or sent[-1].abs().max() > 1e-9:
            raise NotYet(
                "the gradient at x should be 0 at the start, as G is 0 for every x: "
                "it passes the copy too, only the copy's weights are frozen"
            )
        own[-1].data += 1
        _compare(
            _call(module, x),
            torch.ones(3, 4),
            {"the copy changes with the branch: it has to be deep": torch.zeros(3, 4)},
        )
        _tick("0 at the start, every layer learns, and the copy stays")

    @staticmethod
    def q3(jacobian: Callable) -> None:
        """Take a matrix, whose Jacobian is itself, and a cube."""
        A = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]).double()
        x = torch.tensor([0.3, -0.7])
        before = x.clone()
        got = _call(jacobian, lambda h: A @ h.double(), x)
        _unchanged(x, before, "x")
        _compare(
            got,
            A,
            {
                "rows and columns are swapped: row i is the output's": A.T,
                "twice too large: the two points are 2ε apart": 2 * A,
            },
        )
        got = _tensor(_call(jacobian, lambda h: h**3, torch.tensor([1.0, 2.0])))
        right = torch.diag(torch.tensor([3.0, 12.0])).double()
        gap = (got - right).abs().max() if got.shape == right.shape else math.inf
        if gap > 0.5:
            _compare(got, right)
        if gap > 1e-4:
            raise NotYet(
                f"the error for h³ is {gap:.1g}: ε is too large, or the difference is "
                "one-sided, or the numbers are float32"
            )
        _tick("right to five digits, with forward calls only")

    @staticmethod
    def q4(critical_scale: Callable) -> None:
        """Take matrices whose eigenvalues stand on the diagonal, and a rotation."""
        tilted = torch.tensor([[-0.5, 10.0, 0.0], [0.0, -2.0, 7.0], [0.0, 0.0, 3.0]])
        values = torch.linalg.svdvals(tilted)
        _compare(
            _call(critical_scale, tilted),
            0.5,
            {
                "this takes singular values; I + αJ is singular where −1/α is an "
                "eigenvalue of J": 1 / values[0],
                "a zero of 1 + αλ needs a negative λ": 1 / 3,
                "it is the most negative eigenvalue that gets there first": 2.0,
                "the sign: α = −1/λ": -0.5,
            },
        )
        turn = torch.tensor([[0.0, -3.0], [3.0, 0.0]])
        got = _tensor(_call(critical_scale, turn))
        if not torch.isinf(got):
            raise NotYet(
                "a rotation has complex eigenvalues: no α makes I + αJ singular, so "
                f"the answer is math.inf, and {_say(got)} came"
            )
        _tick("the first real, negative eigenvalue, and inf without one")


class paths:
    """Assignment 3: paths."""

    @staticmethod
    def q1(count_paths: Callable) -> None:
        """Multiply out two small products, and time a deep one."""
        by = "each block can also be passed by its shortcut"
        _compare(_call(count_paths, [[1], [1]]), [1, 2, 1], {by: [0, 0, 1]})
        _compare(
            _call(count_paths, [[3], [3]]),
            [1, 0, 0, 2, 0, 0, 1],
            {
                "these are modules: a branch of 3 layers counts 3": [1, 2, 1],
            },
        )
        _compare(
            _call(count_paths, [[1, 3, 3], [1]]),
            [1, 2, 1, 2, 2],
            {"two branches of the same length are two ways": [1, 2, 1, 1, 1]},
        )
        got = _call(count_paths, [[3]] * 60)
        if sum(got) != 2**60:
            raise NotYet("60 blocks have 2**60 paths: whole numbers, no floats")
        _tick("every path counted by its layers")

    @staticmethod
    def q2(tangents_by_length: Callable) -> None:
        """Follow numbers instead of vectors: F = 2h and 3h, then F = h²/2 twice."""
        one = torch.ones(1, dtype=torch.float64)
        got = _call(tangents_by_length, [lambda h: 2 * h, lambda h: 3 * h], one, one)
        _compare(
            got,
            [[1.0], [5.0], [6.0]],
            {
                "row m already holds this block when row m + 1 is made from it: use "
                "the rows from before the block": [[1.0], [5.0], [19.0]],
                "row m is the sum over all paths of length m, not one of them": (
                    [[1.0], [2.0], [6.0]]
                ),
                "that is the change after m blocks, all paths together": (
                    [[1.0], [3.0], [12.0]]
                ),
            },
        )
        bent = [lambda h: h**2 / 2] * 2
        _compare(
            _call(tangents_by_length, bent, one, one),
            [[1.0], [2.5], [1.5]],
            {
                "the second block sees h_1, not x": [[1.0], [2.0], [1.0]],
                "the stream is h + F(h): the shortcut counts for h_1 too": (
                    [[1.0], [1.5], [0.5]]
                ),
            },
        )
        _tick("each length in its row, each Jacobian at its stream")

    @staticmethod
    def q3(gradient_through: Callable) -> None:
        """Follow numbers again: F = 2h and 3h, then F = h²/2 twice, through block 0."""
        one = torch.ones(1, dtype=torch.float64)
        straight = [lambda h: 2 * h, lambda h: 3 * h]
        _compare(
            _call(gradient_through, straight, one, one, 0),
            [[0.0], [2.0], [6.0]],
            {
                "these are all paths: leave out those that pass block k by": (
                    [[1.0], [5.0], [6.0]]
                ),
                "these are the paths that pass block k by": [[1.0], [3.0], [0.0]],
                "block k's own branch counts too: the rows are one too early": (
                    [[2.0], [6.0], [0.0]]
                ),
                "block k is counted from 0": [[0.0], [3.0], [6.0]],
            },
        )
        _compare(
            _call(gradient_through, [lambda h: h**2 / 2] * 2, one, one, 0),
            [[0.0], [1.0], [1.5]],
            {
                "taking block k out of the network changes what later blocks see": (
                    [[0.0], [1.5], [1.5]]
                ),
                "every Jacobian is taken at x; block l sees h_l": [[0.0], [1.0], [1.0]],
            },
        )
        _tick("only the paths through block k, in the network as it is")

    @staticmethod
    def q4(lesion_surplus: Callable) -> None:
        """Delete blocks that multiply the stream by 2 and by 1.5."""
        from .blocks import Residual

        blocks = nn.Sequential(Residual(_scaling(1, 1)), Residual(_scaling(0.5, 0.5)))
        x, y = torch.tensor([[1.0, 0.0]]).double(), torch.tensor([0])

        def loss(gap):
            return math.log1p(math.exp(-gap))

        got = _call(lesion_surplus, blocks, nn.Identity(), x, y)
        whole, first, second, both = loss(3), loss(1.5), loss(2), loss(1)
        rises, surplus = (first - whole, second - whole), both - first - second + whole

        def matrix(a, b, off):
            return [[a, off], [off, b]]

        _compare(
            got,
            matrix(*rises, surplus),
            {
                "off the diagonal stand rises: subtract the two single ones": matrix(
                    *rises, both - whole
                ),
                "these are losses: subtract the intact network's": matrix(
                    first, second, both - first - second
                ),
                "the intact loss is subtracted too often from the pair": matrix(
                    *rises, both - first - second
                ),
                "the diagonal should hold the single rises": matrix(0, 0, surplus),
                "each pair stands once: the matrix is symmetric": [
                    [rises[0], surplus],
                    [0, rises[1]],
                ],
                "the sign: positive means that the loss rises": matrix(
                    -rises[0], -rises[1], -surplus
                ),
                "the shortcut stays when a block is deleted": matrix(
                    math.log(2) - whole, math.log(2) - whole, whole - math.log(2)
                ),
            },
        )
        moody: Any = nn.Sequential(
            *map(Residual, (nn.BatchNorm1d(2), nn.Dropout(0.5), nn.Tanh()))
        )
        moody[2].eval()
        x, y = torch.tensor([[1.0, 0.0], [0.0, 3.0]]), torch.tensor([0, 1])
        before = moody[0].branch.running_mean.clone()
        got = _tensor(_call(lesion_surplus, moody, nn.Identity(), x, y))
        if not torch.equal(moody[0].branch.running_mean, before):
            raise NotYet("BatchNorm's statistics moved: evaluate in eval mode")
        if not _close(got, _tensor(_call(lesion_surplus, moody, nn.Identity(), x, y))):
            raise NotYet("two calls differ: dropout is on, or a block stayed deleted")
        if moody[2].training or not moody[1].training:
            raise NotYet(
                "modules are not in the mode they were in: they need not all have had "
                "the same one"
            )
        _tick("one block and two at a time, in eval mode, nothing left changed")


class _Double(nn.Module):
    """A stand-in for a norm, whose place shows in the result."""

    def forward(self, x):
        return 2 * x


class _Square(nn.Module):
    """A stand-in for a branch; in powers of 2, with `_Double`, no two orders agree."""

    def forward(self, x):
        return x**2


class _Triple(nn.Module):
    """A stand-in for a third part."""

    def forward(self, x):
        return 3 * x


class norms:
    """Assignment 4: pre-norm and post-norm."""

    @staticmethod
    def q1(pre_norm_stack: Callable) -> None:
        """Put in norms that double, branches that square and triple."""
        x = torch.tensor([2.0])
        final = nn.Hardtanh(-1000.0, 29.0)  # cuts off at 29
        blocks = [[_Square(), _Triple()]]
        got = _call(pre_norm_stack, x, [_Double()], blocks, nn.Identity())
        _unchanged(x, torch.tensor([2.0]), "x")
        _compare(
            got,
            [30.0],
            {
                "the second branch reads what the first one has added: both should "
                "read the same stream": [126.0],
                "the second branch reads what the first one returned": [66.0],
                "the stream is normalised: the shortcut carries the un-normed x": [
                    32.0
                ],
                "the norm comes after the addition: that is post-norm": [24.0],
                "the norm is behind the branches: it belongs before them": [22.0],
                "the shortcut is missing": [28.0],
                "no norm is used before the branches": [12.0],
                "the branches are averaged: add them": [16.0],
                "one branch of the block is left out": [18.0],
            },
        )
        _compare(
            _call(pre_norm_stack, x, [_Double()], blocks, final),
            [29.0],
            {"the last stream is un-normed: a pre-norm stack ends in a norm": [30.0]},
        )
        got = _call(
            pre_norm_stack, x, [_Double()] * 2, [*blocks, [_Triple()]], nn.Identity()
        )
        _compare(got, [30.0 + 180.0])
        _tick("one norm before the branches, one at the end, a clean stream")

    @staticmethod
    def q2(post_norm_stack: Callable) -> None:
        """Put in norms that double, branches that square and triple."""
        x = torch.tensor([2.0])
        blocks = [[_Square(), _Triple()]]
        got = _call(post_norm_stack, x, [_Double()], blocks)
        _unchanged(x, torch.tensor([2.0]), "x")
        _compare(
            got,
            [24.0],
            {
                "the second branch reads what the first one has added: both should "
                "read the same stream": [48.0],
                "there is a norm after each branch: one sum, one norm": [96.0],
                "the norm is before the branches: that is pre-norm": [30.0],
                "only what the branches return is normalised, not the sum": [22.0],
                "the shortcut is missing": [20.0],
                "the norm comes before everything": [32.0],
            },
        )
        got = _call(post_norm_stack, x, [_Double()] * 2, [*blocks, [_Triple()]])
        _compare(got, [2.0 * (24 + 72)])
        _tick("one norm after each sum")

    @staticmethod
    def q3(learning_rate: Callable) -> None:
        """Take a warm-up of 4 steps to a peak of 1."""
        got = [_call(learning_rate, t, 1.0, 4) for t in (1, 2, 4, 16)]
        _compare(
            got,
            [0.25, 0.5, 1.0, 0.5],
            {
                "steps start at 1: step 1 is not without a step": [
                    0.0,
                    0.25,
                    0.75,
                    0.5,
                ],
                "it stays at the peak: it should fall as 1/√t": [0.25, 0.5, 1.0, 1.0],
                "there is a jump behind the warm-up: at t = w the two parts meet": (
                    [0.25, 0.5, 1.0, 0.25]
                ),
                "the peak is not reached": [0.25, 0.5, 0.5, 0.25],
                "it falls as 1/t, not 1/√t": [0.25, 0.5, 1.0, 0.25],
            },
        )
        got = [_call(learning_rate, t, 1.0, 0) for t in (1, 4)]
        _compare(got, [1.0, 0.5], {"without warm-up it falls too": [1.0, 1.0]})
        _tick("a straight line up, and 1/√t down from the peak")

    @staticmethod
    def q4(rms_norm_vjp: Callable) -> None:
        """Take vectors whose root mean square is a whole number."""
        g = torch.tensor([1.0, 0.0]).double()
        _compare(
            _call(rms_norm_vjp, torch.tensor([2.0, 2.0]).double(), g, 0.0),
            [0.25, -0.25],
            {
                "r depends on x too: its share of the derivative is missing": [
                    0.5,
                    0.0,
                ],
                "the sum over entries should be a mean": [0.0, -0.5],
                "everything is divided by r once": [0.5, -0.5],
                "the sign of r's share: a longer x makes y no longer": [0.75, 0.25],
            },
        )
        _compare(
            _call(rms_norm_vjp, torch.tensor([1.0, 1.0]).double(), g, 3.0),
            [0.4375, -0.0625],
            {
                "ε belongs under the root": [0.5, -0.5],
                "y is x/r with the ε in r as well": [0.25, -0.25],
            },
        )
        batch = torch.tensor([[2.0, 2.0], [1.0, 1.0]]).double()
        got = _call(rms_norm_vjp, batch, g.expand(2, 2), 0.0)
        _compare(
            got,
            [[0.25, -0.25], [0.5, -0.5]],
        )
        _tick("the gradient loses its part along x and is divided by r")

    @staticmethod
    def q5(train: Callable) -> None:
        """Train one weight pair whose first steps can be followed by hand."""
        model = nn.Linear(1, 2, bias=False).double()
        nn.init.zeros_(model.weight)
        batch = (torch.ones(1, 1).double(), torch.tensor([0]))
        losses = _call(train, model, [batch] * 3, lambda t: 0.5 * t)
        first, second = math.log(2), math.log1p(math.exp(-1))
        got = _tensor(losses)
        if got.shape != (3,):
            raise NotYet(f"3 batches give 3 losses; shape {tuple(got.shape)} came")
        _compare(
            got[:2],
            [first, second],
            {
                "the rate of step 1 is rate(1), not rate(0)": [first, first],
                "each loss should be the one before its step": [second, got[1]],
                "the rate is not used: this is Adam's default of 0.001": (
                    [first, math.log1p(math.exp(-0.002))]
                ),
                "that is rate(2) for step 1": [first, math.log1p(math.exp(-2))],
            },
        )
        _compare(
            got[2],
            0.054332,
            {
                "gradients add up from step to step: zero_grad is missing": 0.049634,
                "Adam is made anew in each step, and forgets": 0.048587,
                "the rate stays that of step 1": 0.133936,
            },
        )
        _tick("one rate a step, one gradient a step, the loss before it")


class bugs:
    """Assignment 5: the bug hunt."""

    @staticmethod
    def q1(diagnosis: Callable) -> None:
        """Check the form alone: what is right is yours to find."""
        found = _call(diagnosis)
        if not isinstance(found, dict) or set(found) != set("ABCDEF"):
            raise NotYet('the dictionary needs the keys "A" to "F", and no others')
        if not all(type(n) is int and 1 <= n <= 8 for n in found.values()):
            raise NotYet("each value is one of the numbers 1 to 8")
        _tick("six diagnoses; whether they are right you find by mending")

    @staticmethod
    def _output(cls: type, **stand_ins: nn.Module) -> Tensor:
        """Return what a block makes of 2, with stand-ins for its parts."""
        made = _call(cls, 1)
        for name, part in stand_ins.items():
            setattr(made, name, part)
        x = torch.tensor([2.0])
        y = _call(made, x)
        _unchanged(x, torch.tensor([2.0]), "the input")
        return y

    @staticmethod
    def q2(MendedA: type) -> None:
        """Norm two tokens, (0, 2) and (0, 6), and square what comes out."""
        block = _call(MendedA, 2)
        block.branch = _Square()
        tokens = torch.tensor([[[0.0, 2.0], [0.0, 6.0]]])

        def normed(correction=0, **axes):
            mean = tokens.mean(keepdim=True, **axes)
            variance = tokens.var(keepdim=True, correction=correction, **axes)
            return (tokens - mean) / (variance + 1e-5).sqrt()

        right = normed(dim=-1)
        _compare(
            _call(block, tokens),
            tokens + right**2,
            {
                "each number is still normed over the tokens": (
                    tokens + normed(dim=1) ** 2
                ),
                "all tokens are normed together": tokens + normed(dim=(1, 2)) ** 2,
                "LayerNorm's variance divides by d, not by d − 1": (
                    tokens + normed(dim=-1, correction=1) ** 2
                ),
                "the stream is normalised: the shortcut carries the un-normed x": (
                    right + right**2
                ),
            },
        )
        block.gamma.data, block.beta.data = (
            torch.tensor([2.0, 1]),
            torch.tensor([0.0, 1]),
        )
        _compare(
            _call(block, tokens),
            torch.tensor([[[4.0, 6.0], [4.0, 10.0]]]),
            {"γ and β are not used any more": tokens + right**2},
        )
        _tick("each token on its own, with γ and β")

    @staticmethod
    def q3(MendedB: type) -> None:
        """Put in a norm that doubles, a branch that squares, a dropout that triples."""
        _compare(
            bugs._output(MendedB, norm=_Double(), branch=_Square(), drop=_Triple()),
            [50.0],
            {
                "dropout still falls on the stream": [54.0],
                "now it falls on the shortcut alone": [22.0],
                "it falls on what goes into the branch, not on what comes out": [146.0],
                "the dropout is gone": [18.0],
                "the stream is normalised": [52.0],
            },
        )
        _tick("dropout on the branch, the stream as it came")

    @staticmethod
    def q4(MendedC: type) -> None:
        """Put in a norm that doubles and a branch that squares, at a scale of ¼."""
        _compare(
            bugs._output(MendedC, norm=_Double(), branch=_Square()),
            [6.0],
            {
                "the scale still weighs the shortcut": [4.5],
                "now it weighs the shortcut alone": [16.5],
                "it weighs what goes into the branch, not what comes out": [3.0],
                "the scale is gone: it should weigh the branch": [18.0],
            },
        )
        _tick("the shortcut is clean, the scale is on the branch")

    @staticmethod
    def q5(MendedD: type) -> None:
        """Put in a norm that doubles, a mix that squares, a projection that triples."""
        _compare(
            bugs._output(MendedD, norm=_Double(), mix=_Square(), project=_Triple()),
            [50.0],
            {
                "the projection still takes the shortcut along": [54.0],
                "now it is on the shortcut alone": [22.0],
                "it comes before the mix: it should be the branch's last layer": [
                    146.0
                ],
                "the projection is gone": [18.0],
                "the shortcut is missing": [48.0],
            },
        )
        _tick("the projection ends the branch, and the stream passes it by")

    @staticmethod
    def q6(MendedE: type) -> None:
        """Run a stack of squares whose norms double."""
        x = torch.tensor([0.5])
        got = _call(_call(MendedE, [_Double()] * 2, [_Square()] * 2), x)
        _unchanged(x, torch.tensor([0.5]), "the input")
        _compare(
            got,
            [0.5 + 1 + 9.0],
            {
                "each block still adds to the stack's input": [0.5 + 9.0],
                "the branches all read the stack's input": [0.5 + 1 + 1],
                "the input is added once more in each block": [0.5 + 1 + 0.5 + 16.0],
                "the shortcuts are missing": [4.0],
            },
        )
        _tick("each block adds to what the blocks before it made")

    @staticmethod
    def q7(MendedF: type) -> None:
        """Send a gradient back through a stack of squares."""
        stack = _call(MendedF, [_Double()] * 2, [_Square()] * 2)
        x = torch.tensor([0.5], requires_grad=True)
        y = _call(stack, x)
        _compare(y, [0.5 + 1 + 9.0])
        if y.grad_fn is None:
            raise NotYet("no gradient can pass at all")
        (slope,) = torch.autograd.grad(y, x)
        _compare(
            slope,
            [5.0 * 13.0],
            {
                "the gradient still cannot pass the shortcuts": [4.0 * 12.0],
                "the gradient passes the shortcuts and no branch": [1.0],
            },
        )
        if len(stack.stream) != 3:
            raise NotYet("self.stream should hold h_0 to h_2, three tensors")
        if any(h.requires_grad for h in stack.stream):
            raise NotYet("self.stream holds on to the graph: detach what you keep")
        _tick("gradients pass, and the plots keep no graph")

    @staticmethod
    def q8(is_pre_norm_block: Callable) -> None:
        """Show it one correct block and four broken ones."""

        def variant(compute, start=None):
            class Block(nn.Module):
                def __init__(self, width):
                    super().__init__()
                    self.norm = nn.LayerNorm(width)
                    self.branch = nn.Linear(width, width)
                    if start == "zero":
                        nn.init.zeros_(self.branch.weight)
                        nn.init.zeros_(self.branch.bias)

                def forward(self, x):
                    return compute(self, x)

            return Block

        def right(b, x):
            return torch.add(x, b.branch(b.norm(x)))

        for says, wanted, make in (
            ("a correct block is turned down", True, variant(right)),
            (
                "a correct block whose branch starts at 0 is turned down",
                True,
                variant(right, "zero"),
            ),
            (
                "a block without a shortcut passes",
                False,
                variant(lambda b, x: b.branch(b.norm(x))),
            ),
            (
                "a block whose branch starts at 0 passes, whatever its norm does",
                False,
                variant(lambda b, x: x + b.branch(x), "zero"),
            ),
            (
                "a block that detaches the shortcut passes: look at gradients",
                False,
                variant(lambda b, x: x.detach() + b.branch(b.norm(x))),
            ),
        ):
            got = _call(is_pre_norm_block, make)
            if got is None:
                raise NotYet("nothing came back: return True or False")
            if bool(got) != wanted:
                raise NotYet(says)
        _tick("one accepted, the broken ones turned down; the grader has more")
