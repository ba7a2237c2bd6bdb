"""Whether Gymnasium's Pendulum points up: it does not say so itself."""

from __future__ import annotations

import math
from typing import Any


def upright(env: Any) -> bool:
    """Return whether the pendulum is within 15 degrees of upright."""
    return bool(math.cos(env.state[0]) > math.cos(math.radians(15)))
