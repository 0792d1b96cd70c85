"""Training against loops written out by hand."""

import copy
import random
import socket

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from resnotes.blocks import Residual, classifier, mlp_stack
from resnotes.recipes import first_steps
from resnotes.training import Data, _dropped, mnist1d, seed, train


@pytest.fixture
def small() -> Data:
    torch.manual_seed(3)
    x = torch.randn(100, 6)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    return Data(x[:70], y[:70], x[70:], y[70:])


def small_model(depth=3, norm="batch", residual=True):
    torch.manual_seed(1)
    stack = mlp_stack(depth, 8, residual=residual, norm=norm, activation="relu")
    return classifier(stack, 6, 8, 3)


def global_state():
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()


def assert_same_state(before, after):
    assert before[0] == after[0] and before[1] == after[1]
    assert torch.equal(before[2], after[2])


def test_seed_covers_three_libraries():
    seed(5)
    first = random.random(), np.random.rand(), float(torch.rand(1))
    seed(5)
    assert first == (random.random(), np.random.rand(), float(torch.rand(1)))


# MNIST-1D


def test_mnist1d_is_the_published_default_set_without_network(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("the network was asked for")

    monkeypatch.setattr(socket, "socket", refuse)
    import resnotes.training as training

    training._generate_mnist1d.cache_clear()
    before = global_state()
    data = mnist1d()
    assert_same_state(before, global_state())
    assert data.x_train.shape == (4000, 40) and data.x_test.shape == (1000, 40)
    assert data.x_train.dtype == torch.float32 and data.y_train.dtype == torch.int64
    # Greydanus' script with its defaults (seed 42): the first labels, the balance of
    # the ten classes and the scaling it promises.
    assert data.y_train[:10].tolist() == [2, 6, 4, 5, 6, 6, 6, 0, 3, 1]
    counts = torch.bincount(torch.cat([data.y_train, data.y_test]))
    assert counts.tolist() == [500] * 10
    everything = torch.cat([data.x_train, data.x_test]).double()
    assert abs(everything.mean()) < 1e-6
    assert everything.std(correction=0) == pytest.approx(1, abs=1e-6)


def test_mnist1d_gives_fresh_tensors():
    mnist1d().x_train.zero_()
    assert mnist1d().x_train.abs().sum() > 0


# The loop, against one written out


def by_hand(model, data, steps, lr, batch_size, warmup, seed):
    """Adam as Kingma and Ba write it, and the batches `train` promises."""
    generator = torch.Generator().manual_seed(seed)
    parameters = list(model.parameters())
    m = [torch.zeros_like(p) for p in parameters]
    v = [torch.zeros_like(p) for p in parameters]
    per_epoch = len(data.x_train) // batch_size
    losses = []
    model.train()
    for t in range(1, steps + 1):
        if (t - 1) % per_epoch == 0:
            order = torch.randperm(len(data.x_train), generator=generator)
        i = (t - 1) % per_epoch * batch_size
        chosen = order[i : i + batch_size]
        log_p = model(data.x_train[chosen]).log_softmax(1)
        loss = -log_p.gather(1, data.y_train[chosen][:, None]).mean()
        losses.append(float(loss.detach()))
        rate = lr * min(1, t / warmup) if warmup else lr
        for k, g in enumerate(torch.autograd.grad(loss, parameters)):
            m[k] = 0.9 * m[k] + 0.1 * g
            v[k] = 0.999 * v[k] + 0.001 * g**2
            m_hat, v_hat = m[k] / (1 - 0.9**t), v[k] / (1 - 0.999**t)
            parameters[k].data -= rate * m_hat / (v_hat.sqrt() + 1e-8)
    return losses


@pytest.mark.parametrize("warmup", [0, 5])
def test_train_equals_adam_by_hand(small, warmup):
    data = Data(*(t.double() if t.is_floating_point() else t for t in small))
    ours, theirs = small_model().double(), small_model().double()
    history = train(
        ours, data, steps=12, lr=1e-2, batch_size=16, warmup_steps=warmup, seed=4
    )
    losses = by_hand(theirs, data, 12, 1e-2, 16, warmup, 4)
    assert history.step_loss == pytest.approx(losses, rel=1e-9)
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-8, atol=1e-10)


def test_evaluations_are_the_whole_set_in_eval_mode(small):
    model = small_model()
    history = train(model, small, epochs=3, batch_size=16)
    assert history.step == [4, 8, 12] and len(history.step_loss) == 12
    model.eval()
    for split in ("train", "test"):
        x, y = getattr(small, f"x_{split}"), getattr(small, f"y_{split}")
        loss = float(F.cross_entropy(model(x), y).detach())
        accuracy = float((model(x).argmax(1) == y).float().mean())
        assert getattr(history, f"{split}_loss")[-1] == pytest.approx(loss, rel=1e-5)
        assert getattr(history, f"{split}_accuracy")[-1] == pytest.approx(accuracy)


def test_the_last_step_is_always_evaluated(small):
    history = train(small_model(), small, steps=7, batch_size=16, evaluate_every=3)
    assert history.step == [3, 6, 7]
    assert train(small_model(), small, steps=2, batch_size=16).step == [2]


def test_it_learns_and_repeats_itself(small):
    settings = dict(epochs=30, batch_size=16, lr=5e-3)
    first, second = (train(small_model(), small, **settings) for _ in range(2))
    assert first == second
    assert first.train_accuracy[-1] > 0.9
    assert train(small_model(), small, **settings, seed=1) != first


def test_nothing_else_changes(small):
    model = small_model()
    model.blocks[1].eval()
    modes = [module.training for module in model.modules()]
    names = list(model.state_dict())
    before, threads = global_state(), torch.get_num_threads()
    train(model, small, epochs=2, survival=0.5)
    assert_same_state(before, global_state())
    assert threads == torch.get_num_threads()
    assert [module.training for module in model.modules()] == modes
    assert list(model.state_dict()) == names
    assert all(p.grad is None for p in model.parameters())
    assert not any("forward" in vars(module) for module in model.modules())


def test_no_output_unless_asked(small, capsys):
    train(small_model(), small, epochs=1)
    assert capsys.readouterr() == ("", "")
    train(small_model(), small, epochs=1, progress=True)
    seen = capsys.readouterr()
    assert seen.out == "" and "it/s" in seen.err


def test_another_optimizer(small):
    model, twin = small_model(norm=None), small_model(norm=None)
    train(model, small, steps=1, batch_size=70, lr=0.1, optimizer=torch.optim.SGD)
    F.cross_entropy(twin(small.x_train), small.y_train).backward()
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q - 0.1 * q.grad, rtol=1e-4, atol=1e-6)


# Divergence


def test_a_run_that_diverges_stops_and_says_when(small):
    model = small_model(norm=None)
    optimizer = torch.optim.SGD
    history = train(model, small, epochs=50, lr=1e12, optimizer=optimizer)
    assert history.diverged
    assert "nan" in history.reason or "inf" in history.reason
    if "at step" in history.reason:
        assert history.reason.endswith(f"at step {len(history.step_loss)}")
        assert all(np.isfinite(history.step_loss[:-1]))
    assert len(history.step) < 50


def test_a_finite_run_has_not_diverged(small):
    history = train(small_model(), small, epochs=2)
    assert not history.diverged and history.reason == ""


# Stochastic depth


def test_a_dropped_block_is_its_shortcut_and_costs_nothing():
    class Explodes(nn.Module):
        def forward(self, x):
            raise AssertionError("a dropped branch was computed")

    block = Residual(Explodes())
    x = torch.randn(3, 4)
    with _dropped([block], [False]):
        assert torch.equal(block(x), x)
    with pytest.raises(AssertionError):
        block(x)


def test_survival_decays_linearly_and_scales_the_trained_branches(small):
    model = small_model(depth=4)
    train(model, small, steps=1, survival=0.6)
    # Huang et al. 2016, Eq. 4: p_l = 1 - (l / L) (1 - p_L)
    scales = [block.scale for block in model.blocks]
    assert scales == pytest.approx([0.9, 0.8, 0.7, 0.6])


def test_blocks_are_dropped_as_often_as_promised(small):
    calls = [0] * 4

    class Counts(nn.Module):
        def __init__(self, index):
            super().__init__()
            self.index = index

        def forward(self, x):
            calls[self.index] += self.training
            return 0 * x

    torch.manual_seed(0)
    stack = nn.Sequential(*(Residual(Counts(k)) for k in range(4)))
    train(classifier(stack, 6, 8, 3), small, steps=2000, batch_size=4, survival=0.2)
    for count, p in zip(calls, [0.8, 0.6, 0.4, 0.2], strict=True):
        assert abs(count / 2000 - p) < 5 * (p * (1 - p) / 2000) ** 0.5


def test_evaluation_uses_the_expected_branch(small):
    model = small_model()
    history = train(model, small, epochs=2, survival=0.5)
    model.eval()
    loss = float(F.cross_entropy(model(small.x_test), small.y_test).detach())
    assert history.test_loss[-1] == pytest.approx(loss, rel=1e-5)


def test_survival_one_is_plain_training(small):
    a, b = small_model(), small_model()
    assert train(a, small, epochs=2, survival=1.0) == train(b, small, epochs=2)
    assert a.blocks[0].scale == 1.0


# Bad input

BAD = [
    (dict(), ValueError, "epochs=None and steps=None: give exactly one"),
    (dict(epochs=1, steps=1), ValueError, "epochs=1 and steps=1: give exactly one"),
    (dict(epochs=0), ValueError, "epochs=0 must be at least 1"),
    (dict(steps=-1), ValueError, "steps=-1 must be at least 1"),
    (dict(steps=1, batch_size=0), ValueError, "batch_size=0 must be at least 1"),
    (dict(steps=1, lr=0.0), ValueError, "lr=0.0 must be above 0"),
    (dict(steps=1, lr=float("nan")), ValueError, "lr=nan must be above 0"),
    (dict(steps=1, warmup_steps=-1), ValueError, "warmup_steps=-1 must be at least 0"),
    (dict(steps=1, survival=0.0), ValueError, "survival=0.0 must be above 0"),
    (dict(steps=1, survival=1.5), ValueError, "survival=1.5 must be above 0"),
    (dict(steps=1, evaluate_every=0), ValueError, "evaluate_every=0 must be at least"),
    (dict(steps=2.5), TypeError, "steps=2.5 must be a whole number, got a float"),
    (
        dict(steps=torch.ones(2)),
        TypeError,
        r"steps=tensor\(\[1., 1.\]\) must be a whole number, got a Tensor",
    ),
    (
        dict(steps=torch.tensor(2.5)),
        TypeError,
        r"steps=tensor\(2.5000\) must be a whole number, got a Tensor",
    ),
]


@pytest.mark.parametrize("arguments, error, words", BAD)
def test_bad_arguments_are_named(small, arguments, error, words):
    with pytest.raises(error, match=f"^{words}"):
        train(small_model(), small, **arguments)


def test_only_the_processor_is_seeded_for_a_model_there(small, monkeypatch):
    """torch.manual_seed would seed every other device too, and nobody puts it back."""

    def refuse(n):
        raise AssertionError("a device was seeded that the model is not on")

    model = small_model()
    for device in (torch.cuda, torch.xpu):
        monkeypatch.setattr(device, "manual_seed_all", refuse)
    train(model, small, steps=1)
    first_steps("plain", 1, lrs=[1e-3], seeds=[0], steps=1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_random_numbers_of_a_gpu_are_put_back(small, device):
    data = Data(*(t.to(device) for t in small))
    torch.cuda.manual_seed_all(9)
    before = torch.cuda.get_rng_state_all()
    train(small_model().to(device), data, steps=1)
    assert all(map(torch.equal, before, torch.cuda.get_rng_state_all()))


def test_mismatched_data_shows_both_shapes(small):
    bad = small._replace(y_test=small.y_test[:-1])
    with pytest.raises(ValueError, match=r"\(30, 6\).*\(29,\)"):
        train(small_model(), bad, steps=1)


def test_data_and_models_that_cannot_be_trained(small):
    with pytest.raises(ValueError, match=r"x_test of shape \(0, 6\)"):
        empty = small._replace(x_test=small.x_test[:0], y_test=small.y_test[:0])
        train(small_model(), empty, steps=1)
    with pytest.raises(ValueError, match=r"torch.float32, expected .* int64"):
        train(small_model(), small._replace(y_train=small.y_train.float()), steps=1)
    with pytest.raises(ValueError, match="no parameter"):
        train(small_model().requires_grad_(False), small, steps=1)


@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
def test_training_where_gradients_are_off(small, off):
    right = train(small_model(), small, steps=3)
    model = small_model()
    with off():
        assert train(model, small, steps=3) == right


def test_survival_needs_blocks_that_can_be_dropped(small):
    with pytest.raises(ValueError, match="Residual"):
        train(small_model(residual=False), small, steps=1, survival=0.5)
    model = small_model()
    model.blocks[0].scale = nn.Parameter(torch.zeros(()))
    with pytest.raises(ValueError, match="learns it"):
        train(model, small, steps=1, survival=0.5)


@given(st.integers(1, 40), st.integers(1, 80))
def test_epochs_use_equal_batches(epochs, batch_size):
    x = torch.arange(70.0)[:, None]
    data = Data(x, torch.zeros(70, dtype=torch.long), x, torch.zeros(70).long())

    class Watches(nn.Linear):
        seen = ()

        def forward(self, x):
            if self.training:
                self.seen += (x.flatten().tolist(),)
            return super().forward(x * 0)

    model = Watches(1, 2)
    epochs = min(epochs, 3)
    train(model, data, epochs=epochs, batch_size=batch_size)
    batch = min(batch_size, 70)
    per_epoch = 70 // batch
    assert len(model.seen) == epochs * per_epoch
    assert all(len(b) == batch for b in model.seen)
    for e in range(epochs):
        batches = model.seen[e * per_epoch : (e + 1) * per_epoch]
        drawn = [value for batch in batches for value in batch]
        assert len(set(drawn)) == len(drawn)


def test_the_caller_keeps_a_copyable_model(small):
    model = small_model()
    train(model, small, epochs=1, survival=0.5)
    assert copy.deepcopy(model).blocks[0].scale == model.blocks[0].scale
