"""A command that runs when success is claimed."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable

from vinoreward.errors import ConfigError

WAIT_SECONDS = 5.0
"""For a command that still runs at the end."""


class ClaimCommand:
    """Runs a program, without a shell, for each claim that comes while it does not run.

    Args:
        words: the command line; quotes hold words together.
        say: is told what goes wrong.

    Raises:
        ConfigError: there is no such program.
    """

    def __init__(self, words: str, say: Callable[[str], object]) -> None:
        self._say = say
        self._process: subprocess.Popen[bytes] | None = None
        self._words: list[str] = []
        with contextlib.suppress(ValueError):  # a quote that does not end
            self._words = shlex.split(words)
        if not self._words or shutil.which(self._words[0]) is None:
            raise ConfigError(
                field="on_claim", value=words, expected="a program that is there, and its arguments"
            )

    def __call__(self, time: float, probability: float) -> None:
        """Start the program with these as environment variables, unless it still runs."""
        if self._process is not None:
            if (status := self._process.poll()) is None:
                return
            self._tell(status)
        values = {"VINOREWARD_TIME": f"{time:.3f}", "VINOREWARD_PROBABILITY": f"{probability:.6g}"}
        self._process = subprocess.Popen(
            self._words,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **values},
            start_new_session=True,  # Ctrl-C is for this process, which waits for the other
        )

    def close(self) -> None:
        """Wait for the program, for ``WAIT_SECONDS``; then end it."""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(WAIT_SECONDS)
            self._process.terminate()  # nothing, if it has ended
            self._tell(self._process.wait())
            self._process = None

    def _tell(self, status: int) -> None:
        """Say if a run failed, or had to be ended."""
        if status:
            self._say(f"{self._words[0]} ended with the status {status}")
