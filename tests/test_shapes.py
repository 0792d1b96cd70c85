"""The shapes in the signatures hold: jaxtyping and beartype check each example."""

import subprocess
import sys

import pytest

CODE = """
import doctest, importlib, sys
from jaxtyping import install_import_hook
with install_import_hook("resnotes", "beartype.beartype"):
    module = importlib.import_module("resnotes." + sys.argv[1])
failed, tried = doctest.testmod(module)
sys.exit(failed or not tried)
"""


@pytest.mark.parametrize(
    "module",
    "gradients blocks jacobians paths lesions training recipes transformers".split(),
)
def test_examples_keep_their_annotations(module):
    run = subprocess.run(
        [sys.executable, "-c", CODE, module], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_a_wrong_shape_would_be_noticed():
    """The check itself can fail: a batch where one input is annotated."""
    code = CODE.replace(
        "failed, tried =",
        "import torch; module.chain_jacobian(torch.nn.Identity(), torch.ones(2, 2)) #",
    )
    run = subprocess.run(
        [sys.executable, "-c", code, "jacobians"], capture_output=True, text=True
    )
    assert run.returncode == 1 and "TypeCheckError" in run.stderr
