"""A command that runs when success is claimed."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable

from vinoreward.errors import ConfigError
from vinoreward_training.watch.session import Claim

WAIT_SECONDS = 5.0
"""For a command that still runs at the end."""


class ClaimCommand:
    """Runs a program, without a shell, for each claim that comes while it does not run.

    It gets the environment variables ``VINOREWARD_TIME`` (seconds since 1970, UTC) and
    ``VINOREWARD_PROBABILITY``.

    Args:
        words: the command line; quotes hold words together.
        say: is told what goes wrong.

    Raises:
        ConfigError: there is no such program.
    """

    def __init__(self, words: str, say: Callable[[str], object]) -> None:
        self._say = say
        self._process: subprocess.Popen[bytes] | None = None
        self.left_out = 0
        """Claims that came while the command ran."""
        self._words: list[str] = []
        with contextlib.suppress(ValueError):  # a quote that does not end
            self._words = shlex.split(words)
        if not self._words or shutil.which(self._words[0]) is None:
            raise ConfigError(
                field="on_claim", value=words, expected="a program that is there, and its arguments"
            )

    def __call__(self, claim: Claim) -> None:
        """Start the program, unless it still runs."""
        if self._process is not None and self._process.poll() is None:
            self.left_out += 1
            return
        self._finish()
        values = {
            "VINOREWARD_TIME": f"{claim.time:.3f}",
            "VINOREWARD_PROBABILITY": f"{claim.probability:.6g}",
        }
        try:
            self._process = subprocess.Popen(
                self._words,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **values},
                start_new_session=True,  # Ctrl-C is for this process, which waits for the other
            )
        except OSError as error:
            self._say(f"{self._words[0]} did not start: {error.strerror or error}")

    def close(self) -> None:
        """Wait for the program, for ``WAIT_SECONDS``; then end it."""
        if self._process is not None:
            try:
                self._process.wait(WAIT_SECONDS)
            except subprocess.TimeoutExpired:
                self._say(f"{self._words[0]} still ran {WAIT_SECONDS:g} s after the end: stopped")
                self._process.terminate()
                self._process.wait()
            else:
                self._finish()
        if self.left_out:
            self._say(f"{self.left_out} claims came while {self._words[0]} still ran: left out")

    def _finish(self) -> None:
        """Say if the last run failed."""
        if self._process is not None and self._process.returncode:
            self._say(f"{self._words[0]} ended with the status {self._process.returncode}")
        self._process = None
