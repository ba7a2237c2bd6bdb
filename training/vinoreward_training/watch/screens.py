"""What shows a session and takes keys: a line in the terminal, and a window."""

from __future__ import annotations

import os
import select
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from vinoreward.errors import MissingDisplayError, needed_for
from vinoreward_training.watch.session import Status

if TYPE_CHECKING:
    from typing_extensions import Self

LINE_SECONDS = 1.0
"""Between two lines where the output is no terminal."""
HELP = "s success   f failure   u undo   n new episode   q quit"
PICTURE = (640, 480)
"""Width and height of the image in the window."""
STRIP = 156
"""Height of the text under it."""
_INK, _PAPER, _GREY = (235, 237, 240), (24, 27, 32), (150, 155, 162)
_CLAIMED, _ODD, _NOTE = (110, 200, 120), (240, 120, 100), (240, 200, 110)


def state_of(status: Status) -> str:
    """Return what is claimed of the image, in words."""
    if status.probability is None:
        return "not scored"
    odd = status.ood_score is not None and status.ood_score > 1.0
    claim = "SUCCESS" if status.claimed else "out of distribution" if odd else "no success"
    ood = "" if status.ood_score is None else f"   OOD {status.ood_score:.2f}"
    return f"P {status.probability:.3f}   {claim}{ood}"


def figures_of(status: Status) -> str:
    """Return rate, latency and what went wrong, in words."""
    return (
        f"{status.hz:.1f}/s   p50 {status.p50:.1f} p99 {status.p99:.1f} ms   missed "
        f"{status.missed}   dropped {status.dropped}   repeated {status.repeated}"
    )


def place_of(status: Status) -> str:
    """Return which image it is, and how many successes and failures are labelled, in words."""
    successes, failures = status.labels
    return f"episode {status.episode} image {status.number}   labels {successes} + {failures}"


class Terminal:
    """One line that is refreshed, or plain lines where the output is no terminal; keys of stdin.

    A ``with`` block takes keys one by one instead of by lines, and gives the terminal back.
    """

    def __init__(self) -> None:
        self._refreshed = sys.stdout.isatty()
        self._typed = sys.stdin is not None and sys.stdin.isatty() and os.name == "posix"
        self._before: list[Any] = []
        self._printed = -np.inf

    def __enter__(self) -> Self:
        if self._typed:
            import termios
            import tty

            self._before = termios.tcgetattr(sys.stdin)
            tty.setcbreak(sys.stdin)  # Ctrl-C stays what it is
        return self

    def __exit__(self, *error: object) -> None:
        if self._refreshed:
            print()
        if self._typed:
            import termios

            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._before)

    def keys(self) -> str:
        """Return the keys pressed since the last call."""
        if not self._typed or not select.select([sys.stdin], [], [], 0)[0]:
            return ""
        return os.read(sys.stdin.fileno(), 64).decode("ascii", "ignore")

    def show(self, status: Status) -> None:
        """Print the status."""
        line = "   ".join((state_of(status), place_of(status), figures_of(status)))
        if self._refreshed:
            columns = shutil.get_terminal_size().columns
            print(f"\r\x1b[K{line[: columns - 1]}", end="", flush=True)
        elif time.monotonic() - self._printed >= LINE_SECONDS:
            self._printed = time.monotonic()
            print(line, flush=True)

    def say(self, sentence: str) -> None:
        """Print a sentence on a line of its own; unprintable characters are left out."""
        text = "".join(letter if letter.isprintable() else " " for letter in sentence)
        print(f"\r\x1b[K{text}" if self._refreshed else text, flush=True)


class Window:
    """The image with the status under it; ``q`` and closing the window end.

    Raises:
        MissingDisplayError: there is no display.
        MissingExtraError: pygame is not installed.
    """

    def __init__(self, title: str) -> None:
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        with needed_for("a window", "camera"):
            import pygame
        self._pygame: Any = pygame
        try:
            pygame.display.init()
            if pygame.display.get_driver() == "offscreen":  # SDL's where it can open no window
                raise pygame.error("only offscreen drawing")
            size = (PICTURE[0], PICTURE[1] + STRIP)
            self._surface: Any = pygame.display.set_mode(size)
        except pygame.error as error:
            pygame.display.quit()
            raise MissingDisplayError(
                f"no window can be opened: {error}. Expected a display (see DISPLAY or "
                "WAYLAND_DISPLAY); leave the window out with `window=False`."
            ) from error
        pygame.display.set_caption(title)
        pygame.font.init()
        self._large, self._small = (pygame.font.Font(None, size) for size in (34, 22))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._pygame.font.quit()
        self._pygame.display.quit()

    def keys(self) -> str:
        """Return the keys pressed in the window since the last call."""
        pygame, pressed = self._pygame, ""
        for event in pygame.event.get():
            if event.type == pygame.QUIT:
                pressed += "q"
            elif event.type == pygame.KEYDOWN:
                pressed += event.unicode
        return pressed

    def show(self, status: Status) -> None:
        """Draw the image, as large as fits, and the status."""
        pygame = self._pygame
        height, width = status.image.shape[:2]
        scale = min(PICTURE[0] / width, PICTURE[1] / height)
        size = max(1, round(width * scale)), max(1, round(height * scale))
        image = pygame.image.frombuffer(np.ascontiguousarray(status.image), (width, height), "RGB")
        self._surface.fill(_PAPER)
        place = (PICTURE[0] - size[0]) // 2, (PICTURE[1] - size[1]) // 2
        self._surface.blit(pygame.transform.scale(image, size), place)
        odd = status.ood_score is not None and status.ood_score > 1.0
        colour = _CLAIMED if status.claimed else _ODD if odd else _INK
        if status.claimed or odd:
            pygame.draw.rect(self._surface, colour, (*place, *size), 5)
        rows = (
            (self._large, state_of(status), colour),
            (self._small, figures_of(status), _INK),
            (self._small, place_of(status), _INK),
            (self._small, status.false_positives, _INK),
            (self._small, status.note or HELP, _NOTE if status.note else _GREY),
        )
        top = PICTURE[1] + 8
        for font, text, ink in rows:
            self._surface.blit(font.render(text, True, ink), (12, top))
            top += font.get_linesize() + 4
        pygame.display.flip()
