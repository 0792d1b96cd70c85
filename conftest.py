"""Settings shared by the unit tests and by nbval's run of the notebooks."""

import hypothesis
import pytest
import torch
from nbval.plugin import IPyNbCell

from resnotes.notebooks import same_picture

hypothesis.settings.register_profile(
    "resnotes", deadline=None, max_examples=25, derandomize=True
)
hypothesis.settings.load_profile("resnotes")


@pytest.fixture(autouse=True)
def one_thread_and_a_seed():
    """Make sums the same on every machine, and no test lean on another."""
    torch.set_num_threads(1)
    torch.manual_seed(0)


class Picture(str):
    """A figure as nbval sees it: equal to another that differs by less than a hair."""

    __hash__ = str.__hash__

    def __eq__(self, other):
        return same_picture(self, other) is None

    def __ne__(self, other):
        return not self == other


# nbval compares text exactly and offers regular expressions only, so two of its methods
# are wrapped. (A subclass will not do: nbval calls its own class by name.)
_sanitize = IPyNbCell.sanitize
_format_output_compare = IPyNbCell.format_output_compare


def sanitize(cell, text):
    """Hand figures over for comparison as pictures."""
    if isinstance(text, str) and 'class="rn-' in text:
        return Picture(text)
    return _sanitize(cell, text)


def format_output_compare(cell, key, left, right):
    """Say in one line what differs in a figure, instead of printing it whole."""
    if isinstance(left, Picture):
        cell.comparison_traceback.append(same_picture(left, right))
    else:
        _format_output_compare(cell, key, left, right)


IPyNbCell.sanitize = sanitize
IPyNbCell.format_output_compare = format_output_compare
