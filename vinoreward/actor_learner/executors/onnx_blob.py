"""INT8 weights laid out as ONNX Runtime multiplies them: what the compressor prepares for actors.

Transposing 8 million weights takes an actor 25 ms at every refresh; reading them from a blob, 4 ms.
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.actor_learner.executors.blob import ALIGNMENT, describes, seal, unseal
from vinoreward.actor_learner.executors.folded import int8_layers, weight_count
from vinoreward.actor_learner.executors.onnx_graph import int8_arrays
from vinoreward.policies.policy import Policy
from vinoreward.policies.spec import Dense

SMALLEST = 1_000_000
"""Dense INT8 weights from which a blob saves an actor time: below, comparing it with the weights
takes as long as transposing them. Of a convolution nothing is saved."""

_TABLE = re.compile(rb"[^\n]*\n")


def compile_blob(policy: Policy) -> bytes | None:
    """Return a blob for ``Policy.blob``, for any batch and processor; None where none pays."""
    int8 = int8_layers(policy)
    dense = (one.name for one in policy.spec.weighted if isinstance(one, Dense))
    if weight_count(policy.spec, tuple(name for name in dense if name in int8)) < SMALLEST:
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
    table = _TABLE.match(payload)
    if table is None:
        return None
    found: dict[str, npt.NDArray[Any]] = {}
    for name, dtype, shape, offset in json.loads(table[0]):
        whole = np.frombuffer(payload, dtype, int(np.prod(shape)), table.end() + offset)
        found[name] = whole.reshape(shape)
    return found
