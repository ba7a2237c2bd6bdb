"""``vinoreward watch``: opens camera, bundle, window and dataset, and prints the summary."""

from __future__ import annotations

import contextlib

from vinoreward.errors import ConfigError
from vinoreward.rewards.decision import RewardOptions
from vinoreward.rewards.reward_model import RewardModel
from vinoreward_envs.human import has_display
from vinoreward_training.configs import WatchConfig
from vinoreward_training.runs.next_command import after_capture
from vinoreward_training.watch.cameras import open_camera, public
from vinoreward_training.watch.claims import ClaimCommand
from vinoreward_training.watch.clicks import Clicks
from vinoreward_training.watch.screens import HELP, Terminal, Window
from vinoreward_training.watch.session import Status, watch


def run(config: WatchConfig) -> int:
    """Watch until the camera ends, ``q`` or Ctrl-C; print a summary and return 0."""
    if config.bundle is None and config.on_claim is not None:
        raise ConfigError(
            field="on_claim",
            value=config.on_claim,
            expected="a bundle, which claims successes",
            remedy="name one with `bundle`, or leave `on_claim` out",
        )
    name = public(config.camera)
    with contextlib.ExitStack() as closing:
        clicks = Clicks(config.out, name)
        closing.callback(clicks.close)
        given = clicks.counts
        terminal = Terminal()
        model, on_claim = None, None
        if config.bundle is not None:
            model = RewardModel(config.bundle, RewardOptions())
            closing.callback(model.close)
        if config.on_claim is not None:
            on_claim = ClaimCommand(config.on_claim, terminal.say)
            closing.callback(on_claim.close)
        camera = open_camera(config.camera, config.hz)
        window = None
        if config.window and has_display():
            window = closing.enter_context(Window(f"vinoreward watch: {name}"))
        closing.enter_context(terminal)

        def keys() -> str:
            return terminal.keys() + ("" if window is None else window.keys())

        def show(status: Status) -> None:
            terminal.show(status)
            if window is not None:
                window.show(status)

        terminal.say(f"{name}, {config.hz or camera.hz:.4g} images a second. Keys: {HELP}")
        status = watch(
            camera, model, hz=config.hz, clicks=clicks, keys=keys, on_claim=on_claim, show=show,
            say=terminal.say,
        )  # fmt: skip
    for line in status.lines():
        print(line)
    if clicks.counts != given:
        print(f"{clicks.counts[0]} successes and {clicks.counts[1]} failures in {config.out}.")
        print(f"next: {after_capture(config.out)}")
    return 0
