"""Say in one sentence what is wrong with an argument."""

import operator
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def choice(name: str, value: Any, choices: Mapping[Any, T]) -> T:
    """Return the entry that `value` picks, or say what could have been picked.

    >>> choice("norm", "layer", {"batch": 1, "layer": 2})
    2
    """
    try:
        return choices[value]
    except (KeyError, TypeError):  # unknown, or nothing that a key could be
        known = ", ".join(map(repr, choices))
        raise ValueError(
            f"{name}={value!r} is not known; choose one of {known}."
        ) from None


def whole(name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """Return `value` as an int if it is a whole number from `least` to `most`.

    >>> whole("depth", 54)
    54
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:  # a float; a tensor of several numbers, or of one float
        kind = type(value).__name__
        raise TypeError(
            f"{name}={value!r} must be a whole number, got a {kind}."
        ) from None
    if most is not None and not least <= number <= most:
        raise ValueError(f"{name}={number} must be from {least} to {most}.")
    if number < least:
        raise ValueError(f"{name}={number} must be at least {least}.")
    return number
