"""What an environment lets an audit change: without its cause, a claim must go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from vinoreward.errors import ConfigError

Undo = Callable[[], None]


@dataclass(frozen=True)
class Intervention:
    """One change to an environment's state, and whether a success survives it.

    An environment offers some by a method ``audit_interventions() -> Sequence[Intervention]``, or
    ``vinoreward audit --interventions file.py:function`` names a function of the environment that
    returns them::

        def interventions(env):
            def remove(random):
                place = env.cube_place
                env.place_cube(None)
                return lambda: env.place_cube(place)

            return [Intervention("cube removed", remove)]
    """

    name: str
    """For the report, such as ``"object removed"``."""
    apply: Callable[[np.random.Generator], Undo]
    """Changes the environment, and returns what undoes it. The next picture shows the change."""
    success: bool = False
    """Whether a success survives: True for a change that should not matter, such as another colour
    of the wall."""


def interventions_of(env: Any) -> tuple[Intervention, ...]:
    """Return what an environment (``env.unwrapped``) offers; none where it has no such method.

    Raises:
        ConfigError: it gives something else.
    """
    offer = getattr(env, "audit_interventions", None)
    return () if offer is None else checked(offer(), type(env).__name__)


def checked(found: Any, source: str) -> tuple[Intervention, ...]:
    """Return interventions as a tuple; ConfigError for anything else."""
    every = tuple(found) if isinstance(found, list | tuple) else (found,)
    if not all(isinstance(one, Intervention) for one in every):
        raise ConfigError(
            f"{source} gives {found!r} as interventions. Expected a list of "
            "vinoreward.Intervention(name, apply)."
        )
    return every
