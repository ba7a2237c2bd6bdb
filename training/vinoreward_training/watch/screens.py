"""What shows a session and takes keys: a line in the terminal, and a window."""

from __future__ import annotations

import os
import select
import shutil
import sys
import termios
import time
import tty
from typing import Any

import numpy as np

from vinoreward_envs.human import open_display
from vinoreward_training.watch.session import Status

HELP = "s success   f failure   u undo   n new episode   q quit"
LINE_SECONDS = 1.0
"""Between two lines where the output is no terminal."""
WIDTH, HEIGHT, STRIP = 640, 480, 156
"""Of the image in the window, and height of the text under it."""
_INK, _PAPER = (235, 237, 240), (24, 27, 32)
_CLAIMED, _ODD, _NOTE = (110, 200, 120), (240, 120, 100), (240, 200, 110)


def rows_of(status: Status) -> tuple[str, str, str]:
    """Return in words what is claimed, which image it is, and what the figures are."""
    state = "not scored"
    if status.probability is not None:
        word = "SUCCESS" if status.claimed else "no success"
        word = "out of distribution" if status.is_odd else word
        ood = "" if status.ood_score is None else f"   OOD {status.ood_score:.2f}"
        done = "" if status.progress is None else f"   progress {status.progress:.0%}"
        state = f"P {status.probability:.3f}   {word}{done}{ood}"
    successes, failures = status.labels
    return (
        state,
        f"episode {status.episode} image {status.number}   labels: {successes} success, {failures} "
        "failure",
        f"p50 {status.p50:.1f} p99 {status.p99:.1f} ms   missed {status.missed}   dropped "
        f"{status.dropped}   repeated {status.repeated}",
    )


class Terminal:
    """One line that is refreshed, or plain lines where the output is no terminal; keys of stdin."""

    def __init__(self) -> None:
        self._refreshed = sys.stdout.isatty()
        self._typed = sys.stdin is not None and sys.stdin.isatty()
        self._before: list[Any] = []
        self._printed = -np.inf

    def __enter__(self) -> Terminal:
        if self._typed:
            self._before = termios.tcgetattr(sys.stdin)
            tty.setcbreak(sys.stdin)  # keys one by one; Ctrl-C stays what it is
        return self

    def __exit__(self, *error: object) -> None:
        if self._refreshed:
            print()
        if self._typed:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._before)

    def keys(self) -> str:
        """Return the keys pressed since the last call."""
        if not self._typed or not select.select([sys.stdin], [], [], 0)[0]:
            return ""
        return os.read(sys.stdin.fileno(), 64).decode("ascii", "ignore")

    def show(self, status: Status) -> None:
        """Print the status, once a second where the output is no terminal."""
        line = "   ".join(rows_of(status))
        if self._refreshed:
            print(f"\r\x1b[K{line[: shutil.get_terminal_size().columns - 1]}", end="", flush=True)
        elif time.monotonic() - self._printed >= LINE_SECONDS:
            self._printed = time.monotonic()
            print(line, flush=True)

    def say(self, sentence: str) -> None:
        """Print a sentence on a line of its own; unprintable characters are left out."""
        text = "".join(letter if letter.isprintable() else " " for letter in sentence)
        print(f"\r\x1b[K{text}" if self._refreshed else text, flush=True)


class Window:
    """The image with the status under it; closing it is the key ``q``.

    Raises as :func:`~vinoreward_envs.human.open_display`.
    """

    def __init__(self, title: str) -> None:
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        self._pygame = pygame = open_display("a window", "camera", "`window=False`")
        self._surface = pygame.display.set_mode((WIDTH, HEIGHT + STRIP))
        pygame.display.set_caption(title)
        pygame.font.init()
        self._large, self._small = (pygame.font.Font(None, size) for size in (34, 22))

    def __enter__(self) -> Window:
        return self

    def __exit__(self, *error: object) -> None:
        self._pygame.font.quit()
        self._pygame.display.quit()

    def keys(self) -> str:
        """Return the keys pressed since the last call."""
        pygame, events = self._pygame, self._pygame.event.get()
        pressed = (event.unicode for event in events if event.type == pygame.KEYDOWN)
        return "".join(pressed) + "q" * any(event.type == pygame.QUIT for event in events)

    def show(self, status: Status) -> None:
        """Draw the image, as large as fits, and the status."""
        pygame, surface = self._pygame, self._surface
        height, width = status.image.shape[:2]
        scale = min(WIDTH / width, HEIGHT / height)
        size = max(1, round(width * scale)), max(1, round(height * scale))
        place = (WIDTH - size[0]) // 2, (HEIGHT - size[1]) // 2
        image = pygame.image.frombuffer(np.ascontiguousarray(status.image), (width, height), "RGB")
        surface.fill(_PAPER)
        surface.blit(pygame.transform.scale(image, size), place)
        colour = _CLAIMED if status.claimed else _ODD if status.is_odd else _INK
        if colour != _INK:
            pygame.draw.rect(surface, colour, (*place, *size), 5)
        state, where, figures = rows_of(status)
        surface.blit(self._large.render(state, True, colour), (12, HEIGHT + 8))
        note = status.note or HELP  # a title is cut, and a window may have none
        for row, text in enumerate((figures, where, status.false_positives, note)):
            ink = _NOTE if text == status.note else _INK
            surface.blit(self._small.render(text, True, ink), (12, HEIGHT + 40 + 28 * row))
        pygame.display.flip()
