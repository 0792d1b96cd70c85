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
        got = _call(predicted_decades, [100, 25, 400], [0.3, 0.6])

        def decades(factor):
            return 0.5 * math.log10(factor)

        right = decades(100 * 0.03) + decades(25 * 0.12)
        _compare(
            got,
            right,
            {
                "going back a layer's gradient is a sum over its outputs for each of "
                "its inputs: n_in numbers come out, so n_in is what multiplies the "
                "variance": decades(25 * 0.03) + decades(400 * 0.12),
                "uniform in (−b, b) has the variance b²/3, not b²": (
                    decades(100 * 0.09) + decades(25 * 0.36)
                ),
                "this predicts the squared norm: halve it": 2 * right,
                "decades are log10, not ln": right * math.log(10),
                "the sign: a factor above 1 is a growing gradient": -right,
            },
        )
        _tick("the variance, the fan and the square root are all in place")

    @staticmethod
    def q3(critical_gain: Callable) -> None:
        """Take activations whose mean is known."""
        _compare(
            _call(critical_gain, lambda z: 2 * z, 0.7),
            0.5,
            {
                "this is the mean, not the gain that makes it 1": 4.0,
                "the gain multiplies the weights, so its square multiplies the "
                "variance: take a square root": 0.25,
                "upside down: a steeper activation needs a smaller gain": 2.0,
            },
        )
        leaky = torch.nn.LeakyReLU(0.2)
        _compare(
            _call(critical_gain, leaky, 1.3),
            math.sqrt(2 / (1 + 0.2**2)),
            {
                "the mean of φ′ came in, but norms add up squares: average φ′²": (
                    2 / 1.2
                ),
            },
        )
        _compare(
            _call(critical_gain, torch.sin, 0.5),
            1 / math.sqrt((1 + math.exp(-1.0)) / 2),
            {
                "φ′ is taken at the pre-activation: its spread is √q": (
                    1 / math.sqrt((1 + math.exp(-2.0)) / 2)
                ),
                "the pre-activation is √q·z, not q·z": (
                    1 / math.sqrt((1 + math.exp(-0.5)) / 2)
                ),
            },
        )
        _tick("1/√E[φ′²], at pre-activations of the right spread")

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
