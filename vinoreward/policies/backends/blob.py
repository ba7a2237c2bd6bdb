"""A backend's prepared form of a policy as bytes, with what it was made of and a checksum.

Bytes that do not fit are never an error: the backend prepares the policy itself, which takes
longer.
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
"""Bytes; the payload starts at a multiple, for whoever puts the blob at such an address."""
_MAGIC = b"vinoreward policy blob 1\n"
_START = re.compile(re.escape(_MAGIC) + rb"([^\n]*)\n")


def seal(header: Mapping[str, Any], payload: bytes) -> bytes:
    """Return a blob.

    Args:
        header: plain data: everything that must be the same where the blob is used.
        payload: the backend's own.
    """
    text = json.dumps({**header, "checksum": zlib.crc32(payload)}).encode()
    start = _MAGIC + text
    return start + b" " * (-(len(start) + 1) % ALIGNMENT) + b"\n" + payload


def unseal(blob: bytes | memoryview | None, header: Mapping[str, Any]) -> memoryview | None:
    """Return a blob's payload without a copy, or None.

    None: no blob, another header than ``header``, or damaged bytes. A checksum is no protection
    from somebody who means harm; policies come from the user's own processes.
    """
    start = None if blob is None else _START.match(blob)
    if blob is None or start is None:
        return None
    try:
        found = json.loads(start[1])
    except ValueError:
        return None
    payload = memoryview(blob)[start.end() :]
    # Engines load damaged bytes without complaint, or crash on them.
    return payload if found == {**header, "checksum": zlib.crc32(payload)} else None


def describes(policy: Policy, backend: str) -> dict[str, Any]:
    """Return the part of a header that says which policy and backend a blob is for."""
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
