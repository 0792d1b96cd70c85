"""All paths by length: against autograd, brute force, closed forms and the cases."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from resnotes.blocks import Residual, classifier, mlp_stack
from resnotes.paths import (
    branches_of,
    effective_lengths,
    every_path,
    gradient_by_length,
    path_gradients,
    path_length_distribution,
    sample_path_norms,
)
from resnotes.training import mnist1d, seed, train


def by_autograd(branches, x, grad_output):
    start = x.detach().clone().requires_grad_()
    h = start
    for branch in branches:
        h = h + branch(h.clone())
    return torch.autograd.grad(h, start, grad_output)[0]


def by_subsets(branches, x, grad_output):
    """The definition: for each subset, the transposed Jacobians in a row."""
    jacobians, h = [], x
    for branch in branches:
        jacobian = torch.autograd.functional.jacobian(branch, h)
        jacobians.append(jacobian.reshape(x.numel(), x.numel()).detach())
        h = (h + branch(h)).detach()
    depth = len(branches)
    rows = torch.zeros(depth + 1, x.numel(), dtype=x.dtype)
    for taken in itertools.product([False, True], repeat=depth):
        v = grad_output.flatten()
        for k in reversed(range(depth)):
            if taken[k]:
                v = jacobians[k].T @ v
        rows[sum(taken)] += v
    return rows.view(depth + 1, *x.shape)


def relative(ours, right):
    return float((ours - right).norm() / right.norm())


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x):
        x = self.norm(x)
        return self.attention(x, x, x, need_weights=False)[0]


class NoVectorisation(torch.autograd.Function):
    """Its backward pass asks for a number, which a batched pass cannot give."""

    @staticmethod
    def forward(ctx, h):
        ctx.save_for_backward(h)
        return h.sin()

    @staticmethod
    def backward(ctx, grad):
        assert math.isfinite(grad.sum().item())
        return grad * ctx.saved_tensors[0].cos()


BRANCHES = {
    "mlp": (lambda: nn.Sequential(nn.Linear(5, 9), nn.Tanh(), nn.Linear(9, 5)), (3, 5)),
    "convolution": (
        lambda: nn.Sequential(
            nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()
        ).eval(),
        (2, 4, 5, 5),
    ),
    "group norm": (lambda: nn.Sequential(nn.GroupNorm(2, 4), nn.Tanh()), (2, 4, 6)),
    "attention": (lambda: Attention(8, 2), (2, 3, 8)),
    "recurrent": (lambda: (lambda gru: lambda h: gru(h)[0])(nn.GRU(4, 4)), (3, 2, 4)),
    "samples that interact": (lambda: lambda h: 0.1 * h @ h.T @ h, (3, 4)),
    "in-place": (
        lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 4)),
        (3, 4),
    ),
    "not vectorised": (lambda: NoVectorisation.apply, (3, 4)),
    "identity": (nn.Identity, (3, 4)),
    "zero": (lambda: torch.zeros_like, (3, 4)),
    "a number": (lambda: torch.tanh, ()),
}


@pytest.mark.parametrize("name", BRANCHES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_any_branch_agrees_with_autograd_and_brute_force(name, dtype):
    make, shape = BRANCHES[name]
    torch.set_default_dtype(dtype)
    try:
        branches = [make() for _ in range(4)]
    finally:
        torch.set_default_dtype(torch.float32)
    x, g = torch.randn(2, *shape, dtype=dtype)
    rows = path_gradients(branches, x, g)
    tolerance = 1e-13 if dtype == torch.float64 else 1e-5
    assert rows.dtype == dtype and rows.shape == (5, *shape)
    assert relative(rows.sum(0), by_autograd(branches, x, g)) < tolerance
    taken, single = every_path(branches, x, g)
    listed = torch.stack([single[taken.sum(1) == m].sum(0) for m in range(5)])
    assert relative(rows, listed) < tolerance


@given(st.integers(1, 60), st.integers(1, 6), st.integers(1, 4), st.integers(0, 10**6))
def test_rows_sum_to_the_gradient(depth, width, batch, number):
    torch.manual_seed(number)
    stack = mlp_stack(depth, width, residual=True, init="he", scale=depth**-0.5)
    stack = stack.double()
    x, g = torch.randn(2, batch, width, dtype=torch.float64)
    rows = path_gradients(branches_of(stack), x, g)
    x = x.requires_grad_()
    assert relative(rows.sum(0), torch.autograd.grad(stack(x), x, g)[0]) < 1e-12
    assert torch.equal(rows[0], g)


@given(st.integers(1, 8), st.integers(0, 10**6))
def test_each_row_equals_the_sum_over_subsets(depth, number):
    torch.manual_seed(number)
    branches = branches_of(mlp_stack(depth, 3, residual=True, norm="layer").double())
    x, g = torch.randn(2, 2, 3, dtype=torch.float64)
    rows = path_gradients(branches, x, g)
    right = by_subsets(branches, x, g)
    torch.testing.assert_close(rows, right, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("gain", [0.5, -0.3, 2.0, -1.0])
@pytest.mark.parametrize("depth", [1, 7, 54])
def test_linear_stack(gain, depth):
    x, g = torch.randn(2, 3, 4, dtype=torch.float64)
    rows = path_gradients([lambda h: gain * h] * depth, x, g)
    for m in range(depth + 1):
        right = math.comb(depth, m) * gain**m * g
        torch.testing.assert_close(rows[m], right, rtol=1e-13, atol=0)
    scale = float(rows.abs().max())
    right = (1 + gain) ** depth * g
    torch.testing.assert_close(rows.sum(0), right, rtol=1e-12, atol=1e-15 * scale)


def test_branches_that_cancel_leave_exactly_nothing():
    g = torch.ones(1, dtype=torch.float64)  # every binomial of 54 fits in 53 bits
    rows = path_gradients([lambda h: -h] * 54, torch.zeros_like(g), g)
    assert rows.sum() == 0 and rows.abs().max() > 1e15


def test_the_scale_of_a_block_belongs_to_its_branch():
    stack = nn.Sequential(
        Residual(nn.Linear(4, 4), scale=0.25),
        Residual(nn.Linear(4, 4), scale=nn.Parameter(torch.tensor(0.5))),
    )
    x, g = torch.randn(2, 3, 4)
    rows = path_gradients(branches_of(stack), x, g)
    x = x.requires_grad_()
    assert relative(rows.sum(0), torch.autograd.grad(stack(x), x, g)[0]) < 1e-6


def test_lengths_below_float32_are_told_apart():
    torch.manual_seed(3)
    branches = [nn.Linear(8, 8, bias=False) for _ in range(30)]
    for branch in branches:
        nn.init.orthogonal_(branch.weight, 1e-3)
    x, g = torch.randn(2, 2, 8)
    norms = gradient_by_length(branches, x, g)
    for branch in branches:
        branch.double()
    right = gradient_by_length(branches, x.double(), g.double())
    assert norms[-1] < 1e-85
    torch.testing.assert_close(norms, right, rtol=1e-5, atol=0)


def test_parts_of_bounded_size_change_nothing(monkeypatch):
    branches = branches_of(mlp_stack(9, 4, residual=True).double())
    x, g = torch.randn(2, 3, 4, dtype=torch.float64)
    whole = path_gradients(branches, x, g), every_path(branches, x, g)[1]
    monkeypatch.setattr("resnotes.paths.ELEMENTS_AT_ONCE", 2 * x.numel())
    parts = path_gradients(branches, x, g), every_path(branches, x, g)[1]
    torch.testing.assert_close(parts, whole, rtol=1e-13, atol=1e-15)


def test_each_branch_runs_forward_once():
    calls = []

    def branch(h):
        calls.append(1)
        return h.tanh()

    path_gradients([branch] * 20, torch.randn(2, 3), torch.randn(2, 3))
    assert len(calls) == 20


def test_nothing_of_the_caller_changes():
    layers = [nn.Linear(4, 4), nn.BatchNorm1d(4).eval(), nn.Dropout(0.5)]
    branch = nn.Sequential(*layers)  # training, apart from its BatchNorm
    tracking = nn.InstanceNorm1d(4, track_running_stats=True)  # writes in train mode
    x = torch.randn(6, 4, requires_grad=True)
    g = torch.randn(6, 4)
    before = [value.clone() for value in branch.state_dict().values()]
    kept, other = x.detach().clone(), torch.randn(2, 4, 5)
    state = torch.get_rng_state()
    path_gradients([branch, nn.Sequential(nn.ReLU(inplace=True))], x, g)
    path_gradients([tracking], other, other)
    sample_path_norms([branch], x, g)
    assert all(map(torch.equal, before, branch.state_dict().values()))
    assert int(tracking.num_batches_tracked) == 0
    assert x.grad is None and torch.equal(x, kept)
    assert all(p.grad is None for p in branch.parameters())
    assert [layer.training for layer in layers] == [True, False, True]
    assert torch.equal(torch.get_rng_state(), state)


def test_dropout_keeps_the_masks_of_the_one_forward_pass():
    branches = [nn.Dropout(0.5) for _ in range(5)]
    x, g = torch.randn(2, 8, 4, dtype=torch.float64)
    state = torch.get_rng_state()
    rows = path_gradients(branches, x, g)
    torch.set_rng_state(state)
    assert relative(rows.sum(0), by_autograd(branches, x, g)) < 1e-14


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_works_where_gradients_are_off(mode):
    branches, (x, g) = [nn.Linear(4, 4)], torch.randn(2, 3, 4)
    right = path_gradients(branches, x, g)
    with mode():
        assert torch.equal(path_gradients(branches, x, g), right)


def test_errors_say_what_came_and_what_to_do():
    x, linear = torch.zeros(2, 4), nn.Linear(4, 4)
    cases = [
        (([], x, x), ValueError, "branches is empty"),
        (([linear, nn.Linear(4, 3)], x, x), ValueError, r"branches\[1\].*4\).*3\)"),
        (([nn.BatchNorm1d(4)], x, x), ValueError, r"branches\[0\].*\.eval\(\)"),
        (
            ([nn.BatchNorm1d(4, track_running_stats=False).eval()], x, x),
            ValueError,
            "statistics",
        ),
        (([linear], x, x[:1]), ValueError, r"\(1, 4\).*\(2, 4\)"),
        (([linear], x + math.nan, x), ValueError, "x holds 8 non-finite"),
        (([linear], x, x / 0), ValueError, "grad_output holds 8 non-finite"),
        (([linear], x.long(), x), TypeError, r"x\.float\(\)"),
        (([linear], [0.0], x), TypeError, "x is a list"),
        (([Residual(linear)], x, x), TypeError, r"branches_of"),
        (([linear, 3], x, x), TypeError, r"branches\[1\] is a int"),
        (([lambda h: h / 0], x + 1, x), ValueError, r"branches\[0\].*not finite"),
    ]
    for arguments, kind, message in cases:
        with pytest.raises(kind, match=message):
            path_gradients(*arguments)
    with pytest.raises(ValueError, match=r"block 0 \(branches\[0\], a Linear\).*2x5"):
        path_gradients([linear, linear], torch.zeros(2, 5), torch.zeros(2, 5))
    with pytest.raises(TypeError, match=r"stack\[0\] is a Linear"):
        branches_of(nn.Sequential(linear))
    with pytest.raises(ValueError, match=r"stack\[0\].*Linear on its shortcut"):
        branches_of(nn.Sequential(Residual(linear, shortcut=nn.Linear(4, 4))))
    with pytest.raises(ValueError, match="13 entries, so 2"):
        every_path([linear] * 13, x, x)
    with pytest.raises(ValueError, match="samples=0"):
        sample_path_norms([linear], x, x, samples=0)


@pytest.mark.parametrize("uniform", [False, True])
def test_single_paths_estimate_the_sum_of_their_norms(uniform):
    branches = branches_of(mlp_stack(7, 5, residual=True).double())
    x, g = torch.randn(2, 3, 5, dtype=torch.float64)
    taken, single = every_path(branches, x, g)
    norms, lengths = single.flatten(1).norm(dim=1), taken.sum(1)
    right = torch.stack([norms[lengths == m].sum() for m in range(8)])
    options = dict(samples=300, uniform=uniform, seed=1)
    sums = sample_path_norms(branches, x, g, **options)
    error = sums.std(1) / 300**0.5 + 1e-12 * right
    assert ((sums.mean(1) - right).abs() < 4 * error).all()
    assert (sums.mean(1) > gradient_by_length(branches, x, g) - 4 * error).all()
    assert torch.equal(sample_path_norms(branches, x, g, **options), sums)


def test_weighted_paths_do_not_miss_the_few_that_matter():
    gains = [1.0] * 3 + [0.01] * 17  # all but one in 1,140 of length 3 are small
    branches = [lambda h, gain=gain: gain * h for gain in gains]
    x, g = torch.zeros(4), torch.ones(4)
    sums = sample_path_norms(branches, x, g, samples=5)
    right = gradient_by_length(branches, x, g)  # one direction: nothing cancels
    torch.testing.assert_close(sums, right[:, None].expand(-1, 5), rtol=1e-6, atol=0)
    assert sample_path_norms(branches, x, g, samples=5, uniform=True)[3].mean() < 0.3


def test_binomial():
    shares = path_length_distribution(54)
    assert float(shares[5:18].sum()) == pytest.approx(0.0045367, abs=5e-8)
    assert float(shares[19:36].sum()) == pytest.approx(0.9801657, abs=5e-8)
    mean = float(shares @ torch.arange(55, dtype=torch.float64))
    assert mean == pytest.approx(27, abs=1e-12)


@given(st.integers(0, 80), st.floats(0, 1))
def test_path_lengths_are_binomial(depth, p):
    shares = path_length_distribution(depth, p)
    right = [
        math.comb(depth, m) * p**m * (1 - p) ** (depth - m) for m in range(depth + 1)
    ]
    right = torch.tensor(right, dtype=torch.float64)
    torch.testing.assert_close(shares, right, rtol=1e-11, atol=1e-300)


def test_blocks_with_their_own_chances():
    shares = path_length_distribution(3, [1, 0.5, 0])
    assert shares.tolist() == [0, 0.5, 0.5, 0]
    for L, p, message in [
        (-1, 0.5, "L=-1"),
        (3, 1.5, "p=1.5"),
        (3, [0.5], "one for each of 3"),
    ]:
        with pytest.raises(ValueError, match=message):
            path_length_distribution(L, p)
    with pytest.raises(TypeError, match=r"L=2\.0"):
        path_length_distribution(2.0)
    for p in (None, "half", ["a", "b"], 1j):
        with pytest.raises(TypeError, match="expected a number, or one for each block"):
            path_length_distribution(2, p)


@pytest.mark.parametrize("of", [list, tuple, iter, np.array, torch.tensor])
def test_chances_come_in_any_form(of):
    right = path_length_distribution(3, [1, 0.5, 0])
    assert torch.equal(path_length_distribution(3, of([1, 0.5, 0])), right)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.floats(0.01, 1))
def test_no_shorter_range_carries_the_share(carried, share):
    carried = torch.tensor(carried, dtype=torch.float64)
    if carried.sum() < 1e-200:
        return
    first, last = effective_lengths(carried, share)
    needed = share * carried.sum() * (1 - 1e-9)
    assert carried[first : last + 1].sum() >= needed
    for start in range(len(carried) - (last - first) + 1):
        shorter = carried[start : start + last - first].sum()
        assert shorter <= needed * (1 + 1e-8)


@pytest.mark.parametrize(
    "carried, share, message",
    [
        ([1.0, 2.0], 0.0, "share=0.0"),
        ([0.0, 0.0], 0.5, "somewhere above 0"),
        ([1.0, -1.0], 0.5, "at least 0"),
        ([[1.0]], 0.5, r"shape \(1, 1\)"),
    ],
)
def test_effective_lengths_says_what_is_wrong(carried, share, message):
    with pytest.raises(ValueError, match=message):
        effective_lengths(torch.tensor(carried), share)


@pytest.mark.parametrize("size", [1.0, 1e-60, 1e60])  # the last two leave float32
@pytest.mark.parametrize("of", [list, tuple, np.array])
def test_effective_lengths_of_plain_numbers(size, of):
    carried = of([size, 40 * size, 50 * size, 8 * size, size])
    assert effective_lengths(carried, share=0.9) == (1, 2)


@pytest.mark.parametrize("carried", [[1j], np.array([1j]), torch.tensor([1j])])
def test_effective_lengths_are_of_real_numbers(carried):
    with pytest.raises(TypeError, match="expected real numbers"):
        effective_lengths(carried)


def test_paths_trained():
    """The case, with 4 of its 15 epochs: the curve has its shape by then."""
    seed(0)
    stack = mlp_stack(56, 64, residual=True, norm="batch", activation="relu")
    model, data = classifier(stack, 40, 64, 10), mnist1d()
    history = train(model, data, epochs=4, lr=2e-3, batch_size=128)
    assert history.test_accuracy[-1] > 0.3
    model.eval()
    h = model.stem(data.x_test[:64]).detach()
    g = torch.ones_like(h)
    norms = gradient_by_length(branches_of(model.blocks), h, g)
    assert 3 <= int(norms.argmax()) <= 8
    assert norms[26:].max() < 1e-6 * norms.max()
