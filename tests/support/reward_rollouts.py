"""What each form of the learned reward gives for the same actions, for tests."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from toy_environments import Corridor

from vinoreward import LearnedReward, VecLearnedReward, VectorLearnedReward
from vinoreward.bundles.bundle import Bundle

ENVS = 3
TRANSITIONS = 40
SEED = 5

Played = TypeVar("Played")


def played_once(play: Callable[..., Played]) -> Callable[..., Played]:
    """Let ``play(bundle, env, **options)``, an oracle, share what it returned before."""
    played: dict[tuple[object, ...], Played] = {}

    @functools.wraps(play)
    def shared(bundle: Bundle, env: dict[str, Any], **options: Any) -> Played:
        key = str(bundle.path), bundle.sha256, repr((env, options))
        if key not in played:
            played[key] = play(bundle, env, **options)
        return played[key]

    return shared


@dataclass
class Transition:
    """What a learner is told about one step of one environment."""

    observation: Any
    reward: float
    terminated: bool
    over: bool
    claimed: bool
    probability: float
    original: float
    true_success: bool
    ood_score: float | None = None
    """What the guard says, if there is one."""


def actions_of(index: int) -> list[int]:
    """Mostly to the right, so that successes, ends and truncations all happen."""
    return (np.random.default_rng(index).random(TRANSITIONS) < 0.65).astype(int).tolist()


@played_once
def one_after_another(
    bundle: Bundle, env: dict[str, Any], **options: Any
) -> list[list[Transition]]:
    """The oracle: N single environments in a plain loop."""
    everything = []
    for index in range(ENVS):
        single = LearnedReward(Corridor(**env), bundle, **options)
        single.reset(seed=SEED + index)
        transitions = []
        for action in actions_of(index):
            observation, reward, terminated, truncated, info = single.step(action)
            transitions.append(
                Transition(
                    copy.deepcopy(observation),
                    float(reward),
                    terminated,
                    terminated or truncated,
                    info["is_success"],
                    info["reward_prob"],
                    info["original_env_rew"],
                    info["true_success"],
                    info.get("reward_ood"),
                )
            )
            if terminated or truncated:
                single.reset()
        single.close()
        everything.append(transitions)
    return everything


def vector_rollout(env: VectorLearnedReward) -> list[list[Transition]]:
    """Step a vector environment as its autoreset mode asks, and keep what is a transition."""
    mode = env.metadata["autoreset_mode"]
    found: list[list[Transition]] = [[] for _ in range(ENVS)]
    env.reset(seed=SEED)
    waiting = np.zeros(ENVS, np.bool_)
    while min(len(item) for item in found) < TRANSITIONS:
        actions = np.array(
            [actions_of(i)[min(len(found[i]), TRANSITIONS - 1)] for i in range(ENVS)]
        )
        observations, rewards, terminated, truncated, infos = env.step(actions)
        over = terminated | truncated
        for i in range(ENVS):
            if waiting[i]:
                assert rewards[i] == 0.0 and not over[i], "a reset frame earns nothing"
                assert not infos["_is_success"][i] and not infos["is_success"][i]
                continue
            assert infos["_is_success"][i]
            last = row(observations, i)
            if mode is AutoresetMode.SAME_STEP and over[i]:
                last = infos["final_obs"][i]
                final = infos["final_info"]
                assert final["_is_success"][i]
                assert final["is_success"][i] == infos["is_success"][i]
                assert final["reward_prob"][i] == infos["reward_prob"][i]
                assert final["true_success"][i] == infos["true_success"][i]
            found[i].append(
                Transition(
                    copy.deepcopy(last),
                    float(rewards[i]),
                    bool(terminated[i]),
                    bool(over[i]),
                    bool(infos["is_success"][i]),
                    float(infos["reward_prob"][i]),
                    float(infos["original_env_rew"][i]),
                    bool(infos["true_success"][i]),
                    float(infos["reward_ood"][i]) if "reward_ood" in infos else None,
                )
            )
        waiting = over if mode is AutoresetMode.NEXT_STEP else waiting
        if mode is AutoresetMode.DISABLED and over.any():
            env.reset(options={"reset_mask": over})
    env.close()
    return [item[:TRANSITIONS] for item in found]


def sb3_rollout(env: VecLearnedReward) -> list[list[Transition]]:
    found: list[list[Transition]] = [[] for _ in range(ENVS)]
    env.seed(SEED)
    env.reset()
    for step in range(TRANSITIONS):
        actions = np.array([actions_of(i)[step] for i in range(ENVS)])
        observations, rewards, dones, infos = env.step(actions)
        for i, info in enumerate(infos):
            last = info["terminal_observation"] if dones[i] else row(observations, i)
            found[i].append(
                Transition(
                    copy.deepcopy(last),
                    float(rewards[i]),
                    bool(dones[i] and not info["TimeLimit.truncated"]),
                    bool(dones[i]),
                    info["is_success"],
                    info["reward_prob"],
                    info["original_env_rew"],
                    info["true_success"],
                )
            )
    env.close()
    return found


def row(observations: Any, i: int) -> Any:
    if isinstance(observations, dict):
        return {key: value[i] for key, value in observations.items()}
    return observations[i]


def assert_same(found: list[list[Transition]], expected: list[list[Transition]]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        for number, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            where = f"transition {number}"
            assert (a.terminated, a.over) == (b.terminated, b.over), where
            assert (a.claimed, a.true_success) == (b.claimed, b.true_success), where
            assert a.original == b.original, where
            np.testing.assert_allclose(a.probability, b.probability, atol=1e-5, err_msg=where)
            np.testing.assert_allclose(a.reward, b.reward, rtol=1e-5, atol=1e-5, err_msg=where)
            np.testing.assert_equal(a.observation, b.observation, err_msg=where)


def sync(mode: AutoresetMode, **env: Any) -> SyncVectorEnv:
    return SyncVectorEnv([functools.partial(Corridor, **env)] * ENVS, autoreset_mode=mode)
