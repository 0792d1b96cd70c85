"""Measure what residual connections do: gradients, Jacobians, paths and norms.

`gradients`, `blocks`, `jacobians`, `paths`, `lesions`, `training`, `recipes` and
`transformers` hold the numerics, with `untouched` and `arguments` beneath them;
`sweeps` runs what is too long for a page and `grids` says what; `style` and `explore`
draw; `notebooks`, `ledger` and `book` make pages of it. For courses, `check` gives
feedback, `assignments` makes the students' notebooks, and `grading` marks them: it
reads them with `submissions` and runs them with `sandbox`, where `inside` answers.
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
from .gradients import depth_sweep, gradient_autocorrelation, gradient_norms
from .jacobians import (
    block_jacobians,
    chain_jacobian,
    singular_values,
    singular_values_by_depth,
)
from .lesions import (
    kendall_tau,
    lesion,
    lesion_study,
    random_deletions,
    random_swaps,
    swapped,
    without,
)
from .paths import (
    branches_of,
    effective_lengths,
    every_path,
    gradient_by_length,
    path_gradients,
    path_length_distribution,
    sample_path_norms,
)
from .recipes import (
    FixupBranch,
    Times,
    deepnorm_constants,
    first_steps,
    layerscale_start,
    recipe_net,
)
from .style import show
from .training import (
    Data,
    History,
    mnist1d,
    seed,
    train,
)
from .transformers import (
    DeepNormBlock,
    MeanToken,
    Patches,
    PeriNormBlock,
    transformer,
)

__all__ = [
    "Data",
    "DeepNormBlock",
    "FixupBranch",
    "FlexibleBlock",
    "History",
    "MeanToken",
    "Patches",
    "PeriNormBlock",
    "PostNormBlock",
    "PreNormBlock",
    "Residual",
    "ResidualBlock",
    "Times",
    "ZeroPad",
    "block_jacobians",
    "branches_of",
    "chain_jacobian",
    "classifier",
    "conv_stack",
    "deepnorm_constants",
    "depth_sweep",
    "effective_lengths",
    "every_path",
    "explore",
    "first_steps",
    "flexible_stack",
    "gradient_autocorrelation",
    "gradient_by_length",
    "gradient_norms",
    "kendall_tau",
    "layerscale_start",
    "lesion",
    "lesion_study",
    "mlp_stack",
    "mnist1d",
    "path_gradients",
    "path_length_distribution",
    "random_deletions",
    "random_swaps",
    "recipe_net",
    "sample_path_norms",
    "seed",
    "show",
    "singular_values",
    "singular_values_by_depth",
    "swapped",
    "train",
    "transformer",
    "without",
]
