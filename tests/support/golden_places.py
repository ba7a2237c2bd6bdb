"""The six places where an image becomes a reward, and their golden cases."""

from __future__ import annotations

import functools
from collections.abc import Callable

import golden_hover
import golden_wrappers
from golden_traces import Case

PLACES: dict[str, Callable[[], list[Case]]] = {
    "single": functools.partial(golden_wrappers.cases, "single"),
    "vector": functools.partial(golden_wrappers.cases, "vector"),
    "sb3": functools.partial(golden_wrappers.cases, "sb3"),
    "hover_scalar": functools.partial(golden_hover.cases, "scalar"),
    "hover_host": functools.partial(golden_hover.cases, "host"),
    "hover_device": functools.partial(golden_hover.cases, "device"),
}
