"""Measure what residual connections do: gradients, Jacobians, paths and norms.

The modules, in the order in which the book needs them: `gradients`, `blocks`,
`jacobians`, `paths`, `lesions`, `training`, `recipes` hold the numerics; `sweeps` runs
the `grids` of long trainings; `style` and `explore` draw; `notebooks`, `ledger` and
`book` make pages of it.
"""

from .blocks import (
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
from .explore import explore
from .gradients import depth_sweep, gradient_norms
from .jacobians import (
    block_jacobians,
    chain_jacobian,
    singular_values,
    singular_values_by_depth,
)
from .paths import effective_lengths, path_gradients, path_length_distribution
from .style import show
from .training import mnist1d, seed, train

__all__ = [
    "FlexibleBlock",
    "PostNormBlock",
    "PreNormBlock",
    "Residual",
    "ResidualBlock",
    "ZeroPad",
    "block_jacobians",
    "chain_jacobian",
    "classifier",
    "conv_stack",
    "depth_sweep",
    "effective_lengths",
    "explore",
    "flexible_stack",
    "gradient_norms",
    "mlp_stack",
    "mnist1d",
    "path_gradients",
    "path_length_distribution",
    "seed",
    "show",
    "singular_values",
    "singular_values_by_depth",
    "train",
]
