"""The examples in the docstrings give what they show."""

import doctest
import importlib
import pkgutil

import pytest

import tensorveil

MODULES = ["tensorveil"] + [
    found.name
    for found in pkgutil.walk_packages(tensorveil.__path__, "tensorveil.")
    if not found.name.endswith("__main__")
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_give_what_they_show(name):
    failed, _ = doctest.testmod(importlib.import_module(name), raise_on_error=False)
    assert failed == 0


def test_examples_are_found_at_all():
    tried = [doctest.testmod(importlib.import_module(name)).attempted for name in MODULES]
    assert sum(tried) >= 5
