"""Policies as a JSON header and bytes: for shared memory, a network, or two files on disk.

On disk, ``NAME.json`` describes the network and ``NAME.safetensors`` has its weights. No pickle.
All data is checked, the header included.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.errors import (
    InputError,
    MissingExtraError,
    ModelCorruptError,
    ModelNotFoundError,
    install_command,
)
from vinoreward.files import (
    DAMAGED,
    check_header,
    read_json,
    read_plain,
    reason_of,
    write_bytes,
    write_json,
)
from vinoreward_actors.policies.policy import (
    ActivationRange,
    Parameter,
    Policy,
    QuantizedArray,
    largest_code,
    quantize_array,
)
from vinoreward_actors.policies.spec import PolicySpec

ALIGNMENT = 64
"""In bytes; matrix kernels read aligned memory 1.5 times as fast."""
FORMAT = 1
CHUNK = 1 << 20
"""Codes per chunk when packing, a multiple of 8: each bit takes a byte meanwhile."""
MAX_JSON_BYTES = 16 << 20
MAX_WEIGHT_BYTES = 2 << 30
_DAMAGED = (
    "packed codes of {bits} bits have a pattern that no code has. Expected the bytes that pack "
    "wrote; these are damaged."
)

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Encoded:
    """An encoded policy."""

    header: bytes
    """JSON with each array's position in the payload."""
    parts: tuple[tuple[int, Bytes], ...]
    """(offset, bytes) of every array, in order; offsets are multiples of 64."""
    size: int
    """Bytes of the payload, including gaps."""

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


def lowered(policy: Policy, bits: int, layers: Collection[str] | None = None) -> Policy:
    """Return a policy whose float weights have at most ``bits`` bits: 2 to 8, 16, or 32.

    Biases stay float32: they are few, so quantizing them saves nothing. ``layers`` None means all.

    Raises:
        InputError: weights that are not finite, or too large for 16 bits.
    """
    if bits not in (16, 32):
        largest_code(bits)
    if bits == 32:
        return policy
    parameters: dict[str, Parameter] = {}
    for name, value in policy.parameters.items():
        layer, _, kind = name.partition(".")
        left_out = kind == "bias" or (layers is not None and layer not in layers)
        if isinstance(value, QuantizedArray) or left_out:
            parameters[name] = value
        elif bits == 16:
            with np.errstate(over="ignore"):
                half = value.astype(np.float16)
            if not np.isfinite(half).all():
                raise InputError(
                    f"{name} has numbers that do not fit 16 bits: NaN, infinity, or above 65504. "
                    "Expected finite, moderate weights: the learner has diverged. Lower its "
                    "learning rate."
                )
            parameters[name] = half
        else:
            parameters[name] = quantize_array(value.astype(np.float32), bits)
    return policy.replace(parameters=parameters)


def _header_of(policy: Policy, parameters: object) -> dict[str, Any]:
    """Return all but the weights as plain data; ``parameters`` says how those are stored."""
    return {
        "format": FORMAT,
        "spec": policy.spec.to_dict(),
        "parameters": parameters,
        "ranges": {name: [bounds.low, bounds.high] for name, bounds in policy.ranges.items()},
        "engine": policy.backend,  # the key on disk
        "version": policy.version,
    }


def _policy_of(
    header: Mapping[str, Any], parameters: Mapping[str, Parameter], blob: memoryview | None = None
) -> Policy:
    """Return the policy of a :func:`_header_of`; errors of any type if it is damaged."""
    return Policy(
        spec=PolicySpec.from_dict(header["spec"]),
        parameters=parameters,
        ranges={
            name: ActivationRange(float(low), float(high))
            for name, (low, high) in header["ranges"].items()
        },
        backend=str(header["engine"]),
        version=int(header["version"]),
        blob=blob,
    )


def encode(policy: Policy, *, bits: int = 32, packed: bool = True) -> Encoded:
    """Encode a policy as header and bytes.

    Args:
        policy: quantized weights keep their own bits.
        bits: of float weights: 2 to 8, 16 (float16) or 32 (lossless).
        packed: whether to pack codes of few bits without gaps. If not, each takes a byte and
            decoding is free: for shared memory.
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
    blob = None if policy.blob is None else add(np.frombuffer(policy.blob, dtype=np.uint8))
    header = {**_header_of(policy, table), "blob": blob}
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
        decoded = unpack if entry.get("packed", True) else unpacked
        return QuantizedArray(decoded(_part(buffer, entry["codes"]), bits, shape), scales, bits)
    dtype = {"float32": np.float32, "float16": np.float16}[entry["dtype"]]
    return _part(buffer, entry["data"]).view(dtype).reshape(shape)


def decode(header: bytes, buffer: Bytes) -> Policy:
    """Return the policy that a header and a payload describe.

    Float arrays, 8-bit codes and the blob are views of ``buffer`` (size,), aligned to at least 4
    bytes, which must not change while they are in use; smaller codes are unpacked into new memory.

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
        parameters = {entry["name"]: _parameter(entry, buffer) for entry in value["parameters"]}
        blob = None if value["blob"] is None else _part(buffer, value["blob"]).data.toreadonly()
        return _policy_of(value, parameters, blob)
    except InputError:
        raise
    except (
        KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError
    ) as error:  # fmt: skip
        raise InputError(
            f"cannot read a policy ({error!r}). Expected a header and payload that encode wrote."
        ) from error


def pack(codes: npt.NDArray[np.int8], bits: int) -> Bytes:
    """Pack codes of any shape, in C order, into ceil(count * bits / 8) bytes.

    Raises:
        InputError: a code that does not fit into ``bits``, 2 to 8.
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
    parts: list[Bytes] = []
    for start in range(0, flat.size, CHUNK):
        positive = (flat[start : start + CHUNK] + np.int8(largest)).astype(np.uint8)
        parts.append(np.packbits(np.unpackbits(positive[:, None], axis=1)[:, 8 - bits :]))
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.uint8)


def unpack(packed: Bytes, bits: int, shape: tuple[int, ...]) -> npt.NDArray[np.int8]:
    """Return codes of a shape from the bytes that :func:`pack` returned.

    Raises:
        InputError: a wrong number of bytes, or a pattern that no code has.
    """
    largest = largest_code(bits)
    count = math.prod(shape)
    size = -(-count * bits // 8)
    if packed.dtype != np.uint8 or packed.size != size:
        raise InputError(
            f"cannot unpack {packed.size} bytes of {packed.dtype} into {count} codes of {bits} "
            f"bits. Expected {size} bytes."
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
    signed = codes.view(np.int8)
    if signed.size != math.prod(shape):
        raise InputError(
            f"cannot read {signed.size} bytes as {math.prod(shape)} codes. Expected one byte each."
        )
    if signed.size and (signed.min() < -largest or signed.max() > largest):
        raise InputError(_DAMAGED.format(bits=bits))
    return signed.reshape(shape)


def _safetensors() -> Any:
    try:
        import safetensors.numpy  # pyright: ignore[reportUnusedImport]
    except ImportError as error:
        raise MissingExtraError(
            f"policy files need {error.name}, which is not installed. Expected safetensors, which "
            "the training extra installs; run: pip install safetensors, or "
            f"{install_command('train')}"
        ) from error
    return safetensors


def save_policy(folder: str | Path, policy: Policy, name: str = "policy") -> Path:
    """Write a policy, in full precision or quantized, and return the path of its JSON file.

    Leaves out the backend's compiled form, which fits one machine only.

    Args:
        folder: created if missing.
        policy: to write.
        name: of both files.

    Raises:
        MissingExtraError: safetensors is not installed.
        RunFolderError: the folder cannot be written.
    """
    safetensors = _safetensors()
    folder = Path(folder)
    arrays: dict[str, npt.NDArray[Any]] = {}
    table: dict[str, dict[str, Any]] = {}
    for key, value in policy.parameters.items():
        if isinstance(value, QuantizedArray):
            table[key] = {"bits": value.bits}
            arrays |= {f"{key}.codes": value.codes, f"{key}.scales": value.scales}
        else:
            table[key] = {"dtype": value.dtype.name}
            arrays[key] = value
    contiguous = {key: np.ascontiguousarray(array) for key, array in arrays.items()}
    weights: bytes = safetensors.numpy.save(contiguous)
    write_bytes(folder / f"{name}.safetensors", weights)
    files = {"weights": f"{name}.safetensors", "sha256": hashlib.sha256(weights).hexdigest()}
    write_json(folder / f"{name}.json", _header_of(policy, table) | files)
    return folder / f"{name}.json"


def load_policy(path: str | Path) -> Policy:
    """Read a policy that :func:`save_policy` wrote.

    Args:
        path: the JSON file, or a folder with ``policy.json``.

    Raises:
        MissingExtraError: safetensors is not installed.
        ModelNotFoundError: a file is missing.
        ModelCorruptError: files that do not belong together, or cannot be read.
    """
    safetensors = _safetensors()
    path = Path(path)
    path = path / "policy.json" if os.path.isdir(path) else path
    try:
        value = read_json(path, MAX_JSON_BYTES)
        # Only the file name: do not follow a path to another folder.
        weights = read_plain(path.parent / Path(value["weights"]).name, MAX_WEIGHT_BYTES)
        if value["format"] != FORMAT or hashlib.sha256(weights).hexdigest() != value["sha256"]:
            raise ModelCorruptError(
                f"{path} and its weights do not belong together, or are of another format. "
                f"Expected both files as they were saved, of format {FORMAT}; save them again."
            )
        check_header(weights)
        arrays = safetensors.numpy.load(weights)
        parameters: dict[str, Parameter] = {}
        for key, entry in value["parameters"].items():
            if "bits" in entry:
                codes, scales = arrays[f"{key}.codes"], arrays[f"{key}.scales"]
                parameters[key] = QuantizedArray(codes, scales, int(entry["bits"]))
            else:
                parameters[key] = arrays[key]
        return _policy_of(value, parameters)
    except FileNotFoundError as error:
        raise ModelNotFoundError(
            f"no policy at {path}: {error.filename} is not there. Expected a JSON file beside its "
            "safetensors, as save_policy and vinoreward actors write them."
        ) from error
    except ModelCorruptError:
        raise
    except (*DAMAGED, safetensors.SafetensorError) as error:
        raise ModelCorruptError(
            f"{path} cannot be read as a policy ({reason_of(error)}). Expected what save_policy "
            "and vinoreward actors write; save it again."
        ) from error
