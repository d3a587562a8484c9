"""Samples of slow families of tests: ``make test`` runs the sample, ``make test-all`` the whole family."""

import pytest


def mark_slow(names, sample=()):
    """Return parameters for ``pytest.mark.parametrize`` of which all but the sample are marked slow.

    A name is a tuple where the test has several parameters.
    """
    names = list(names)
    assert set(sample) <= set(names), f"expected a sample of {names} (got {sample})"
    return [
        name if name in sample else pytest.param(*(name if isinstance(name, tuple) else [name]), marks=pytest.mark.slow)
        for name in names
    ]
