"""The grids of the book's sweeps: what one cell of each trains and measures.

`SWEEPS` at the end names them all; `resnotes.sweeps` runs them. A function's docstring
goes into the provenance as the recipe: change one and its CSV has to be made again.
"""

import copy
import functools
import math
from typing import Any

import torch
import torch.nn.functional as F

from resnotes.blocks import Residual, classifier, mlp_stack
from resnotes.gradients import gradient_norms
from resnotes.lesions import lesion_study, random_deletions, random_swaps, without
from resnotes.paths import branches_of, gradient_by_length, sample_path_norms
from resnotes.recipes import RECIPES, first_steps
from resnotes.sweeps import Sweep
from resnotes.training import Data, History, mnist1d, seed, train
from resnotes.transformers import transformer

Net = Any  # an nn.Sequential whose parts have names: PyTorch's types know none of them


def _epoch_rows(history: History, per_epoch: int) -> list[dict]:
    """One row an epoch; a run that diverged ends in a row that says so."""
    rows = [
        {
            "epoch": step // per_epoch,
            "train_loss": history.train_loss[i],
            "train_accuracy": history.train_accuracy[i],
            "test_loss": history.test_loss[i],
            "test_accuracy": history.test_accuracy[i],
            "status": "ok",
        }
        for i, step in enumerate(history.step)
        if math.isfinite(history.train_loss[i])
    ]
    if history.diverged:
        nothing = dict.fromkeys(
            ("train_loss", "train_accuracy", "test_loss", "test_accuracy"), math.nan
        )
        status = f"diverged: {history.reason}"
        rows.append({"epoch": len(rows) + 1, **nothing, "status": status})
    return rows


def _batchnorm_mlp(kind: str, depth: int, run_seed: int) -> Net:
    """Draw the chapters' network: width 64, Linear, BatchNorm, ReLU in each block."""
    seed(run_seed)
    stack = mlp_stack(
        depth, 64, residual=kind == "residual", norm="batch", activation="relu"
    )
    return classifier(stack, 40, 64, 10)


def degradation(kind: str, depth: int, seed: int) -> list[dict]:
    """Train a BatchNorm MLP on MNIST-1D for 15 epochs of Adam at 2e-3."""
    model = _batchnorm_mlp(kind, depth, seed)
    history = train(model, mnist1d(), epochs=15, lr=2e-3, batch_size=128, seed=seed)
    return _epoch_rows(history, 4000 // 128)


def degradation_gradients(kind: str, depth: int, seed: int) -> list[dict]:
    """Measure ‖∂loss/∂h_k‖₂ for h_0 … h_L of the same networks before training.

    The loss is the mean cross-entropy of the first 128 training examples, in training
    mode (BatchNorm uses that batch).
    """
    model, data = _batchnorm_mlp(kind, depth, seed), mnist1d()
    norms = gradient_norms(
        model.blocks.train(),
        model.stem(data.x_train[:128]),
        lambda h: F.cross_entropy(model.head(h), data.y_train[:128]),
    )
    return [
        {"block": k, "gradient_norm": norm} for k, norm in enumerate(norms.tolist())
    ]


# Kind, depth, survival probability of the last block, epochs after which to look.
_PATH_NETS = {
    "residual 54": ("residual", 54, 1.0, (0, 1, 2, 4, 8, 15)),
    "stochastic 54": ("residual", 54, 0.5, (15,)),
    "plain 54": ("plain", 54, 1.0, (15,)),
    "plain 12": ("plain", 12, 1.0, (15,)),
    "residual 12": ("residual", 12, 1.0, (15,)),
}


def paths(seed: int, net: str) -> list[dict]:
    """Train a BatchNorm MLP; measure its gradient by path length, and lesions.

    15 epochs of Adam at 2e-3, batch 128, on MNIST-1D. Of `residual 54` alone, after
    `epoch` epochs and in evaluation mode, at h_0 and for 128 training examples:
    `gradient`, the norm over all paths of length `at`; `single`, the sum of the norms
    of all single paths of that length, estimated from 8; `gradient of the sum`, as
    `gradient`, with ones sent back in place of the cross-entropy's gradient. (Before
    the first epoch the running statistics are those of the training set.) `accuracy`:
    of the test set, intact, or with `delete one`: block `at` (from 1) deleted,
    `delete`: `at` random blocks deleted, `swap`: `at` random swaps. `tau`: Kendall's.
    """
    kind, depth, survival, epochs = _PATH_NETS[net]
    model, data = _batchnorm_mlp(kind, depth, seed), mnist1d()
    adam = torch.optim.Adam(model.parameters(), lr=2e-3, fused=True)
    rows, before = [], 0

    def row(measure, at, value, repeat=0, tau=1.0):
        told = dict(measure=measure, epoch=before, at=at, repeat=repeat)
        rows.append({**told, "tau": float(tau), "value": float(value)})

    for epoch in epochs:
        if epoch > before:
            train(
                model,
                data,
                epochs=epoch - before,
                survival=survival,
                seed=100 * seed + epoch,
                optimizer=lambda *_, **__: adam,  # one Adam through all stages
            )
            before = epoch
        row("accuracy", 0, accuracy(model, data.x_test, data.y_test))
        row("training accuracy", 0, accuracy(model, data.x_train, data.y_train))
        if len(epochs) > 1:
            looked_at = model if epoch else _calibrated(model, data.x_train)
            norms = _gradient_by_length(looked_at, data)
            for m in range(depth + 1):
                for measure, values in norms.items():
                    row(measure, m, values[m])

    lesions = [("delete one", k + 1, 0, without(depth, k)) for k in range(depth)]
    for count in (c for c in (1, 2, 3, 5, 10, 20, 30, 40) if c < depth):
        for r in range(5):
            order = random_deletions(depth, count, seed=1000 * r + count)
            lesions.append(("delete", count, r, order))
    for count in (1, 2, 4, 8, 16, 32, 64):
        for r in range(5):
            order = random_swaps(depth, count, seed=1000 * r + count)
            lesions.append(("swap", count, r, order))
    studied = lesion_study(
        model,
        lambda damaged: accuracy(damaged, data.x_test, data.y_test),
        [order for *_, order in lesions],
    )
    for (measure, at, r, _), told in zip(lesions, studied, strict=True):
        row(measure, at, told["score"], r, told["kendall_tau"])
    return rows


@torch.no_grad()
def accuracy(model, x, y) -> float:
    """Return the share of inputs that the model, in evaluation mode, labels right."""
    model.eval()
    return float((model(x).argmax(1) == y).double().mean())


def _calibrated(model, x) -> torch.nn.Module:
    """Copy a network and set BatchNorm's running statistics to those of x."""
    twin = copy.deepcopy(model).train()
    for module in twin.modules():
        if isinstance(module, torch.nn.BatchNorm1d):
            module.momentum = 1.0  # the running statistics become the last batch's
    with torch.no_grad():
        twin(x)
    return twin.eval()


def _gradient_by_length(model, data) -> dict:
    """Return norms at h_0 by path length, each of shape (L + 1,)."""
    model.eval()
    x, y = data.x_train[:128], data.y_train[:128]
    with torch.no_grad():
        stream = model.stem(x)
        end = model.blocks(stream)
    end.requires_grad_()
    (gradient,) = torch.autograd.grad(F.cross_entropy(model.head(end), y), end)
    branches, ones = branches_of(model.blocks), torch.ones_like(stream)
    single = sample_path_norms(branches, stream, gradient, samples=8)
    return {
        "gradient": gradient_by_length(branches, stream, gradient),
        "single": single.mean(1),
        "gradient of the sum": gradient_by_length(branches, stream, ones),
    }


@functools.cache
def _shallow(run_seed: int) -> tuple[torch.nn.Linear, Data, float]:
    """Train 6 plain blocks; return the head, the stream before it and the accuracy."""
    seed(run_seed)
    stack = mlp_stack(6, 64, residual=False, norm="batch", activation="relu")
    model: Net = classifier(stack, 40, 64, 10)
    data = mnist1d()
    history = train(model, data, epochs=15, seed=run_seed)
    model.eval().requires_grad_(False)
    with torch.no_grad():
        x_train, x_test = (model.blocks(model.stem(x)) for x in (data[0], data[2]))
    stream = data._replace(x_train=x_train, x_test=x_test)
    return model.head, stream, history.train_accuracy[-1]


def extra_stack(recipe: str, extra: int) -> torch.nn.Sequential:
    """Draw the blocks that are put behind a trained net: "KIND NORM START".

    KIND is plain or residual, NORM is none or batch, and START one of `mlp_stack`'s
    `init`, or "identity": the layer then starts as h ↦ h on a stream h ≥ 0. For a plain
    layer that is W = I and b = 0; for a residual one the branch Linear(ReLU(BN(h)))
    with a linear layer of zeros.
    """
    kind, norm, start = recipe.split()
    if recipe == "residual batch identity":
        blocks = []
        for _ in range(extra):
            linear = torch.nn.Linear(64, 64)
            torch.nn.init.zeros_(linear.weight), torch.nn.init.zeros_(linear.bias)
            branch = torch.nn.Sequential(
                torch.nn.BatchNorm1d(64), torch.nn.ReLU(), linear
            )
            blocks.append(Residual(branch))
        return torch.nn.Sequential(*blocks)
    stack: Net = mlp_stack(
        extra,
        64,
        residual=kind == "residual",
        norm=None if norm == "none" else norm,
        activation="relu",
        init="default" if start == "identity" else start,
    )
    if recipe == "plain none identity":
        for block in stack:
            torch.nn.init.eye_(block[0].weight), torch.nn.init.zeros_(block[0].bias)
    return stack


def extra_layers(recipe: str, lr: float, extra: int, seed: int) -> list[dict]:
    """Train blocks put between a trained net's last block and its head, 4 epochs.

    Everything else is frozen, so doing nothing keeps the accuracy there was. Epoch 0
    is before the first step.
    """
    head, stream, shallow_accuracy = _shallow(seed)
    torch.manual_seed(seed)
    model = torch.nn.Sequential(extra_stack(recipe, extra), head).eval()
    with torch.no_grad():
        hits = (model(stream.x_train).argmax(1) == stream.y_train).float()
    history = train(model, stream, epochs=4, lr=lr, seed=seed)
    accuracies = [hits.mean().item(), *history.train_accuracy]
    return [
        {"epoch": k, "train_accuracy": accuracy, "shallow_accuracy": shallow_accuracy}
        for k, accuracy in enumerate(accuracies)
    ]


def _train_transformer(norm, depth, warmup, lr, run_seed, steps) -> list[dict]:
    """Train one transformer; a row has the mean mini-batch loss of a twentieth of it.

    The accuracies, over the whole training and test set, are in the last row.
    """
    seed(run_seed)
    history = train(
        transformer(depth, norm),
        mnist1d(),
        steps=steps,
        lr=lr,
        batch_size=64,
        warmup_steps=warmup,
        seed=run_seed,
        evaluate_every=steps,
    )
    every = steps // 20
    rows = []
    for step in range(every, len(history.step_loss) + 1, every):
        loss = sum(history.step_loss[step - every : step]) / every
        rows.append({"step": step, "loss": loss})
    status = f"diverged: {history.reason}" if history.diverged else "ok"
    if history.diverged:
        rows.append({"step": len(history.step_loss), "loss": math.nan})
    for row in rows:
        row.update(train_accuracy=math.nan, test_accuracy=math.nan, status="ok")
    rows[-1]["status"] = status
    if not history.diverged:
        rows[-1]["train_accuracy"] = history.train_accuracy[-1]
        rows[-1]["test_accuracy"] = history.test_accuracy[-1]
    return rows


def norm_warmup(lr: float, depth: int, norm: str, warmup: int, seed: int) -> list[dict]:
    """Train a transformer on MNIST-1D: 200 steps of Adam, batch 64, linear warm-up."""
    return _train_transformer(norm, depth, warmup, lr, seed, steps=200)


def norm_gradients(norm: str, warmup: int, seed: int) -> list[dict]:
    """Measure ‖∂loss/∂h_k‖₂ at every block k of 50 before and during training.

    Adam at 1e-3, batch 64, as in norm_warmup. The loss is the mean cross-entropy of the
    first 128 training examples.
    """
    torch.manual_seed(seed)
    model: Net = transformer(50, norm)
    data = mnist1d()
    adam = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    x, y = data.x_train[:128], data.y_train[:128]

    def loss(stream):
        return F.cross_entropy(model.head(model.pool(model.norm(stream))), y)

    rows = []
    shuffled = torch.randperm(4000, generator=torch.Generator().manual_seed(seed))
    for step, batch in enumerate(shuffled[: 41 * 64].split(64)):
        if step in (0, 10, 20, 40):
            with torch.no_grad():
                stream = model.stem(x)
            for k, norm_k in enumerate(gradient_norms(model.blocks, stream, loss)):
                rows.append({"step": step, "block": k, "gradient_norm": float(norm_k)})
        adam.param_groups[0]["lr"] = 1e-3 * min(1.0, (step + 1) / max(warmup, 1))
        batch_loss = F.cross_entropy(model(data.x_train[batch]), data.y_train[batch])
        adam.zero_grad()
        batch_loss.backward()
        adam.step()
    return rows


def norm_others(depth: int, norm: str, seed: int) -> list[dict]:
    """Train as in norm_warmup, Adam at 1e-3 without warm-up."""
    return _train_transformer(norm, depth, 0, 1e-3, seed, steps=200)


def norm_long(norm: str, seed: int) -> list[dict]:
    """Train 6 blocks for 2,000 steps of Adam at 1e-3, batch 64, warm-up over 100."""
    return _train_transformer(norm, 6, 100, 1e-3, seed, steps=2000)


_TRANSFORMER_TOLERANCE = dict(loss=0.25, train_accuracy=0.15, test_accuracy=0.15)

RECIPE_RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)


def recipes(recipe: str, depth: int) -> list[dict]:
    """Train the first hundred steps of a recipe, six rates × five seeds, on MNIST-1D.

    `resnotes.recipes.first_steps`: blocks of two Linear layers of width 32, Adam with a
    constant rate, batches of 128. The row of step 1 has the loss (nats) before the
    first update, each other row the mean of the ten mini-batch losses up to its step.
    """
    losses = first_steps(recipe, depth, lrs=RECIPE_RATES, seeds=range(5))
    tens = losses.unflatten(-1, (-1, 10)).mean(-1)  # (rates, seeds, 10)
    curves = torch.cat([losses[..., :1], tens], dim=-1).tolist()
    return [
        {
            "lr": lr,
            "seed": run_seed,
            "step": step,
            "loss": float(f"{loss:.4g}"),
            "status": "ok" if math.isfinite(loss) else "diverged",
        }
        for lr, by_seed in zip(RECIPE_RATES, curves, strict=True)
        for run_seed, curve in enumerate(by_seed)
        for step, loss in zip((1, *range(10, 101, 10)), curve, strict=True)
    ]


# Activation, norm and init of plain stacks; what a reader may try before shortcuts.
_PLAIN_RECIPES: dict[str, dict[str, Any]] = {
    "default tanh": dict(activation="tanh"),
    "orthogonal tanh": dict(activation="tanh", init="orthogonal"),
    "he relu": dict(activation="relu", init="he"),
    "batch-norm relu": dict(activation="relu", norm="batch"),
}


def plain_inits(seed: int, recipe: str, depth: int, lr: float) -> list[dict]:
    """Train a plain MLP of width 64 on MNIST-1D for 15 epochs of Adam."""
    torch.manual_seed(seed)
    stack = mlp_stack(depth, 64, residual=False, **_PLAIN_RECIPES[recipe])
    model: Net = classifier(stack, 40, 64, 10)
    data = mnist1d()
    gradients = gradient_norms(
        model.blocks,
        model.stem(data.x_train[:128]),
        lambda h: F.cross_entropy(model.head(h), data.y_train[:128]),
    )
    history = train(model, data, epochs=15, lr=lr, batch_size=128, seed=seed)
    return [
        {
            "gradient_in": float(f"{gradients[0]:.4g}"),
            "gradient_out": float(f"{gradients[-1]:.4g}"),
            "train_accuracy": history.train_accuracy[-1],
            "test_accuracy": history.test_accuracy[-1],
            "status": history.reason if history.diverged else "ok",
        }
    ]


_DEGRADATION_GRID = {
    "kind": ("plain", "residual"),
    "depth": (20, 56, 110),
    "seed": (0, 1, 2, 3, 4),
}

SWEEPS = {
    sweep.name: sweep
    for sweep in (
        Sweep(
            name="plain_inits",
            about="plain MLPs of 20 and 56 layers by init, norm and learning rate",
            grid={
                "seed": (0, 1, 2),
                "recipe": tuple(_PLAIN_RECIPES),
                "depth": (20, 56),
                "lr": (2e-3, 5e-4),
            },
            run=plain_inits,
            checked=(dict(seed=0, recipe="orthogonal tanh", depth=20, lr=2e-3),),
            tolerance=dict(train_accuracy=0.15, test_accuracy=0.15),
            relative=dict(gradient_in=1e-3, gradient_out=1e-3),
        ),
        Sweep(
            name="degradation",
            about="plain and residual BatchNorm MLPs of 20, 56 and 110 blocks, trained",
            grid=_DEGRADATION_GRID,
            run=degradation,
            checked=(dict(kind="plain", depth=20, seed=0),),
            # Another processor rounds differently and training amplifies it.
            tolerance=dict(
                train_loss=0.5, train_accuracy=0.15, test_loss=0.5, test_accuracy=0.15
            ),
        ),
        Sweep(
            name="extra_layers",
            about="blocks put behind a trained net: can training make them do nothing?",
            grid={
                "recipe": (
                    "plain none default",
                    "plain none he",
                    "plain none orthogonal",
                    "plain none identity",
                    "plain batch default",
                    "plain batch he",
                    "residual batch default",
                    "residual batch identity",
                ),
                "lr": (2e-3, 5e-4),
                "extra": (4, 16, 48),
                "seed": (0, 1, 2),
            },
            run=extra_layers,
            checked=(
                dict(recipe="plain none identity", lr=2e-3, extra=4, seed=0),
                dict(recipe="residual batch identity", lr=2e-3, extra=4, seed=0),
            ),
            tolerance=dict(train_accuracy=0.1, shallow_accuracy=0.05),
        ),
        Sweep(
            name="degradation_gradients",
            about="the gradient at every block of the same networks before training",
            grid=_DEGRADATION_GRID,
            run=degradation_gradients,
            checked=(
                dict(kind="plain", depth=20, seed=0),
                dict(kind="residual", depth=56, seed=1),
            ),
            # BatchNorm at init is chaotic in depth: float32 differs by processor.
            relative=dict(gradient_norm=0.1),
        ),
        Sweep(
            name="paths",
            about="gradient by path length and lesions of BatchNorm MLPs, trained",
            grid={"seed": (0, 1, 2), "net": tuple(_PATH_NETS)},
            run=paths,
            checked=(dict(seed=0, net="residual 12"),),
            tolerance=dict(value=0.25),
        ),
        Sweep(
            name="norm_warmup",
            about="pre- and post-norm transformers of 6 and 50 blocks, with warm-up",
            grid={
                "lr": (3e-4, 1e-3, 3e-3),
                "depth": (6, 50),
                "norm": ("pre", "post"),
                "warmup": (0, 100),
                "seed": (0, 1, 2, 3, 4),
            },
            run=norm_warmup,
            checked=(
                dict(lr=1e-3, depth=6, norm="pre", warmup=0, seed=0),
                dict(lr=1e-3, depth=6, norm="post", warmup=100, seed=0),
            ),
            tolerance=_TRANSFORMER_TOLERANCE,
        ),
        Sweep(
            name="norm_warmup_steps",
            about="the same networks with other lengths of warm-up",
            grid={
                "lr": (3e-4, 1e-3, 3e-3),
                "depth": (6, 50),
                "norm": ("pre", "post"),
                "warmup": (10, 30, 200),
                "seed": (0, 1, 2, 3, 4),
            },
            run=norm_warmup,
            checked=(dict(lr=1e-3, depth=6, norm="post", warmup=30, seed=0),),
            tolerance=_TRANSFORMER_TOLERANCE,
        ),
        Sweep(
            name="norm_gradients",
            about="the gradient at every block of 50 in the first 40 steps",
            grid={
                "norm": ("pre", "post"),
                "warmup": (0, 100),
                "seed": (0, 1, 2, 3, 4),
            },
            run=norm_gradients,
            checked=(dict(norm="post", warmup=100, seed=0),),
            relative=dict(gradient_norm=0.3),
        ),
        Sweep(
            name="norm_others",
            about="Peri-LN and DeepNorm transformers of 6 and 50 blocks, no warm-up",
            grid={
                "depth": (6, 50),
                "norm": ("peri", "deep"),
                "seed": (0, 1, 2, 3, 4),
            },
            run=norm_others,
            checked=(
                dict(depth=6, norm="peri", seed=0),
                dict(depth=6, norm="deep", seed=0),
            ),
            tolerance=_TRANSFORMER_TOLERANCE,
        ),
        Sweep(
            name="norm_long",
            about="pre- and post-norm transformers of 6 blocks, ten times longer",
            grid={"norm": ("pre", "post"), "seed": (0, 1, 2, 3, 4)},
            run=norm_long,
            checked=(dict(norm="post", seed=0),),
            tolerance=_TRANSFORMER_TOLERANCE,
        ),
        Sweep(
            name="recipes",
            about="the first hundred steps of fourteen ways to begin a residual net",
            grid={"recipe": tuple(RECIPES), "depth": (4, 16, 64)},
            run=recipes,
            checked=(dict(recipe="ReZero", depth=4),),
            # Rates of 0.1 are chaotic: there a loss may come out as anything near.
            tolerance=dict(loss=0.5),
        ),
    )
}
