"""``accelerate(model).learn(...)``: Stable-Baselines3's own training with a faster acting network.

The model, its environments, callbacks, VecNormalize, replay and updates stay what they are. Only
the network that chooses actions while experience is collected is run by another backend, in FP32
or INT8, and only if that is faster on this machine.
"""

# pyright: reportPrivateUsage=false
# Stable-Baselines3 has no public way to these.

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback, ConvertCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from torch import Tensor

from vinoreward.errors import ConfigError
from vinoreward_actors.policies.backends.choice import measure
from vinoreward_actors.sb3.acting import (
    ActingNetwork,
    check_same,
    complete_values,
    shared_seconds,
)
from vinoreward_actors.sb3.network import acting_policy

Backend = Literal["auto", "openvino", "onnxruntime"]
Precision = Literal["auto", "fp32", "int8"]
TRIED: tuple[tuple[str, str], ...] = (
    ("openvino", "fp32"),
    ("onnxruntime", "fp32"),
    ("openvino", "int8"),
    ("onnxruntime", "int8"),
)
CALLS = 200
"""Actions of the model's own network that are timed first."""
WORTHWHILE = 1.05
"""Factor on the whole training below which plain Stable-Baselines3 trains."""
LEAST = 15.0
"""Seconds of acting that are left, from which measuring pays: it takes some seconds, once."""
MAX_KL = 0.02
"""Divergence in nats from which INT8 actions are not the policy's any more; PPO stops an update at
such values (its ``target_kl``)."""
ROWS = 1024
"""Observations by which the ranges of INT8 are measured."""
COMPLETE = "compute_returns_and_advantage"
"""Method of a rollout's buffer that is called when it is full."""


class Accelerated:
    """A model of Stable-Baselines3 that collects experience with a faster network.

    Args:
        model: PPO, A2C, SAC, TD3, DDPG or DQN. Stays an ordinary model: save, load and continue it
            with or without this class.
        backend: ``"auto"`` measures OpenVINO and ONNX Runtime in FP32 and INT8 beside the model's
            own network, and takes the fastest, or none.
        precision: ``"auto"``, ``"fp32"`` (the same actions but for rounding) or ``"int8"``. With
            a backend and a precision nothing is measured, so that a seed repeats a run.

    Raises:
        ConfigError: a backend and precision that this model cannot have.
    """

    def __init__(
        self, model: BaseAlgorithm, backend: Backend = "auto", precision: Precision = "auto"
    ) -> None:
        self.model = model
        self._acting = _Acting(backend, precision)
        if self._acting.chosen is not None:
            acting_policy(model)  # refuses what it cannot run

    @property
    def timings(self) -> Mapping[str, float]:
        """Seconds of an action by network: ``"own"``, ``"openvino int8"``; empty before."""
        return self._acting.timings

    @property
    def chosen(self) -> tuple[str, str] | None:
        """Backend and precision that act; None: the model's own network."""
        return self._acting.chosen

    def learn(self, total_timesteps: int, callback: Any = None, **arguments: Any) -> BaseAlgorithm:
        """Train as ``model.learn`` with the same arguments does; return the model."""
        theirs: list[BaseCallback] = []
        if callback is not None:
            given = callback if isinstance(callback, list) else [callback]
            theirs = [
                one if isinstance(one, BaseCallback) else ConvertCallback(one) for one in given
            ]
        try:
            self.model.learn(total_timesteps, callback=[self._acting, *theirs], **arguments)
        finally:
            self._acting.release()
        return self.model


def accelerate(
    model: BaseAlgorithm, backend: Backend = "auto", precision: Precision = "auto"
) -> Accelerated:
    """Return a model that learns as before and acts faster; see :class:`Accelerated`.

    Example:
        >>> from stable_baselines3 import PPO
        >>> model = PPO("MlpPolicy", "CartPole-v1", policy_kwargs={"net_arch": [2048] * 3})
        >>> accelerate(model).learn(100_000)  # doctest: +SKIP
    """
    return Accelerated(model, backend, precision)


class _Acting(BaseCallback):
    """Replaces the acting network while experience is collected."""

    def __init__(self, backend: str, precision: str) -> None:
        super().__init__()
        self._candidates = [
            one for one in TRIED if backend in ("auto", one[0]) and precision in ("auto", one[1])
        ]
        self.chosen: tuple[str, str] | None = None
        self._decided = "auto" not in (backend, precision)
        if self._decided:
            self.chosen = backend, precision
        self.timings: dict[str, float] = {}
        self._network: ActingNetwork | None = None
        self._rows: list[npt.NDArray[Any]] = []
        self._clock = _Clock()

    # Stable-Baselines3's events

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        self._clock.rollout_starts()
        if not self._decided:
            if len(self._clock.acting) < CALLS or not self._clock.rollouts:
                self._replace(self._timed)
                return
            self._decided = True
            self.release()
            self.chosen = self._fastest()
        if self.chosen is not None:
            if self._network is None:
                check_same(self.model, self._observations())
                self._network = ActingNetwork(self.model, *self.chosen)
                self._replace(self._fast)
            self._network.refresh(self._observations)

    def release(self) -> None:
        """Give the model its own methods back."""
        policy = getattr(self, "model", None) and self.model.policy
        for owner, name in ((policy, "forward"), (policy, "_predict"), (self._buffer, COMPLETE)):
            if owner is not None:
                vars(owner).pop(name, None)
        if self._network is not None:
            self._network.close()
            self._network = None

    # The replaced methods

    @property
    def _buffer(self) -> Any:
        """A rollout's buffer, whose values are computed when it is complete; None for others."""
        model = getattr(self, "model", None)
        return model.rollout_buffer if isinstance(model, OnPolicyAlgorithm) else None

    def _replace(self, acting: Callable[[Callable[..., Any], Any], Any]) -> None:
        """Let ``acting(own, observations)`` choose actions, except in evaluations."""
        policy: Any = self.model.policy
        name = "_predict" if self._buffer is None else "forward"
        own = getattr(type(policy), name).__get__(policy)

        def act(obs: Any, deterministic: bool = False) -> Any:
            if deterministic:
                return own(obs, deterministic)
            if isinstance(obs, Tensor):
                self._rows.append(obs.cpu().numpy())
                del self._rows[:-ROWS]
            return acting(own, obs)

        # In the namespace of the policy, and of the buffer, which model.save leaves out.
        object.__setattr__(policy, name, act)
        if self._buffer is not None:
            model: Any = self.model
            own_complete = getattr(type(self._buffer), COMPLETE).__get__(self._buffer)

            def complete(last_values: Tensor, dones: npt.NDArray[Any]) -> None:
                if self._network is not None:
                    self._check(complete_values(model))
                own_complete(last_values=last_values, dones=dones)

            setattr(self._buffer, COMPLETE, complete)

    def _timed(self, own: Callable[..., Any], obs: Any) -> Any:
        began = time.perf_counter()
        result = own(obs)
        self._clock.acting.append(time.perf_counter() - began)
        return result

    def _fast(self, own: Callable[..., Any], obs: Any) -> Any:
        return own(obs) if self._network is None else self._network.act(obs)

    def _observations(self) -> npt.NDArray[Any]:
        """Return recent observations (N, *shape)."""
        last: Any = self.model._last_obs
        rows = self._rows or [last]
        return np.concatenate(rows)[-ROWS:]

    # Decisions

    def _fastest(self) -> tuple[str, str] | None:
        """Return the backend and precision that pay, or None; say why."""
        clock, plain = self._clock, "plain Stable-Baselines3 trains"
        own = statistics.median(clock.acting)
        self.timings = {"own": own}
        try:
            spec = acting_policy(self.model).spec  # before its observations are asked for
            check_same(self.model, self._observations())
        except ConfigError as error:
            print(f"accelerate: {plain}: {error}")
            return None
        left = (self.model._total_timesteps - self.model.num_timesteps) / self.model.n_envs
        whole = clock.whole / len(clock.acting)
        share = own / whole
        if left * own < LEAST or 1 / max(1e-9, 1 - share) < WORTHWHILE:
            print(
                f"accelerate: acting is {share:.0%} of the time, {left * own:.0f} s of this "
                f"training, too little: {plain}"
            )
            return None
        threads = torch.get_num_threads()
        costs = measure(spec, self.model.n_envs)
        torch.set_num_threads(threads)  # eager PyTorch was measured on one
        shared, calls = shared_seconds(self.model, self._observations()), len(clock.acting)
        for backend, precision in self._candidates:
            cost = costs.get(f"{backend} {precision}")
            if cost is not None:
                seconds = shared + cost.per_call(calls / clock.rollouts)
                self.timings[f"{backend} {precision}"] = seconds
        best = min(self.timings, key=lambda name: self.timings[name])
        gain = whole / (whole - own + self.timings[best])
        print(
            f"accelerate: acting is {share:.0%} of the time; {best} acts "
            f"{own / self.timings[best]:.1f} times as fast, the whole training {gain:.2f} times"
            f"{'' if gain >= WORTHWHILE else f', too little: {plain}'}"
        )
        if gain < WORTHWHILE:
            return None
        backend, _, precision = best.partition(" ")
        return backend, precision

    def _check(self, kl: float) -> None:
        """Leave INT8 if its actions are not the policy's any more."""
        network = self._network
        if network is not None and network.precision == "int8" and kl > MAX_KL:
            network.precision = "fp32"
            self.chosen = network.backend, "fp32"
            print(
                f"accelerate: actions in INT8 are {kl:.3f} nats from the policy's, more than "
                f"{MAX_KL}: {network.backend} fp32 acts from now on"
            )


class _Clock:
    """Where the time of a training goes, from its second rollout on: the first update imports."""

    def __init__(self) -> None:
        self.acting: list[float] = []
        """Seconds of each action of the model's own network."""
        self.whole, self.rollouts = 0.0, 0
        self._since, self._before, self._warm = 0.0, 0, False

    def rollout_starts(self) -> None:
        """End the last rollout and its update; without actions of the network it does not count."""
        now = time.perf_counter()
        if len(self.acting) > self._before:
            if self._warm:
                self.whole += now - self._since
                self.rollouts += 1
            else:
                self.acting.clear()
            self._warm = True
        self._before, self._since = len(self.acting), now
