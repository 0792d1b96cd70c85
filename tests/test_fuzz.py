"""Whatever comes in: the right answer or one clear error, and nothing is changed.

Hypothesis draws stacks of awkward blocks, inputs of any shape, dtype, layout and value,
and what surrounds the call. The oracle is autograd by hand on a copy of the model.
"""

import copy
import random
import threading
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn

from resnotes import lesions, paths
from resnotes.blocks import Residual
from resnotes.gradients import depth_sweep, gradient_autocorrelation, gradient_norms
from resnotes.jacobians import (
    block_jacobians,
    chain_jacobian,
    singular_values,
    singular_values_by_depth,
)
from resnotes.paths import (
    every_path,
    gradient_by_length,
    path_gradients,
    sample_path_norms,
)
from resnotes.training import seed

WIDTH = 4


class Restless(nn.Module):
    """Changes all it can: buffer, attributes, hooks, its input, three random states."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.calls = 0
        self.last = None
        self.sizes, self.sums, self.kinds = [], {}, set()

    def forward(self, h):
        self.seen += 1
        self.calls += 1
        self.sizes.append(h.shape)
        self.sums[self.calls] = h.sum()
        self.kinds.add(h.dtype)
        self.register_forward_hook(lambda module, inputs, output: None)
        h *= 1 + random.random() + np.random.rand()
        self.last = h * torch.rand(())
        return self.last


def hooked(module):
    """Return the module with a hook of each kind that sees and changes nothing."""
    module.register_forward_pre_hook(lambda module, inputs: None)
    module.register_forward_hook(lambda module, inputs, output: None)
    module.register_full_backward_hook(lambda module, before, after: None)
    return module


def frozen(module):
    return module.requires_grad_(False)


SHARED = nn.Linear(WIDTH, WIDTH)
BLOCKS = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "frozen": lambda: frozen(nn.Linear(WIDTH, WIDTH)),
    "shared": lambda: SHARED,
    "hooked": lambda: hooked(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())),
    "residual": lambda: Residual(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU())),
    "in place": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True)),
    "dropout": lambda: nn.Dropout(0.3),
    "batch norm": lambda: nn.BatchNorm1d(WIDTH),
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "spectral": lambda: nn.utils.parametrizations.spectral_norm(
        nn.Linear(WIDTH, WIDTH)
    ),
    "restless": Restless,
    "nothing": nn.Identity,
}
SAMPLEWISE = sorted({*BLOCKS} - {"batch norm"})
BRANCHES = sorted({*SAMPLEWISE} - {"residual"})
CONTEXTS = {
    "none": nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}


def stacks(kinds=tuple(BLOCKS)):
    """Draw a stack of up to five blocks, in float32, in train or eval mode."""
    names = st.lists(st.sampled_from(sorted(kinds)), min_size=1, max_size=5)
    return st.tuples(names, st.booleans())


def built(drawn, dtype=torch.float32):
    names, training = drawn
    stack = nn.Sequential(*[BLOCKS[name]() for name in names])
    return copy.deepcopy(stack).to(dtype).train(training)


@st.composite
def good_inputs(draw, shape, dtypes=(torch.float32, torch.float64)):
    """Draw finite x of a shape: any layout, leaf or not, with a gradient or not."""
    dtype = draw(st.sampled_from(dtypes))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    x = torch.randn(shape, generator=generator).to(dtype)
    layout = draw(st.sampled_from(["plain", "transposed", "strided", "expanded"]))
    if layout == "transposed" and x.ndim > 1:
        x = x.transpose(0, -1).contiguous().transpose(0, -1)
    elif layout == "strided" and x.ndim:
        x = torch.stack([x, x + 9], dim=-1)[..., 0]
    elif layout == "expanded" and x.ndim:
        x = x[:1].expand(shape)
    kind = draw(st.sampled_from(["constant", "leaf", "result"]))
    if kind != "constant":
        x = x.detach().requires_grad_()
    return x * 1.0 if kind == "result" and layout != "expanded" else x


def everything(model, x):
    """Return a list of all that a call must leave as it was."""
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    tensors = [t for m in modules for t in (*m.parameters(False), *m.buffers(False))]
    tensors += [x] if isinstance(x, torch.Tensor) and not x.is_meta else []
    return [
        [(id(t), t.detach().clone(), t.requires_grad, t.dtype) for t in tensors],
        [t.grad for t in tensors if t.is_leaf],
        [m.training for m in modules],
        [(getattr(m, "calls", None), id(getattr(m, "last", None))) for m in modules],
        [
            [list(getattr(m, name, ())) for name in ("sizes", "sums", "kinds")]
            for m in modules
        ],
        [
            list(hooks)
            for m in modules
            for hooks in (m._forward_hooks, m._forward_pre_hooks, m._backward_hooks)
        ],
        [sorted(vars(m)) for m in modules],
        torch.get_rng_state(),
        np.random.get_state(),
        random.getstate(),
        [torch.is_grad_enabled(), torch.is_inference_mode_enabled()],
        [torch.is_autocast_enabled("cpu"), torch.get_default_dtype()],
        [torch.backends.cuda.flash_sdp_enabled(), torch.get_num_threads()],
    ]


def same(before, after):
    if isinstance(before, list | tuple):
        return len(before) == len(after) and all(map(same, before, after))
    if isinstance(before, np.ndarray):
        return np.array_equal(before, after)
    if isinstance(before, torch.Tensor):
        if torch.equal(before, after) or before.shape != after.shape:
            return before.shape == after.shape
        both_nan = before.isnan() & after.isnan()
        return bool(((before == after) | both_nan).all())
    return before == after


def test_what_changes_beside_a_nan_is_seen():
    nan = torch.nan
    assert same(torch.tensor([nan, 1.0]), torch.tensor([nan, 1.0]))
    for other in ([nan, 2.0], [nan, nan], [1.0, 1.0], [nan, 1.0, 0.0]):
        assert not same(torch.tensor([nan, 1.0]), torch.tensor(other))


@contextmanager
def unchanged(model, x):
    before = everything(model, x)
    yield
    for kept, now in zip(before, everything(model, x), strict=True):
        assert same(kept, now), (kept, now)


def by_hand(blocks, x, plus=False):
    """Return h_0 … h_L of a copy, in one graph, with the same draws.

    With `plus` the blocks are branches: h + F(h).
    """
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    blocks = copy.deepcopy(blocks)
    try:
        stream = [x.detach().clone().requires_grad_()]
        for block in blocks:
            added = block(stream[-1].clone())
            stream.append(stream[-1] + added if plus else added)
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])
    return stream


def weighted(h):
    """A loss no norm makes constant, which works in place as a careless one does."""
    return h.mul_(torch.linspace(-1, 2, h.numel()).view_as(h).to(h)).pow(2).sum()


def norms_by_hand(blocks, x):
    stream = by_hand(blocks, x)
    value = weighted(stream[-1].clone())
    grads = torch.autograd.grad(value, stream, allow_unused=True, retain_graph=True)
    zeros = (torch.zeros(()) if g is None else g.double().norm() for g in grads)
    return torch.stack([z.double() for z in zeros])


def tolerance(dtype):
    return {torch.float64: 1e-9, torch.float32: 2e-4}.get(dtype, 0.1)


def agree(ours, right, dtype):
    scale = float(right.abs().max()) if right.numel() else 0.0
    room = tolerance(dtype)
    torch.testing.assert_close(
        ours.double(), right.double(), rtol=room, atol=room * scale + 1e-30
    )


quietly = pytest.mark.filterwarnings("ignore:loss is degenerate")


# --- the right answer --------------------------------------------------------------

HALVES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@quietly
@given(stacks(), good_inputs((3, WIDTH), HALVES), st.sampled_from(sorted(CONTEXTS)))
def test_gradients_by_hand(drawn, x, context):
    model = built(drawn, x.dtype)
    right = norms_by_hand(model, x)
    assume(right.isfinite().all() and right.max() < 1e4)
    with CONTEXTS[context](), unchanged(model, x):
        ours = gradient_norms(model, x, weighted)
        swept = depth_sweep(model, x, [len(model)], weighted)
    assert ours.dtype == swept.dtype == x.dtype and not ours.requires_grad
    agree(ours, right, x.dtype)
    agree(swept, right[:1], x.dtype)


@given(
    stacks(SAMPLEWISE),
    good_inputs((WIDTH,), HALVES),
    st.sampled_from(sorted(CONTEXTS)),
)
def test_jacobians_by_hand(drawn, x, context):
    model = built(drawn, x.dtype)
    try:
        start, end = by_hand([model], x)
        rows = [torch.autograd.grad(y, start, retain_graph=True)[0] for y in end]
    except RuntimeError:  # the restless one writes where autograd wants to read
        with pytest.raises(ValueError, match="inplace"):
            chain_jacobian(model, x)
        return
    right = torch.stack(rows)
    with CONTEXTS[context](), unchanged(model, x):
        ours = chain_jacobian(model, x)
        values = singular_values(model, x)
        blocks = block_jacobians(model, x)
        by_depth = singular_values_by_depth(model, x)
    assert ours.dtype == values.dtype == by_depth.dtype == x.dtype
    agree(ours, right, x.dtype)
    product = torch.eye(WIDTH, dtype=torch.float64)
    for block in blocks:
        product = block.double() @ product
    agree(product, right, x.dtype)
    agree(values, torch.linalg.svdvals(right.double()), x.dtype)
    agree(by_depth[-1], values, x.dtype)


@given(
    stacks(BRANCHES),
    good_inputs((2, WIDTH), HALVES),
    st.sampled_from(sorted(CONTEXTS)),
)
def test_paths_by_hand(drawn, x, context):
    branches = built(drawn, x.dtype)
    stream = by_hand(branches, x, plus=True)
    g = torch.linspace(-1, 1, x.numel()).view(x.shape).to(x.dtype)
    (right,) = torch.autograd.grad(stream[-1], stream[0], g)
    assume(right.double().abs().max() < 1e3)
    with CONTEXTS[context](), unchanged(branches, x):
        rows = path_gradients(list(branches), x, g)
        norms = gradient_by_length(list(branches), x, g)
        taken, single = every_path(list(branches), x, g)
        sample_path_norms(list(branches), x, g, samples=2)
    assert rows.dtype == single.dtype == x.dtype
    agree(rows.double().sum(0), right, x.dtype)
    agree(norms, rows.double().flatten(1).norm(dim=1), x.dtype)
    listed = [
        single[taken.sum(1) == m].double().sum(0) for m in range(len(branches) + 1)
    ]
    agree(rows, torch.stack(listed), x.dtype)


def writes(make):
    """Return a module that begins by writing into its input."""
    return nn.Sequential(make(), nn.Linear(WIDTH, WIDTH))


@pytest.mark.parametrize("mode", [nullcontext, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("make", [lambda: nn.ReLU(inplace=True), Restless])
@pytest.mark.parametrize("part", ["branch", "shortcut"])
def test_a_part_that_writes_into_its_input_is_refused_or_right(mode, make, part):
    other = nn.Linear(WIDTH, WIDTH)
    parts = {"branch": other, "shortcut": other, part: writes(make)}
    block = Residual(**parts, scale=0.5)
    with mode():
        x = torch.linspace(-1, 1, WIDTH)
        if mode is torch.inference_mode:
            kept = x.clone()
            seed(0)
            right = block.shortcut(x.clone()) + 0.5 * block.branch(x.clone())
            seed(0)
            assert torch.equal(block(x), right) and torch.equal(x, kept)
        else:
            with pytest.raises(ValueError, match="writes into its input"):
                block(x)


@quietly
@given(stacks(), st.sampled_from([(), (WIDTH,), (1, WIDTH), (2, 3, WIDTH)]))
def test_any_shape_is_right_or_refused(drawn, shape):
    model, x = built(drawn), torch.randn(shape)
    try:
        right = norms_by_hand(model, x)
    except (RuntimeError, ValueError, IndexError):
        with pytest.raises(ValueError, match=r"block \d \(model\[\d\]"):
            gradient_norms(model, x)
        return
    agree(gradient_norms(model, x, weighted), right, x.dtype)


@quietly
def test_several_threads_at_once():
    model = built((["dropout", "batch norm", "restless", "linear"], True))
    x, results = torch.randn(3, WIDTH), []
    expected = gradient_norms(model, x, weighted)

    def work():
        for _ in range(5):
            results.append(gradient_norms(model, x, weighted))
            path_gradients(list(model[2:]), x, x)

    with unchanged(model, x):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(results) == 20 and all(torch.equal(r, expected) for r in results)


@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16])
def test_another_default_dtype_changes_nothing(default):
    model, x = built((["linear", "in place"], True)), torch.randn(2, WIDTH)

    def measured():
        return [
            gradient_norms(model, x),
            depth_sweep(model, x, [1, 2]),
            chain_jacobian(model, x[0]),
            singular_values(model, x[0]),
            path_gradients(model, x, x),
            sample_path_norms(list(model), x, x, samples=3),
            paths.path_length_distribution(3),
        ]

    before, kept = measured(), torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        after = measured()
    finally:
        torch.set_default_dtype(kept)
    assert all(map(torch.equal, before, after))


def test_another_default_device_changes_nothing():
    model, x = built((["linear", "in place"], True)), torch.randn(2, WIDTH)
    before = sample_path_norms(list(model), x, x), depth_sweep(model, x, [1, 2])
    orders = lesions.random_deletions(9, 3, seed=0), lesions.random_swaps(9, 3, seed=0)
    with torch.device("meta"):
        after = sample_path_norms(list(model), x, x), depth_sweep(model, x, [1, 2])
        again = (
            lesions.random_deletions(9, 3, seed=0),
            lesions.random_swaps(9, 3, seed=0),
        )
    assert all(map(torch.equal, before, after)) and orders == again


# --- one clear error ---------------------------------------------------------------

BAD_INPUTS = {
    "empty batch": (torch.zeros(0, WIDTH), "expected at least one number"),
    "no features": (torch.zeros(3, 0), "expected at least one number"),
    "empty": (torch.zeros(0), "expected at least one number"),
    "integers": (torch.ones(2, WIDTH, dtype=torch.int64), "expected floating point"),
    "booleans": (torch.ones(2, WIDTH, dtype=torch.bool), "expected floating point"),
    "complex": (torch.ones(2, WIDTH) * 1j, "expected floating point"),
    "8 bits": (torch.ones(2, WIDTH).to(torch.float8_e4m3fn), "expected floating point"),
    "nan": (torch.full((2, WIDTH), torch.nan), "8 non-finite of 8"),
    "inf": (torch.tensor([[torch.inf, 0.0, 0.0, 0.0]]), "1 non-finite of 4"),
    "meta": (torch.ones(2, WIDTH, device="meta"), "on the meta device"),
    "sparse": (torch.eye(WIDTH).to_sparse(), "dense"),
    "a list": ([[1.0] * WIDTH], "is a list, expected a tensor"),
    "numpy": (np.ones((2, WIDTH)), "is a ndarray, expected a tensor"),
    "none": (None, "is a NoneType, expected a tensor"),
}
FUNCTIONS = {
    "gradient_norms": lambda model, x: gradient_norms(model, x),
    "depth_sweep": lambda model, x: depth_sweep(model, x, [len(model)]),
    "gradient_autocorrelation": lambda model, x: gradient_autocorrelation(model, x),
    "chain_jacobian": lambda model, x: chain_jacobian(model, x),
    "block_jacobians": lambda model, x: block_jacobians(model, x),
    "singular_values": lambda model, x: singular_values(model, x),
    "singular_values_by_depth": lambda model, x: singular_values_by_depth(model, x),
    "path_gradients": lambda model, x: path_gradients(model, x, x),
    "gradient_by_length": lambda model, x: gradient_by_length(model, x, x),
    "every_path": lambda model, x: every_path(model, x, x),
    "sample_path_norms": lambda model, x: sample_path_norms(model, x, x),
}


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("kind", BAD_INPUTS)
def test_a_bad_input_is_named(function, kind):
    model = built((["linear", "restless"], True))
    x, words = BAD_INPUTS[kind]
    with (
        unchanged(model, x if kind != "sparse" else None),
        pytest.raises((ValueError, TypeError), match=words) as caught,
    ):
        FUNCTIONS[function](model, x)
    assert str(caught.value).startswith(("x ", "line "))


class Own(nn.Sequential):
    """A Sequential that does something else than run its blocks."""

    def forward(self, x):
        return 2 * super().forward(x)


class Pair(nn.Module):
    def forward(self, h):
        return h, h


class Complex(nn.Module):
    def forward(self, h):
        return h * 1j


class Detached(nn.Module):
    def forward(self, h):
        return h.detach()


class Fails(nn.Module):
    def forward(self, h):
        raise KeyError("broken on purpose")


def doubled():
    model = built((["linear"], True))
    model.register_forward_hook(lambda module, inputs, output: 2 * output)
    return model


BAD_BLOCKS = {
    "another width": (lambda: nn.Linear(3, 3), "block 1 .*3"),
    "two tensors": (Pair, "block 1 .*returned a tuple"),
    "complex": (Complex, "block 1 .*returned dtype torch.complex64"),
    "raises": (Fails, "block 1 .*broken on purpose"),
    "lazy": (lambda: nn.LazyLinear(WIDTH), "LazyLinear has not seen an input"),
    "another dtype": (lambda: nn.Linear(WIDTH, WIDTH).double(), "block 1 .*float64"),
    "meta": (lambda: nn.Linear(WIDTH, WIDTH, device="meta"), "block 1 .*meta"),
}


@pytest.mark.parametrize("function", sorted(FUNCTIONS))
@pytest.mark.parametrize("kind", BAD_BLOCKS)
def test_a_bad_block_is_named(function, kind):
    make, words = BAD_BLOCKS[kind]
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), make())
    x = torch.randn(WIDTH) if "jac" in function or "sing" in function else None
    x = torch.randn(5, WIDTH) if x is None else x
    before = [vars(module) for module in model.modules()]
    with pytest.raises((ValueError, TypeError), match=words):
        FUNCTIONS[function](model, x)
    after = [vars(module) for module in model.modules()]
    assert all(a is b for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("gradient_norms", r"block 1 \(model\[1\], a Detached\) .*cut off"),
        ("depth_sweep", r"block 1 \(blocks\[1\], a Detached\) .*cut off"),
        ("gradient_autocorrelation", r"model \(a Sequential\) .*cut off"),
    ],
)
def test_what_a_detached_block_hides_is_said(function, words):
    model, x = nn.Sequential(nn.Linear(WIDTH, WIDTH), Detached()), torch.randn(5, WIDTH)
    with unchanged(model, x), pytest.raises(ValueError, match=words):
        FUNCTIONS[function](model, x)


def test_the_derivative_of_a_detached_block_is_zero():
    model, x = nn.Sequential(nn.Linear(WIDTH, WIDTH), Detached()), torch.randn(WIDTH)
    assert not chain_jacobian(model, x).any() and not singular_values(model, x).any()
    assert not block_jacobians(model, x)[1].any()
    rows = path_gradients(model, x, x)  # of the paths that take block 1: nothing
    assert torch.equal(rows[0], x) and rows[1].any() and not rows[2].any()


@pytest.mark.parametrize(
    "function",
    ["gradient_norms", "depth_sweep", "block_jacobians", "singular_values_by_depth"],
)
@pytest.mark.parametrize("make", [lambda: Own(nn.Linear(WIDTH, WIDTH)), doubled])
def test_a_chain_that_is_more_than_its_blocks_is_refused(function, make):
    x = torch.randn(WIDTH)
    with pytest.raises(TypeError, match="forward or with hooks of its own"):
        FUNCTIONS[function](make(), x)


@pytest.mark.parametrize("make", [lambda: Own(*[nn.Linear(4, 4)] * 2), doubled])
def test_the_jacobian_of_a_chain_that_is_more_than_its_blocks(make):
    model, x = make(), torch.randn(WIDTH)
    right = torch.autograd.functional.jacobian(model, x)
    agree(chain_jacobian(model, x), right, x.dtype)
    agree(singular_values(model, x), torch.linalg.svdvals(right), x.dtype)
