"""One process that runs a network for all workers of a machine; ``docs/serving.md`` explains it."""

from __future__ import annotations

import os
import re

from vinoreward.errors import ConfigError

SHARED = "shared"
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


def service_name(service: str) -> str:
    """Return the name in ``"shared:NAME"``, empty for ``"shared"``.

    Raises:
        ConfigError: it is neither, or this system has no shared memory without a name.
    """
    kind, colon, name = service.partition(":") if isinstance(service, str) else ("", "", "")
    if kind != SHARED or (colon and _NAME.fullmatch(name) is None):
        raise ConfigError(
            f"service is {service!r:.80}. Expected None (a network in this process), 'shared', or "
            "'shared:NAME' with a name of at most 64 letters, digits, '.', '_' and '-'."
        )
    if not hasattr(os, "memfd_create"):
        raise ConfigError(
            f"service is {service!r}, and this system is not Linux. Expected Linux, whose shared "
            "memory it uses; leave service out."
        )
    return name
