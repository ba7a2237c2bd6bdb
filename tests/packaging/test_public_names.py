"""The public names: where they are found, and what finding them costs."""

from __future__ import annotations

import importlib

import pytest
from task_runs import run_python

LAZY = ("vinoreward", "vinoreward_actors", "vinoreward_actors.actor_learner")
LIGHT = (*LAZY, "vinoreward_actors.policies", "vinoreward.wrappers", "vinoreward.wrappers.vector")


@pytest.mark.parametrize("package", [*LIGHT, "vinoreward.wrappers.sb3"])
def test_every_name_is_there(package: str) -> None:
    if package in (*LAZY, "vinoreward.wrappers.sb3"):
        pytest.importorskip("stable_baselines3")
    module = importlib.import_module(package)
    assert module.__all__ and set(module.__all__) <= set(dir(module))
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = module.no_such_name


def test_a_name_that_moved_says_where_it_is() -> None:
    import vinoreward

    with pytest.raises(AttributeError, match="from vinoreward_actors import ActorLearner"):
        _ = vinoreward.ActorLearner
    with pytest.raises(AttributeError, match=r"from vinoreward_training\.sb3 import BatchedVecEnv"):
        _ = vinoreward.BatchedVecEnv


def test_no_runtime_is_imported_before_it_is_used() -> None:
    code = f"import sys, {', '.join(LIGHT)}\n" + (
        "heavy = {'torch', 'openvino', 'onnxruntime', 'stable_baselines3', 'ray', 'scipy'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert run_python(code).strip() == "[]"
