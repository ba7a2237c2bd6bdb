"""SIGTERM as Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from vinoreward.processes import interrupt_between
from vinoreward_actors.actor_learner.engines.ray.cluster import sigterm_kept
from vinoreward_training.interrupts import terminated_like_interrupted


@pytest.fixture(autouse=True)
def nobody_handles_sigterm() -> Iterator[None]:
    """Ray does, in a process that has used it."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


def raise_sigterm() -> None:
    """Raise it where somebody handles it; elsewhere the process would end without a word."""
    assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL, threading.current_thread()
    signal.raise_signal(signal.SIGTERM)


def test_sigterm_interrupts() -> None:
    with pytest.raises(KeyboardInterrupt), terminated_like_interrupted():
        raise_sigterm()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_sigterm_is_held_back_like_ctrl_c() -> None:
    done: list[str] = []
    with (
        pytest.raises(KeyboardInterrupt),
        terminated_like_interrupted(),
        interrupt_between() as check,
    ):
        raise_sigterm()
        done.append("went on")
        check(lambda: done.append("saved"))
    assert done == ["went on", "saved"]


def test_somebody_elses_handler_stays() -> None:
    caught: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: caught.append(number))
    try:
        with terminated_like_interrupted():
            raise_sigterm()
        assert caught == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_forked_child_ends() -> None:
    ready, tell = os.pipe()
    with terminated_like_interrupted():
        child = os.fork()
        if child == 0:
            try:
                os.write(tell, b"1")  # Python forgets what arrives before it runs again
                for _ in range(600):  # a signal just before a sleep does not end it
                    time.sleep(0.1)
            finally:
                os._exit(3)
        os.read(ready, 1)
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
    os.close(ready)
    os.close(tell)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGTERM


def test_a_replaced_handler_is_given_back() -> None:
    """Ray replaces it when it is started."""
    with pytest.raises(KeyboardInterrupt), terminated_like_interrupted():
        with sigterm_kept():
            signal.signal(signal.SIGTERM, lambda number, frame: None)
        raise_sigterm()
    with sigterm_kept():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
