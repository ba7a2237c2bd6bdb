"""Starting a service from one of its callers."""

from __future__ import annotations

import json
import os
import subprocess

from vinoreward.backends.serving.places import Place
from vinoreward.backends.serving.server import ANOTHER, STARTED
from vinoreward.backends.serving.settings import ServiceSettings
from vinoreward.errors import ServiceError
from vinoreward.processes import THREADS, python_command

START_TIMEOUT = 90.0
"""Seconds in which a service must listen; it loads its network afterwards."""
# Forked at once, so that it is nobody's child whom somebody would have to wait for; then nothing
# is inherited from a thread either.
_SCRIPT = """
import os
if os.fork():
    os._exit(0)
os.setsid()
from vinoreward.backends.serving.server import main
main()
"""


def start(settings: ServiceSettings, place: Place) -> bool:
    """Start a service and wait until it listens; return False if it was killed before.

    ServiceError says why it cannot.
    """
    threads = dict.fromkeys(THREADS, str(settings.threads))
    given = json.dumps({"settings": settings.to_dict(), "folder": str(place.folder)})
    try:
        with subprocess.Popen(
            python_command(_SCRIPT),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd="/",
            env={**os.environ, **threads},
        ) as process:
            try:
                said, _ = process.communicate(given.encode(), START_TIMEOUT)
            except BaseException:
                process.kill()
                raise
    except subprocess.TimeoutExpired as error:
        raise ServiceError(
            f"the service did not start within {START_TIMEOUT:.0f} s. Expected it to listen in "
            "one or two; the machine has too much to do, or Python's modules are on a slow disk."
        ) from error
    except OSError as error:
        raise ServiceError(
            f"the service cannot be started: {error.strerror or error}. Expected a new process of "
            f"{python_command('')[0]}; end some processes, or leave service out."
        ) from error
    if said and not said.endswith((STARTED, ANOTHER)):
        last = said.decode(errors="replace").strip().splitlines()[-1:]
        raise ServiceError(
            f"the service ended at its start: {''.join(last)}. Expected it to listen; correct "
            "that, or leave service out."
        )
    return bool(said)
