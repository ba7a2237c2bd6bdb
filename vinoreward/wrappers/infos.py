"""A vector environment's infos: ``infos[key]`` where ``infos["_" + key]``, NumPy's or torch's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from vinoreward.arrays import Array, Arrays, is_tensor


def mask_of(infos: Mapping[str, Any], key: str, default: Array) -> Array:
    """Return where a key is set, in new memory; ``default`` where infos have no mask of it."""
    return infos.get(f"_{key}", default) & True


def put(infos: dict[str, Any], key: str, values: Array, mask: Array) -> None:
    """Set a key where ``mask`` is True, in new memory; elsewhere it stays as it is."""
    if key in infos:
        infos[f"_{key}"] = mask_of(infos, key, mask | True) | mask
        infos[key] = _where(mask, values, infos[key])
    else:
        infos[key], infos[f"_{key}"] = _where(mask, values, None), mask & True


def masked(infos: Mapping[str, Any], mask: Array) -> dict[str, Any]:
    """Return infos that are set where ``mask`` is True, in new memory."""
    result: dict[str, Any] = {}
    for key in _keys(infos):
        values, own = infos[key], mask_of(infos, key, True) & mask
        result[key] = masked(values, mask) if isinstance(values, Mapping) else None
        if result[key] is None:
            result[key] = _where(own, values, None)
        result[f"_{key}"] = own
    return result


def merged(infos: Mapping[str, Any], others: Mapping[str, Any], mask: Array) -> dict[str, Any]:
    """Return infos in new memory: of ``others`` where ``mask`` is True, of ``infos`` elsewhere."""
    result, fresh = masked(infos, ~mask), masked(others, mask)
    for key in _keys(fresh):
        if key in result and isinstance(fresh[key], Mapping):
            result[key] = merged(infos[key], others[key], mask)
            result[f"_{key}"] = result[f"_{key}"] | fresh[f"_{key}"]
        elif isinstance(fresh[key], Mapping):
            result[key], result[f"_{key}"] = fresh[key], fresh[f"_{key}"]
        else:
            put(result, key, fresh[key], fresh[f"_{key}"])
    return result


def keep_original(infos: dict[str, Any], key: str, default: Array) -> bool:
    """Move a key and its mask to ``original_<key>``, in place; return whether it was there."""
    if key not in infos:
        return False
    mask = mask_of(infos, key, default)
    infos[f"original_{key}"], infos[f"_original_{key}"] = infos.pop(key), mask
    infos.pop(f"_{key}", None)
    return True


def converted(infos: Mapping[str, Any], convert: Callable[[Array], Array]) -> dict[str, Any]:
    """Return infos whose arrays of numbers are converted, those of observations as they are."""
    result = {}
    for key, values in infos.items():
        if key == "final_obs":
            result[key] = values
        elif isinstance(values, Mapping):
            result[key] = converted(values, convert)
        else:
            numbers = is_tensor(values) or (isinstance(values, np.ndarray) and values.dtype != "O")
            result[key] = convert(values) if numbers else values
    return result


def invalid_actions(infos: Mapping[str, Any], nowhere: Array) -> Array:
    """Return where an action was invalid, so that no image shows what it led to."""
    final = infos.get("final_info", {})
    return infos.get("invalid_action", nowhere) | final.get("invalid_action", False)


def _keys(infos: Mapping[str, Any]) -> list[str]:
    return [key for key in infos if not (key.startswith("_") and key[1:] in infos)]


def _where(mask: Array, values: Array, otherwise: Array | None) -> Array:
    """Return values where ``mask``, ``(N,)``, is True, of ``otherwise`` or zeros elsewhere."""
    values = values if is_tensor(values) else np.asarray(values)
    shaped = mask.reshape(-1, *[1] * (values.ndim - 1))
    if otherwise is None and values.dtype != np.object_:
        otherwise = Arrays.like(values).xp.zeros_like(values)
    return Arrays.like(values).xp.where(shaped, values, otherwise)
