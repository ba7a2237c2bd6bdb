"""Traces of environments: what each step gave, as one structured array that a file holds.

An event is one reset or step, with nested dicts, lists, arrays, tensors and numbers. A trace has a
row for each event and a field for each number in it, named by its path (``info.reward_prob``,
``infos.final_info.is_success``). A field that is not in all events has another one before it,
``?path``, that says where it is. Of an image only the mean of its pixels is kept, and of an
episode's seconds only that they were there. A key of a vector environment's infos that is set for
no environment counts as one that is not there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(__file__).resolve().parents[1] / "golden" / "data"
SCORES = ("reward_prob", "reward_ood")
MEAN = "mean"
"""Ends the path of an image, of which the mean is kept."""
SURE = 8.0
"""Log-odds beyond which scores are alike."""
SECONDS = "episode.t"

Trace = np.ndarray


class Events:
    """What happened, event by event; values are copied, as environments may write to them."""

    def __init__(self) -> None:
        self.rows: list[dict[str, np.ndarray]] = []

    def add(self, **event: Any) -> None:
        """Add a reset or a step."""
        self.rows.append(dict(_flat(event, "")))


@contextlib.contextmanager
def count_warnings(events: Events, *, when: bool) -> Iterator[None]:
    """Add an event with the number of warnings of this block; they are errors unless ``when``."""
    if not when:
        yield
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    events.add(warnings=sum(one.category is UserWarning for one in caught))


@dataclasses.dataclass(frozen=True)
class Near:
    """How far a replay may be away: absolute differences."""

    score: float
    """Of ``reward_prob``, in log-odds up to :data:`SURE`."""
    ood: float
    """Of ``reward_ood``; where that is above 1, this share of it."""
    shaped: float
    """Of rewards that are made of scores."""
    state: float = 0.0
    """Of observations, distances and the environment's own rewards."""
    image: float = 0.0
    """Of an image's mean, in grey levels."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One trace of a place."""

    name: str
    play: Callable[[], Events]
    near: Near
    thresholds: tuple[float, ...] = ()
    """Probabilities that decide; empty where nobody scores."""
    margin: float = 0.0
    """Log-odds that each score must be away from them, or a replay could claim otherwise."""
    ood_margin: float = 1e-3
    """What each ``reward_ood`` must be away from 1."""
    shaped: bool = False
    """Whether rewards are made of scores: else they follow exactly from claims."""


def packed(events: Events) -> Trace:
    """Return events as a trace."""
    rows = events.rows
    fields: list[tuple[str, Any, tuple[int, ...]]] = []
    for path in sorted(set().union(*rows)):
        found = [row[path] for row in rows if path in row]
        kinds = {(value.dtype, value.shape) for value in found}
        if len(kinds) > 1:
            raise ValueError(f"{path} is {kinds}")
        if len(found) < len(rows):
            fields.append((f"?{path}", np.bool_, ()))
        fields.append((path, found[0].dtype, found[0].shape))
    trace = np.zeros(len(rows), fields)
    for i, row in enumerate(rows):
        for path, value in row.items():
            trace[path][i] = value
            if f"?{path}" in trace.dtype.names:
                trace[f"?{path}"][i] = True
    return trace


def _flat(value: Any, path: str) -> Iterator[tuple[str, np.ndarray]]:
    if isinstance(value, (dict, list, tuple)):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in parts:
            if isinstance(value, dict) and _set_for_nobody(value, str(key)):
                continue
            yield from _flat(part, f"{path}.{key}" if path else str(key))
        return
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    array = np.array(value)
    if path.endswith(SECONDS):
        array = np.zeros_like(array)
    if array.dtype == object:
        some = next((one for one in array if one is not None), None)
        if isinstance(some, dict):
            for key in some:
                parts = np.full(len(array), None, object)
                parts[:] = [None if one is None else one[key] for one in array]
                yield from _flat(parts, f"{path}.{key}")
            return
        if some is None:
            return
        blank = np.zeros_like(np.asarray(some))
        array = np.stack([blank if one is None else np.asarray(one) for one in array])
    if array.dtype == np.uint8 and array.ndim >= 3:
        path, array = f"{path}.{MEAN}", array.mean(axis=(-3, -2, -1))
    yield path, np.asarray(array)


def _set_for_nobody(infos: dict[str, Any], key: str) -> bool:
    """Return whether a vector environment's key, or its mask, is of no environment: like no key."""
    if key.startswith("_") and key[1:] in infos:
        key = key[1:]
    mask = infos.get(f"_{key}")
    return mask is not None and key in infos and not bool(mask.any())


def paths_of(trace: Trace) -> list[str]:
    """Return the paths of a trace."""
    return [name for name in trace.dtype.names or () if not name.startswith("?")]


def present(trace: Trace, path: str) -> np.ndarray:
    """Return in which events a path is, ``(events,)``."""
    if path not in (trace.dtype.names or ()):
        return np.zeros(len(trace), np.bool_)
    known = f"?{path}" in (trace.dtype.names or ())
    return trace[f"?{path}"] if known else np.ones(len(trace), np.bool_)


def differences(
    expected: Trace, found: Trace, case: Case, may_have: frozenset[str] = frozenset()
) -> list[str]:
    """Return sentences on how a replay differs from a recorded trace; none if it does not."""
    if len(expected) != len(found):
        return [f"{len(found)} events, {len(expected)} were recorded"]
    told: list[str] = []
    for path in sorted({*paths_of(expected), *paths_of(found)}):
        if path not in paths_of(expected) and path.rpartition(".")[2].lstrip("_") in may_have:
            continue
        where, now = present(expected, path), present(found, path)
        if (where != now).any():
            event = int(np.flatnonzero(where != now)[0])
            verb = "missing" if where[event] else "new"
            told.append(f"{path}: {verb} in event {event} and {(where != now).sum() - 1} others")
            continue
        one, other = expected[path][where], found[path][where]
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            told.append(f"{path}: {other.dtype} {other.shape}, was {one.dtype} {one.shape}")
            continue
        wrong = _wrong(path, one, other, case)
        if wrong.any():
            at = tuple(int(axis[0]) for axis in np.nonzero(wrong))
            event = int(np.flatnonzero(where)[at[0]])
            told.append(
                f"{path}: {other[at]} in event {event} {at[1:]}, was {one[at]}; "
                f"{wrong.sum()} differ"
            )
    return told


def _wrong(path: str, one: np.ndarray, other: np.ndarray, case: Case) -> np.ndarray:
    near, last = case.near, path.rpartition(".")[2]
    share, most = 0.0, near.state
    if last == "reward_prob":
        most, one, other = near.score, _sure(one), _sure(other)
    elif last == "reward_ood":
        share = most = near.ood
    elif last in ("reward", "rewards") or path.endswith("episode.r"):
        most = near.shaped if case.shaped else max(1e-6, near.state)
    elif last == MEAN:
        most = near.image
    wrong: np.ndarray = ~np.isclose(other, one, rtol=share, atol=most, equal_nan=True)
    return wrong


def _sure(probability: np.ndarray) -> np.ndarray:
    clipped: np.ndarray = np.clip(_logit(probability.astype(np.float64)), -SURE, SURE)
    return clipped


def margins(trace: Trace, thresholds: Sequence[float]) -> tuple[float, float]:
    """Return how close scores come to a threshold, in log-odds, and ``reward_ood`` to 1."""
    odds, ood_score = [math.inf], [math.inf]
    for path in paths_of(trace):
        last = path.rpartition(".")[2]
        if last not in SCORES:
            continue
        scored = trace[path][present(trace, path)].astype(np.float64)
        mask = path.removesuffix(last) + f"_{last}"
        if mask in paths_of(trace):
            scored = scored[trace[mask][present(trace, path)]]
        if last == "reward_ood":
            ood_score += np.abs(scored - 1).ravel().tolist()
            continue
        for threshold in thresholds:
            odds += np.abs(_logit(scored) - _logit(np.float64(threshold))).ravel().tolist()
    return min(odds), min(ood_score)


def _logit(probability: Any) -> Any:
    tiny = np.clip(probability, 1e-12, 1 - 1e-12)
    return np.log(tiny) - np.log1p(-tiny)


def load(place: str) -> dict[str, Trace]:
    """Return the recorded traces of a place by case."""
    with np.load(DATA / f"{place}.npz") as file:
        return {name: file[name] for name in file.files}


def save(place: str, traces: Mapping[str, Trace]) -> Path:
    """Write the traces of a place."""
    DATA.mkdir(parents=True, exist_ok=True)
    path = DATA / f"{place}.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as file:  # half of what NumPy would write
        for name, trace in traces.items():
            info = zipfile.ZipInfo(f"{name}.npy", (2026, 1, 1, 0, 0, 0))
            info.compress_type = zipfile.ZIP_LZMA
            with file.open(info, "w") as member:
                np.lib.format.write_array(member, trace, allow_pickle=False)
    return path
