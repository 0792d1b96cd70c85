"""Blocks, and stacks of them that differ in one thing only.

Read from the top: how shapes are checked, the wrapper x + F(x), the convolutional
block and its shortcuts, the transformer blocks, the flexible block, and last the
builders, which make a plain and a residual stack by one recipe.
"""

from collections import OrderedDict
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from .arguments import choice, whole

# Modules that leave the shape of what passes through them as it was.
SHAPE_KEEPING = (
    *(nn.Identity, nn.Dropout, nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid),
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm, nn.GroupNorm),
)


def _end(module: nn.Module, side: str) -> tuple[str, int] | None:
    """Return what is known of a module's input (`side="in"`) or output (`"out"`).

    ("features", n) is a last axis of n, ("channels", n) a channel axis of n, and None
    means that only a call can tell.
    """
    if isinstance(module, nn.Sequential):
        layers = [m for m in module if not isinstance(m, SHAPE_KEEPING)]
        if not layers:
            return None
        return _end(layers[0] if side == "in" else layers[-1], side)
    for kind in ("features", "channels"):
        count = getattr(module, f"{side}_{kind}", None)
        if isinstance(count, int):
            return kind, count
    return None


def _check_known_ends(branch: nn.Module, shortcut: nn.Module) -> None:
    """Raise if shortcut(x) + branch(x) cannot have one shape, whatever x is."""
    takes, gives = _end(branch, "in"), _end(branch, "out")
    if isinstance(shortcut, SHAPE_KEEPING):
        kept_takes, kept_gives = takes, takes
    else:
        kept_takes, kept_gives = _end(shortcut, "in"), _end(shortcut, "out")
    for verb, ours, theirs in [
        ("takes", takes, kept_takes),
        ("gives", gives, kept_gives),
    ]:
        if ours and theirs and ours[0] == theirs[0] and ours[1] != theirs[1]:
            raise ValueError(
                f"branch {verb} {ours[1]} {ours[0]} but shortcut {verb} {theirs[1]}; "
                "keep the shape in the branch or give a shortcut that changes it too."
            )


def _sum(shortcut: nn.Module, branch: nn.Module, x: Tensor, scale=1.0) -> Tensor:
    """Return shortcut(x) + scale · branch(x), and never broadcast one to the other."""
    if x.is_inference():  # counts no writes, so that none could be noticed below
        kept, added = shortcut(x.clone()), branch(x.clone())
    else:
        writes = x._version
        kept, added = shortcut(x), branch(x)
        if x._version != writes:
            raise ValueError(
                "branch or shortcut writes into its input, which the other one reads "
                "too; set inplace=False in the first layer, or give it a copy."
            )
    if isinstance(scale, Tensor) or scale != 1:
        added = scale * added
    if kept.shape != added.shape:
        raise ValueError(
            f"shortcut gives shape {tuple(kept.shape)} but branch gives "
            f"{tuple(added.shape)} for an input of shape {tuple(x.shape)}; "
            "keep the shape in the branch or give a shortcut that changes it too."
        )
    return kept + added


class Residual(nn.Module):
    """A layer that adds to its input: y = shortcut(x) + scale · F(x).

    `branch` is F, any module; `shortcut` is the identity unless given. Both must return
    one shape: nothing is broadcast. Nothing comes after the sum. A `Parameter` as
    `scale` is learned.

    A branch that ends in ReLU can only add, never take away.

    Raises ValueError when the two shapes differ: at construction where the layers tell
    (a branch from `Linear(64, 32)` on), else at the first call, with both shapes. And
    when the branch writes into its input, as with `ReLU(inplace=True)` first: the
    shortcut would pass on what was written.

    Source: He et al. 2015, arXiv 1512.03385, Eq. 1 and 2.

    >>> block = Residual(nn.Linear(3, 3), scale=0.0)
    >>> block(torch.tensor([1.0, 2.0, 3.0])).tolist()
    [1.0, 2.0, 3.0]
    """

    def __init__(
        self,
        branch: nn.Module,
        shortcut: nn.Module | None = None,
        scale: float | Tensor = 1.0,
    ):
        super().__init__()
        self.branch = branch
        self.shortcut = nn.Identity() if shortcut is None else shortcut
        self.scale = scale
        _check_known_ends(self.branch, self.shortcut)

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Return shortcut(x) + scale · branch(x)."""
        return _sum(self.shortcut, self.branch, x, self.scale)


class ZeroPad(nn.Module):
    """A shortcut without weights: every stride-th position, then channels of zeros.

    (batch, channels, height, width) → (batch, out_channels, ⌈height/stride⌉,
    ⌈width/stride⌉). Features of shape (batch, channels) work too, with a stride of 1.

    Raises ValueError if `out_channels` is below `channels`: padding cannot drop any.

    Source: He et al. 2015, arXiv 1512.03385, §3.3, option A.

    >>> ZeroPad(1, 3)(torch.tensor([[5.0]])).tolist()
    [[5.0, 0.0, 0.0]]
    """

    def __init__(self, channels: int, out_channels: int, stride: int = 1):
        super().__init__()
        whole("channels", channels), whole("out_channels", out_channels)
        whole("stride", stride)
        if out_channels < channels:
            raise ValueError(
                f"shortcut='pad' cannot go from {channels} channels to {out_channels}; "
                "use 'projection' or 'linear' to lose channels."
            )
        self.in_channels, self.out_channels = channels, out_channels
        self.stride = stride

    def forward(
        self, x: Float[Tensor, "batch channels *space"]
    ) -> Float[Tensor, "batch out_channels *smaller"]:
        """Return x thinned out by the stride and padded with zeros on axis 1."""
        if x.dim() < 2 or x.shape[1] != self.in_channels:
            raise ValueError(
                f"x has shape {tuple(x.shape)} but this shortcut takes "
                f"(batch, {self.in_channels}, …)."
            )
        for axis in range(2, x.dim()):
            x = x[(slice(None),) * axis + (slice(None, None, self.stride),)]
        missing = self.out_channels - self.in_channels
        return functional.pad(x, (0, 0) * (x.dim() - 2) + (0, missing))


def _conv_shortcut(kind: str, channels: int, out_channels: int, stride: int):
    """Return the shortcut of a convolutional block whose branch changes the shape."""
    if kind == "pad":
        return ZeroPad(channels, out_channels, stride)
    if kind == "identity":
        raise ValueError(
            f"shortcut='identity' gives (batch, {channels}, H, W) but branch gives "
            f"(batch, {out_channels}, ⌈H/{stride}⌉, ⌈W/{stride}⌉); "
            "use 'projection', 'linear' or 'pad'."
        )
    convolution = nn.Conv2d(channels, out_channels, 1, stride=stride, bias=False)
    if kind == "linear":
        return convolution
    return nn.Sequential(convolution, nn.BatchNorm2d(out_channels))


class ResidualBlock(nn.Module):
    """The convolutional block: y = σ(S(x) + F(x)), F = BN∘conv∘ReLU∘BN∘conv.

    (batch, channels, height, width) → (batch, out_channels, ⌈height/stride⌉,
    ⌈width/stride⌉); both convolutions are 3×3, the first one takes the stride.

    `shortcut` is S, and it is built only where the shapes differ; elsewhere S(x) = x:

    - "projection": a 1×1 convolution with the stride, then BatchNorm (option B)
    - "linear": the 1×1 convolution alone, one matrix at every position kept
    - "pad": no weights, every stride-th position, zeros for new channels (option A)
    - "identity": no shortcut layer, an error where shapes differ
    - a module: used as it is

    With any but the identity ∂y/∂x is no longer I + ∂F/∂x, and with a stride of 2 the
    first three read one position in four.

    `activation` says where the second ReLU is:

    - "after": y = relu(S(x) + F(x)), as in the 2015 paper
    - "before": y = S(x) + relu(F(x)), so that the branch can only add
    - "none": y = S(x) + F(x)

    `zero_init` sets the last BatchNorm's γ to 0, so that F(x) = 0 at the start. Traps:

    - With "none" the block is then the identity, bit for bit. With "after" it is
      relu(x): the identity only on a stream that is already ≥ 0, as it is inside a net
      of such blocks.
    - With "before" it would be dead for ever, since relu'(0) = 0, so it is refused.
    - Do not multiply the branch by an α = 0 as well: every gradient in it would be 0.

    Raises ValueError for shapes that cannot match, at construction where the arguments
    tell, else at the first call.

    Source: He et al. 2015, arXiv 1512.03385, Fig. 2 and §3.3.

    >>> block = ResidualBlock(8, activation="none")
    >>> x = torch.randn(2, 8, 5, 5)
    >>> torch.equal(block(x), x)
    True
    >>> ResidualBlock(8, 16, stride=2)(x).shape
    torch.Size([2, 16, 3, 3])
    """

    def __init__(
        self,
        channels: int,
        out_channels: int | None = None,
        stride: int = 1,
        *,
        shortcut: str | nn.Module = "projection",
        zero_init: bool = True,
        activation: str = "after",
    ):
        super().__init__()
        out_channels = channels if out_channels is None else out_channels
        whole("channels", channels), whole("out_channels", out_channels)
        whole("stride", stride)
        choice("activation", activation, dict.fromkeys(("after", "before", "none")))
        if activation == "before" and zero_init:
            raise ValueError(
                "zero_init=True with activation='before' is a dead branch: γ = 0 gives "
                "relu(0), whose derivative is 0; set zero_init=False."
            )

        self.channels, self.activation = channels, activation
        last_norm = nn.BatchNorm2d(out_channels)
        self.branch = nn.Sequential(
            nn.Conv2d(channels, out_channels, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(),
            nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
            last_norm,
        )
        if zero_init:
            nn.init.zeros_(last_norm.weight)
        if activation == "before":
            self.branch.append(nn.ReLU())

        if isinstance(shortcut, nn.Module):
            self.shortcut = shortcut
        else:
            kinds = dict.fromkeys(("projection", "linear", "pad", "identity"))
            choice("shortcut", shortcut, kinds)
            if channels == out_channels and stride == 1:
                self.shortcut = nn.Identity()
            else:
                self.shortcut = _conv_shortcut(shortcut, channels, out_channels, stride)
        _check_known_ends(self.branch, self.shortcut)

    def forward(
        self, x: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch out_channels smaller_height smaller_width"]:
        """Return the sum of shortcut and branch, through ReLU if that comes after."""
        if x.dim() != 4 or x.shape[1] != self.channels:
            raise ValueError(
                f"x has shape {tuple(x.shape)} but this block takes "
                f"(batch, {self.channels}, height, width)."
            )
        y = _sum(self.shortcut, self.branch, x)
        return torch.relu(y) if self.activation == "after" else y


class _TransformerBlock(nn.Module):
    """The parts that pre-norm and post-norm share, drawn in one order."""

    def __init__(self, d: int, heads: int):
        super().__init__()
        whole("d", d), whole("heads", heads)
        if d % heads:
            raise ValueError(
                f"heads={heads} does not divide d={d}; choose one that does."
            )
        self.d = d
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attention = nn.MultiheadAttention(d, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def attend(
        self, x: Float[Tensor, "batch tokens d"]
    ) -> Float[Tensor, "batch tokens d"]:
        """Return self-attention of x, every token seeing every token.

        The same numbers as `self.attention(x, x, x)`, in a fifth less time a training
        step: cutting the three parts out of one product saves copies both ways.
        """
        attention = self.attention
        parts = functional.linear(x, attention.in_proj_weight, attention.in_proj_bias)
        # (batch, tokens, 3d) → three of (batch, heads, tokens, d / heads)
        query, key, value = (
            part.unflatten(-1, (attention.num_heads, -1)).transpose(1, 2)
            for part in parts.chunk(3, dim=-1)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value)
        return attention.out_proj(mixed.transpose(1, 2).flatten(-2))

    def _check(self, x: Tensor) -> None:
        if x.dim() != 3 or x.shape[-1] != self.d:
            raise ValueError(
                f"x has shape {tuple(x.shape)} but this block takes "
                f"(batch, tokens, {self.d})."
            )


class PreNormBlock(_TransformerBlock):
    """The transformer block with its norms inside the branches.

    a = x + Attention(LN₁(x))
    y = a + MLP(LN₂(a))

    (batch, tokens, d) → the same. The MLP is Linear(d, 4d), GELU, Linear(4d, d). What
    is added to is the un-normed x, so a path through the sums alone meets no norm. The
    stream grows from block to block: a stack of these needs one last norm of its own.

    Raises ValueError if `heads` does not divide `d` or x has another shape.

    Source: Xiong et al. 2020, arXiv 2002.04745, Fig. 1(b).

    >>> PreNormBlock(32, heads=2)(torch.randn(4, 5, 32)).shape
    torch.Size([4, 5, 32])
    """

    def forward(
        self, x: Float[Tensor, "batch tokens d"]
    ) -> Float[Tensor, "batch tokens d"]:
        """Return y, the stream after attention and MLP have added to it."""
        self._check(x)
        x = x + self.attend(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class PostNormBlock(_TransformerBlock):
    """The transformer block with its norms after the sums, as first published.

    a = LN₁(x + Attention(x))
    y = LN₂(a + MLP(a))

    (batch, tokens, d) → the same, every token with mean 0 and variance 1 at the start.
    No path reaches y without passing both norms. Same parts, drawn in the same order,
    as `PreNormBlock`: one seed gives both the same weights.

    Raises ValueError if `heads` does not divide `d` or x has another shape.

    Source: Xiong et al. 2020, arXiv 2002.04745, Fig. 1(a).

    >>> PostNormBlock(32, heads=2)(torch.randn(4, 5, 32)).shape
    torch.Size([4, 5, 32])
    """

    def forward(
        self, x: Float[Tensor, "batch tokens d"]
    ) -> Float[Tensor, "batch tokens d"]:
        """Return y, the stream normed after each of the two sums."""
        self._check(x)
        x = self.norm1(x + self.attend(x))
        return self.norm2(x + self.mlp(x))


class FlexibleBlock(nn.Module):
    """One MLP branch with the norm, the scale and the start to choose.

    norm_position="pre"   y = x + scale · F(LN(x))
    norm_position="post"  y = LN(x + scale · F(x))

    F is Linear(dim, 4·dim), GELU, Linear(4·dim, dim); x is (..., dim) and so is y.
    With `rezero=True` the scale is a parameter α, one number that starts at 0. With
    "pre" the block is then the identity; with "post" it is LN(x). At the first step
    only α moves: F's gradient carries a factor α. A zero last layer in F as well would
    leave α and F without any gradient for good.

    Parameters are drawn in the order linear1, linear2; nothing else is drawn.

    Raises ValueError for an unknown `norm_position`, for a `scale` beside `rezero=True`
    (α takes its place), and for an x whose last axis is not `dim`.

    Source: Bachlechner et al. 2020, arXiv 2003.04887 (ReZero).

    >>> x = torch.randn(4, 16)
    >>> torch.equal(FlexibleBlock(16, rezero=True)(x), x)
    True
    """

    def __init__(
        self,
        dim: int,
        norm_position: str = "pre",
        scale: float = 1.0,
        rezero: bool = False,
    ):
        super().__init__()
        whole("dim", dim)
        choice("norm_position", norm_position, dict.fromkeys(("pre", "post")))
        if rezero and scale != 1.0:
            raise ValueError(
                f"scale={scale} is not used with rezero=True, where a learned α that "
                "starts at 0 is the scale; leave one of the two out."
            )
        self.dim, self.norm_position = dim, norm_position
        self.scale = nn.Parameter(torch.zeros(1)) if rezero else scale
        self.linear1 = nn.Linear(dim, 4 * dim)
        self.activation = nn.GELU()
        self.linear2 = nn.Linear(4 * dim, dim)
        self.norm = nn.LayerNorm(dim)

    def branch(self, x: Float[Tensor, "... dim"]) -> Float[Tensor, "... dim"]:
        """Return what is scaled and added: F(LN(x)) for "pre", F(x) for "post"."""
        if self.norm_position == "pre":
            x = self.norm(x)
        return self.linear2(self.activation(self.linear1(x)))  # (..., 4·dim) inside

    def forward(self, x: Float[Tensor, "... dim"]) -> Float[Tensor, "... dim"]:
        """Return y."""
        if x.shape[-1:] != (self.dim,):
            raise ValueError(
                f"x has shape {tuple(x.shape)} but this block takes (..., {self.dim})."
            )
        y = x + self.scale * self.branch(x)
        return self.norm(y) if self.norm_position == "post" else y


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

    >>> x = torch.randn(8, 64)
    >>> mlp_stack(40, 64, residual=True, norm="batch")(x).shape
    torch.Size([8, 64])
    """
    whole("depth", depth), whole("width", width)
    make_activation = choice("activation", activation, ACTIVATIONS)
    make_norm = choice("norm", norm, NORMS)
    initialise = choice("init", init, INITS)
    if not residual and scale != 1.0:
        raise ValueError(
            f"scale={scale} has no branch to scale in a plain stack; leave it out."
        )

    blocks = []
    for _ in range(depth):
        linear = nn.Linear(width, width)
        initialise(linear.weight, linear.bias)
        layers: list[nn.Module] = [linear]
        if make_norm is not None:
            layers.append(make_norm(width))
        layers.append(make_activation())
        block = nn.Sequential(*layers)
        blocks.append(Residual(block, scale=scale) if residual else block)
    return nn.Sequential(*blocks)


def flexible_stack(
    depth: int,
    dim: int,
    *,
    residual: bool,
    norm_position: str = "pre",
    scale: float = 1.0,
    rezero: bool = False,
) -> nn.Sequential:
    """Stack `depth` flexible blocks, or the same layers without the sum.

    residual  `FlexibleBlock(dim, norm_position, scale, rezero)`
    plain     h_l = F_l(LN(h_{l−1})) for "pre", LN(F_l(h_{l−1})) for "post"

    Takes and returns (..., dim). One seed gives both kinds the same weights.

    Raises ValueError for a `scale` or `rezero` in a plain stack, which has no branch to
    scale.

    >>> flexible_stack(30, 128, residual=True)(torch.randn(4, 32, 128)).shape
    torch.Size([4, 32, 128])
    """
    whole("depth", depth)
    if not residual and (rezero or scale != 1.0):
        raise ValueError(
            f"scale={scale} and rezero={rezero} have no branch to scale in a plain "
            "stack; leave them out."
        )
    blocks: list[nn.Module] = []
    for _ in range(depth):
        block = FlexibleBlock(dim, norm_position, scale, rezero)
        layers = [block.linear1, block.activation, block.linear2]
        layers.insert(0 if norm_position == "pre" else 3, block.norm)
        blocks.append(block if residual else nn.Sequential(*layers))
    return nn.Sequential(*blocks)


def conv_stack(
    channels: Sequence[int],
    *,
    residual: bool,
    shortcut: str = "projection",
    zero_init: bool = False,
) -> nn.Sequential:
    """Stack convolutional blocks, one for each entry of `channels`.

    residual  h_l = relu(S_l(h_{l−1}) + F_l(h_{l−1})), `ResidualBlock`
    plain     h_l = relu(F_l(h_{l−1})), the same branch

    The first block takes and returns `channels[0]`. Where an entry differs from the one
    before it, the block changes the channels and halves height and width.

    Raises ValueError for `zero_init=True` in a plain stack: it would return zeros.

    >>> net = conv_stack([8, 8, 16, 16], residual=True)
    >>> net(torch.randn(2, 8, 12, 12)).shape
    torch.Size([2, 16, 6, 6])
    """
    if not channels:
        raise ValueError(
            "channels is empty; give one number a block, as in [8, 8, 16]."
        )
    if not residual and zero_init:
        raise ValueError(
            "zero_init=True in a plain stack makes every output 0; use it with "
            "residual=True alone."
        )
    blocks = []
    for before, after in zip([channels[0], *channels], channels, strict=False):
        block = ResidualBlock(
            before,
            after,
            stride=1 if before == after else 2,
            shortcut=shortcut,
            zero_init=zero_init,
        )
        blocks.append(block if residual else nn.Sequential(*block.branch, nn.ReLU()))
    return nn.Sequential(*blocks)


def classifier(
    stack: nn.Sequential, features: int, width: int, classes: int
) -> nn.Sequential:
    """Put a linear stem and a linear head around a stack: head(stack(stem(x))).

    (batch, features) → stem → (batch, width) → blocks → (batch, width) → head →
    (batch, classes). The parts are named `stem`, `blocks` and `head`. Plain and
    residual nets made this way differ in their `stack` alone.

    Raises TypeError or ValueError for a size that is not a whole number of at least 1.

    >>> net = classifier(mlp_stack(20, 64, residual=True), 40, 64, 10)
    >>> [name for name, _ in net.named_children()]
    ['stem', 'blocks', 'head']
    """
    return nn.Sequential(
        OrderedDict(
            stem=nn.Linear(whole("features", features), whole("width", width)),
            blocks=stack,
            head=nn.Linear(width, whole("classes", classes)),
        )
    )
