"""Golden cases of the three wrappers: each variant of the reward in each form."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from golden_traces import Case, Events, Near, count_warnings
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from toy_environments import (
    HEIGHT,
    LAST_CELL,
    WIDTH,
    Corridor,
    save_toy_bundle,
    save_views_bundle,
    with_int8,
)

from vinoreward import ImageInInfo, LearnedReward, VectorLearnedReward
from vinoreward.errors import OutOfDistributionError

ENVS = 3
MODES = tuple(AutoresetMode)
# The network's sums are in another order on another processor; all else is exact.
NEAR = Near(score=1e-3, ood=1e-3, shaped=1e-3)
MARGIN = 0.05
SEEN = (2, 3, 4, 6)
"""Cells that the OOD detector knows; in the others an image is out of distribution."""


class FreezingCamera(gym.Env[Any, Any]):
    """A red level that jumps; from step ``last`` on the camera shows what it showed then."""

    def __init__(self, last: int = 420) -> None:
        self.observation_space = gym.spaces.Dict(
            {
                "image": gym.spaces.Box(0, 255, (HEIGHT, WIDTH, 3), np.uint8),
                "state": gym.spaces.Box(0, 1, (2,), np.float32),
            }
        )
        self.action_space = gym.spaces.Discrete(2)
        self.last, self.count, self.steps = last, 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._look(move=True), {}

    def step(self, action: Any) -> Any:
        self.steps, self.count = self.steps + 1, self.count + 1
        seen = self._look(move=bool(action))
        return seen, -1.0, False, self.steps >= 9, {"true_success": False}

    def _look(self, *, move: bool) -> dict[str, Any]:
        if move:
            self.red, self.blue = self.np_random.integers(0, 8, 2) / 7
        if self.count < self.last:
            self.image = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
            self.image[..., 0] = round(255 * self.red)
            self.image[:, : WIDTH // 2, 2] = round(255 * self.blue)
        return {"image": self.image.copy(), "state": np.array([self.red, self.blue], np.float32)}


def image_of_cell(env: Any, observation: Any) -> np.ndarray:
    """An ``image_source``: draws the corridor's cell from its observation."""
    image = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    image[..., 0] = round(255 * float(observation[0]) / LAST_CELL)
    return image


def even_steps(observation: Any, probability: float) -> bool:
    """A filter of successes: only after an even number of steps."""
    return int(observation[1]) % 2 == 0


CORRIDOR: Callable[[], gym.Env[Any, Any]] = functools.partial(Corridor, "image")


@dataclasses.dataclass(frozen=True)
class Variant:
    """What differs between traces of one form."""

    options: dict[str, Any]
    bundle: str = "toy"
    make: Callable[[], gym.Env[Any, Any]] = CORRIDOR
    source: Any = "obs"
    steps: int = 50
    forms: tuple[str, ...] = ("single", *(mode.name for mode in MODES), "sb3")

    @property
    def shaped(self) -> bool:
        return self.options.get("reward_mode", "sparse") != "sparse"

    @property
    def thresholds(self) -> tuple[float, ...]:
        enter = self.options.get("success_threshold", 0.5)
        return enter, self.options.get("success_exit_threshold", enter)


PAID = {"success_reward": 3.0, "step_reward": -0.25}
MIXED = {**PAID, "env_reward_weight": 0.5}
GOES_ON = {"terminate_on_success": False}
SLOW = {"success_threshold": 0.9, "success_exit_threshold": 0.3}
NUMBERS: dict[str, Any] = {"make": Corridor, "source": image_of_cell}
# Most corridors are images, where no check for a frozen camera can run.
VARIANTS: dict[str, Variant] = {
    "sparse": Variant(PAID),
    "sparse_goes_on": Variant({**MIXED, **GOES_ON}),
    "replaces": Variant({**MIXED, "success_replaces_env_reward": True, **GOES_ON}),
    "hold": Variant({**PAID, "success_hold_steps": 2}),
    "hold_shown": Variant(
        {**PAID, **SLOW, "success_hold_steps": 3, "hold_in_observation": True}, **NUMBERS
    ),
    "hold_shown_goes_on": Variant(
        {**MIXED, **GOES_ON, "success_hold_steps": 2, "hold_in_observation": True}, **NUMBERS
    ),
    "hysteresis": Variant({**PAID, **SLOW, **GOES_ON}),
    "hysteresis_hold": Variant({**PAID, **SLOW, "success_hold_steps": 2}),
    "probability": Variant({**MIXED, "reward_mode": "probability"}),
    "log_odds": Variant({**MIXED, **GOES_ON, "reward_mode": "log_odds"}),
    "potential": Variant({**PAID, "reward_mode": "potential", "gamma": 0.9}),
    "potential_goes_on": Variant(
        {**MIXED, **SLOW, **GOES_ON, "reward_mode": "potential", "success_hold_steps": 2}
    ),
    "ood": Variant(PAID, bundle="guarded"),
    "ood_hysteresis": Variant({**PAID, **SLOW, **GOES_ON}, bundle="guarded"),
    # A withheld image is no success even where any probability keeps one.
    "ood_kept_by_any": Variant(
        {**PAID, **GOES_ON, "success_exit_threshold": 0.0}, bundle="guarded"
    ),
    "ood_hold": Variant({**PAID, "success_hold_steps": 2}, bundle="guarded"),
    "ood_probability": Variant({**PAID, "reward_mode": "probability"}, bundle="guarded"),
    "ood_log_odds": Variant({**PAID, **GOES_ON, "reward_mode": "log_odds"}, bundle="guarded"),
    "ood_potential": Variant({**PAID, "reward_mode": "potential"}, bundle="guarded"),
    "ood_warn": Variant({**PAID, "on_ood": "warn"}, bundle="guarded"),
    # One environment's image ends the holds of all that were stepped.
    "ood_raise": Variant(
        {**PAID, **GOES_ON, "on_ood": "raise", "success_hold_steps": 2},
        bundle="right",
        make=functools.partial(Corridor, "image", first_cells=(3, 5, 6)),
    ),
    "ood_ignore": Variant({**PAID, "on_ood": "ignore"}, bundle="guarded"),
    "filter": Variant({**PAID, "success_filter": even_steps}, **NUMBERS),
    "filter_hold": Variant(
        {**PAID, **GOES_ON, "success_hold_steps": 2, "success_filter": even_steps},
        make=functools.partial(Corridor, "vector", first_cells=(5, 6)),
        source=image_of_cell,
    ),
    "views": Variant(
        {**PAID, "success_threshold": 0.58},
        bundle="views",
        make=functools.partial(Corridor, "cameras"),
        source=None,
    ),
    "views_potential": Variant(
        {**PAID, "success_threshold": 0.58, "reward_mode": "potential"},
        bundle="views",
        make=functools.partial(Corridor, "cameras"),
        source=None,
    ),
    "dict": Variant(MIXED, make=functools.partial(Corridor, "dict"), source="obs:image"),
    "channels_first": Variant(PAID, make=functools.partial(Corridor, "planes")),
    "frozen": Variant({**PAID, **GOES_ON}, make=FreezingCamera, source="obs:image", steps=560),
    "frozen_unchecked": Variant(
        {**PAID, "frozen_check": False},
        make=functools.partial(Corridor, "dict"),
        source="obs:image",
    ),
    "int8": Variant({**PAID, **SLOW}, bundle="int8"),
    "recorded": Variant(
        MIXED, make=lambda: gym.wrappers.RecordEpisodeStatistics(Corridor("image"))
    ),
    "render": Variant(
        {**PAID, "reward_mode": "potential"},
        make=functools.partial(Corridor, render_mode="rgb_array"),
        source="render",
        forms=("single", "NEXT_STEP", "DISABLED", "sb3"),
    ),
}


@functools.cache
def bundles() -> dict[str, Any]:
    """Return the small bundles by name."""
    folder = Path(tempfile.mkdtemp(prefix="golden-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    toy = save_toy_bundle(folder / "toy")
    return {
        "toy": toy,
        "right": save_toy_bundle(folder / "right", seen=(3, 4, 5, 6)),
        "guarded": save_toy_bundle(folder / "guarded", seen=SEEN),
        "views": save_views_bundle(folder / "views"),
        # Off by more than a claim needs; FP32 answers near the thresholds.
        "int8": with_int8(save_toy_bundle(folder / "int8"), 1.5, 3.0),
    }


def actions(seed: int, index: int, steps: int) -> list[int]:
    """Mostly to the right, so that successes, ends and truncations all happen."""
    return (np.random.default_rng([seed, index]).random(steps) < 0.65).astype(int).tolist()


def single(variant: Variant) -> Events:
    """One environment after another."""
    events = Events()
    with count_warnings(events, when=variant.options.get("on_ood") == "warn"):
        for index in range(ENVS):
            env = LearnedReward(
                variant.make(),
                bundles()[variant.bundle],
                image_source=variant.source,
                **variant.options,
            )
            observation, info = env.reset(seed=5 + index)
            events.add(observation=observation, info=info)
            for action in actions(1, index, variant.steps):
                try:
                    observation, reward, terminated, truncated, info = env.step(action)
                except OutOfDistributionError:
                    events.add(raised=True)
                    terminated = truncated = env.unwrapped.over
                else:
                    events.add(
                        observation=observation,
                        reward=reward,
                        terminated=terminated,
                        truncated=truncated,
                        info=info,
                    )
                if terminated or truncated:
                    observation, info = env.reset()
                    events.add(observation=observation, info=info)
            events.add(claimed=last_claims(env, 1))
            env.close()
    return events


def vector(mode: AutoresetMode, variant: Variant) -> Events:
    """A vector environment of one autoreset mode."""
    events = Events()
    env = VectorLearnedReward(
        SyncVectorEnv([variant.make] * ENVS, autoreset_mode=mode),
        bundles()[variant.bundle],
        image_source=variant.source,
        **variant.options,
    )
    ours = [actions(1, index, variant.steps) for index in range(ENVS)]
    with count_warnings(events, when=variant.options.get("on_ood") == "warn"):
        observations, infos = env.reset(seed=5)
        events.add(observations=observations, infos=infos)
        for step in range(variant.steps):
            try:
                found = env.step(np.array([each[step] for each in ours]))
            except OutOfDistributionError:
                events.add(raised=True)
                if mode is AutoresetMode.DISABLED:  # nobody says whose episode ended
                    observations, infos = env.reset()
                    events.add(observations=observations, infos=infos)
                continue
            names = ("observations", "rewards", "terminations", "truncations", "infos")
            events.add(**dict(zip(names, found, strict=True)))
            over = found[2] | found[3]
            if mode is AutoresetMode.DISABLED and over.any():
                observations, infos = env.reset(options={"reset_mask": over})
                events.add(observations=observations, infos=infos)
        events.add(claimed=last_claims(env, ENVS))
    env.close()
    return events


def sb3(variant: Variant) -> Events:
    """Stable-Baselines3's vector environment."""
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv

    from vinoreward import VecLearnedReward

    def make() -> gym.Env[Any, Any]:
        if variant is VARIANTS["recorded"]:
            return Monitor(Corridor("image"))
        return ImageInInfo(variant.make()) if variant.source == "render" else variant.make()

    events = Events()
    env = VecLearnedReward(
        DummyVecEnv([make] * ENVS),
        bundles()[variant.bundle],
        image_source=variant.source,
        **variant.options,
    )
    ours = [actions(1, index, variant.steps) for index in range(ENVS)]
    with count_warnings(events, when=variant.options.get("on_ood") == "warn"):
        env.seed(5)
        events.add(observations=env.reset(), reset_infos=env.reset_infos)
        for step in range(variant.steps):
            try:
                found = env.step(np.array([each[step] for each in ours]))
            except OutOfDistributionError:
                events.add(raised=True)
                continue
            names = ("observations", "rewards", "dones", "infos")
            event = dict(zip(names, found, strict=True))
            if found[2].any():
                event["reset_infos"] = env.reset_infos
            events.add(**event)
        events.add(claimed=last_claims(env, ENVS))
    env.close()
    return events


def last_claims(env: Any, count: int) -> dict[str, Any]:
    """Return the images of the last claims, where there were any."""
    claims = {str(i): env.claimed_image(i) for i in range(count)}
    return {i: image for i, image in claims.items() if image is not None}


def cases(form: str) -> list[Case]:
    """Return the cases of ``"single"``, ``"vector"`` or ``"sb3"``."""
    plays: dict[str, Callable[[Variant], Events]] = {"single": single, "sb3": sb3}
    if form == "vector":
        plays = {mode.name: functools.partial(vector, mode) for mode in MODES}
    else:
        plays = {form: plays[form]}
    return [
        Case(
            name if form != "vector" else f"{name}-{kind}",
            functools.partial(play, variant),
            NEAR,
            variant.thresholds,
            MARGIN,
            shaped=variant.shaped,
        )
        for name, variant in VARIANTS.items()
        for kind, play in plays.items()
        if kind in variant.forms
    ]
