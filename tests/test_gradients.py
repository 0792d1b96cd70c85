"""Gradients against autograd by hand, printed values, closed forms and invariances."""

import copy
import math
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from resnotes.blocks import Residual, mlp_stack
from resnotes.gradients import depth_sweep, gradient_autocorrelation, gradient_norms


def by_hand(blocks, x, loss=torch.sum):
    """Gradient norms at h_0 … h_L as a reader would take them, with retain_grad."""
    stream = [x.clone().requires_grad_()]
    for block in blocks:
        stream.append(block(stream[-1]))
        stream[-1].retain_grad()
    loss(stream[-1]).backward()
    return torch.stack([h.grad.norm() for h in stream])


def sweep_by_hand(blocks, x, depths, loss=torch.sum):
    """A pass a depth."""
    return torch.stack([by_hand(copy.deepcopy(blocks[:L]), x, loss)[0] for L in depths])


def squares(h):
    """A loss that no norm makes constant: one feature squared, plus a slope."""
    return h[:, 0].square().sum() + (h * torch.linspace(-1, 2, h.shape[-1])).sum()


STACKS = {
    "plain tanh": dict(residual=False),
    "residual tanh": dict(residual=True),
    "residual gelu layer norm": dict(residual=True, activation="gelu", norm="layer"),
    "plain relu batch norm": dict(residual=False, activation="relu", norm="batch"),
    "residual relu batch norm": dict(residual=True, activation="relu", norm="batch"),
    "linear": dict(residual=False, activation="linear", init="orthogonal"),
}


# --- against autograd by hand ----------------------------------------------------


@pytest.mark.parametrize("options", STACKS.values(), ids=STACKS)
@pytest.mark.parametrize("training", [True, False])
def test_both_equal_autograd_by_hand(options, training):
    blocks = mlp_stack(30, 16, **options).train(training)
    x = torch.randn(8, 16)
    expected = by_hand(copy.deepcopy(blocks), x, squares)
    torch.testing.assert_close(gradient_norms(blocks, x, squares), expected)
    depths = [30, 1, 2, 7, 21, 22, 7]
    torch.testing.assert_close(
        depth_sweep(blocks, x, depths, squares),
        sweep_by_hand(blocks, x, depths, squares),
    )


@pytest.mark.parametrize(
    "blocks, x",
    [
        (
            nn.Sequential(*[nn.Conv2d(2, 2, 3, padding=1) for _ in range(4)]),
            torch.randn(3, 2, 5, 5),
        ),
        (
            nn.Sequential(
                *[
                    nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
                    for _ in range(3)
                ]
            ),
            torch.randn(2, 4, 8),
        ),
        (  # shapes that change from block to block
            nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2), nn.Flatten(0)),
            torch.randn(4, 3),
        ),
        (nn.Sequential(nn.Linear(3, 3), nn.Softplus()), torch.randn(3)),  # no batch
    ],
    ids=["convolution", "attention", "shapes change", "one vector"],
)
def test_other_blocks(blocks, x):
    def loss(h):
        return h.square().cumsum(-1).sum()

    depths = range(1, len(blocks) + 1)
    torch.testing.assert_close(
        gradient_norms(blocks, x, loss), by_hand(blocks, x, loss)
    )
    torch.testing.assert_close(
        depth_sweep(blocks, x, depths, loss), sweep_by_hand(blocks, x, depths, loss)
    )


def test_more_depths_with_gaps_than_one_pass_takes():
    blocks, x, depths = (
        mlp_stack(90, 6, residual=True),
        torch.randn(2, 6),
        range(3, 91, 3),
    )
    torch.testing.assert_close(
        depth_sweep(blocks, x, depths), sweep_by_hand(blocks, x, depths)
    )


@given(
    depth=st.integers(1, 45),
    width=st.integers(1, 6),
    residual=st.booleans(),
    activation=st.sampled_from(["tanh", "relu", "gelu", "linear"]),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_sweep_agrees_with_norms_at_any_depths(
    depth, width, residual, activation, seed, data
):
    torch.manual_seed(seed)
    blocks = mlp_stack(depth, width, residual=residual, activation=activation).double()
    x = torch.randn(3, width, dtype=torch.float64)
    depths = data.draw(st.lists(st.integers(1, depth), max_size=6))
    swept = depth_sweep(blocks, x, depths, squares_64)
    assert swept.dtype == torch.float64
    expected = [gradient_norms(blocks[:L], x, squares_64)[0] for L in depths]
    torch.testing.assert_close(
        swept, torch.stack(expected or [x.new_zeros(0)]).view(-1)
    )


def squares_64(h):
    """`squares`, in float64 and for one feature too."""
    return (h + 0.3).square().sum()


@given(factor=st.floats(1e-3, 1e3), seed=st.integers(0, 99))
def test_norms_scale_with_the_loss(factor, seed):
    torch.manual_seed(seed)
    blocks, x = mlp_stack(5, 4, residual=True).double(), torch.randn(2, 4).double()
    one = gradient_norms(blocks, x)
    many = gradient_norms(blocks, x, lambda h: factor * h.sum())
    torch.testing.assert_close(many, factor * one)


def test_order_in_the_batch_does_not_matter():
    blocks, x = mlp_stack(8, 6, residual=False, norm="batch"), torch.randn(10, 6)
    torch.testing.assert_close(
        gradient_norms(blocks, x, squares),
        gradient_norms(blocks, x[torch.randperm(10)], squares),
    )


# --- values with a known answer ---------------------------------------------------


def test_halving():
    halve = nn.Linear(1, 1, bias=False)
    nn.init.constant_(halve.weight, 0.5)
    blocks = nn.Sequential(*[halve] * 20)
    norms = depth_sweep(blocks, torch.ones(1, 1), [10, 20])
    assert norms.tolist() == [9.765625e-4, 9.5367431640625e-7]
    assert gradient_norms(blocks, torch.ones(1, 1)).tolist() == [
        0.5**k for k in range(20, -1, -1)
    ]


@pytest.mark.parametrize("a", [0.5, -0.3, -1.0, 2.0])
def test_linear_residual_stack_is_a_power(a):
    scaled = nn.Linear(3, 3, bias=False).double()
    with torch.no_grad():
        scaled.weight.copy_(a * torch.eye(3))
    blocks = nn.Sequential(*[Residual(scaled)] * 12)
    x = torch.randn(2, 3, dtype=torch.float64)
    expected = torch.tensor([(1 + a) ** L * math.sqrt(6) for L in range(1, 13)])
    torch.testing.assert_close(depth_sweep(blocks, x, range(1, 13)), expected.double())
    if a == -1:
        assert not gradient_norms(blocks, x)[:-1].any()  # exactly 0


def forty_tanh(seed, depth, residual):
    torch.manual_seed(seed)
    blocks = mlp_stack(depth, 64, residual=residual)
    return gradient_norms(blocks, torch.randn(8, 64))[0].item()


def test_forty_tanh():
    plain = [forty_tanh(seed, 40, False) for seed in range(3)]
    residual = [forty_tanh(seed, 40, True) for seed in range(3)]
    assert plain == pytest.approx([9.2033e-10, 3.2088e-9, 3.9239e-9], rel=1e-4)
    assert residual == pytest.approx([157.52, 147.04, 182.85], rel=1e-4)


@pytest.mark.parametrize(
    "depth, residual, low, median, high",
    [
        (20, False, 1.17e-4, 2.04e-4, 4.90e-4),
        (40, False, 6.28e-10, 3.02e-9, 6.83e-9),
        (40, True, 124, 181, 258),
        (80, False, 3.2e-20, 4.4e-19, 3.1e-18),
    ],
)
def test_forty_tanh_over_100_seeds(depth, residual, low, median, high):
    norms = torch.tensor(
        [forty_tanh(seed, depth, residual) for seed in range(100)],
        dtype=torch.float64,
    )
    lower, upper = norms.sort().values[49:51].tolist()
    assert norms.min().item() == pytest.approx(low, rel=0.02)
    assert norms.max().item() == pytest.approx(high, rel=0.02)
    assert lower * 0.98 <= median <= upper * 1.02


@pytest.mark.parametrize(
    "shortcuts, expected",
    [
        (False, [2.0174e-4, 1.2012e-4, 7.1520e-4, 1.3989e-3, 5.0496e-3]),
        (True, [0.22170, 0.20694, 0.32897, 0.26657, 1.32585]),
    ],
)
def test_raschka(shortcuts, expected):
    torch.manual_seed(123)
    layers = [
        nn.Sequential(nn.Linear(3, n), nn.GELU(approximate="tanh"))
        for n in (3, 3, 3, 3, 1)
    ]
    model = nn.Sequential(
        *[Residual(layer) if shortcuts else layer for layer in layers[:-1]], layers[-1]
    )
    loss = nn.MSELoss()(model(torch.tensor([[1.0, 0.0, -1.0]])), torch.zeros(1, 1))
    gradients = torch.autograd.grad(loss, [layer[0].weight for layer in layers])
    means = [gradient.abs().mean().item() for gradient in gradients]
    assert means == pytest.approx(expected, rel=1e-4)


def test_a_gradient_whose_square_underflows_is_not_zero():
    torch.manual_seed(0)
    blocks, x = mlp_stack(130, 16, residual=False), torch.randn(4, 16)
    wide = gradient_norms(copy.deepcopy(blocks).double(), x.double())
    norms, swept = gradient_norms(blocks, x), depth_sweep(blocks, x, [100, 130])
    assert 0 < norms[0] < 1e-25
    torch.testing.assert_close(norms, wide.float(), rtol=1e-3, atol=0)
    torch.testing.assert_close(swept[1], norms[0], rtol=1e-3, atol=0)


def test_a_gradient_whose_square_overflows_is_finite():
    grow = nn.Linear(1, 1, bias=False)
    nn.init.constant_(grow.weight, 10.0)
    blocks, x = nn.Sequential(*[grow] * 30), torch.ones(2, 1)
    assert gradient_norms(blocks, x)[0].item() == pytest.approx(2**0.5 * 1e30)
    assert depth_sweep(blocks, x, [30]).item() == pytest.approx(2**0.5 * 1e30)


def test_an_overflow_stays_at_its_own_depth():
    grow = nn.Linear(1, 1, bias=False)
    nn.init.constant_(grow.weight, 1e6)
    blocks = nn.Sequential(*[grow] * 8, nn.Softmax(0))
    swept = depth_sweep(blocks, torch.ones(2, 1), range(1, 10), squares)
    assert swept[:3].isfinite().all()
    assert swept[8].isnan()


# --- a loss that says nothing -----------------------------------------------------


@pytest.mark.parametrize(
    "last",
    [nn.LayerNorm(8), nn.BatchNorm1d(8), nn.Softmax(-1), nn.RMSNorm(8)],
    ids=["layer norm", "batch norm", "softmax", "rms norm"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_degenerate_loss_is_named(last, dtype):
    blocks = mlp_stack(3, 8, residual=True).append(copy.deepcopy(last)).to(dtype)
    x = torch.randn(16, 8).to(dtype)
    loss = (lambda h: h.square().sum()) if isinstance(last, nn.RMSNorm) else None
    with pytest.warns(UserWarning, match="degenerate for this model"):
        gradient_norms(blocks, x, loss)
    with pytest.warns(UserWarning, match="cut at depth 4"):
        depth_sweep(blocks, x, range(1, 5), loss)


def test_a_degenerate_loss_is_seen_behind_a_block_that_changes_nothing():
    blocks = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Identity())
    with pytest.warns(UserWarning, match="degenerate"):
        gradient_norms(blocks, torch.randn(4, 8))


def test_every_degenerate_depth_is_listed():
    blocks = nn.Sequential(
        *[nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)) for _ in range(7)]
    )
    with pytest.warns(UserWarning, match="cut at depth 1, 2, 3, 4, 5, …"):
        depth_sweep(blocks, torch.randn(4, 8), range(1, 8))


@pytest.mark.parametrize(
    "blocks",
    [
        mlp_stack(60, 8, residual=False),
        nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8)),
        nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8).eval()),
        nn.Sequential(nn.Linear(8, 8), nn.Threshold(100.0, 0.0)),  # dead, not constant
    ],
    ids=["vanishing", "norm inside", "batch norm in eval mode", "dead"],
)
def test_a_small_gradient_is_no_degenerate_loss(blocks):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gradient_norms(blocks, torch.randn(4, 8))
        depth_sweep(blocks, torch.randn(4, 8), [1, len(blocks)])


def test_tiny_weights_are_no_degenerate_loss():
    blocks = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    with torch.no_grad():
        blocks[1].weight.mul_(1e-9)
    gradient_norms(blocks, torch.randn(4, 8))


# --- nothing is changed -----------------------------------------------------------


class Counter(nn.Module):
    """A block with state: it draws numbers, writes a buffer and works in place."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, h):
        self.calls += 1
        h += torch.rand_like(h) + self.calls
        return h.mul_(0.9)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_nothing_is_changed(training, context):
    counter = Counter()
    blocks = nn.Sequential(
        nn.ReLU(inplace=True), nn.Dropout(0.5), counter, nn.Linear(6, 6), counter
    )
    blocks += mlp_stack(4, 6, residual=True, norm="batch")
    blocks.train(training)
    blocks[3].weight.requires_grad_(False)
    blocks[3].bias.grad = torch.ones(6)
    x = torch.randn(5, 6, requires_grad=True)
    kept = {name: value.clone() for name, value in blocks.state_dict().items()}
    kept_x, rng = x.detach().clone(), torch.get_rng_state()
    with context():
        norms = gradient_norms(blocks, x, squares)
        swept = depth_sweep(blocks, x, range(1, len(blocks) + 1), squares)
    assert norms.isfinite().all() and not norms.requires_grad
    assert not swept.requires_grad
    assert torch.equal(torch.get_rng_state(), rng)
    assert torch.equal(x.detach(), kept_x) and x.grad is None
    assert all(torch.equal(blocks.state_dict()[name], kept[name]) for name in kept)
    assert all(module.training == training for module in blocks.modules())
    assert torch.equal(blocks[3].bias.grad, torch.ones(6))
    assert not any(
        p.grad is not None for p in blocks.parameters() if p is not blocks[3].bias
    )
    assert not blocks[3].weight.requires_grad

    # The same numbers as by hand, from the same state and the same draws.
    blocks[3].bias.grad = None
    torch.set_rng_state(rng)
    counters = copy.deepcopy(blocks)
    first = counters[0:1] and nn.Sequential(nn.ReLU(), *counters[1:])
    expected = by_hand_cloned(first, kept_x, squares)
    torch.testing.assert_close(norms, expected)
    torch.testing.assert_close(swept[-1], expected[0])


def by_hand_cloned(blocks, x, loss):
    """`by_hand`, for blocks that write on their input."""
    stream = [x.clone().requires_grad_()]
    for block in blocks:
        stream.append(block(stream[-1] * 1.0))
        stream[-1].retain_grad()
    loss(stream[-1]).backward()
    return torch.stack([h.grad.norm() for h in stream])


class Odd(torch.autograd.Function):
    """A backward that looks at a number, which a batched pass cannot."""

    @staticmethod
    def forward(ctx, h):
        return 2 * h

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (3.0 if gradient.sum().item() > 0 else 2.0)


class OddBlock(nn.Module):
    """`Odd` as a block."""

    def forward(self, h):
        return Odd.apply(h)


def test_a_backward_that_cannot_be_batched():
    blocks, x = nn.Sequential(*[OddBlock() for _ in range(3)]), torch.ones(1, 1)
    assert depth_sweep(blocks, x, [3, 1]).tolist() == [27.0, 3.0]


# --- bad input --------------------------------------------------------------------

LINEAR = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(3, 3))
GOOD = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
X = torch.zeros(2, 4)


class Pair(nn.Module):
    """A block that returns two tensors."""

    def forward(self, h):
        return h, h


class Cut(nn.Module):
    """A block that lets no gradient through."""

    def forward(self, h):
        return h.detach()


@pytest.mark.parametrize(
    "model, x, loss, error, words",
    [
        (nn.Linear(4, 4), X, None, TypeError, "is a Linear, expected an nn.Sequential"),
        ([nn.Linear(4, 4)], X, None, TypeError, "is a list, expected an nn.Seq"),
        (nn.Sequential(), X, None, ValueError, "is empty"),
        (GOOD, [1.0], None, TypeError, "x is a list, expected a tensor"),
        (GOOD, X.long(), None, TypeError, "torch.int64, expected floating point"),
        (GOOD, X[:0], None, ValueError, r"shape \(0, 4\), expected at least one"),
        (GOOD, X / 0, None, ValueError, "x holds 8 non-finite of 8"),
        (LINEAR, X, None, ValueError, r"block 2 .*\(2, 4\).*weight \(3, 3\)"),
        (GOOD, torch.zeros(2, 5), None, ValueError, r"block 0 .*\(2, 5\).*\(4, 4\)"),
        (GOOD, X.double(), None, ValueError, "block 0 .*torch.float64"),
        (nn.Sequential(*GOOD, Pair()), X, None, TypeError, "block 2 .*a tuple"),
        (nn.Sequential(*GOOD, Cut()), X, None, ValueError, "block 2 .*cut off"),
        (GOOD, X, lambda h: h, ValueError, r"loss returned shape \(2, 4\).*scalar"),
        (GOOD, X, lambda h: 3.0, TypeError, "loss returned a float"),
        (GOOD, X, lambda h: h.detach().sum(), ValueError, "does not depend on"),
    ],
)
def test_bad_input(model, x, loss, error, words):
    with pytest.raises(error, match=words):
        gradient_norms(model, x, loss)
    depths = [1] if isinstance(model, list | nn.Linear) else [max(len(model), 1)]
    with pytest.raises(error, match=words):
        depth_sweep(model, x, depths, loss)


@pytest.mark.parametrize(
    "depths, error, words",
    [
        ([0], ValueError, "depths holds 0, expected whole numbers from 1 to 2"),
        ([1, -3], ValueError, "depths holds -3"),
        ([3], ValueError, "depths holds 3, expected whole numbers from 1 to 2"),
        ([1.0], TypeError, "depths holds 1.0"),
        ([True], TypeError, "depths holds True"),
        (["1"], TypeError, "depths holds '1'"),
        ([torch.tensor(1.5)], TypeError, r"depths holds tensor\(1.5"),
        (2, TypeError, "depths is a int"),
        (None, TypeError, "depths is a NoneType"),
    ],
)
def test_bad_depths(depths, error, words):
    with pytest.raises(error, match=words):
        depth_sweep(GOOD, X, depths)


def test_depths_come_in_any_form():
    expected = depth_sweep(GOOD, X, [2, 1])
    assert torch.equal(depth_sweep(GOOD, X, torch.tensor([2, 1])), expected)
    assert torch.equal(depth_sweep(GOOD, X, iter((2, 1))), expected)
    assert depth_sweep(GOOD, X, []).shape == (0,)


# --- autocorrelation --------------------------------------------------------------


def test_autocorrelation_against_the_sum():
    model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1)).double()
    line = torch.linspace(-2, 2, 40).double()[:, None] * torch.tensor([[1.0, 3.0]])
    leaf = line.clone().requires_grad_()
    model(leaf).sum().backward()
    g = leaf.grad - leaf.grad.mean(0)
    expected = [(g[: 40 - k] * g[k:]).sum() / g.square().sum() for k in range(40)]
    torch.testing.assert_close(
        gradient_autocorrelation(model, line), torch.stack(expected)
    )


class Noise(nn.Module):
    """A function whose gradient is white noise."""

    def forward(self, x):
        return x * torch.randn(len(x), 1, generator=torch.Generator().manual_seed(1))


def test_autocorrelation_of_noise_and_of_a_ramp():
    line = torch.linspace(0, 1, 2000)[:, None]
    noise = gradient_autocorrelation(Noise(), line)
    assert noise[0] == 1 and noise[1:100].abs().max() < 0.1
    assert gradient_autocorrelation(nn.Softplus(), line)[1] > 0.99


@pytest.mark.parametrize(
    "model, line, error, words",
    [
        (nn.Tanh(), torch.zeros(2, 1), ValueError, r"\(2, 1\).*at least 3 points"),
        (
            nn.Tanh(),
            torch.full((9, 1), math.nan),
            ValueError,
            "line holds 9 non-finite",
        ),
        (nn.Linear(1, 1), torch.arange(9.0)[:, None], ValueError, "the same"),
        (nn.Linear(2, 1), torch.arange(9.0)[:, None], ValueError, r"Linear.*\(9, 1\)"),
        ([1], torch.arange(9.0)[:, None], TypeError, "model is a list"),
        (nn.Tanh(), torch.arange(9.0), ValueError, r"line has shape \(9,\)"),
    ],
)
def test_bad_line(model, line, error, words):
    with pytest.raises(error, match=words):
        gradient_autocorrelation(model, line)
