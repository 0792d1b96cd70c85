"""A small transformer for MNIST-1D whose blocks differ in where the norm sits.

The stream has 5 tokens of 32 numbers, so 50 blocks still train on one core. Four
designs, with F the attention and then the MLP of each block:

    pre    x + F(LN(x))              Xiong et al. 2020, Fig. 1(b)
    post   LN(x + F(x))              Xiong et al. 2020, Fig. 1(a)
    peri   x + LN'(F(LN(x)))         Kim et al. 2025
    deep   LN(α x + F(x)), F scaled  Wang et al. 2022 (DeepNorm)
"""

from collections import OrderedDict

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .arguments import choice, whole
from .blocks import PostNormBlock, PreNormBlock


class PeriNormBlock(PreNormBlock):
    """The transformer block with a norm before and after each branch.

    a = x + LN₃(Attention(LN₁(x)))
    y = a + LN₄(MLP(LN₂(a)))

    (batch, tokens, d) → the same. What is added has variance 1 a token whatever the
    weights are. Drawn like `PreNormBlock` (norms draw nothing): one seed, same weights.

    Source: Kim et al. 2025, arXiv 2502.02732.

    >>> PeriNormBlock(32, heads=2)(torch.randn(4, 5, 32)).shape
    torch.Size([4, 5, 32])
    """

    def __init__(self, d: int, heads: int):
        super().__init__(d, heads)
        self.norm3, self.norm4 = nn.LayerNorm(d), nn.LayerNorm(d)

    def forward(
        self, x: Float[Tensor, "batch tokens d"]
    ) -> Float[Tensor, "batch tokens d"]:
        """Return y, the stream after two normed branches have been added to it."""
        self._check(x)
        x = x + self.norm3(self.attend(self.norm1(x)))
        return x + self.norm4(self.mlp(self.norm2(x)))


class DeepNormBlock(PostNormBlock):
    """The post-norm block with a louder shortcut and quieter weights.

    a = LN₁(α x + Attention(x))
    y = LN₂(α a + MLP(a))

    with α = (2N)^¼ for a stack of N blocks. The MLP's, the values' and the attention
    output's weights are multiplied by β = (8N)^−¼ when drawn; queries and keys are not.
    Otherwise drawn like `PostNormBlock`.

    Source: Wang et al. 2022, arXiv 2203.00555.

    >>> block = DeepNormBlock(32, heads=2, depth=8)
    >>> block.alpha
    2.0
    """

    def __init__(self, d: int, heads: int, depth: int):
        super().__init__(d, heads)
        whole("depth", depth)
        self.alpha = (2 * depth) ** 0.25
        beta = (8 * depth) ** -0.25
        with torch.no_grad():
            self.attention.in_proj_weight[2 * d :] *= (
                beta  # rows: queries, keys, values
            )
            self.attention.out_proj.weight *= beta
            self.mlp[0].weight *= beta
            self.mlp[2].weight *= beta

    def forward(
        self, x: Float[Tensor, "batch tokens d"]
    ) -> Float[Tensor, "batch tokens d"]:
        """Return y, the stream normed after each of the two weighted sums."""
        self._check(x)
        x = self.norm1(self.alpha * x + self.attend(x))
        return self.norm2(self.alpha * x + self.mlp(x))


class Patches(nn.Module):
    """Cut a curve into tokens, map each to the stream, and add where it was.

    h_0[t] = W x[t·f … (t+1)·f − 1] + b + p_t, f = features / tokens. The
    positions p_t start at zero and are learnt.
    Takes (batch, features), returns (batch, tokens, d).

    Raises TypeError for a size that is not whole, ValueError for one below 1 and for
    tokens that do not divide the features.

    >>> Patches(40, tokens=5, d=32)(torch.randn(2, 40)).shape
    torch.Size([2, 5, 32])
    """

    def __init__(self, features: int, tokens: int, d: int):
        super().__init__()
        whole("features", features), whole("tokens", tokens), whole("d", d)
        if features % tokens:
            raise ValueError(
                f"tokens={tokens} does not divide features={features}; "
                "choose one that does."
            )
        self.tokens = tokens
        self.embed = nn.Linear(features // tokens, d)
        self.position = nn.Parameter(torch.zeros(tokens, d))

    def forward(
        self, x: Float[Tensor, "batch features"]
    ) -> Float[Tensor, "batch tokens d"]:
        """Return h_0, the start of the stream."""
        return self.embed(x.unflatten(1, (self.tokens, -1))) + self.position


class MeanToken(nn.Module):
    """Average over the tokens: (batch, tokens, d) → (batch, d).

    >>> MeanToken()(torch.tensor([[[1.0, 5.0], [3.0, 7.0]]])).tolist()
    [[2.0, 6.0]]
    """

    def forward(self, x: Float[Tensor, "batch tokens d"]) -> Float[Tensor, "batch d"]:
        """Return the mean token of each example."""
        return x.mean(1)


NORM_POSITIONS = ("pre", "post", "peri", "deep")


def transformer(
    depth: int,
    norm_position: str,
    *,
    d: int = 32,
    heads: int = 2,
    tokens: int = 5,
    features: int = 40,
    classes: int = 10,
) -> nn.Sequential:
    """Build a transformer classifier, the same but for where its norms sit.

    stem (curve → tokens) → blocks → norm → mean over tokens → head, an
    `nn.Sequential` with these names: (batch, features) → (batch, classes). `norm` is
    the final LayerNorm that pre- and peri-norm need, because their stream is never
    normed as a whole; for post-norm and DeepNorm, whose stream is, it is the identity.
    One seed gives every `norm_position` the same weights (DeepNorm's then scaled by β).

    Raises ValueError for an unknown `norm_position` or a depth below 1.

    >>> transformer(6, "pre")(torch.randn(2, 40)).shape
    torch.Size([2, 10])
    """
    choice("norm_position", norm_position, dict.fromkeys(NORM_POSITIONS))
    whole("depth", depth)
    stem, head = Patches(features, tokens, d), nn.Linear(d, classes)
    blocks: list[nn.Module]
    if norm_position == "deep":
        blocks = [DeepNormBlock(d, heads, depth) for _ in range(depth)]
    else:
        block = {"pre": PreNormBlock, "post": PostNormBlock, "peri": PeriNormBlock}
        blocks = [block[norm_position](d, heads) for _ in range(depth)]
    unnormed = norm_position in ("pre", "peri")
    return nn.Sequential(
        OrderedDict(
            stem=stem,
            blocks=nn.Sequential(*blocks),
            norm=nn.LayerNorm(d) if unnormed else nn.Identity(),
            pool=MeanToken(),
            head=head,
        )
    )
