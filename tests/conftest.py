"""Settings shared by the unit tests."""

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile(
    "resnotes", deadline=None, max_examples=25, derandomize=True
)
hypothesis.settings.load_profile("resnotes")


@pytest.fixture(autouse=True)
def one_thread_and_a_seed():
    """Same sums in the same order on every machine, and no test that leans on another."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
