"""Packs integers of a few bits without gaps, to save bytes on the wire."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from vinoreward.errors import InputError
from vinoreward.policies.policy import largest_code

Bytes = npt.NDArray[np.uint8]
CHUNK = 1 << 20
"""Codes per chunk, a multiple of 8: each bit takes a byte during packing."""
_DAMAGED = (
    "packed codes of {bits} bits have a pattern that no code has. Expected the bytes that pack "
    "wrote; these are damaged."
)


def packed_size(count: int, bits: int) -> int:
    """Return the bytes that ``count`` codes of ``bits`` bits take."""
    return (count * bits + 7) // 8


def pack(codes: npt.NDArray[np.int8], bits: int) -> Bytes:
    """Pack codes, in C order, into ceil(count * bits / 8) bytes.

    Args:
        codes: any shape, from -(2^(bits-1) - 1) to 2^(bits-1) - 1.
        bits: 2 to 8.

    Raises:
        InputError: a code that does not fit.
    """
    largest = largest_code(bits)
    flat = np.ascontiguousarray(codes).reshape(-1)
    if flat.size and (flat.max() > largest or flat.min() < -largest):
        raise InputError(
            f"cannot pack codes from {flat.min()} to {flat.max()} into {bits} bits. Expected "
            f"-{largest} to {largest}."
        )
    if bits == 8:
        return flat.view(np.uint8).copy()
    out = np.empty(packed_size(flat.size, bits), dtype=np.uint8)
    at = 0
    for start in range(0, flat.size, CHUNK):
        positive = (flat[start : start + CHUNK] + np.int8(largest)).astype(np.uint8)
        rows = np.unpackbits(positive[:, None], axis=1)[:, 8 - bits :]
        part = np.packbits(rows)
        out[at : at + part.size] = part
        at += part.size
    return out


def unpack(packed: Bytes, bits: int, shape: tuple[int, ...]) -> npt.NDArray[np.int8]:
    """Return codes of a shape from the bytes that :func:`pack` returned.

    Raises:
        InputError: a wrong number of bytes, or a pattern that no code has.
    """
    largest = largest_code(bits)
    count = math.prod(shape)
    if packed.dtype != np.uint8 or packed.size != packed_size(count, bits):
        raise InputError(
            f"cannot unpack {packed.size} bytes of {packed.dtype} into {count} codes of {bits} "
            f"bits. Expected {packed_size(count, bits)} bytes."
        )
    if bits == 8:
        return unpacked(packed, bits, shape)
    out = np.empty(count, dtype=np.int8)
    step = CHUNK // 8 * bits
    for number, start in enumerate(range(0, packed.size, step)):
        here = min(CHUNK, count - number * CHUNK)
        seen = np.unpackbits(packed[start : start + step], count=here * bits)
        wide = np.zeros((here, 8), dtype=np.uint8)
        wide[:, 8 - bits :] = seen.reshape(here, bits)
        positive = np.packbits(wide, axis=1)[:, 0]
        if positive.size and positive.max() > 2 * largest:
            raise InputError(_DAMAGED.format(bits=bits))
        out[number * CHUNK : number * CHUNK + here] = positive.astype(np.int16) - largest
    return out.reshape(shape)


def unpacked(codes: Bytes, bits: int, shape: tuple[int, ...]) -> npt.NDArray[np.int8]:
    """Return a view of codes with one byte each, in a shape.

    Raises:
        InputError: a wrong number of bytes, or a code out of range.
    """
    largest = largest_code(bits)
    found = codes.view(np.int8)
    if found.size != math.prod(shape):
        raise InputError(
            f"cannot read {found.size} bytes as {math.prod(shape)} codes. Expected one byte each."
        )
    if found.size and (found.min() < -largest or found.max() > largest):
        raise InputError(_DAMAGED.format(bits=bits))
    return found.reshape(shape)
