"""Learned rewards for any Gymnasium environment, at simulator speed, that you can trust."""

from __future__ import annotations

import os
from typing import Any

import lazy_loader
from gymnasium.envs.registration import register, registry

__version__ = "0.1.0"

# ONNX Runtime reads this when it is first imported, which NNCF and PyTorch's exporter do too.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
# Likewise: otherwise it also asks the Hub which programs run it, and tells who did.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

# What is public, and where it is, says __init__.pyi; imported when it is first used (PEP 562).
_public, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
_ELSEWHERE = {
    "vinoreward_actors": (
        *("ActorLearner", "ActorLearnerConfig", "CompressorChain", "Player"),
        *("load_policy", "save_policy"),
    ),
    "vinoreward_training.sb3": ("BatchedVecEnv", "OverlappedTraining"),
}


def __getattr__(name: str) -> Any:
    for package, names in _ELSEWHERE.items():
        if name in names:
            raise AttributeError(f"{name} is not here: from {package} import {name}")
    return _public(name)


_ENVIRONMENTS: dict[str, dict[str, Any]] = {
    "PandaHover-v0": {"object_position": "fixed"},
    "PandaHoverRandom-v0": {"object_position": "random"},
    "PandaHoverPixels-v0": {"object_position": "random", "observation": "pixels"},
}

for _id, _arguments in _ENVIRONMENTS.items():
    if _id not in registry:
        register(
            id=_id,
            entry_point="vinoreward_envs.making:make_env",
            vector_entry_point="vinoreward_envs.making:make_vec_env",
            kwargs=_arguments,
        )
