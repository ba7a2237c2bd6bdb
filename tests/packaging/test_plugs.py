"""What other packages add: policy backends, learners and compressor stages, by entry points."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vinoreward.errors import ConfigError
from vinoreward_actors.command.build import build
from vinoreward_actors.command.config import ActorsConfig
from vinoreward_actors.command.stages import chain_of
from vinoreward_actors.compression import CompressionContext
from vinoreward_actors.policies.backends.base import make_backend
from vinoreward_actors.policies.policy import forward, random_policy
from vinoreward_actors.policies.spec import mlp

MODULE = """
import numpy as np
from vinoreward_actors.actor_learner.learners.impala import Impala
from vinoreward_actors.compression import Stage
from vinoreward_actors.policies.backends.base import PolicyBackend
from vinoreward_actors.policies.policy import forward

class Plain(PolicyBackend):
    name = "plain"

    def _load(self, policy):
        return lambda observations: forward(policy, observations)

class Rounded(Stage):
    def __init__(self, decimals: int = 2) -> None:
        self.decimals = decimals

    def compress(self, policy, context):
        weights = {k: np.round(v, self.decimals) for k, v in policy.float_parameters().items()}
        return policy.replace(parameters=weights)

class Mine(Impala):
    pass
"""
ENTRY_POINTS = """
[vinoreward.policy_backends]
plain = some_package:Plain
wrong = some_package:Rounded
nowhere = some_package:Nothing
gone = other_package:Plain

[vinoreward.stages]
rounded = some_package:Rounded

[vinoreward.learners]
mine = some_package:Mine
"""


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "some_package-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: some-package\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(ENTRY_POINTS)
    (tmp_path / "some_package.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)


def test_a_policy_backend_with_one_method() -> None:
    policy = random_policy(mlp(3, 2, head="logits", hidden=(8,)), 0)
    seen = np.ones((2, 3), np.float32)
    with make_backend("plain", 2) as backend:
        backend.refresh(policy)
        np.testing.assert_array_equal(backend.infer(seen), forward(policy, seen))
        with pytest.raises(ConfigError, match="closed"):
            backend.close()
            backend.refresh(policy)
    with pytest.raises(ConfigError, match="subclass of vinoreward"):
        make_backend("wrong", 1)
    for name in ("nowhere", "gone"):
        with pytest.raises(ConfigError, match=r"does not import.*reinstall"):
            make_backend(name, 1)


def test_a_stage() -> None:
    policy = random_policy(mlp(3, 2, head="logits", hidden=(8,)), 0)
    chain = chain_of(
        "[{rounded: {decimals: 1}}, {compile: numpy}]", "numpy", lambda name: policy.spec
    )
    assert chain is not None
    found = chain.compress(policy, CompressionContext(policy, np.ones((4, 3), np.float32)))
    for name, value in policy.float_parameters().items():
        np.testing.assert_array_equal(found.parameters[name], np.round(value, 1))


def test_a_learner() -> None:
    pytest.importorskip("torch")
    made = build(ActorsConfig(task="CartPole-v0", algorithm="mine", network="1x8"))
    assert type(made.learner).__name__ == "Mine" and made.learner.spec.head == "logits"
