"""INT8 weights laid out as ONNX Runtime multiplies them: what the compressor prepares for actors.

Transposing 8 million weights takes an actor 25 ms at every refresh; reading them from a blob, 4 ms.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.actor_learner.executors.blob import ALIGNMENT, describes, seal, unseal
from vinoreward.actor_learner.executors.folded import int8_layers, weight_count
from vinoreward.actor_learner.executors.onnx_graph import int8_arrays
from vinoreward.policies.policy import Policy

SMALLEST = 200_000
"""INT8 weights from which a blob saves an actor more than a millisecond."""


def compile_blob(policy: Policy) -> bytes | None:
    """Return a blob for ``Policy.blob``, for any batch and processor; None where none pays."""
    if weight_count(policy.spec, int8_layers(policy)) < SMALLEST:
        return None
    table, parts, end = [], [], 0
    for name, array in int8_arrays(policy).items():
        gap = -end % ALIGNMENT
        table.append([name, array.dtype.name, list(array.shape), end + gap])
        parts += [b"\0" * gap, array.tobytes()]
        end += gap + array.nbytes
    start = json.dumps(table).encode() + b"\n"
    start = b" " * (-len(start) % ALIGNMENT) + start
    return seal(describes(policy, "onnxruntime"), start + b"".join(parts))


def read_blob(policy: Policy) -> dict[str, npt.NDArray[Any]] | None:
    """Return the arrays in a policy's blob, as views of it, or None if it does not fit."""
    if policy.blob is None:
        return None
    payload = unseal(policy.blob, describes(policy, "onnxruntime"))
    if payload is None:
        return None
    flat = np.frombuffer(payload, dtype=np.uint8)
    start = int(np.argmax(flat == ord("\n"))) + 1
    found = {}
    for name, dtype, shape, offset in json.loads(bytes(payload[:start])):
        kind, count = np.dtype(dtype), int(np.prod(shape))
        part = flat[start + offset : start + offset + count * kind.itemsize]
        found[name] = part.view(kind).reshape(shape)
    return found
