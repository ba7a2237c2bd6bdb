"""``vinoreward watch``: opens camera, bundle, window and dataset, and prints the summary."""

from __future__ import annotations

import contextlib

from vinoreward.rewards.decision import RewardOptions
from vinoreward.rewards.reward_model import RewardModel
from vinoreward_envs.human import has_display
from vinoreward_training.configs import FinetuneConfig, WatchConfig
from vinoreward_training.runs.next_command import after_capture
from vinoreward_training.runs.settings import refuse_ignored
from vinoreward_training.watch.cameras import open_camera, public
from vinoreward_training.watch.claims import ClaimCommand
from vinoreward_training.watch.clicks import Clicks
from vinoreward_training.watch.learner import Learner
from vinoreward_training.watch.screens import HELP, Terminal, Window
from vinoreward_training.watch.session import watch


def run(config: WatchConfig) -> int:
    """Watch until the camera ends, ``q`` or Ctrl-C; print a summary and return 0."""
    if config.learn:
        refuse_ignored(config, ("bundle",), "watch with `learn`")
    else:
        refuse_ignored(config, ("network", "weights", "pretrained"), "watch without `learn`")
        if config.bundle is None:
            refuse_ignored(config, ("on_claim",), "watch without `bundle` or `learn`")
    name, model, learner, on_claim = public(config.camera), None, None, None
    following = after_capture(config.out)
    with contextlib.ExitStack() as closing:
        terminal = Terminal()
        screens: list[Terminal | Window] = [terminal]
        clicks = Clicks(config.out, name)
        closing.callback(clicks.close)
        given = clicks.counts
        if config.bundle is not None:
            model = RewardModel(config.bundle, RewardOptions())
            closing.callback(model.close)
        if config.learn:
            options = {each: getattr(config, each) for each in ("network", "weights", "pretrained")}
            training = FinetuneConfig(data=config.out, freeze=True, **options)
            learner = closing.enter_context(Learner(training))
            following = after_capture(config.out, training)
        if config.on_claim is not None:
            on_claim = ClaimCommand(config.on_claim, terminal.say)
            closing.callback(on_claim.close)
        camera = open_camera(config.camera, config.hz)
        if config.window and has_display():
            screens.append(closing.enter_context(Window(f"vinoreward watch: {name}")))
        closing.enter_context(terminal)
        terminal.say(f"{name}, {config.hz or camera.hz:.4g} images a second. Keys: {HELP}")
        status = watch(
            camera,
            model,
            hz=config.hz,
            clicks=clicks,
            learner=learner,
            keys=lambda: "".join(screen.keys() for screen in screens),
            on_claim=on_claim,
            show=lambda status: [screen.show(status) for screen in screens],
            say=terminal.say,
        )
    print("\n".join(status.lines()))
    if clicks.counts != given:
        print(f"{clicks.counts[0]} successes and {clicks.counts[1]} failures in {config.out}.")
        print(f"next: {following}")
    return 0
