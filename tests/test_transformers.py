"""The four norm positions against their formulas written out."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from resnotes.sweeps import load
from resnotes.training import mnist1d, seed, train
from resnotes.transformers import (
    NORM_POSITIONS,
    DeepNormBlock,
    Patches,
    PeriNormBlock,
    transformer,
)


def ln(x):
    """LayerNorm with γ = 1 and β = 0, by its definition."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def by_formula(block, x, position):
    """One block with its attention and MLP taken as given."""

    def attention(h):
        return block.attention(h, h, h, need_weights=False)[0]

    for branch in (attention, block.mlp):
        x = {
            "pre": lambda: x + branch(ln(x)),  # noqa: B023
            "post": lambda: ln(x + branch(x)),  # noqa: B023
            "peri": lambda: x + ln(branch(ln(x))),  # noqa: B023
            "deep": lambda: ln(16**0.25 * x + branch(x)),  # noqa: B023
        }[position]()
    return x


@pytest.mark.parametrize("position", NORM_POSITIONS)
def test_each_position_is_its_formula(position):
    model = transformer(8, position).double()
    x = torch.randn(3, 5, 32, dtype=torch.float64)
    torch.testing.assert_close(
        model.blocks[0](x), by_formula(model.blocks[0], x, position)
    )


@pytest.mark.parametrize("position", NORM_POSITIONS)
def test_the_whole_net_is_stem_blocks_norm_mean_head(position):
    model = transformer(3, position).double()
    x = torch.randn(4, 40, dtype=torch.float64)
    h = torch.stack(
        [x[:, 8 * t : 8 * t + 8] @ model.stem.embed.weight.T for t in range(5)]
    )
    h = h.transpose(0, 1) + model.stem.embed.bias + model.stem.position
    for block in model.blocks:
        h = block(h)
    if position in ("pre", "peri"):
        h = ln(h)
    torch.testing.assert_close(model(x), model.head(h.mean(1)))


def test_one_seed_draws_the_same_weights():
    models = {}
    for position in NORM_POSITIONS:
        torch.manual_seed(2)
        models[position] = transformer(4, position)
    ours = dict(models["pre"].named_parameters())
    for position in ("post", "peri"):
        for name, parameter in models[position].named_parameters():
            if name in ours:
                assert torch.equal(parameter, ours[name]), name


def test_deepnorm_constants():
    """Wang et al. 2022: α = (2N)^¼, and β = (8N)^−¼ on MLP, values and output."""
    torch.manual_seed(0)
    plain = transformer(1, "post").blocks[0]
    torch.manual_seed(0)
    deep = transformer(1, "deep").blocks[0]
    beta = 8**-0.25
    assert deep.alpha == pytest.approx(2**0.25)
    ratio = deep.attention.in_proj_weight / plain.attention.in_proj_weight
    torch.testing.assert_close(ratio[:64], torch.ones(64, 32))
    torch.testing.assert_close(ratio[64:], torch.full((32, 32), beta))
    for name in ("attention.out_proj.weight", "mlp.0.weight", "mlp.2.weight"):
        ratio = deep.get_parameter(name) / plain.get_parameter(name)
        torch.testing.assert_close(ratio, torch.full_like(ratio, beta))
    assert DeepNormBlock(32, 2, depth=100).alpha == pytest.approx(200**0.25)


def test_only_the_unnormed_streams_have_a_final_norm():
    for position in NORM_POSITIONS:
        final = transformer(1, position).norm
        assert isinstance(final, nn.LayerNorm) == (position in ("pre", "peri"))


def test_peri_adds_branches_of_variance_one():
    block = PeriNormBlock(32, 2).double()
    x = torch.randn(3, 5, 32, dtype=torch.float64)
    seen = []
    block.norm3.register_forward_hook(lambda m, i, out: seen.append(out))
    block.norm4.register_forward_hook(lambda m, i, out: seen.append(out))
    block(x)
    for added in seen:
        torch.testing.assert_close(
            added.var(-1, correction=0), torch.ones(3, 5).double(), atol=1e-2, rtol=0
        )


def test_bad_input_is_named():
    with pytest.raises(ValueError, match=r"norm_position='both'.*'pre', 'post'"):
        transformer(2, "both")
    with pytest.raises(ValueError, match="depth=0"):
        transformer(0, "pre")
    with pytest.raises(ValueError, match="depth=0"):
        DeepNormBlock(32, 2, depth=0)
    with pytest.raises(ValueError, match="tokens=7 does not divide features=40"):
        Patches(40, 7, 32)
    with pytest.raises(ValueError, match="tokens=0 must be at least 1"):
        Patches(40, 0, 32)
    with pytest.raises(TypeError, match=r"tokens=2\.5 must be a whole number"):
        Patches(40, 2.5, 32)


def test_case_norm_warmup_reduced():
    """Two of the case's cells, trained here and compared with the CSV's."""
    rows = load("norm_warmup")
    for norm in ("pre", "post"):
        seed(0)
        history = train(
            transformer(6, norm), mnist1d(), steps=200, lr=1e-3, batch_size=64
        )
        chosen = rows[
            (rows["lr"] == 1e-3)
            & (rows["depth"] == 6)
            & (rows["norm"] == norm)
            & (rows["warmup"] == 0)
            & (rows["seed"] == 0)
        ]
        assert history.train_accuracy[-1] > 0.3
        assert abs(history.train_accuracy[-1] - chosen["train_accuracy"][-1]) < 0.15


def final_accuracy(**cell):
    rows = np.concatenate([load("norm_warmup"), load("norm_warmup_steps")])
    for name, value in cell.items():
        rows = rows[rows[name] == value]
    return rows["train_accuracy"][rows["step"] == 200]


def test_case_norm_warmup_in_full():
    """50 blocks at 1e-3: pre learns for all 5 seeds, post fails for at least 4."""
    pre = final_accuracy(lr=1e-3, depth=50, norm="pre", warmup=0)
    post = final_accuracy(lr=1e-3, depth=50, norm="post", warmup=0)
    warmed = final_accuracy(lr=1e-3, depth=50, norm="post", warmup=100)
    assert len(pre) == len(post) == len(warmed) == 5
    assert (pre > 0.35).all()
    assert (post < 0.2).sum() >= 4
    assert sorted(warmed)[2] > 0.15  # above chance, which is 0.1
    rows = load("norm_warmup")
    cell = (rows["lr"] == 1e-3) & (rows["depth"] == 50) & (rows["norm"] == "post")
    losses = rows["loss"][cell & (rows["warmup"] == 100)].reshape(5, 20)
    assert (losses.min(1) < 1.9).all()  # it learns first, with every seed
    # Longer warm-ups put the failure off, shorter steps avoid it.
    means = [
        final_accuracy(lr=1e-3, depth=50, norm="post", warmup=w).mean()
        for w in (0, 10, 30, 100, 200)
    ]
    assert sorted(means) == means
    for w in (0, 10, 30, 100, 200):
        assert (final_accuracy(lr=3e-4, depth=50, norm="post", warmup=w) > 0.3).all()
    for norm in ("pre", "post"):
        for warmup in (0, 100):
            shallow = final_accuracy(lr=1e-3, depth=6, norm=norm, warmup=warmup)
            assert (shallow > 0.3).all()


def test_attention_is_torchs_own():
    block = transformer(1, "pre").blocks[0]
    x = torch.randn(2, 5, 32)
    theirs = block.attention(x, x, x, need_weights=False)[0]
    torch.testing.assert_close(block.attend(x), theirs)
    assert F.layer_norm(x, (32,)).allclose(ln(x), atol=1e-5)
