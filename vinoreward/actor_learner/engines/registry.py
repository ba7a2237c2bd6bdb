"""Engines by name."""

from __future__ import annotations

from vinoreward.actor_learner.engines.base import Engine, EngineConfig
from vinoreward.actor_learner.engines.local.engine import LocalEngine
from vinoreward.actor_learner.engines.ray.engine import RayEngine
from vinoreward.errors import ConfigError

ENGINES = ("local", "ray")


def make_engine(name: str, config: EngineConfig) -> Engine:
    """Return an engine that has not been started.

    Raises:
        ConfigError: no engine of that name.
        MissingExtraError: what it needs is not installed.
    """
    if name == "local":
        return LocalEngine(config)
    if name == "ray":
        return RayEngine(config)
    raise ConfigError(f"there is no engine {name!r}. Expected one of {', '.join(ENGINES)}.")
