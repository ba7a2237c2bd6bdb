"""What is told of a process that an error ended: a sentence, or a traceback."""

from __future__ import annotations

import traceback

from vinoreward.errors import VinorewardError


def error_report(error: BaseException) -> str:
    """Return what a process says of the error that ends it.

    An error of :mod:`vinoreward.errors` says what was found, expected and to be done, on one line;
    of anything else only the traceback says where it came from.
    """
    if isinstance(error, VinorewardError):
        return " ".join(str(error).split())
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))


def in_short(words: str) -> str:
    """Return the last line of them, to be put into a sentence."""
    return words.strip().splitlines()[-1].rstrip(".")


def ended_too_often(name: str, times: int, why: str, but: str, words: str) -> str:
    """Say that a process is not started again, though nothing can go on without it.

    Args:
        name: of the process.
        times: that it ended.
        why: in short.
        but: a sentence about why nothing can go on, or nothing.
        words: what it said last.
    """
    ended, expected = f"{name} ended {times} times within a minute of work", "Expected it to run"
    # Nothing is said twice: neither a sentence nor that there was none.
    if words.strip() == why:
        return f"{ended} ({why}). {expected}{but}."
    about = "" if words.strip().rstrip(".") == why else f" ({why})"
    return f"{ended}{about}. {expected}{but}. What it said last:\n{words}"
