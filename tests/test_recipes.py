"""The recipes against their formulas, and many runs at once against one at a time."""

import math

import pytest
import torch
from torch import nn

from resnotes.recipes import (
    RECIPES,
    FixupBranch,
    Times,
    deepnorm_constants,
    first_steps,
    layerscale_start,
    recipe_net,
)
from resnotes.training import Data, train

STARTS_AS_IDENTITY = {"zero last layer", "ReZero", "Fixup", "zero γ"}


@pytest.fixture(scope="module")
def data():
    """Two separable classes, so that a test needs neither MNIST-1D nor patience."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(600, 40, generator=generator)
    y = (x[:, 0] > 0).long()
    return Data(x[:500], y[:500], x[500:], y[500:])


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_right_recipes_start_as_the_identity(recipe):
    net = recipe_net(recipe, depth=9, width=16)
    h = torch.randn(7, 16)
    assert torch.equal(net.blocks(h), h) == (recipe in STARTS_AS_IDENTITY)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_has_its_depth_and_a_finite_answer(recipe):
    net = recipe_net(recipe, depth=5, width=16)
    final_norm = recipe in ("pre-norm", "LayerScale")
    assert len(net.blocks) == 5 + final_norm
    logits = net(torch.randn(6, 40))
    assert logits.shape == (6, 10) and logits.isfinite().all()


@pytest.mark.parametrize(
    ("recipe", "squared_ratio"),
    [("residual", 2.0), ("1/√L weights", 2 / 25), ("SkipInit", 2 / 25)],
)
def test_branch_to_stream_ratio_is_the_formula(recipe, squared_ratio):
    ratios = []
    for _ in range(30):
        block = recipe_net(recipe, depth=25, width=64).blocks[0]
        h = torch.randn(256, 64)
        added = block.scale * block.branch(h)
        ratios.append(added.square().sum() / h.square().sum())
    assert torch.stack(ratios).mean().item() == pytest.approx(squared_ratio, rel=0.1)


def test_deepnorm_ratio_is_the_formula():
    depth, ratios = 16, []
    for _ in range(30):
        block = recipe_net("DeepNorm", depth, width=64).blocks[0][0]
        h = torch.randn(256, 64)
        ratios.append(block.branch(h).square().sum() / block.shortcut(h).square().sum())
    expected = 1 / (8 * depth) / depth**0.5
    assert torch.stack(ratios).mean().item() == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize("layers", [1, 6, 100])
def test_deepnorm_constants_in_transformer_layers(layers):
    alpha, beta = deepnorm_constants(2 * layers)  # two sums a layer
    assert alpha == pytest.approx((2 * layers) ** 0.25)
    assert beta == pytest.approx((8 * layers) ** -0.25)


def test_layerscale_start_steps_down():
    starts = [layerscale_start(depth) for depth in (1, 18, 19, 24, 25, 96)]
    assert starts == [0.1, 0.1, 1e-5, 1e-5, 1e-6, 1e-6]


def test_fixup_branch_scales_the_first_layer_and_zeroes_the_rest():
    torch.manual_seed(3)
    shallow = FixupBranch(32, depth=1)
    torch.manual_seed(3)
    deep = FixupBranch(32, depth=16)
    torch.testing.assert_close(deep.linear1.weight * 4, shallow.linear1.weight)
    assert not deep.linear2.weight.any()
    head = recipe_net("Fixup", depth=2).head
    assert not head.weight.any() and not head.bias.any()


def test_fixup_branch_is_its_formula():
    branch = FixupBranch(8, depth=4).double()
    for parameter in branch.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(5, 8, dtype=torch.float64)
    b, w1, w2 = branch.biases, branch.linear1.weight, branch.linear2.weight
    by_hand = (
        branch.multiplier * ((((x + b[0]) @ w1.T + b[1]).relu() + b[2]) @ w2.T) + b[3]
    )
    torch.testing.assert_close(branch(x), by_hand)


def test_times_multiplies():
    x = torch.randn(3, 4)
    assert torch.equal(Times(1.5)(x), 1.5 * x)


@pytest.mark.parametrize("recipe", RECIPES)
def test_many_runs_at_once_are_the_runs_one_by_one(recipe, data):
    lrs, seeds = [1e-3, 1e-2], [0, 5]
    losses = first_steps(recipe, 3, lrs=lrs, seeds=seeds, steps=5, width=16, data=data)
    for i, lr in enumerate(lrs):
        for j, seed in enumerate(seeds):
            torch.manual_seed(seed)
            net = recipe_net(recipe, 3, width=16)
            history = train(net, data, steps=5, lr=lr, seed=seed)
            one = torch.tensor(history.step_loss)
            # 3 batches an epoch: five steps cross into a second shuffle.
            torch.testing.assert_close(losses[i, j], one, rtol=2e-3, atol=2e-4)


def test_a_run_that_is_over_stays_over(data):
    spoilt = data._replace(x_train=data.x_train.clone())
    spoilt.x_train[:, 0] = float("inf")
    losses = first_steps("ReZero", 2, lrs=[1e-3], seeds=[0], steps=4, data=spoilt)
    assert losses[0, 0].isnan().all()


def test_only_the_run_that_diverges_is_over(data):
    losses = first_steps(
        "residual", 4, lrs=[1e-3, 1e30], seeds=[0], steps=5, data=data, width=16
    )
    assert losses[0].isfinite().all()
    assert losses[1, 0, 0].isfinite() and losses[1, 0, 2:].isnan().all()


@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
def test_first_steps_where_gradients_are_off(off, data):
    settings = dict(lrs=[1e-2], seeds=[0], steps=3, width=8)
    right = first_steps("ReZero", 2, **settings, data=data)
    with off():
        again = Data(*(tensor.clone() for tensor in data))  # inference tensors
        assert torch.equal(first_steps("ReZero", 2, **settings, data=again), right)


def test_first_steps_leave_the_random_state_alone(data):
    before = torch.get_rng_state()
    first_steps("plain", 2, lrs=[1e-3], seeds=[0], steps=2, data=data)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: recipe_net("resnet", 4), "recipe='resnet' is not known.*'ReZero'"),
        (lambda: recipe_net("ReZero", 0), "depth=0 must be at least 1"),
        (lambda: first_steps("ReZero", 2, lrs=[], seeds=[0]), r"lrs=\[\] and"),
        (lambda: first_steps("ReZero", 2, lrs=[-1.0], seeds=[0]), r"lrs=\[-1.0\] and"),
        (lambda: first_steps("ReZero", 2, lrs=[0.1], seeds=[]), r"lrs=.*seeds=\[\]"),
        (lambda: first_steps("ReZero", 2, lrs=[math.nan], seeds=[0]), r"lrs=\[nan\]"),
        (lambda: first_steps("ReZero", 2, lrs=[math.inf], seeds=[0]), r"lrs=\[inf\]"),
        (
            lambda: first_steps("ReZero", 2, lrs=[0.1], seeds=[0], steps=0),
            "steps=0 must be at least 1",
        ),
        (lambda: FixupBranch(8, depth=0), "depth=0 must be at least 1"),
        (lambda: layerscale_start(0), "depth=0 must be at least 1"),
        (lambda: deepnorm_constants(0), "depth=0 must be at least 1"),
    ],
)
def test_a_value_out_of_range_is_named(call, words):
    with pytest.raises(ValueError, match=f"^{words}"):
        call()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: recipe_net("ReZero", 3, width=2.5), "width=2.5 must be a whole"),
        (lambda: deepnorm_constants(torch.ones(2)), r"depth=tensor\(.*must be a whole"),
        (lambda: layerscale_start(torch.tensor(2.5)), r"depth=tensor\(2.5.*a whole"),
        (lambda: first_steps("plain", 2, lrs=0.1, seeds=[0]), "lrs=0.1 and seeds="),
        (lambda: first_steps("plain", 2, lrs=[0.1], seeds=0), "lrs=.* and seeds=0"),
        (lambda: first_steps("plain", 2, lrs=["x"], seeds=[0]), "lrs=.'x'. and"),
        (lambda: first_steps("plain", 2, lrs=[0.1], seeds=[0.5]), "seed=0.5 must be a"),
    ],
)
def test_what_is_no_number_is_named(call, words):
    with pytest.raises(TypeError, match=f"^{words}"):
        call()
