"""An oracle's rollouts are played once, however many tests compare something with them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from vinoreward.bundles.bundle import Bundle

Played = TypeVar("Played")


def played_once(play: Callable[..., Played]) -> Callable[..., Played]:
    """Let ``play(bundle, env, **options)`` share what it returned for the same arguments."""
    played: dict[tuple[object, ...], Played] = {}

    @functools.wraps(play)
    def shared(bundle: Bundle, env: dict[str, Any], **options: Any) -> Played:
        key = str(bundle.path), bundle.sha256, repr((env, options))
        if key not in played:
            played[key] = play(bundle, env, **options)
        return played[key]

    return shared
