"""Jacobians of chains of blocks, and their singular values.

Read from the top: one Jacobian, the Jacobians of every block of a chain, the singular
values of a chain at every depth.

How a Jacobian is taken: one forward pass, then one backward pass that carries the d_out
rows of the identity at once (`torch.func.vmap` over `torch.autograd.grad`). Exact for
any module, and quicker than `torch.func.jacrev`, which traces the forward pass as well.
A batch of d copies of x would be quicker to write, and wrong wherever a layer looks
across its batch.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .untouched import (
    check_chain,
    check_input,
    pull_back,
    run,
    runs_in_order,
    untouched,
)

# These read (batch, tokens, d), so one vector is one token, alone in its sequence.
ATTENTION = (nn.MultiheadAttention, nn.TransformerEncoderLayer)
# These need an axis for the batch before the features.
NEEDS_BATCH = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)


def _seen(model: Callable, x: Tensor, shape: Sequence[int] | None) -> Tensor:
    """Return x in the shape in which the model shall see it."""
    check_input(x)
    if x.ndim != 1:
        raise ValueError(
            f"x has shape {tuple(x.shape)}, expected one input of shape (d,): take one "
            "row of a batch, or flatten the input and say shape=(1, …) as the model "
            "sees it."
        )
    if shape is None:
        modules = list(model.modules()) if isinstance(model, nn.Module) else []
        if any(isinstance(module, ATTENTION) for module in modules):
            shape = (1, 1, -1)
        elif any(isinstance(module, NEEDS_BATCH) for module in modules):
            shape = (1, -1)
        else:
            shape = (-1,)
    try:
        return x.detach().reshape(tuple(shape))
    except RuntimeError:
        raise ValueError(
            f"shape={tuple(shape)} does not hold the {x.numel()} entries of x."
        ) from None


def _jacobian(
    model: Callable, x: Tensor, name: str, index: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return ∂y/∂x, both flattened, and y = model(x), detached."""
    x = x.clone().requires_grad_()
    y = run(model, x, name, index)
    identity = torch.eye(y.numel(), dtype=y.dtype, device=y.device)
    try:
        jacobian = pull_back(y.reshape(-1), x, identity)  # (d_out, *shape of x)
    except RuntimeError as error:
        raise ValueError(
            f"{name} (a {type(model).__name__}) has no derivative that autograd can "
            f"take, expected one: {str(error).splitlines()[0]}"
        ) from error
    return jacobian.reshape(len(identity), x.numel()), y.detach()


def _finite(jacobian: Tensor, name: str) -> Tensor:
    if not jacobian.isfinite().all():
        raise ValueError(
            f"the Jacobian of {name} has non-finite entries in {jacobian.dtype}: use "
            "dtype=torch.float64, scale the blocks or take fewer of them."
        )
    return jacobian


def chain_jacobian(
    model: Callable[[Tensor], Tensor],
    x: Float[Tensor, " d_in"],
    *,
    shape: Sequence[int] | None = None,
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "d_out d_in"]:
    """Return the Jacobian of a whole model at one input.

    ∂y/∂x, row i, column j: ∂y_i/∂x_j, with y = model(x) flattened. For a chain of
    blocks this is the product J_L … J_1, and for residual blocks
    (I + J_L) … (I + J_1), with J_l = ∂F_l/∂h_{l−1} at the stream the chain visits.

    x: (d,), one input, as is. `shape` is how the model sees it, with d entries in all.
    The default is (d,), or (1, d) if the model holds a BatchNorm, or (1, 1, d), one
    token alone, if it holds attention. One token attends to itself alone, so the
    attention weights' share of the derivative is 0: for a sequence give it flattened,
    with shape=(1, tokens, d), and rows and columns run over tokens · d. For an image
    give shape=(1, channels, height, width).

    dtype: None computes in x's own; torch.float64 computes with the parameters and x
    in float64, the caller's model left as it is. A deep plain chain needs that: in
    float32 its Jacobian underflows, and 1e-7 of the largest entry is rounding.

    The model is used in the mode it is in. BatchNorm in eval mode is a fixed scale; in
    train mode it is an error, as one sample has no variance. Dropout in train mode
    gives the Jacobian of one random draw. Nothing of the caller's changes: no `.grad`,
    mode, buffer or random state.

    Raises ValueError for an x that is not (d,) or not finite, for a shape that a block
    cannot take (with the block's index) and for a Jacobian that overflows; TypeError if
    x is not floating point or the model returns anything but one tensor.

    Source: He et al. 2016, arXiv 1603.05027, Eq. 5 (the derivative of a chain).

    >>> double_and_keep = nn.Linear(2, 2, bias=False)
    >>> _ = double_and_keep.weight.data.copy_(torch.tensor([[2.0, 0.0], [0.0, 1.0]]))
    >>> chain_jacobian(double_and_keep, torch.ones(2))
    tensor([[2., 0.],
            [0., 1.]])
    """
    seen = _seen(model, x, shape)
    with untouched(x, [model], dtype):
        jacobian, _ = _jacobian(model, seen.to(dtype or x.dtype), "model")
    if not jacobian.isfinite().all() and runs_in_order(model):
        block_jacobians(model, x, shape=shape, dtype=dtype)  # names a block at fault
    return _finite(jacobian, "the model")


def block_jacobians(
    model: nn.Sequential,
    x: Float[Tensor, " d_in"],
    *,
    shape: Sequence[int] | None = None,
    dtype: torch.dtype | None = None,
) -> list[Float[Tensor, "d_next d"]]:
    """Return the Jacobian of every block, each at the stream the chain brings to it.

    Entry k is ∂h_{k+1}/∂h_k at h_k, for h_0 = x and h_{k+1} = model[k](h_k): I + J for
    a residual block. The product, last block first, is `chain_jacobian(model, x)`.

    Arguments and errors as for `chain_jacobian`; `shape` is for h_0, and later blocks
    see what the one before returns. TypeError unless model is an `nn.Sequential`.

    Source: He et al. 2016, arXiv 1603.05027, Eq. 5.

    >>> chain = nn.Sequential(nn.Tanh(), nn.Linear(3, 2, bias=False))
    >>> first, second = block_jacobians(chain, torch.zeros(3))
    >>> torch.equal(second @ first, chain[1].weight)
    True
    """
    check_chain(model)
    h = _seen(model, x, shape).to(dtype or x.dtype)
    jacobians = []
    with untouched(x, model, dtype):
        for k, block in enumerate(model):
            jacobian, h = _jacobian(block, h, f"model[{k}]", k)
            jacobians.append(_finite(jacobian, f"model[{k}]"))
    return jacobians


def _product_singular_values(
    jacobians: list[Tensor], every_depth: bool
) -> list[Float[Tensor, " r"]]:
    """Return the singular values of J_L … J_1, each to about twelve digits.

    A product of matrices in float64 forgets every singular value below 1e-16 of the
    largest, and its SVD returns rounding in their place. Here J_k Q_{k−1} = Q_k R_k, so
    that J_k … J_1 = Q_k (R_k … R_1): orthogonal times triangular, with rows of very
    different size, each accurate for its own size. LAPACK's gejsv finds the singular
    values of such a matrix (Drmač and Veselić 2008, LAPACK working note 169).
    """
    from scipy.linalg.lapack import dgejsv

    q = product = torch.eye(jacobians[0].shape[1], dtype=torch.float64, device="cpu")
    rows = []
    for k, jacobian in enumerate(jacobians, start=1):
        q, r = torch.linalg.qr(jacobian.double().cpu() @ q)
        product = _finite(r @ product, f"the first {k} blocks")
        if not every_depth and k < len(jacobians):
            continue
        if not product.any():  # gejsv has no answer for a matrix of zeros
            rows.append(product.new_zeros(min(product.shape)))
            continue
        values, _, _, scale, _, info = dgejsv(
            product.T.numpy(), joba=2, jobu=3, jobv=3, jobr=0, jobt=0, jobp=0
        )
        assert info == 0, f"LAPACK's gejsv returned info={info}"
        values = torch.from_numpy(values) * (scale[0] / scale[1])
        rows.append(values.sort(descending=True).values)
    return rows


def singular_values(
    model: Callable[[Tensor], Tensor],
    x: Float[Tensor, " d_in"],
    *,
    shape: Sequence[int] | None = None,
    dtype: torch.dtype | None = None,
) -> Float[Tensor, " min_d_in_d_out"]:
    """Return the singular values of ∂y/∂x, descending.

    σ_1 ≥ … ≥ σ_d, the factors by which the model stretches d directions at x: no small
    change of x is stretched by more than σ_1, and no gradient either. Their root mean
    square is the stretch that a random direction gets.

    Arguments and errors as for `chain_jacobian`. For an `nn.Sequential` they come from
    the Jacobians of its blocks, and each of them is accurate, however small. For any
    other model, values below σ_1 · d · eps are rounding (eps is 2e-16 in float64, 1e-7
    in float32).

    >>> singular_values(lambda x: x - 3 * x.flip(0), torch.ones(2))
    tensor([4., 2.])
    """
    if not runs_in_order(model) or len(model) < 2:
        jacobian = chain_jacobian(model, x, shape=shape, dtype=dtype)
        # No LAPACK for 16 bits; and autocast may be on out here.
        wide = jacobian.to(torch.promote_types(jacobian.dtype, torch.float32))
        return torch.linalg.svdvals(wide).to(jacobian.dtype)
    jacobians = block_jacobians(model, x, shape=shape, dtype=dtype)
    values = _product_singular_values(jacobians, every_depth=False)[0]
    values = nn.functional.pad(
        values, (0, min(len(x), len(jacobians[-1])) - len(values))
    )
    return _finite(values.to(x.device, dtype or x.dtype), "the model")


def singular_values_by_depth(
    model: nn.Sequential,
    x: Float[Tensor, " d"],
    *,
    shape: Sequence[int] | None = None,
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "depth_plus_1 d"]:
    """Return the singular values of the first k blocks, for every k, in one pass.

    Row k holds the singular values of ∂h_k/∂x, descending; row 0 is all ones. Where
    h_k has fewer entries than x the row ends in zeros, so that row k is the square
    root of the eigenvalues of (∂h_k/∂x)ᵀ(∂h_k/∂x).

    One pass over the chain, one QR and one SVD a block, where a call of
    `singular_values` for each depth would pass L²/2 blocks.

    Arguments and errors as for `block_jacobians`. Every value is accurate, however
    small beside the largest.

    >>> chain = nn.Sequential(*[nn.Linear(1, 1, bias=False) for _ in range(3)])
    >>> for block in chain:
    ...     _ = nn.init.constant_(block.weight, 0.5)
    >>> singular_values_by_depth(chain, torch.ones(1)).flatten()
    tensor([1.0000, 0.5000, 0.2500, 0.1250])
    """
    jacobians = block_jacobians(model, x, shape=shape, dtype=dtype)
    rows = [torch.ones(len(x), dtype=torch.float64, device="cpu")]
    if jacobians:
        rows += _product_singular_values(jacobians, every_depth=True)
    padded = [nn.functional.pad(row, (0, len(x) - len(row))) for row in rows]
    values = torch.stack(padded).to(x.device, dtype or x.dtype)
    return _finite(values, "the model")
