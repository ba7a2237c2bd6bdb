"""What an environment lets an audit change and search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Undo = Callable[[], None]


@dataclass(frozen=True)
class Intervention:
    """One change to an environment's state, and whether a success survives it.

    An environment offers a list of them by a method ``audit_interventions()``, or ``vinoreward
    audit --interventions file.py:function`` names a function of the environment that returns it::

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
    """Changes the environment, and returns what undoes it. The next image shows the change."""
    success: bool = False
    """Whether a success survives, as another colour of the wall."""


@dataclass(frozen=True)
class Axis:
    """One number of a state that is searched."""

    name: str
    """For the report, such as ``"gripper x"``."""
    low: float
    high: float
    unit: str = ""
    """Such as ``"m"``. A grid has the same spacing along axes of the same unit."""


@dataclass(frozen=True)
class SearchSpace:
    """States that an audit searches for false claims.

    An environment offers a list of them by a method ``audit_spaces()``, or the function of
    ``--interventions`` returns them among its interventions::

        def reach(state):
            env.place_hand(*state)
            return True if env.at_goal else None if env.near_goal else False

        SearchSpace("hand", (Axis("x", 0, 1, "m"), Axis("y", 0, 1, "m")), reach)
    """

    name: str
    axes: tuple[Axis, ...]
    """The two first are drawn as a plane."""
    set_state: Callable[[NDArray[np.float64]], bool | None]
    """Puts the environment into a state, one number for each axis; the next image shows it.
    Returns whether that is a success, or None: too close to call, or not to be reached."""
