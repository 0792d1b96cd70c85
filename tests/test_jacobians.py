"""Jacobians against closed forms, autograd row by row, and products of blocks."""

import copy

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import nn

from resnotes.blocks import FlexibleBlock, PreNormBlock, Residual, mlp_stack
from resnotes.jacobians import (
    block_jacobians,
    chain_jacobian,
    singular_values,
    singular_values_by_depth,
)

KINDS = {
    "plain": dict(residual=False),
    "residual": dict(residual=True),
    "batch norm": dict(residual=True, norm="batch"),
    "layer norm": dict(residual=False, norm="layer"),
    "he relu": dict(residual=True, activation="relu", init="he"),
}


def row_by_row(function, x):
    """Jacobian by one ordinary backward pass for each output: the oracle."""
    x = x.clone().requires_grad_()
    y = function(x).reshape(-1)
    rows = [torch.autograd.grad(v, x, retain_graph=True)[0].reshape(-1) for v in y]
    return torch.stack(rows)


def stack(kind, depth=5, width=7):
    return mlp_stack(depth, width, **KINDS[kind]).double().eval()


def random_smooth(seed, d, layers):
    """A random smooth map R^d -> R^d: dense layers with a bend between them."""
    torch.manual_seed(seed)
    bends = [nn.Tanh(), nn.GELU(), nn.Softplus(), nn.SiLU()]
    steps = []
    for k in range(layers):
        steps += [nn.Linear(d, d), bends[(seed + k) % len(bends)]]
    return nn.Sequential(*steps, nn.Linear(d, d)).double()


# What a Jacobian is


@given(seed=st.integers(0, 10**6), d=st.integers(1, 9), layers=st.integers(0, 3))
def test_residual_jacobian_is_identity_plus_branch_jacobian(seed, d, layers):
    branch = random_smooth(seed, d, layers)
    x = torch.randn(d, dtype=torch.float64)
    expected = torch.eye(d, dtype=torch.float64) + row_by_row(branch, x)
    torch.testing.assert_close(chain_jacobian(Residual(branch), x), expected)


@given(
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(sorted(KINDS)),
    depth=st.integers(1, 8),
    width=st.integers(1, 9),
)
def test_chain_is_the_product_of_its_blocks_and_autograd_row_by_row(
    seed, kind, depth, width
):
    torch.manual_seed(seed)
    net = stack(kind, depth, width)
    x = torch.randn(width, dtype=torch.float64)
    jacobian = chain_jacobian(net, x)
    torch.testing.assert_close(jacobian, row_by_row(lambda x: net(x[None]), x))
    product = torch.eye(width, dtype=torch.float64)
    for block in block_jacobians(net, x):
        product = block @ product
    torch.testing.assert_close(jacobian, product)


def test_block_jacobians_are_taken_where_the_chain_is():
    net = stack("plain", depth=4)
    h = x = torch.randn(7, dtype=torch.float64)
    for k, jacobian in enumerate(block_jacobians(net, x)):
        torch.testing.assert_close(jacobian, row_by_row(net[k], h))
        h = net[k](h).detach()


def test_central_differences_agree():
    net = stack("residual")
    x, step = torch.randn(7, dtype=torch.float64), 1e-5
    columns = [
        (net(x + step * e) - net(x - step * e)) / (2 * step)
        for e in torch.eye(7, dtype=torch.float64)
    ]
    expected = torch.stack(columns, dim=1).detach()
    torch.testing.assert_close(chain_jacobian(net, x), expected, rtol=1e-7, atol=1e-9)


def test_linear_chain_is_its_matrices():
    net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 5)).double()
    x = torch.randn(4, dtype=torch.float64)
    expected = net[1].weight @ net[0].weight
    torch.testing.assert_close(chain_jacobian(net, x), expected.detach())


@pytest.mark.parametrize("a", [0.5, -0.25, 1.0])
def test_scalar_branches_give_a_power(a):
    net = nn.Sequential(*[Scaled(a) for _ in range(12)])
    x = torch.randn(3, dtype=torch.float64)
    expected = (1 + a) ** 12 * torch.eye(3, dtype=torch.float64)
    torch.testing.assert_close(chain_jacobian(net, x), expected)


class Scaled(nn.Module):
    """h + a·h."""

    def __init__(self, a):
        super().__init__()
        self.a = a

    def forward(self, h):
        return h + self.a * h


def test_a_branch_of_minus_x_gives_exactly_zero():
    net = nn.Sequential(
        *[nn.Linear(6, 6) for _ in range(3)], Scaled(-1), nn.Linear(6, 6)
    )
    x = torch.randn(6)
    assert torch.equal(chain_jacobian(net, x), torch.zeros(6, 6))
    assert torch.equal(singular_values(net, x), torch.zeros(6))


def test_constant_output_and_the_identity():
    x = torch.randn(3)
    assert torch.equal(chain_jacobian(lambda x: torch.ones(2), x), torch.zeros(2, 3))
    assert torch.equal(chain_jacobian(nn.Identity(), x), torch.eye(3))
    assert torch.equal(chain_jacobian(nn.Sequential(), x), torch.eye(3))


# Singular values


def test_singular_values_of_known_matrices():
    layer = nn.Linear(3, 3, bias=False)
    layer.weight.data = torch.tensor([[0.0, 3, 0], [0, 0, 1], [-2, 0, 0]])
    values = singular_values(layer, torch.randn(3))
    torch.testing.assert_close(values, torch.tensor([3.0, 2, 1]))

    torch.manual_seed(0)
    turn = mlp_stack(30, 8, residual=False, activation="linear", init="orthogonal")
    values = singular_values(turn, torch.randn(8), dtype=torch.float64)
    torch.testing.assert_close(
        values, torch.ones(8, dtype=torch.float64), atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_singular_values_by_depth_equal_a_call_for_each_depth(kind):
    net, x = stack(kind, depth=6), torch.randn(7, dtype=torch.float64)
    by_depth = singular_values_by_depth(net, x)
    assert by_depth.shape == (7, 7)
    for k in range(7):
        expected = torch.linalg.svdvals(chain_jacobian(net[:k], x))
        torch.testing.assert_close(by_depth[k], expected, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(singular_values(net[:k], x), by_depth[k])


def test_small_singular_values_of_a_deep_plain_chain_are_exact():
    import mpmath

    torch.manual_seed(0)
    net, x = mlp_stack(50, 6, residual=False), torch.randn(6, dtype=torch.float64)
    with mpmath.workdps(200):
        product = mpmath.eye(6)
        for jacobian in block_jacobians(net, x, dtype=torch.float64):
            product = mpmath.matrix(jacobian.tolist()) * product
        exact = [float(v) for v in mpmath.svd_r(product, compute_uv=False)]
    assert exact[-1] < 1e-25 * exact[0]
    exact = torch.tensor(exact, dtype=torch.float64)
    values = singular_values(net, x, dtype=torch.float64)
    torch.testing.assert_close(values, exact, rtol=1e-10, atol=0)
    by_depth = singular_values_by_depth(net, x, dtype=torch.float64)[-1]
    torch.testing.assert_close(by_depth, values, rtol=1e-12, atol=0)
    float32 = singular_values(net, x.float())[:4]  # the others are below 1e-38
    torch.testing.assert_close(float32.double(), exact[:4], rtol=1e-3, atol=0)


@given(seed=st.integers(0, 10**6), kind=st.sampled_from(["plain", "residual"]))
def test_singular_values_multiply_to_the_product_of_determinants(seed, kind):
    torch.manual_seed(seed)
    net = mlp_stack(40, 8, **KINDS[kind]).double()
    x = torch.randn(8, dtype=torch.float64)
    logs = [j.slogdet().logabsdet for j in block_jacobians(net, x)]
    by_depth = singular_values_by_depth(net, x)[1:].log().sum(dim=1)
    torch.testing.assert_close(by_depth, torch.stack(logs).cumsum(0), rtol=1e-9, atol=0)


def test_by_depth_pads_with_zeros_behind_a_bottleneck():
    net = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 6))
    by_depth = singular_values_by_depth(net, torch.randn(4))
    assert by_depth.shape == (3, 4)
    assert (by_depth[1, 2:] == 0).all()
    assert (by_depth[2, 2:] == 0).all() and (by_depth[2, :2] > 0).all()
    assert singular_values(net, torch.randn(4)).shape == (4,)


class HeBranch(nn.Module):
    """x + scale · W relu(x), W from He's N(0, 2/d)."""

    def __init__(self, width, scale):
        super().__init__()
        self.weight = nn.Parameter(
            torch.randn(width, width, dtype=torch.float64) * (2 / width) ** 0.5 * scale
        )

    def forward(self, x):
        return x + torch.relu(x) @ self.weight.T


def test_case_exploding():
    torch.manual_seed(0)
    x = torch.randn(128, dtype=torch.float64)
    net = nn.Sequential(*[HeBranch(128, 1.0) for _ in range(100)])
    rms = singular_values_by_depth(net, x).square().mean(dim=1).sqrt()
    assert 1.4e15 / 3 < rms[100] < 1.4e15 * 3
    growth = (rms[100] / rms[20]) ** (1 / 80)
    assert growth.item() == pytest.approx(2**0.5, rel=0.03)

    for depth in (1, 3, 10, 30, 100):
        net = nn.Sequential(*[HeBranch(128, depth**-0.5) for _ in range(depth)])
        assert singular_values(net, x).square().mean().sqrt() < 3


def test_float64_keeps_what_float32_rounds_away():
    net, x = mlp_stack(100, 16, residual=False), torch.randn(16)
    exact = singular_values(copy.deepcopy(net).double(), x.double())
    torch.testing.assert_close(singular_values(net, x, dtype=torch.float64), exact)
    assert exact.dtype == torch.float64
    assert singular_values(net, x).dtype == torch.float32
    deeper = mlp_stack(300, 16, residual=False)
    assert singular_values(deeper, x)[0] == 0  # underflow
    assert singular_values(deeper, x, dtype=torch.float64)[0] > 0
    assert net[0][0].weight.dtype == torch.float32


# Which modules


def test_a_model_that_reads_a_whole_batch_or_its_shape():
    """A batch of d copies of x, a common shortcut, would be wrong for all of these."""
    x = torch.randn(6, dtype=torch.float64)
    for function in (
        lambda x: x * x.sum(),
        lambda x: x.flip(0).cumsum(0),
        lambda x: torch.stack([x[0] * x[1], x[2].exp()]),
        lambda x: (x - x.mean()) / x.std(),
    ):
        torch.testing.assert_close(chain_jacobian(function, x), row_by_row(function, x))


def test_batch_norm_in_eval_mode_is_its_running_scale():
    norm = nn.BatchNorm1d(3).double().eval()
    norm.running_var.copy_(torch.tensor([1.0, 4.0, 9.0]))
    jacobian = chain_jacobian(norm, torch.randn(3, dtype=torch.float64))
    expected = torch.diag(torch.tensor([1, 1 / 2, 1 / 3], dtype=torch.float64))
    torch.testing.assert_close(jacobian, expected, rtol=1e-4, atol=0)


def test_layer_norm_removes_two_directions():
    x = torch.randn(8, dtype=torch.float64)
    values = singular_values(nn.LayerNorm(8).double(), x)
    assert (values[:6] > 0.1).all() and (values[6] < 1e-4) and (values[7] < 1e-10)


@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_pre_and_post_norm(norm_position):
    net = nn.Sequential(*[FlexibleBlock(6, norm_position) for _ in range(3)]).double()
    x = torch.randn(6, dtype=torch.float64)
    torch.testing.assert_close(chain_jacobian(net, x), row_by_row(net, x))


def test_attention_as_one_token_and_as_a_sequence():
    net = nn.Sequential(PreNormBlock(8, 2), PreNormBlock(8, 2)).double()
    x = torch.randn(24, dtype=torch.float64)

    def sequence(x):
        return net(x.reshape(1, 3, 8))

    jacobian = chain_jacobian(net, x, shape=(1, 3, 8))
    torch.testing.assert_close(jacobian, row_by_row(sequence, x))
    assert len(block_jacobians(net, x, shape=(1, 3, 8))) == 2

    def one_token(x):
        return net(x.reshape(1, 1, 8))

    torch.testing.assert_close(chain_jacobian(net, x[:8]), row_by_row(one_token, x[:8]))


def test_images():
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Flatten()).double()
    x = torch.randn(32, dtype=torch.float64)
    jacobian = chain_jacobian(net, x, shape=(1, 2, 4, 4))
    assert jacobian.shape == (12, 32)
    expected = row_by_row(lambda x: net(x.reshape(1, 2, 4, 4)), x)
    torch.testing.assert_close(jacobian, expected)


def test_a_block_that_works_in_place():
    net = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(5, 5), nn.ReLU(inplace=True))
    x = torch.randn(5)
    before = x.clone()
    jacobian = chain_jacobian(net, x)
    assert torch.equal(x, before)
    first, second, third = block_jacobians(net, x)
    torch.testing.assert_close(jacobian, third @ second @ first)


# What must not change


def test_nothing_of_the_callers_changes():
    torch.manual_seed(0)
    net = nn.Sequential(
        Residual(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)))
    )
    net[0].branch[1].eval()  # a mixed mode: dropout still draws
    for parameter in net.parameters():
        parameter.grad = torch.full_like(parameter, 7.0)
    x = torch.randn(4, requires_grad=True)
    state = copy.deepcopy(net.state_dict())
    modes = [module.training for module in net.modules()]
    rng = torch.get_rng_state()
    for dtype in (None, torch.float64):
        for function in (chain_jacobian, singular_values, block_jacobians):
            function(net, x, dtype=dtype)
        singular_values_by_depth(net, x, dtype=dtype)
    assert torch.equal(torch.get_rng_state(), rng)
    assert modes == [module.training for module in net.modules()]
    assert x.grad is None
    for parameter in net.parameters():
        assert parameter.requires_grad and (parameter.grad == 7).all()
    for name, tensor in net.state_dict().items():
        assert tensor.dtype == state[name].dtype and torch.equal(tensor, state[name])


def test_running_statistics_of_a_train_mode_norm_stay():
    net = nn.Sequential(nn.BatchNorm2d(2))
    chain_jacobian(net, torch.randn(18), shape=(1, 2, 3, 3))
    assert (net[0].running_mean == 0).all() and net[0].num_batches_tracked == 0


@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
def test_works_where_gradients_are_switched_off(off):
    net, x = stack("residual"), torch.randn(7, dtype=torch.float64)
    expected = chain_jacobian(net, x)
    with off():
        torch.testing.assert_close(chain_jacobian(net, x.clone()), expected)


def test_result_follows_dtype_and_carries_no_graph():
    net = mlp_stack(2, 4, residual=True)
    jacobian = chain_jacobian(net, torch.randn(4))
    assert jacobian.dtype == torch.float32 and not jacobian.requires_grad


# Errors


def raises(kind, *parts, **arguments):
    """Call with the arguments and check that the message holds every part."""
    with pytest.raises(kind) as caught:
        chain_jacobian(**arguments)
    for part in parts:
        assert part in str(caught.value)


def test_errors_say_what_came():
    net, x = mlp_stack(3, 4, residual=True), torch.randn(4)
    raises(TypeError, "list", model=net, x=[1.0])
    raises(ValueError, "(2, 4)", "(d,)", model=net, x=torch.randn(2, 4))
    raises(ValueError, "()", model=net, x=torch.tensor(1.0))
    raises(TypeError, "int64", model=net, x=torch.arange(4))
    raises(ValueError, "1 non-finite", model=net, x=x / torch.tensor([1, 1, 0, 1]))
    raises(ValueError, "shape=(2, 3)", "4 entries", model=net, x=x, shape=(2, 3))
    raises(TypeError, "tuple", model=lambda x: (x, x), x=x)
    raises(TypeError, "int64", model=lambda x: x.argsort(), x=x)
    with pytest.raises(TypeError, match="Sequential"):
        block_jacobians(nn.Linear(4, 4), x)


def test_a_misfit_names_the_block_and_both_shapes():
    net = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Tanh(), nn.Linear(3, 3)))
    raises(ValueError, "model[1][1]", "(4,)", "3x3", model=net, x=torch.randn(4))
    with pytest.raises(ValueError, match=r"model\[1\]"):
        block_jacobians(net, torch.randn(4))
    raises(ValueError, "(3,)", "Linear", model=nn.Linear(4, 4), x=torch.randn(3))


def test_batch_norm_in_train_mode_says_what_to_do():
    net = mlp_stack(3, 4, residual=True, norm="batch")
    raises(ValueError, "model[0]", "model.eval()", model=net, x=torch.randn(4))


def test_a_wrong_dtype_says_what_to_do():
    net, x = mlp_stack(3, 4, residual=True), torch.randn(4, dtype=torch.float64)
    raises(ValueError, "float32", "float64", "in that dtype", model=net, x=x)
    assert chain_jacobian(net, x, dtype=torch.float64).shape == (4, 4)


def test_overflow_is_an_error_and_names_a_block_at_fault():
    class Root(nn.Module):
        def forward(self, h):
            return h.sqrt()  # slope 1/0 at 0

    net = nn.Sequential(nn.Identity(), Root())
    raises(ValueError, "model[1]", "non-finite", model=net, x=torch.zeros(2))
    double = nn.Sequential(*[Scaled(1.0) for _ in range(200)])
    raises(ValueError, "the model", "float64", model=double, x=torch.ones(2))
    assert chain_jacobian(double, torch.ones(2), dtype=torch.float64)[0, 0] == 2.0**200
    with pytest.raises(ValueError, match="the model"):
        singular_values_by_depth(double, torch.ones(2))
