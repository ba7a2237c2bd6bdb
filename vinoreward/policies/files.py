"""Policies as files: ``NAME.json`` describes the network, ``NAME.safetensors`` has its weights."""

from __future__ import annotations

import hashlib
import json
import os
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
from vinoreward.files import read_plain, write_bytes, write_json
from vinoreward.policies.policy import Parameter, Policy, QuantizedArray
from vinoreward.policies.wire import FORMAT, header_of, policy_of

MAX_JSON_BYTES = 16 << 20
MAX_WEIGHT_BYTES = 2 << 30


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
            arrays[f"{key}.codes"] = np.ascontiguousarray(value.codes)
            arrays[f"{key}.scales"] = np.ascontiguousarray(value.scales)
        else:
            table[key] = {"dtype": value.dtype.name}
            arrays[key] = np.ascontiguousarray(value)
    weights: bytes = safetensors.numpy.save(arrays)
    write_bytes(folder / f"{name}.safetensors", weights)
    files = {"weights": f"{name}.safetensors", "sha256": hashlib.sha256(weights).hexdigest()}
    write_json(folder / f"{name}.json", header_of(policy, table) | files)
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
        value = json.loads(read_plain(path, MAX_JSON_BYTES).decode("utf-8"))
        # Only the file name: do not follow a path to another folder.
        weights = read_plain(path.parent / Path(value["weights"]).name, MAX_WEIGHT_BYTES)
        if value["format"] != FORMAT or hashlib.sha256(weights).hexdigest() != value["sha256"]:
            raise ModelCorruptError(
                f"{path} and its weights do not belong together, or are of another format. "
                f"Expected both files as they were saved, of format {FORMAT}; save them again."
            )
        arrays = safetensors.numpy.load(weights)
        parameters: dict[str, Parameter] = {}
        for key, entry in value["parameters"].items():
            if "bits" in entry:
                codes, scales = arrays[f"{key}.codes"], arrays[f"{key}.scales"]
                parameters[key] = QuantizedArray(codes, scales, int(entry["bits"]))
            else:
                parameters[key] = arrays[key]
        return policy_of(value, parameters)
    except FileNotFoundError as error:
        raise ModelNotFoundError(
            f"no policy at {path}: {error.filename} is not there. Expected a JSON file beside its "
            "safetensors, as save_policy and vinoreward actors write them."
        ) from error
    except ModelCorruptError:
        raise
    except (
        OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError,
        RecursionError, MemoryError, InputError, safetensors.SafetensorError,
    ) as error:  # fmt: skip
        raise ModelCorruptError(
            f"{path} cannot be read as a policy ({_shown(error)}). Expected what save_policy and "
            "vinoreward actors write; save it again."
        ) from error


def _shown(error: Exception) -> str:
    try:
        text = f"{type(error).__name__}: {error}"
    except RecursionError:
        return type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."
