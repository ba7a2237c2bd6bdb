"""Learned rewards for any Gymnasium environment, at simulator speed, that you can trust."""

from __future__ import annotations

import importlib
import os
from typing import Any

from gymnasium.envs.registration import register, registry

__version__ = "0.1.0"

# ONNX Runtime reads this when it is first imported, which NNCF and PyTorch's exporter do too.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

_LAZY = {
    "Bundle": "vinoreward.bundles.bundle",
    "Classifier": "vinoreward.rewards.classifier",
    "Encoder": "vinoreward.encoders.encoder",
    "SuccessDetector": "vinoreward.rewards.detector",
    "LearnedReward": "vinoreward.wrappers.learned_reward",
    "VectorLearnedReward": "vinoreward.wrappers.vector.learned_reward",
    "VecLearnedReward": "vinoreward.wrappers.sb3.learned_reward",
    "EncodedObservation": "vinoreward.wrappers.encoded",
    "VectorEncodedObservation": "vinoreward.wrappers.vector.encoded",
    "VecEncodedObservation": "vinoreward.wrappers.sb3.encoded",
    "ActorLearner": "vinoreward.actor_learner.trainer",
    "ActorLearnerConfig": "vinoreward.actor_learner.config",
    "CompressorChain": "vinoreward.compression.chain",
    "Player": "vinoreward.actor_learner.acting.player",
    "load_policy": "vinoreward.policies.files",
    "save_policy": "vinoreward.policies.files",
    "load_backend": "vinoreward.backends.registry",
}

__all__ = [*_LAZY, "__version__"]

_ENVIRONMENTS: dict[str, dict[str, Any]] = {
    "PandaHover-v0": {"object_position": "fixed"},
    "PandaHoverRandom-v0": {"object_position": "random"},
    "PandaHoverPixels-v0": {"object_position": "random", "observation": "pixels"},
}

for _id, _arguments in _ENVIRONMENTS.items():
    if _id not in registry:
        register(
            id=_id,
            entry_point="vinoreward_envs.panda_hover:PandaHoverEnv",
            kwargs=_arguments,
        )


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562): ``import vinoreward`` stays light."""
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted({*globals(), *_LAZY})
