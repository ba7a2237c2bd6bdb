"""Golden cases of the hover scene: one environment, a batch on the host, a batch of tensors."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import golden_wrappers
import gymnasium as gym
import numpy as np
from golden_traces import Case, Events, Near, count_warnings
from hover_batches import VARIED

import vinoreward  # noqa: F401  (registers the environments)
from vinoreward_envs import panda_hover_vector

ENVS = 5
# A camera compiled for another processor draws a few pixels at edges otherwise, and inverse
# kinematics ends within a micrometre a step.
NEAR = Near(score=0.2, ood=0.02, shaped=0.0, state=2e-5, image=0.5)
MARGIN = 0.3
"""A few pixels at edges are worth 0.1 log-odds."""
FIXED, RANDOM, PIXELS = "PandaHover-v0", "PandaHoverRandom-v0", "PandaHoverPixels-v0"
PLACE = (0.65, -0.30)
EARNED = {"is_success", "true_success", "reward_prob", "reward_ood", "original_env_rew"}
LEARNED: dict[str, Any] = {"backend": "openvino", "precision": "fp32"}
ORACLE, UNJUDGED = {"backend": "oracle"}, {"backend": "none"}


@dataclasses.dataclass(frozen=True)
class Variant:
    """What differs between traces."""

    options: dict[str, Any]
    id: str = FIXED
    seed: int = 0
    steps: int = 30
    aim: tuple[float, float] = (0.0, 0.0)
    """Where the policy goes, from the object."""
    only: tuple[str, ...] = ("scalar", "host", "device")

    @property
    def thresholds(self) -> tuple[float, ...]:
        if self.options["backend"] in ("oracle", "none"):
            return ()
        enter = self.options.get("success_threshold", 0.5962303876876831)
        return enter, self.options.get("success_exit_threshold", enter)


EDGE = (0.022, -0.02)
"""From the object: where a claim is less sure."""
LIGHT = {"randomization": {"light": (1.0, 1.6)}}
"""Too bright for the OOD detector in some episodes."""
VARIANTS: dict[str, Variant] = {
    "learned": Variant(LEARNED),
    "int8": Variant({"backend": "openvino"}, only=("scalar", "host")),
    # Scores are means over translations on both sides of the threshold.
    "near": Variant({**LEARNED, "success_threshold": 0.995}, seed=2, aim=EDGE),
    "hold": Variant({**LEARNED, "success_hold_steps": 2}, seed=2),
    "hold_hysteresis": Variant(
        {
            **LEARNED,
            "success_threshold": 0.995,
            "success_exit_threshold": 0.6,
            "success_hold_steps": 2,
        },
        seed=2,
        aim=EDGE,
    ),
    "random": Variant(LEARNED, RANDOM, seed=3),
    "pixels": Variant(LEARNED, PIXELS, seed=2),
    "ood": Variant({**LEARNED, **LIGHT}),
    "ood_ignore": Variant({**LEARNED, **LIGHT, "on_ood": "ignore"}),
    "ood_warn": Variant(
        {**LEARNED, **LIGHT, "on_ood": "warn"},
        only=("scalar", "host"),
    ),
    "oracle": Variant(ORACLE, RANDOM, steps=120),
    "oracle_fixed": Variant(ORACLE, steps=60),
    "oracle_hold": Variant({**ORACLE, "success_hold_steps": 2}, RANDOM, steps=60),
    "oracle_pixels": Variant(ORACLE, PIXELS),
    "oracle_varied": Variant({**ORACLE, "randomization": VARIED}, RANDOM, steps=60),
    "unjudged": Variant(UNJUDGED, RANDOM, steps=60),
}


def policy(variant: Variant, draw: np.random.Generator, observations: Any) -> np.ndarray:
    """Return ``(N, 2)`` moves: towards the object, and sometimes anywhere on a grid."""
    count = len(observations)
    there = np.array(observations, np.float64)
    known = there.ndim == 2
    goal = there[:, 2:] if known and there.shape[1] == 4 else np.tile(PLACE, (count, 1))
    goal = goal + variant.aim
    elsewhere = draw.choice([-0.08, -0.04, 0.0, 0.04, 0.08], (count, 2))
    if not known:
        return elsewhere.astype(np.float32)
    towards = np.clip(goal - there[:, :2], -0.08, 0.08)
    return np.where(draw.random((count, 1)) < 0.6, towards, elsewhere).astype(np.float32)


def scalar(variant: Variant) -> Events:
    """One environment; every third episode's object is placed by the caller."""
    events = Events()
    draw = np.random.default_rng(variant.seed)
    env = gym.make(variant.id, **variant.options)
    with count_warnings(events, when=variant.options.get("on_ood") == "warn"):
        observation, info = env.reset(seed=variant.seed)
        events.add(observation=observation, info=info)
        episodes = 0
        for _ in range(variant.steps * ENVS):
            action = policy(variant, draw, observation[None])[0]
            observation, reward, terminated, truncated, info = env.step(action)
            events.add(
                observation=observation,
                reward=reward,
                terminated=terminated,
                truncated=truncated and not terminated,
                info=info,
            )
            if terminated or truncated:
                episodes += 1
                place = {"object_position": (0.55, 0.1)} if episodes % 3 == 0 else None
                observation, info = env.reset(options=place)
                events.add(observation=observation, info=info)
    learned = env.has_wrapper_attr("claimed_image")
    image = env.get_wrapper_attr("claimed_image")() if learned else None
    events.add(claimed={} if image is None else {"0": image})
    env.close()
    return events


def batched(
    variant: Variant, *, array: str = "numpy", backend: str | None = None, device: str = "cpu"
) -> Events:
    """A batch; one action is no number, and some are reset by the caller."""
    events = Events()
    draw = np.random.default_rng(variant.seed)
    options = {**variant.options, "array": array, "device": device, "threads": 1}
    if backend is not None and options["backend"] == "openvino":
        options["backend"] = backend
    env = gym.make_vec(variant.id, ENVS, vectorization_mode="vector_entry_point", **options)
    with count_warnings(events, when=variant.options.get("on_ood") == "warn"):
        found: Any = env.reset(seed=variant.seed)
        events.add(observations=found[0], infos=found[1])
        for step in range(variant.steps):
            moves = policy(variant, draw, host(found[0]))
            if step in (4, 17):
                moves[2, step % 2] = np.nan
            found = env.step(moves if array == "numpy" else tensor(moves, device))
            names = ("observations", "rewards", "terminations", "truncations", "infos")
            events.add(**agreed(dict(zip(names, found, strict=True))))
            if step % 14 == 13:
                mask = np.arange(ENVS) % 2 == 0
                given = {"reset_mask": mask, "object_position": (0.55, 0.1)}
                found = env.reset(seed=40 + step, options=given)
                events.add(observations=found[0], infos=found[1])
    learned = hasattr(env, "claimed_image")
    claims = {str(i): env.claimed_image(i) for i in range(ENVS if learned else 0)}
    events.add(claimed={i: image for i, image in claims.items() if image is not None})
    env.close()
    return events


def on_device(variant: Variant, device: str = "cpu") -> Events:
    """A batch of tensors that stay where they are; PyTorch's networks are slow on a processor."""
    if variant.thresholds:
        variant = dataclasses.replace(variant, steps=20)
    with tensors_stay():
        return batched(variant, array="torch", backend="torch", device=device)


@contextlib.contextmanager
def tensors_stay() -> Iterator[None]:
    """Let a hover batch of tensors on a processor do what it does on a GPU."""
    before, panda_hover_vector.STAYS_ON_CPU = panda_hover_vector.STAYS_ON_CPU, True
    try:
        yield
    finally:
        panda_hover_vector.STAYS_ON_CPU = before


def host(values: Any) -> np.ndarray:
    """Return an array or tensor in the host's memory."""
    return np.asarray(values.cpu() if hasattr(values, "cpu") else values)


def tensor(values: np.ndarray, device: str) -> Any:
    """Return an array as a tensor."""
    import torch

    return torch.from_numpy(values).to(device)


def agreed(event: dict[str, Any]) -> dict[str, Any]:
    """Return a batch's step without what nobody promises, see the README beside the traces.

    ``final_obs`` counts where an episode ended. What such a step earned is in ``final_info``, and
    in ``infos`` too where a wrapper writes it. A claim in an episode's last step terminates it.
    """
    infos = dict(event["infos"])
    if "_final_info" in infos:
        over = host(infos["_final_info"])
        for key in EARNED & infos.keys():
            infos[key], infos[f"_{key}"] = host(infos[key]).copy(), host(infos[f"_{key}"]) & ~over
            infos[key][over] = 0
        if hasattr(infos["final_obs"], "cpu"):
            infos["final_obs"] = host(infos["final_obs"]).copy()
            infos["final_obs"][~over] = 0
    truncations = host(event["truncations"]) & ~host(event["terminations"])
    return {**event, "infos": infos, "truncations": truncations}


def cases(kind: str, **arguments: Any) -> list[Case]:
    """Return the cases of ``"scalar"``, ``"host"`` or ``"device"``, played with ``arguments``."""
    play: Callable[..., Events] = {
        "scalar": scalar,
        "host": batched,
        "device": on_device,
    }[kind]
    return [
        Case(
            name,
            functools.partial(play, variant, **arguments),
            # INT8 rounds otherwise elsewhere, but FP32 answers near the threshold.
            dataclasses.replace(NEAR, score=3.0) if name == "int8" else NEAR,
            variant.thresholds,
            MARGIN,
            ood_margin=0.02,
        )
        for name, variant in VARIANTS.items()
        if kind in variant.only
    ]


PLACES: dict[str, Callable[[], list[Case]]] = {
    **{
        form: functools.partial(golden_wrappers.cases, form) for form in ("single", "vector", "sb3")
    },
    **{f"hover_{kind}": functools.partial(cases, kind) for kind in ("scalar", "host", "device")},
}
"""The six places where an image becomes a reward, and their golden cases."""
