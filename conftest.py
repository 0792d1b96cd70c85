"""Settings shared by the unit tests and by nbval's run of the notebooks."""

import hypothesis
import nbval.plugin
import pytest
import torch

from resnotes.notebooks import same_picture

hypothesis.settings.register_profile(
    "resnotes", deadline=None, max_examples=25, derandomize=True
)
hypothesis.settings.load_profile("resnotes")


@pytest.fixture(autouse=True)
def one_thread_and_a_seed():
    """Same sums in the same order on every machine; no test leans on another."""
    torch.set_num_threads(1)
    torch.manual_seed(0)


class Picture(str):
    """A figure as nbval sees it: equal to another that differs by less than a hair."""

    __hash__ = str.__hash__

    def __eq__(self, other):
        return same_picture(self, other) is None

    def __ne__(self, other):
        return not self == other


class Cell(nbval.plugin.IPyNbCell):
    """A notebook cell whose figures are compared as pictures, not byte by byte."""

    def sanitize(self, text):
        """Hand figures over for comparison as pictures."""
        if isinstance(text, str) and 'class="rn-' in text:
            return Picture(text)
        return super().sanitize(text)

    def format_output_compare(self, key, left, right):
        """Say in one line what differs in a figure, instead of printing it whole."""
        if isinstance(left, Picture):
            self.comparison_traceback.append(same_picture(left, right))
        else:
            super().format_output_compare(key, left, right)


nbval.plugin.IPyNbCell = Cell
