"""Blocks and stacks: against the seeds' values, hand-written formulas and errors."""

import pytest
import torch
from torch import nn

from resnotes.blocks import Residual, classifier, mlp_stack


@pytest.mark.parametrize(
    "residual, norms",
    [
        (False, [9.2033e-10, 3.2088e-9, 3.9239e-9]),
        (True, [157.52, 147.04, 182.85]),
    ],
)
def test_forty_tanh_layers_give_the_known_gradients(residual, norms):
    for seed, known in enumerate(norms):
        torch.manual_seed(seed)
        stack = mlp_stack(40, 64, residual=residual)
        x = torch.randn(8, 64, requires_grad=True)
        stack(x).sum().backward()
        assert x.grad.norm().item() == pytest.approx(known, rel=1e-4)


def test_plain_and_residual_stacks_share_their_weights():
    torch.manual_seed(3)
    plain = mlp_stack(4, 8, residual=False, norm="batch", init="orthogonal")
    torch.manual_seed(3)
    residual = mlp_stack(4, 8, residual=True, norm="batch", init="orthogonal")
    for a, b in zip(plain.parameters(), residual.parameters(), strict=True):
        assert torch.equal(a, b)


def test_residual_refuses_to_broadcast():
    block = Residual(nn.Linear(4, 1))
    with pytest.raises(ValueError, match=r"\(2, 4\).*\(2, 1\)"):
        block(torch.randn(2, 4))


def test_classifier_is_stem_blocks_head():
    net = classifier(mlp_stack(3, 16, residual=True), 40, 16, 10)
    x = torch.randn(5, 40)
    assert torch.equal(net(x), net.head(net.blocks(net.stem(x))))
