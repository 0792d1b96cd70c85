"""Lesions: what runs, in which order, and that the network itself is left alone."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from resnotes.blocks import classifier, mlp_stack
from resnotes.lesions import (
    kendall_tau,
    lesion,
    lesion_study,
    random_deletions,
    random_swaps,
    swapped,
    without,
)


def network(depth=6):
    stack = mlp_stack(depth, 8, residual=True, norm="batch", activation="relu")
    return classifier(stack, 5, 8, 3).eval()


def by_hand(model, order, x):
    h = model.stem(x)
    for k in order:
        h = model.blocks[k](h)
    return model.head(h)


@given(st.lists(st.integers(0, 5), max_size=9))
def test_the_blocks_of_the_order_run_in_that_order(order):
    model, x = network(), torch.randn(4, 5)
    assert torch.equal(lesion(model, order)(x), by_hand(model, order, x))


def test_a_bare_stack_will_do():
    stack, x = network().blocks, torch.randn(4, 8)
    right = stack[2](stack[0](x))
    assert torch.equal(lesion(stack, [0, 2])(x), right)
    assert torch.equal(lesion(stack, [])(x), x)


def test_the_network_is_untouched_even_when_the_evaluation_raises():
    model, x = network(), torch.randn(4, 5)
    model.blocks[1].train()
    state = copy.deepcopy(model.state_dict())
    modes = [module.training for module in model.modules()]
    names = [name for name, _ in model.named_modules()]

    def evaluate(damaged):
        assert not any(module.training for module in damaged.modules())
        damaged(x)
        raise KeyError("broken on purpose")

    with pytest.raises(KeyError):
        lesion_study(model, evaluate, [without(6, 1)])
    assert [name for name, _ in model.named_modules()] == names
    assert [module.training for module in model.modules()] == modes
    now = model.state_dict()
    assert all(torch.equal(state[name], now[name]) for name in state)
    assert len(model.blocks) == 6


def test_parameters_are_shared_not_copied():
    model = network()
    damaged = lesion(model, without(6, 0))
    assert damaged.blocks[0].branch[0].weight is model.blocks[1].branch[0].weight
    assert damaged.head is model.head and damaged is not model


def test_study_tells_all():
    model, x = network(), torch.randn(4, 5)
    orders = [without(6), without(6, 2, 4), swapped(6, 0, 5)]
    rows = lesion_study(model, lambda m: float(m(x).sum()), orders)
    assert [row["deleted"] for row in rows] == [(), (2, 4), ()]
    assert [row["left"] for row in rows] == [6, 4, 6]
    assert [row["paths_left"] for row in rows] == [1, 0.25, 1]
    assert [row["kendall_tau"] for row in rows] == [1, 1, pytest.approx(1 - 18 / 15)]
    for row, order in zip(rows, orders, strict=True):
        assert row["score"] == by_hand(model, order, x).sum().item()


def test_progress_goes_to_stderr_and_is_off_by_default(capsys):
    model = network()
    lesion_study(model, lambda _: 0.0, [without(6)] * 3)
    assert capsys.readouterr() == ("", "")
    lesion_study(model, lambda _: 0.0, [without(6)] * 3, progress=True)
    out, err = capsys.readouterr()
    assert out == "" and "lesions" in err


@given(st.integers(2, 60), st.integers(0, 60), st.integers(0, 100))
def test_random_lesions_are_seeded_and_of_the_right_size(depth, count, seed):
    count = min(count, depth)
    deleted = random_deletions(depth, count, seed=seed)
    assert len(deleted) == depth - count and list(deleted) == sorted(set(deleted))
    assert deleted == random_deletions(depth, count, seed=seed)
    mixed = random_swaps(depth, count, seed=seed)
    assert sorted(mixed) == list(range(depth))
    assert mixed == random_swaps(depth, count, seed=seed)


def test_random_lesions_leave_the_random_state():
    state = torch.get_rng_state()
    random_deletions(9, 3, seed=1), random_swaps(9, 3, seed=1)
    assert torch.equal(torch.get_rng_state(), state)


@given(st.permutations(range(12)))
def test_kendall_tau_agrees_with_scipy(order):
    stats = pytest.importorskip("scipy.stats")
    right = stats.kendalltau(range(12), order).statistic
    assert kendall_tau(order) == pytest.approx(right, abs=1e-12)


def test_errors_say_what_came():
    model = network()
    for call, kind, message in [
        (lambda: lesion(model, [6]), ValueError, "block=6 must be from 0 to 5"),
        (lambda: lesion(model, [1.0]), TypeError, "block=1.0 must be a whole"),
        (lambda: lesion(nn.Linear(2, 2), [0]), TypeError, "model is a Linear"),
        (lambda: without(3, 3), ValueError, "block=3 must be from 0 to 2"),
        (lambda: swapped(3, 0, -1), ValueError, "block=-1"),
        (lambda: without(5, 1.5), TypeError, "block=1.5"),
        (lambda: random_deletions(3, 4, seed=0), ValueError, "count=4"),
        (lambda: random_deletions(3, 1.0, seed=0), TypeError, "count=1.0"),
        (lambda: random_deletions(0, 0, seed=0), ValueError, "depth=0"),
        (lambda: random_swaps(1, 1, seed=0), ValueError, "depth=1"),
        (lambda: random_swaps(3, -1, seed=0), ValueError, "count=-1"),
        (lambda: random_swaps(3.0, 1, seed=0), TypeError, "depth=3.0"),
        (lambda: without(0), ValueError, "depth=0"),
        (lambda: lesion(model, [torch.tensor(0.5)]), TypeError, "block=tensor"),
        (lambda: kendall_tau([0]), ValueError, "order has 1 blocks"),
    ]:
        with pytest.raises(kind, match=message):
            call()
