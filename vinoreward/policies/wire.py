"""Policies as a JSON header and raw bytes, for shared memory or a network.

No pickle. All received data is checked, the header included.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.errors import InputError
from vinoreward.policies.packing import pack, packed_size, unpack, unpacked
from vinoreward.policies.policy import (
    ActivationRange,
    Parameter,
    Policy,
    QuantizedArray,
    largest_code,
    quantize_array,
)
from vinoreward.policies.spec import PolicySpec

ALIGNMENT = 64
"""In bytes; matrix kernels read aligned memory 1.5 times as fast."""
FORMAT = 1

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Encoded:
    """An encoded policy.

    Attributes:
        header: JSON with each array's position in the payload.
        parts: (offset, bytes) of every array, in order; offsets are multiples of 64.
        size: bytes of the payload, including gaps.
    """

    header: bytes
    parts: tuple[tuple[int, Bytes], ...]
    size: int

    @property
    def nbytes(self) -> int:
        """Bytes on the wire: header and arrays, without alignment gaps."""
        return len(self.header) + sum(part.size for _, part in self.parts)

    def write(self, buffer: Bytes) -> None:
        """Copy the payload into ``buffer``, at least ``size`` bytes."""
        for offset, part in self.parts:
            buffer[offset : offset + part.size] = part

    def payload(self) -> Bytes:
        """Return the payload as a new array."""
        buffer = np.zeros(self.size, dtype=np.uint8)
        self.write(buffer)
        return buffer


def _bytes(array: npt.NDArray[Any]) -> Bytes:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def lowered(policy: Policy, bits: int) -> Policy:
    """Return a policy whose float weights have at most ``bits`` bits: 2 to 8, 16, or 32.

    Biases stay float32: they are few, so quantizing them saves nothing.

    Raises:
        ConfigError: an invalid number of bits.
        InputError: weights that are not finite, or too large for 16 bits.
    """
    if bits not in (16, 32):
        largest_code(bits)
    if bits == 32:
        return policy
    parameters: dict[str, Parameter] = {}
    for name, value in policy.parameters.items():
        if isinstance(value, QuantizedArray) or name.endswith(".bias"):
            parameters[name] = value
        elif bits == 16:
            parameters[name] = to_float16(name, value)
        else:
            parameters[name] = quantize_array(value.astype(np.float32), bits)
    return policy.replace(parameters=parameters)


def to_float16(name: str, value: npt.NDArray[Any]) -> npt.NDArray[np.float16]:
    """Return weights in half precision.

    Raises:
        InputError: NaN, infinity, or numbers above 65504, the limit of half precision.
    """
    with np.errstate(over="ignore"):
        half: npt.NDArray[np.float16] = value.astype(np.float16)
    if not np.isfinite(half).all():
        raise InputError(
            f"{name} has numbers that do not fit 16 bits: NaN, infinity, or above 65504. Expected "
            "finite, moderate weights: the learner has diverged. Lower its learning rate."
        )
    return half


def encode(policy: Policy, *, bits: int = 32, packed: bool = True) -> Encoded:
    """Encode a policy as header and bytes.

    Args:
        policy: sends float weights with ``bits`` bits, quantized ones with their own.
        bits: communication quantization; 2 to 8, 16 (float16) or 32 (lossless).
        packed: whether to pack codes of few bits without gaps. If not, each takes a byte and
            decoding is free: for shared memory.

    Raises:
        ConfigError: an invalid number of bits.
    """
    parts: list[tuple[int, Bytes]] = []
    table: list[dict[str, Any]] = []
    end = 0

    def add(data: Bytes) -> dict[str, int]:
        nonlocal end
        offset = -(-end // ALIGNMENT) * ALIGNMENT
        parts.append((offset, data))
        end = offset + data.size
        return {"offset": offset, "bytes": int(data.size)}

    for name, value in lowered(policy, bits).parameters.items():
        entry: dict[str, Any] = {"name": name, "shape": list(value.shape)}
        if isinstance(value, QuantizedArray):
            # 8-bit codes have no gaps either way.
            tight = packed and value.bits < 8
            codes = pack(value.codes, value.bits) if tight else _bytes(value.codes)
            entry |= {"bits": value.bits, "packed": tight, "codes": add(codes)}
            entry["scales"] = add(_bytes(value.scales))
        else:
            entry |= {"dtype": value.dtype.name, "data": add(_bytes(value))}
        table.append(entry)
    header = {
        "format": FORMAT,
        "spec": policy.spec.to_dict(),
        "parameters": table,
        "ranges": {name: [found.low, found.high] for name, found in policy.ranges.items()},
        "engine": policy.backend,  # the key on disk
        "version": policy.version,
        "blob": None if policy.blob is None else add(np.frombuffer(policy.blob, dtype=np.uint8)),
    }
    return Encoded(json.dumps(header, separators=(",", ":")).encode(), tuple(parts), end)


def _part(buffer: Bytes, place: Mapping[str, Any]) -> Bytes:
    offset, size = int(place["offset"]), int(place["bytes"])
    if offset < 0 or size < 0 or offset + size > buffer.size:
        raise InputError(
            f"a policy's header places {size} bytes at {offset} of {buffer.size}. Expected a "
            "position inside the payload; header and payload do not belong together."
        )
    return buffer[offset : offset + size]


def _parameter(entry: Mapping[str, Any], buffer: Bytes) -> Parameter:
    shape = tuple(int(side) for side in entry["shape"])
    if "bits" in entry:
        bits = int(entry["bits"])
        scales = _part(buffer, entry["scales"]).view(np.float32)
        found_codes = _part(buffer, entry["codes"])
        if entry.get("packed", True):
            return QuantizedArray(unpack(found_codes, bits, shape), scales, bits)
        return QuantizedArray(unpacked(found_codes, bits, shape), scales, bits)
    dtype = {"float32": np.float32, "float16": np.float16}[entry["dtype"]]
    found: npt.NDArray[Any] = _part(buffer, entry["data"]).view(dtype).reshape(shape)
    return found


def decode(header: bytes, buffer: Bytes) -> Policy:
    """Return the policy that a header and a payload describe.

    Float arrays, 8-bit codes and the blob are views of ``buffer``, which must not change while they
    are in use; smaller codes are unpacked into new memory.

    Args:
        header: from :func:`encode`.
        buffer: (size,) uint8, aligned to at least 4 bytes.

    Raises:
        InputError: not what encode writes, or layers that do not fit together.
    """
    try:
        value = json.loads(header)
        if value["format"] != FORMAT:
            raise InputError(
                f"a policy has format {value['format']}. Expected {FORMAT}; run the same version "
                "of vinoreward on both sides."
            )
        return Policy(
            spec=PolicySpec.from_dict(value["spec"]),
            parameters={entry["name"]: _parameter(entry, buffer) for entry in value["parameters"]},
            ranges={
                name: ActivationRange(float(low), float(high))
                for name, (low, high) in value["ranges"].items()
            },
            backend=str(value["engine"]),
            version=int(value["version"]),
            blob=None if value["blob"] is None else _part(buffer, value["blob"]).data.toreadonly(),
        )
    except InputError:
        raise
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise InputError(
            f"cannot read a policy ({error!r}). Expected a header and payload that encode wrote."
        ) from error


def wire_bytes(spec: PolicySpec, bits: int) -> int:
    """Return the size in bytes of a float policy's arrays on the wire."""
    total = 0
    for name, shape in spec.parameter_shapes().items():
        count = int(np.prod(shape))
        if bits in (16, 32) or name.endswith(".bias"):
            total += count * (2 if bits == 16 and not name.endswith(".bias") else 4)
        else:
            total += packed_size(count, bits) + 4 * shape[0]
    return total
