"""Blocks and stacks: the known values, hand-written formulas, properties, errors."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from resnotes.blocks import (
    FlexibleBlock,
    PostNormBlock,
    PreNormBlock,
    Residual,
    ResidualBlock,
    ZeroPad,
    classifier,
    conv_stack,
    flexible_stack,
    mlp_stack,
)

# --- The cases with known right answers


@pytest.mark.parametrize(
    "residual, norms",
    [
        (False, [9.2033e-10, 3.2088e-9, 3.9239e-9]),
        (True, [157.52, 147.04, 182.85]),
    ],
)
def test_forty_tanh_layers_give_the_known_gradients(residual, norms):
    for seed, known in enumerate(norms):
        torch.manual_seed(seed)
        stack = mlp_stack(40, 64, residual=residual)
        x = torch.randn(8, 64, requires_grad=True)
        stack(x).sum().backward()
        assert x.grad.norm().item() == pytest.approx(known, rel=1e-4)


def thirty_layers(dtype):
    """Output norm, gradient norm, mean and std: the residual net's, the plain one's."""
    torch.manual_seed(42)
    residual = flexible_stack(30, 128, residual=True)
    torch.manual_seed(42)
    plain = flexible_stack(30, 128, residual=False)
    rows = []
    for net in (residual, plain):
        x = torch.randn(4, 32, 128).to(dtype).requires_grad_()
        y = net.to(dtype)(x)
        y.sum().backward()
        rows.append([v.item() for v in (y.norm(), x.grad.norm(), y.mean(), y.std())])
    return rows


def test_thirty_layers_to_four_decimals():
    residual, plain = thirty_layers(torch.float32)
    assert residual == pytest.approx([189.8797, 202.0742, 0.0353, 1.4831], abs=6e-5)
    # The plain gradient is printed as 63.5118. In float32 its fourth decimal is the
    # processor's (63.5116 to 63.5118 seen); float64 has the last word below.
    gradient = plain.pop(1)
    assert plain == pytest.approx([22.9232, -0.0082, 0.1789], abs=6e-5)
    assert gradient == pytest.approx(63.5118, abs=5e-4)
    assert thirty_layers(torch.float64)[1][1] == pytest.approx(63.5117, abs=6e-5)


@pytest.mark.parametrize("training", [True, False])
def test_zero_init_is_the_identity_or_relu_of_it(training):
    x = torch.randn(4, 6, 5, 5)
    block = ResidualBlock(6, activation="none").train(training)
    assert torch.equal(block(x), x)
    block = ResidualBlock(6, activation="after").train(training)
    assert torch.equal(block(x), torch.relu(x))
    assert 0.4 < (block(x) != x).float().mean() < 0.6  # half the entries change
    assert torch.equal(block(x.abs()), x.abs())  # and none on a stream that is ≥ 0


# --- Residual


def test_residual_adds_shortcut_and_scaled_branch():
    branch, shortcut = nn.Linear(5, 3), nn.Linear(5, 3)
    x = torch.randn(7, 5)
    known = shortcut(x) + 0.25 * branch(x)
    assert torch.equal(Residual(branch, shortcut, scale=0.25)(x), known)


class Narrow(nn.Module):
    """A branch whose layers do not tell that it returns one column."""

    def forward(self, x):
        return x[:, :1]


def test_a_scale_of_one_costs_no_product():
    x = torch.randn(3, requires_grad=True)
    assert [
        Residual(nn.Tanh(), scale=scale)(x).grad_fn.next_functions[1][0].name()
        for scale in (1.0, 1, 2.0, torch.tensor(1.0))
    ] == ["TanhBackward0", "TanhBackward0", "MulBackward0", "MulBackward0"]


def test_residual_refuses_to_broadcast_at_the_first_call():
    block = Residual(Narrow())
    with pytest.raises(ValueError, match=r"\(2, 4\) but branch gives \(2, 1\)"):
        block(torch.randn(2, 4))


@pytest.mark.parametrize(
    "branch, shortcut, message",
    [
        (nn.Linear(4, 1), None, "branch gives 1 features but shortcut gives 4"),
        (nn.Conv2d(3, 8, 1), None, "branch gives 8 channels but shortcut gives 3"),
        (
            nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 9), nn.Tanh()),
            None,
            "branch gives 9 features but shortcut gives 4",
        ),
        (nn.Linear(4, 2), nn.Linear(5, 2), "branch takes 4 features"),
        (nn.Conv2d(3, 8, 1), ZeroPad(3, 6), "shortcut gives 6"),
    ],
)
def test_a_mismatch_that_layers_tell_raises_at_construction(branch, shortcut, message):
    with pytest.raises(ValueError, match=message):
        Residual(branch, shortcut)


def test_what_layers_do_not_tell_is_left_to_the_call():
    # A convolution acts on channels and a linear layer on the last axis, so 3 and 8
    # are no contradiction here.
    block = Residual(nn.Sequential(nn.Conv1d(3, 3, 1), nn.Linear(8, 8)))
    assert block(torch.randn(2, 3, 8)).shape == (2, 3, 8)


# --- The convolutional block

sizes = st.integers(1, 7)
strides = st.integers(1, 3)


def built(out_channels, channels, stride, kind):
    """Parameters the shortcut ought to have, counted by hand."""
    if channels == out_channels and stride == 1:
        return 0
    weights = channels * out_channels
    return {"projection": weights + 2 * out_channels, "linear": weights, "pad": 0}[kind]


@given(sizes, sizes, strides, st.sampled_from(["projection", "linear", "pad"]))
def test_a_shortcut_is_built_only_where_shapes_differ(channels, out, stride, kind):
    if kind == "pad" and out < channels:
        out, channels = channels, out
    block = ResidualBlock(channels, out, stride, shortcut=kind)
    branch = 9 * channels * out + 9 * out * out + 4 * out
    total = sum(p.numel() for p in block.parameters())
    assert total == branch + built(out, channels, stride, kind)
    same = channels == out and stride == 1
    assert isinstance(block.shortcut, nn.Identity) is same


@given(
    sizes,
    sizes,
    strides,
    st.integers(2, 9),
    st.integers(2, 9),
    st.sampled_from(["projection", "linear", "pad"]),
    st.sampled_from(["after", "before", "none"]),
)
def test_every_shortcut_gives_the_shape_of_the_branch(
    channels, out, stride, height, width, kind, activation
):
    if kind == "pad" and out < channels:
        out, channels = channels, out
    block = ResidualBlock(
        channels, out, stride, shortcut=kind, zero_init=False, activation=activation
    )
    y = block(torch.randn(2, channels, height, width))
    shape = (2, out, math.ceil(height / stride), math.ceil(width / stride))
    assert y.shape == shape


@given(sizes, st.integers(0, 2**31), st.sampled_from([torch.float32, torch.float64]))
def test_a_zero_initialised_block_is_the_identity_bit_for_bit(channels, seed, dtype):
    torch.manual_seed(seed)
    x = torch.randn(2, channels, 4, 4, dtype=dtype)
    block = ResidualBlock(channels, activation="none").to(dtype)
    assert block(x).dtype == dtype
    assert torch.equal(block(x), x)


@pytest.mark.parametrize(
    "activation, formula",
    [
        ("after", lambda kept, added: torch.relu(kept + added)),
        ("before", lambda kept, added: kept + torch.relu(added)),
        ("none", lambda kept, added: kept + added),
    ],
)
def test_block_against_its_formula(activation, formula):
    block = ResidualBlock(3, 5, stride=2, zero_init=False, activation=activation)
    x = torch.randn(4, 3, 8, 8)
    conv1, norm1, _, conv2, norm2 = block.branch[:5]
    conv0, norm0 = block.shortcut

    def normed(h, norm):
        mean, var = h.mean((0, 2, 3)), h.var((0, 2, 3), correction=0)
        h = (h - mean[:, None, None]) / (var[:, None, None] + norm.eps).sqrt()
        return h * norm.weight[:, None, None] + norm.bias[:, None, None]

    h = functional.conv2d(x, conv1.weight, stride=2, padding=1)
    h = functional.conv2d(torch.relu(normed(h, norm1)), conv2.weight, padding=1)
    kept = normed(functional.conv2d(x, conv0.weight, stride=2), norm0)
    assert torch.allclose(block(x), formula(kept, normed(h, norm2)), atol=1e-5)


def test_zero_pad_keeps_one_position_in_four_and_adds_zeros():
    x = torch.randn(2, 3, 5, 4)
    y = ZeroPad(3, 7, stride=2)(x)
    assert torch.equal(y[:, :3], x[:, :, ::2, ::2])
    assert y.shape == (2, 7, 3, 2) and not y[:, 3:].any()
    assert torch.equal(ZeroPad(3, 3)(x), x)


@pytest.mark.parametrize("kind", ["projection", "linear", "pad"])
def test_a_stride_two_shortcut_reads_one_position_in_four(kind):
    shortcut = ResidualBlock(3, 6, stride=2, shortcut=kind).shortcut.eval()
    x = torch.randn(1, 3, 8, 8, requires_grad=True)
    shortcut(x).square().sum().backward()
    read = x.grad.abs().sum((0, 1)) > 0
    assert read[::2, ::2].all() and read.sum() == 16


def test_zero_init_leaves_one_live_layer():
    """At γ = 0 the branch's gradient reaches γ, and nothing before it."""
    block = ResidualBlock(4, activation="none")
    (block(torch.randn(8, 4, 5, 5)) * torch.randn(8, 4, 5, 5)).sum().backward()
    assert block.branch[4].weight.grad.abs().min() > 0
    assert not block.branch[0].weight.grad.any()


def test_block_with_a_shortcut_of_ones_own():
    pooled = nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(4, 8, 1, bias=False))
    block = ResidualBlock(4, 8, stride=2, shortcut=pooled)
    assert block(torch.randn(2, 4, 6, 6)).shape == (2, 8, 3, 3)
    wrong = ResidualBlock(4, 8, stride=2, shortcut=nn.Conv2d(4, 8, 1))
    with pytest.raises(ValueError, match=r"\(2, 8, 6, 6\).*\(2, 8, 3, 3\)"):
        wrong(torch.randn(2, 4, 6, 6))


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(channels=0), "channels=0 must be at least 1"),
        (dict(channels=4, stride=0), "stride=0"),
        (dict(channels=4, out_channels=8, shortcut="identity"), r"4, H.*8, ⌈H/1"),
        (dict(channels=8, out_channels=4, shortcut="pad"), "from 8 channels to 4"),
        (dict(channels=4, shortcut="conv"), "shortcut='conv' is not known"),
        (dict(channels=4, activation="relu"), "activation='relu' is not known"),
        (dict(channels=4, activation="before"), "dead branch"),
        (dict(channels=4, shortcut=nn.Conv2d(4, 8, 1)), "shortcut gives 8"),
    ],
)
def test_block_arguments_that_cannot_be(arguments, message):
    with pytest.raises(ValueError, match=message):
        ResidualBlock(**arguments)


def test_numbers_must_be_whole():
    with pytest.raises(TypeError, match="must be a whole number, got a float"):
        ResidualBlock(4.0)


@pytest.mark.parametrize("shape", [(2, 5, 6, 6), (4, 6, 6)])
def test_block_says_which_input_it_takes(shape):
    with pytest.raises(ValueError, match=r"takes \(batch, 4, height, width\)"):
        ResidualBlock(4)(torch.randn(shape))


# --- The transformer blocks, against formulas written out


def layer_norm(x):
    mean, var = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, correction=0)
    return (x - mean) / (var + 1e-5).sqrt()


def self_attention(x, attention):
    """Softmax(q kᵀ/√(d/heads)) v, one sequence and one head at a time."""
    batch, _, d = x.shape
    size = d // attention.num_heads
    q, k, v = (x @ attention.in_proj_weight.T + attention.in_proj_bias).split(d, -1)
    out = torch.empty_like(x)
    for b in range(batch):
        for head in range(attention.num_heads):
            part = slice(head * size, (head + 1) * size)
            scores = q[b, :, part] @ k[b, :, part].T / math.sqrt(size)
            out[b, :, part] = scores.softmax(-1) @ v[b, :, part]
    return out @ attention.out_proj.weight.T + attention.out_proj.bias


def feed_forward(x, first, second):
    h = x @ first.weight.T + first.bias
    h = h * 0.5 * (1 + torch.erf(h / math.sqrt(2)))  # GELU
    return h @ second.weight.T + second.bias


@given(st.integers(1, 3), st.integers(1, 5), st.integers(1, 4), st.integers(1, 3))
def test_norm_blocks_against_their_formulas(batch, tokens, size, heads):
    x = torch.randn(batch, tokens, size * heads, dtype=torch.float64)
    block = PreNormBlock(size * heads, heads).double()
    a = x + self_attention(layer_norm(x), block.attention)
    y = a + feed_forward(layer_norm(a), block.mlp[0], block.mlp[2])
    assert torch.allclose(block(x), y, rtol=1e-9, atol=1e-9)

    block = PostNormBlock(size * heads, heads).double()
    a = layer_norm(x + self_attention(x, block.attention))
    y = layer_norm(a + feed_forward(a, block.mlp[0], block.mlp[2]))
    assert torch.allclose(block(x), y, rtol=1e-9, atol=1e-9)


def test_pre_and_post_norm_share_their_weights():
    torch.manual_seed(5)
    pre = PreNormBlock(8, 2)
    torch.manual_seed(5)
    post = PostNormBlock(8, 2)
    for a, b in zip(pre.parameters(), post.parameters(), strict=True):
        assert torch.equal(a, b)


@given(st.integers(1, 5), st.integers(2, 6), st.floats(-2, 2))
def test_flexible_block_against_its_formulas(batch, dim, scale):
    x = torch.randn(batch, dim, dtype=torch.float64)
    block = FlexibleBlock(dim, "pre", scale).double()
    y = x + scale * feed_forward(layer_norm(x), block.linear1, block.linear2)
    assert torch.allclose(block(x), y, rtol=1e-9, atol=1e-9)
    block = FlexibleBlock(dim, "post", scale).double()
    y = layer_norm(x + scale * feed_forward(x, block.linear1, block.linear2))
    assert torch.allclose(block(x), y, rtol=1e-9, atol=1e-9)


def test_rezero_starts_as_the_identity_and_only_alpha_moves():
    block = FlexibleBlock(16, rezero=True)
    x = torch.randn(4, 16)
    assert torch.equal(block(x), x)
    (block(x) * torch.randn(4, 16)).sum().backward()
    assert block.scale.grad.abs() > 0
    assert not any(p.grad.any() for p in block.linear1.parameters())
    assert not any(p.grad.any() for p in block.linear2.parameters())
    normed = FlexibleBlock(16, norm_position="post", rezero=True)
    assert torch.allclose(normed(x), layer_norm(x), atol=1e-6)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: PreNormBlock(10, 3), "heads=3 does not divide d=10"),
        (lambda: PostNormBlock(8, 0), "heads=0"),
        (lambda: PreNormBlock(8, 2)(torch.randn(2, 3, 7)), r"takes \(batch, tokens, 8"),
        (lambda: PostNormBlock(8, 2)(torch.randn(3, 8)), r"takes \(batch, tokens, 8\)"),
        (lambda: FlexibleBlock(8, "peri"), "norm_position='peri' is not known"),
        (lambda: FlexibleBlock(8, scale=0.5, rezero=True), "leave one of the two out"),
        (lambda: FlexibleBlock(8)(torch.randn(2, 1)), r"\(2, 1\).*takes \(..., 8\)"),
        (lambda: flexible_stack(3, 8, residual=False, rezero=True), "no branch"),
        (lambda: mlp_stack(3, 8, residual=False, scale=0.5), "no branch to scale"),
        (lambda: mlp_stack(0, 8, residual=True), "depth=0 must be at least 1"),
        (lambda: mlp_stack(3, 8, residual=True, norm="rms"), "norm='rms'"),
        (lambda: mlp_stack(3, 8, residual=True, init="zero"), "init='zero'"),
        (lambda: conv_stack([], residual=True), "channels is empty"),
        (lambda: conv_stack([4], residual=False, zero_init=True), "plain stack"),
    ],
)
def test_arguments_that_cannot_be(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# --- The builders: one recipe, one difference

BUILDERS = {
    "mlp": lambda residual: mlp_stack(
        4, 8, residual=residual, norm="batch", init="orthogonal"
    ),
    "layer": lambda residual: mlp_stack(4, 8, residual=residual, norm="layer"),
    "pre": lambda residual: flexible_stack(3, 8, residual=residual),
    "post": lambda residual: flexible_stack(
        3, 8, residual=residual, norm_position="post"
    ),
    "conv": lambda residual: conv_stack([4, 4, 6], residual=residual, shortcut="pad"),
}


@pytest.mark.parametrize("kind", BUILDERS)
def test_plain_and_residual_stacks_share_their_weights(kind):
    torch.manual_seed(3)
    plain = BUILDERS[kind](False)
    torch.manual_seed(3)
    residual = BUILDERS[kind](True)
    assert len(plain) == len(residual)
    for a, b in zip(plain, residual, strict=True):
        ours = sorted(p.sum().item() for p in a.parameters())
        theirs = sorted(p.sum().item() for p in b.parameters())
        assert ours == theirs


@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_plain_flexible_stack_against_its_formula(norm_position):
    torch.manual_seed(1)
    plain = flexible_stack(2, 6, residual=False, norm_position=norm_position)
    torch.manual_seed(1)
    blocks = flexible_stack(2, 6, residual=True, norm_position=norm_position)
    x = torch.randn(5, 6)
    h = x
    for block in blocks:
        h = block.branch(h)
        h = block.norm(h) if norm_position == "post" else h
    assert torch.equal(plain(x), h)


def test_conv_stack_halves_the_map_where_channels_change():
    torch.manual_seed(2)
    residual = conv_stack([4, 4, 6, 6], residual=True)
    torch.manual_seed(2)
    plain = conv_stack([4, 4, 6, 6], residual=False)
    x = torch.randn(3, 4, 8, 8)
    assert residual(x).shape == plain(x).shape == (3, 6, 4, 4)
    assert torch.equal(plain[0](x), torch.relu(residual[0].branch(x)))
    assert plain[0](x).any()
    quiet = conv_stack([4, 4], residual=True, zero_init=True)
    assert torch.equal(quiet(x), torch.relu(x))


@given(st.sampled_from(["tanh", "relu", "gelu", "linear"]), st.floats(-2, 2))
def test_mlp_stack_against_its_formula(activation, scale):
    sigma = dict(
        tanh=torch.tanh, relu=torch.relu, gelu=functional.gelu, linear=lambda h: h
    )[activation]
    stack = mlp_stack(3, 5, residual=True, activation=activation, scale=scale)
    x = torch.randn(4, 5)
    h = x
    for block in stack:
        linear = block.branch[0]
        h = h + scale * sigma(h @ linear.weight.T + linear.bias)
    assert torch.allclose(stack(x), h, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "init, variance", [("default", 1 / 3), ("xavier", 1), ("he", 2), ("orthogonal", 1)]
)
def test_inits_have_their_variance(init, variance):
    stack = mlp_stack(2, 200, residual=False, init=init)
    weight, bias = stack[1][0].weight, stack[1][0].bias
    assert 200 * weight.var().item() == pytest.approx(variance, rel=0.05)
    assert (init == "default") == bool(bias.any())


def test_classifier_is_stem_blocks_head():
    net = classifier(mlp_stack(3, 16, residual=True), 40, 16, 10)
    x = torch.randn(5, 40)
    assert torch.equal(net(x), net.head(net.blocks(net.stem(x))))
