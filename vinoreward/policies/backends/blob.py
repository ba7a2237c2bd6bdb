"""A backend's prepared form of a policy as bytes, with a header and a checksum.

A blob that does not fit is never an error: the backend then prepares the policy itself, which is
slower.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from vinoreward.policies.policy import Policy, QuantizedArray

ALIGNMENT = 64
"""In bytes; the payload starts at a multiple of this, so a blob at such an address is aligned."""
_MAGIC = b"vinoreward policy blob 1\n"
_START = re.compile(re.escape(_MAGIC) + rb"([^\n]*)\n")


def seal(header: Mapping[str, Any], payload: bytes) -> bytes:
    """Return a blob.

    Args:
        header: plain data that must match where the blob is used.
        payload: the backend's bytes.
    """
    text = json.dumps({**header, "checksum": zlib.crc32(payload)}).encode()
    start = _MAGIC + text
    return start + b" " * (-(len(start) + 1) % ALIGNMENT) + b"\n" + payload


def unseal(blob: bytes | memoryview | None, header: Mapping[str, Any]) -> memoryview | None:
    """Return a blob's payload without a copy, or None.

    None means no blob, a header other than ``header``, or damaged bytes. The checksum does not
    protect from an attacker; policies come from the user's own processes.
    """
    start = None if blob is None else _START.match(blob)
    if blob is None or start is None:
        return None
    try:
        found = json.loads(start[1])
    except ValueError:
        return None
    payload = memoryview(blob)[start.end() :]
    # Runtimes load damaged bytes without an error, or crash on them.
    return payload if found == {**header, "checksum": zlib.crc32(payload)} else None


def describes(policy: Policy, backend: str) -> dict[str, Any]:
    """Return the header fields that identify a blob's policy and backend."""
    return {
        "backend": backend,
        "network": policy.spec.digest(),
        "weights": fingerprint(policy),
    }


def fingerprint(policy: Policy) -> int:
    """Return a checksum of a policy's weights and ranges; 2 ms for 8 million INT8 weights."""
    ranges = {name: [found.low, found.high] for name, found in sorted(policy.ranges.items())}
    total = zlib.crc32(json.dumps(ranges).encode())
    for value in policy.parameters.values():
        arrays = [value.codes, value.scales] if isinstance(value, QuantizedArray) else [value]
        for array in arrays:
            total = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, total)
    return total
