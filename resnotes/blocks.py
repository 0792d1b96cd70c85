"""Blocks, and stacks of them that differ in one thing only.

Read from the top: the residual wrapper h + F(h), then stacks of plain or residual
layers made by one recipe, then the classifier that puts a stem and a head around them.
"""

from collections import OrderedDict

from jaxtyping import Float
from torch import Tensor, nn

ACTIVATIONS = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "linear": nn.Identity,
}
NORMS = {None: None, "batch": nn.BatchNorm1d, "layer": nn.LayerNorm}


def _init_default(weight: Tensor, bias: Tensor) -> None:
    """Leave what `nn.Linear` drew: U(−1/√width, 1/√width), a gain of 1/√3 a layer."""


def _init_xavier(weight: Tensor, bias: Tensor) -> None:
    nn.init.xavier_normal_(weight)
    nn.init.zeros_(bias)


def _init_he(weight: Tensor, bias: Tensor) -> None:
    nn.init.kaiming_normal_(weight, nonlinearity="relu")
    nn.init.zeros_(bias)


def _init_orthogonal(weight: Tensor, bias: Tensor) -> None:
    nn.init.orthogonal_(weight)
    nn.init.zeros_(bias)


INITS = {
    "default": _init_default,
    "xavier": _init_xavier,
    "he": _init_he,
    "orthogonal": _init_orthogonal,
}


def _choice(name: str, value, choices):
    """Return the entry `value` picks, or say what could have been picked."""
    if value not in choices:
        known = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{name}={value!r} is not known; choose one of {known}.")
    return choices[value]


def _positive(name: str, value) -> int:
    """Return `value` if it is a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}={value!r} must be an int, got {type(value).__name__}.")
    if value < 1:
        raise ValueError(f"{name}={value} must be at least 1.")
    return value


class Residual(nn.Module):
    """A layer that adds to its input: y = shortcut(x) + scale · F(x).

    `branch` is F, any module; `shortcut` is the identity unless given. Both must return
    the same shape: nothing is broadcast. Their values are added as they are, with
    nothing after the sum.

    Raises ValueError at the first call where the two shapes differ, with both shapes.

    Source: He et al. 2015, arXiv 1512.03385, Eq. 1 and 2.

    >>> import torch
    >>> from torch import nn
    >>> Residual(nn.Linear(3, 3), scale=0.0)(torch.tensor([1.0, 2.0, 3.0])).tolist()
    [1.0, 2.0, 3.0]
    """

    def __init__(
        self,
        branch: nn.Module,
        shortcut: nn.Module | None = None,
        scale: float = 1.0,
    ):
        super().__init__()
        self.branch = branch
        self.shortcut = nn.Identity() if shortcut is None else shortcut
        self.scale = scale

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Return shortcut(x) + scale · branch(x)."""
        kept, added = self.shortcut(x), self.branch(x)
        if kept.shape != added.shape:
            raise ValueError(
                f"shortcut gives shape {tuple(kept.shape)} but branch gives "
                f"{tuple(added.shape)} for an input of shape {tuple(x.shape)}; "
                "make the branch keep the shape or give a shortcut that matches it."
            )
        return kept + self.scale * added


def mlp_stack(
    depth: int,
    width: int,
    *,
    residual: bool,
    activation: str = "tanh",
    norm: str | None = None,
    init: str = "default",
    scale: float = 1.0,
) -> nn.Sequential:
    """Stack `depth` layers σ(norm(W h + b)), plain or residual, by one recipe.

    plain     h_l = σ(norm(W_l h_{l−1} + b_l))
    residual  h_l = h_{l−1} + scale · σ(norm(W_l h_{l−1} + b_l))

    Takes and returns (batch, width). The layers are drawn in order and nothing else is
    drawn, so one seed gives both kinds the same weights. `activation`: "tanh", "relu",
    "gelu" or "linear"; `norm`: None, "batch" or "layer"; `init`: "default" (PyTorch's),
    or "xavier", "he", "orthogonal" with zero biases.

    Raises ValueError for an unknown choice and for a depth or width below 1.

    >>> import torch
    >>> x = torch.randn(8, 64)
    >>> mlp_stack(40, 64, residual=True, norm="batch")(x).shape
    torch.Size([8, 64])
    """
    _positive("depth", depth), _positive("width", width)
    make_activation = _choice("activation", activation, ACTIVATIONS)
    make_norm = _choice("norm", norm, NORMS)
    initialise = _choice("init", init, INITS)
    if not residual and scale != 1.0:
        raise ValueError(
            f"scale={scale} has no branch to scale in a plain stack; leave it out."
        )

    blocks = []
    for _ in range(depth):
        linear = nn.Linear(width, width)
        initialise(linear.weight, linear.bias)
        layers = [linear]
        if make_norm is not None:
            layers.append(make_norm(width))
        layers.append(make_activation())
        block = nn.Sequential(*layers)
        blocks.append(Residual(block, scale=scale) if residual else block)
    return nn.Sequential(*blocks)


def classifier(
    stack: nn.Sequential, features: int, width: int, classes: int
) -> nn.Sequential:
    """Put a linear stem and a linear head around a stack: head(stack(stem(x))).

    (batch, features) → stem → (batch, width) → blocks → (batch, width) → head →
    (batch, classes). The parts are named `stem`, `blocks` and `head`. Plain and
    residual nets made this way differ in their `stack` alone.

    >>> net = classifier(mlp_stack(20, 64, residual=True), 40, 64, 10)
    >>> [name for name, _ in net.named_children()]
    ['stem', 'blocks', 'head']
    """
    return nn.Sequential(
        OrderedDict(
            stem=nn.Linear(_positive("features", features), _positive("width", width)),
            blocks=stack,
            head=nn.Linear(width, _positive("classes", classes)),
        )
    )
