"""Tests of the Triton kernels in Triton's interpreter, which has to be chosen before Triton is imported."""

import dataclasses
import os

import pytest

if os.environ.get("TRITON_INTERPRET") != "1":
    collect_ignore_glob = ["*.py"]


@pytest.fixture(scope="session", autouse=True)
def _less_work_for_the_interpreter():
    """Two things it does for nothing, which are three fifths of its time.

    At every call of a function it puts its own operations into Triton's language, also where those of the kernel that
    calls are there already; and it computes whether integers overflow, which without its debug option nobody is told.
    """
    from triton.runtime import interpreter

    interpreter.interpreter_builder.options = dataclasses.replace(
        interpreter.interpreter_builder.options, sanitize_overflow=False
    )
    if hasattr(interpreter, "_LangPatchScope"):
        interpreter._patch_lang = _patched_once(interpreter)


def _patched_once(interpreter):
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
    """The kernels launched so far."""
    from whitenorm.ops.launches import record_launches

    with record_launches() as found:
        yield found


@pytest.fixture(params=[False, True], ids=["whole", "split"])
def split(request, monkeypatch):
    """As few programs as there are matrices, or several for each."""
    if request.param:
        monkeypatch.setattr("whitenorm.ops.triton.tiling.LEAST_TILES", 1)
    else:
        monkeypatch.setattr("whitenorm.ops.triton.tiling.ENOUGH_PROGRAMS", 1)
        monkeypatch.setattr("whitenorm.ops.triton.tiling.MANY_PROGRAMS", 1)
    return request.param
