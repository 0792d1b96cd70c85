"""Recipes: what to do to x + F(x) at the start, so that the first steps go well.

One network, and fourteen ways to begin it. Most blocks are members of one family,

    h_l = N(a · h_{l−1} + b · F_l(h_{l−1})),    F(h) = W₂ relu(W₁ h + c₁) + c₂,

with W₁ and W₂ of shape (width, width) from He's initialisation. A recipe chooses a, b,
whether b is learned, what N is (nothing, or a LayerNorm), and the start of W₁ and W₂.

The others change F: "BatchNorm" and "zero γ" have a BatchNorm after each of its two
layers, "pre-norm" and "LayerScale" a LayerNorm before them (and one more after the last
block), and "Fixup" has biases and a multiplier of one number each. "plain" has no sum:
a = 0. He's draw is not the start in "default init" (PyTorch's) and "DeepNorm" (Xavier).
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional

from .arguments import choice, whole
from .blocks import Residual, classifier
from .training import Data, mnist1d
from .untouched import random_numbers_kept, seed_torch

BATCH_SIZE = 128


class Times(nn.Module):
    """Multiply by a fixed number: y = a · x. As a shortcut it is the family's a.

    >>> Times(2.0)(torch.tensor([1.0, -3.0])).tolist()
    [2.0, -6.0]
    """

    def __init__(self, a: float):
        super().__init__()
        self.a = a

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Return a · x."""
        return self.a * x


class FixupBranch(nn.Module):
    """Fixup's branch: F(x) = m · W₂(relu(W₁(x + b₁) + b₂) + b₃) + b₄.

    x is (..., width). The four biases are one number each and start at 0, the
    multiplier m is one number and starts at 1. With `depth` = L blocks of two layers
    each, W₁ is He's draw times L^(−1/2) and W₂ = 0, so that F(x) = 0 at the start; for
    m layers a branch the exponent is −1/(2m − 2). (The classifier is to start at zero
    too: that is the caller's, see `recipe_net`.)

    Raises ValueError for a width or depth below 1.

    Source: Zhang, Dauphin and Ma 2019, arXiv 1901.09321, §3.

    >>> branch = FixupBranch(16, depth=9)
    >>> bool((branch(torch.randn(4, 16)) == 0).all())
    True
    """

    def __init__(self, width: int, depth: int):
        super().__init__()
        whole("width", width), whole("depth", depth)
        self.linear1 = nn.Linear(width, width, bias=False)
        self.linear2 = nn.Linear(width, width, bias=False)
        self.biases = nn.Parameter(torch.zeros(4))
        self.multiplier = nn.Parameter(torch.ones(1))
        nn.init.kaiming_normal_(self.linear1.weight, nonlinearity="relu")
        nn.init.zeros_(self.linear2.weight)
        with torch.no_grad():
            self.linear1.weight *= depth**-0.5

    def forward(self, x: Float[Tensor, "... width"]) -> Float[Tensor, "... width"]:
        """Return F(x)."""
        b1, b2, b3, b4 = self.biases
        hidden = functional.relu(self.linear1(x + b1) + b2)
        return self.multiplier * self.linear2(hidden + b3) + b4


def _branch(width: int, *, he: bool = True, norm: str | None = None) -> nn.Sequential:
    """Return F: two Linear layers with a ReLU between; BatchNorm after each, if asked.

    `norm="before"` puts a LayerNorm in front instead. One seed gives every kind the
    same weights.
    """
    first, last = nn.Linear(width, width), nn.Linear(width, width)
    if he:
        for linear in (first, last):
            nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
            nn.init.zeros_(linear.bias)
    if norm == "batch":
        batch_norms = nn.BatchNorm1d(width), nn.BatchNorm1d(width)
        return nn.Sequential(first, batch_norms[0], nn.ReLU(), last, batch_norms[1])
    layers = [first, nn.ReLU(), last]
    return nn.Sequential(*([nn.LayerNorm(width)] if norm == "before" else []), *layers)


def layerscale_start(depth: int) -> float:
    """Return LayerScale's reported ε: 0.1 up to 18 blocks, 1e-5 up to 24, 1e-6 beyond.

    Raises TypeError or ValueError for a depth that is no whole number of at least 1.

    Source: Touvron et al. 2021, arXiv 2103.17239, §2.

    >>> [layerscale_start(depth) for depth in (18, 24, 36)]
    [0.1, 1e-05, 1e-06]
    """
    whole("depth", depth)
    return 0.1 if depth <= 18 else 1e-5 if depth <= 24 else 1e-6


def deepnorm_constants(depth: int) -> tuple[float, float]:
    """Return DeepNorm's (α, β) for a stack with `depth` residual sums.

    α = (2N)^(1/4) and β = (8N)^(−1/4) for N transformer layers of one stack, which have
    two sums each; so with S sums α = S^(1/4) and β = (4S)^(−1/4).

    Raises TypeError or ValueError for a depth that is no whole number of at least 1.

    Source: Wang et al. 2022, arXiv 2203.00555, Fig. 2.

    >>> alpha, beta = deepnorm_constants(200)  # a stack of N = 100 transformer layers
    >>> round(alpha, 3), round(beta, 3)
    (3.761, 0.188)
    """
    whole("depth", depth)
    return depth**0.25, (4 * depth) ** -0.25


# One function a recipe: (depth, width) -> the next block.


def _plain(depth, width):
    return _branch(width)


def _residual(depth, width):
    return Residual(_branch(width))


def _residual_default(depth, width):
    return Residual(_branch(width, he=False))


def _scaled_weights(depth, width):
    branch = _branch(width)
    with torch.no_grad():
        branch[-1].weight *= depth**-0.5
    return Residual(branch)


def _zero_last(depth, width):
    branch = _branch(width)
    nn.init.zeros_(branch.get_parameter("2.weight"))
    return Residual(branch)


def _rezero(depth, width):
    return Residual(_branch(width), scale=nn.Parameter(torch.zeros(1)))


def _skipinit(depth, width):
    return Residual(_branch(width), scale=nn.Parameter(torch.tensor([depth**-0.5])))


def _layerscale(depth, width):
    start = torch.full((width,), layerscale_start(depth))
    return Residual(_branch(width, norm="before"), scale=nn.Parameter(start))


def _fixup(depth, width):
    return Residual(FixupBranch(width, depth))


def _batch_norm(depth, width):
    return Residual(_branch(width, norm="batch"))


def _zero_gamma(depth, width):
    block = _batch_norm(depth, width)
    nn.init.zeros_(block.branch[-1].weight)
    return block


def _pre_norm(depth, width):
    return Residual(_branch(width, norm="before"))


def _post_norm(depth, width):
    return nn.Sequential(Residual(_branch(width)), nn.LayerNorm(width))


def _deepnorm(depth, width):
    alpha, beta = deepnorm_constants(depth)
    branch = _branch(width)
    for name in ("0.weight", "2.weight"):
        nn.init.xavier_normal_(branch.get_parameter(name), gain=beta)
    return nn.Sequential(Residual(branch, Times(alpha)), nn.LayerNorm(width))


RECIPES = {
    "plain": _plain,
    "residual": _residual,
    "default init": _residual_default,
    "1/√L weights": _scaled_weights,
    "zero last layer": _zero_last,
    "ReZero": _rezero,
    "SkipInit": _skipinit,
    "Fixup": _fixup,
    "BatchNorm": _batch_norm,
    "zero γ": _zero_gamma,
    "pre-norm": _pre_norm,
    "LayerScale": _layerscale,
    "post-norm": _post_norm,
    "DeepNorm": _deepnorm,
}


def recipe_net(recipe: str, depth: int, width: int = 32) -> nn.Sequential:
    """Return a classifier (batch, 40) → (batch, 10) with `depth` blocks by one recipe.

    `recipe` is a key of `RECIPES`. The parts are `stem`, `blocks` and `head`, as in
    `resnotes.blocks.classifier`. Pre-norm stacks end in one more LayerNorm; Fixup's
    head starts at zero. Weights come from the global random state, blocks first.

    Raises ValueError for an unknown recipe and for a depth or width below 1.

    >>> net = recipe_net("ReZero", depth=32)
    >>> h = net.stem(torch.randn(5, 40))
    >>> torch.equal(net.blocks(h), h)
    True
    """
    make_block = choice("recipe", recipe, RECIPES)
    whole("depth", depth), whole("width", width)
    blocks = [make_block(depth, width) for _ in range(depth)]
    if recipe in ("pre-norm", "LayerScale"):
        blocks.append(nn.LayerNorm(width))
    net = classifier(nn.Sequential(*blocks), 40, width, 10)
    if recipe == "Fixup":
        for parameter in net.get_submodule("head").parameters():
            nn.init.zeros_(parameter)
    return net


@torch.inference_mode(False)
@torch.enable_grad()
def first_steps(
    recipe: str,
    depth: int,
    *,
    lrs: Sequence[float],
    seeds: Sequence[int],
    steps: int = 100,
    width: int = 32,
    data: Data | None = None,
) -> Float[Tensor, "lrs seeds steps"]:
    """Return the mini-batch losses (nats) of a recipe's first steps, many runs at once.

    Entry [i, j, t] is the loss of step t + 1, before its update, with learning rate
    lrs[i] and seed seeds[j]: the weights of `torch.manual_seed(seed)` and the same
    batches of 128 as `resnotes.training.train(..., seed=seed)`, MNIST-1D unless `data`
    is given. Adam, constant rate. After a loss that is no finite number a run is over,
    and its other entries are nan.

    Runs so small leave a processor idle between them: all of them are one network whose
    every weight has a leading axis of len(lrs) · len(seeds), through `torch.func.vmap`.

    Random numbers and the caller's gradient mode stay as they were.

    Raises ValueError for an unknown recipe, for no rates or no seeds, for a rate that
    is not above 0 and finite, for a depth, width or number of steps below 1, for a
    negative seed, and for less data than one batch; TypeError for rates and seeds that
    are no sequences of numbers, and for a depth, width, seed or number of steps that is
    not whole.

    >>> losses = first_steps("ReZero", 4, lrs=[1e-3, 1e-2], seeds=[0, 1], steps=20)
    >>> losses.shape, bool((losses[:, :, -1] < losses[:, :, 0]).all())
    (torch.Size([2, 2, 20]), True)
    """
    advice = "give finite rates above 0, and seeds."
    try:
        rates, listed = [float(lr) for lr in lrs], list(seeds)
    except (TypeError, ValueError):
        raise TypeError(f"lrs={lrs!r} and seeds={seeds!r}: {advice}") from None
    if not rates or not listed or not all(0 < lr < math.inf for lr in rates):
        raise ValueError(f"lrs={rates!r} and seeds={listed!r}: {advice}")
    lrs, seeds = rates, [whole("seed", seed, least=0) for seed in listed]
    whole("steps", steps)
    data = mnist1d() if data is None else data
    if len(data.x_train) < BATCH_SIZE:
        raise ValueError(
            f"data has {len(data.x_train)} training examples, expected at least "
            f"{BATCH_SIZE}, one batch."
        )
    nets, cpu = [], torch.device("cpu")
    with random_numbers_kept(cpu):
        for seed in seeds:
            seed_torch(seed, cpu)
            nets.append(recipe_net(recipe, depth, width).train())
    stacked, buffers = stack_module_state(nets)
    # Runs of one rate stand together: (seeds, …) -> (lrs · seeds, …).
    many = [{k: _repeat(v, len(lrs)) for k, v in d.items()} for d in (stacked, buffers)]
    weights = {name: w.detach().requires_grad_() for name, w in many[0].items()}
    rate = torch.tensor(lrs).repeat_interleave(len(seeds))
    skeleton = nets[0]

    def loss_of(weights, buffers, x, y):
        logits = functional_call(skeleton, (weights, buffers), x)
        return functional.cross_entropy(logits, y)

    batches = _batches(data, seeds, steps)
    adam = _Adam(weights.values(), rate)
    losses = []
    for x, y in batches:
        x, y = _repeat(x, len(lrs)), _repeat(y, len(lrs))
        loss = vmap(loss_of)(weights, many[1], x, y)  # (lrs · seeds,)
        losses.append(loss.detach())
        adam.step(torch.autograd.grad(loss.sum(), list(weights.values())))
    curves = torch.stack(losses, dim=1).view(len(lrs), len(seeds), steps)
    over = (~curves.isfinite()).cumsum(-1).roll(1, -1)
    over[..., 0] = 0
    return curves.masked_fill(over > 0, float("nan"))


def _repeat(stacked: Tensor, times: int) -> Tensor:
    """Repeat a (seeds, …) tensor along its first axis."""
    return stacked.repeat(times, *[1] * (stacked.dim() - 1))


def _batches(data: Data, seeds: Sequence[int], steps: int):
    """Yield x (seeds, batch, features) and y (seeds, batch), shuffled like `train`."""
    shuffles = [torch.Generator().manual_seed(seed) for seed in seeds]
    per_epoch = len(data.x_train) // BATCH_SIZE
    for step in range(steps):
        place = step % per_epoch
        if place == 0:
            orders = torch.stack(
                [
                    torch.randperm(len(data.x_train), generator=g, device="cpu")
                    for g in shuffles
                ]
            )
        chosen = orders[:, place * BATCH_SIZE : (place + 1) * BATCH_SIZE]
        yield data.x_train[chosen], data.y_train[chosen]


class _Adam:
    """Adam with PyTorch's defaults and one learning rate a run (axis 0)."""

    def __init__(self, weights, rate: Float[Tensor, " runs"]):
        self.weights, self.rate, self.t = list(weights), rate, 0
        self.mean = [torch.zeros_like(w) for w in self.weights]
        self.square = [torch.zeros_like(w) for w in self.weights]

    @torch.no_grad()
    def step(self, gradients) -> None:
        self.t += 1
        for w, g, m, v in zip(
            self.weights, gradients, self.mean, self.square, strict=True
        ):
            m.lerp_(g, 1 - 0.9)
            v.mul_(0.999).addcmul_(g, g, value=1 - 0.999)
            root = (v / (1 - 0.999**self.t)).sqrt_().add_(1e-8)
            rate = self.rate.view(-1, *[1] * (w.dim() - 1))
            w -= rate / (1 - 0.9**self.t) * m / root
