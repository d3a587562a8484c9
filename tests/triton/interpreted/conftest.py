"""Fixtures for the tests that run in Triton's interpreter, which must be enabled before Triton is imported."""

import dataclasses
import os

import pytest

if os.environ.get("TRITON_INTERPRET") != "1":
    collect_ignore_glob = ["*.py"]


@pytest.fixture(scope="session", autouse=True)
def _speed_up_interpreter():
    """Switch off two features of the interpreter that take three fifths of its time and have no effect here.

    It patches Triton's language at every call of a function, even if the calling kernel has patched it already; and it
    checks integers for overflow, which it reports only with its debug option.
    """
    from triton.runtime import interpreter

    interpreter.interpreter_builder.options = dataclasses.replace(
        interpreter.interpreter_builder.options, sanitize_overflow=False
    )
    if hasattr(interpreter, "_LangPatchScope"):
        interpreter._patch_lang = _make_patch_once(interpreter)


def _make_patch_once(interpreter):
    language, patch = interpreter.tl, interpreter._patch_lang
    patched = []

    def once(function):
        modules = [value for value in function.__globals__.values() if value is language or value is language.core]
        if all(any(module is one for one in patched) for module in modules):
            return interpreter._LangPatchScope()
        scope = patch(function)
        patched.extend(modules)
        restore = scope.restore

        def forget():
            patched.clear()
            restore()

        scope.restore = forget
        return scope

    return once


@pytest.fixture
def launches():
    """A list of the launches during the test."""
    from whitenorm.ops.launches import record_launches

    with record_launches() as launches:
        yield launches


@pytest.fixture(params=[False, True], ids=["whole", "split"])
def split(request, monkeypatch):
    """Whether several programs share a matrix; otherwise there is one program per matrix."""
    from whitenorm.ops.triton.tiling import plan

    if request.param:
        monkeypatch.setattr("whitenorm.ops.triton.tiling.LEAST_TILES", 1)
    else:
        monkeypatch.setattr("whitenorm.ops.triton.tiling.ENOUGH_PROGRAMS", 1)
        monkeypatch.setattr("whitenorm.ops.triton.tiling.MANY_PROGRAMS", 1)
    plan.cache_clear()
    yield request.param
    plan.cache_clear()
