"""How weights and trajectories lie in what Ray carries: plain bytes, read where they lie."""

from __future__ import annotations

from typing import Any

import numpy as np

from vinoreward.actor_learner.engines.ray.state import Published
from vinoreward.actor_learner.transport.trajectory import Trajectory, TrajectorySpec
from vinoreward.errors import InputError
from vinoreward.policies.wire import Bytes

INLINE_BYTES = 64 << 10
"""What is smaller travels in the answer itself (Ray's own limit is 100 KB): one journey, not two.
"""
FETCH_TIMEOUT = 60.0


def body_of(payload: Bytes) -> Any:
    """Return what to publish of a payload: itself, or a reference in the object store."""
    import ray

    return payload if payload.nbytes <= INLINE_BYTES else [ray.put(payload)]


def fetch(latest: Published) -> Bytes | None:
    """Return a payload, read-only and not copied where it is on this machine; None if it is lost.

    It is lost when the process that had put it there has died.
    """
    import ray
    from ray.exceptions import RayError

    inline = not isinstance(latest.body, list)
    found: Bytes
    try:
        found = latest.body if inline else ray.get(latest.body[0], timeout=FETCH_TIMEOUT)
    except RayError:
        return None
    return found


def trajectory_in(
    spec: TrajectorySpec, buffer: Bytes, actor: int = 0, generation: int = 0
) -> Trajectory:
    """Return a trajectory whose arrays are views of (spec.nbytes,) uint8.

    Raises:
        InputError: another number of bytes.
    """
    if buffer.shape != (spec.nbytes,) or buffer.dtype != np.uint8:
        raise InputError(
            f"a trajectory came as {buffer.dtype}{buffer.shape}. Expected uint8({spec.nbytes},): "
            "install the same version of vinoreward on every machine."
        )
    arrays = {
        name: buffer[at.offset : at.offset + at.nbytes].view(at.dtype).reshape(at.shape)
        for name, at in spec.fields().items()
    }
    return Trajectory(**arrays, actor=actor, generation=generation)
