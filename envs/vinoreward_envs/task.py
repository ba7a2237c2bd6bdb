"""The hover task on N scenes: how an episode begins, and what an action does in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from vinoreward.arrays import Array
from vinoreward.errors import ConfigError
from vinoreward_envs import constants as c
from vinoreward_envs.randomization import (
    COLUMNS,
    DRAWS,
    MAX_DELAY,
    DomainRandomization,
    normals,
    spread,
)
from vinoreward_envs.scenes import HoverScenes

ObjectPosition = Literal["fixed", "random"] | tuple[float, float]
Uniforms = Callable[[int, Array], Array]
"""Gives ``(N, count)`` numbers in [0, 1) of each environment's own, drawn where a mask is True."""
_TABLE: Final = 1 << 16
"""Normal numbers from which the noise of moves is read."""


class HoverTask:
    """Episodes on N scenes, whose ``steps`` count here.

    The same for one environment and for a batch, whose arguments these are.
    """

    def __init__(
        self,
        scenes: HoverScenes,
        object_position: ObjectPosition,
        *,
        oracle: bool = True,
        hold_steps: int = 1,
    ) -> None:
        if hold_steps < 1:
            raise ConfigError(
                f"Found success_hold_steps={hold_steps}; expected a whole number of at least 1. "
                "Pass one."
            )
        self.oracle, self._hold_steps = oracle, hold_steps
        self._scenes, self._arrays = scenes, scenes.arrays
        of = self._arrays.of
        low, high = np.array(c.WORKSPACE_LOW), np.array(c.WORKSPACE_HIGH)
        low, high = low + c.OBJECT_MARGIN, high - c.OBJECT_MARGIN
        self._least, self._span = of(low), of(high - low)
        fixed = c.FIXED_OBJECT if object_position in ("fixed", "random") else object_position
        self._fixed = of(np.array(fixed, np.float64))[None]
        self._random = object_position == "random"
        self._held = of(np.zeros(scenes.count, np.int64))
        """Successes in a row."""
        self._ranges: DomainRandomization | None = None
        self._disturbs = False  # to look at a device's numbers, the host would have to wait

    def begin(
        self,
        mask: Array,
        objects: NDArray[np.float64] | None,
        randomization: DomainRandomization,
        uniforms: Uniforms,
    ) -> dict[str, Array]:
        """Start episodes where ``mask``, ``(N,)`` bool, is True; return infos, ``(N,)`` each.

        Args:
            mask: where.
            objects: ``(N, 2)`` places of objects; None: as configured.
            randomization: what episodes draw from, after the object's place.
            uniforms: gives random numbers.
        """
        scenes, arrays = self._scenes, self._arrays
        if objects is not None:
            places = arrays.of(objects)
        elif self._random:
            places = self._least + self._span * uniforms(2, mask)
        else:
            places = self._fixed
        if randomization.varies or scenes.params is not None:
            self._vary(mask, randomization, uniforms)
        scenes.place(mask, places)
        scenes.home(mask)
        scenes.steps *= ~mask
        self._held = self._held * ~mask
        return self._truth()

    def step(self, actions: Array, valid: Array) -> tuple[Array, Array, Array, dict[str, Array]]:
        """Move the grippers, and pay for it.

        Args:
            actions: ``(N, 2)`` metres that are asked for.
            valid: ``(N,)`` where there are actions; elsewhere the arm stays, nothing is earned and
                the episode is truncated.

        Returns:
            Rewards of the scene's own, float64; where an episode ended with a success that it pays;
            where otherwise; and infos, ``(N,)`` each.
        """
        scenes, error = self._scenes, None
        xp = self._arrays.xp
        if self._disturbs:
            actions, error = self._late(actions), self._error()
        refused = scenes.move(actions, valid, error)
        scenes.steps += 1
        infos = self._truth() | {"refused": refused}
        rewards = xp.where(refused, c.REWARD_REFUSED, c.REWARD_STEP)
        success = refused & False
        if self.oracle:
            self._held = (self._held + 1) * (valid & infos["true_success"])
            infos["is_success"] = success = self._held >= self._hold_steps
            rewards = xp.where(success, c.REWARD_SUCCESS, rewards)
        truncated = ~success & (scenes.steps >= c.MAX_EPISODE_STEPS) | ~valid
        return self._arrays.masked(valid, rewards), success, truncated, infos

    def _truth(self) -> dict[str, Array]:
        distance = self._scenes.distance()
        return {"true_success": distance <= c.SUCCESS_DISTANCE, "distance": distance}

    def observe(self) -> Array:
        """Return states as observations, ``(N, 2)`` or ``(N, 4)`` float32: grippers, objects."""
        scenes, xp = self._scenes, self._arrays.xp
        parts = [scenes.gripper]
        if self._random:
            parts.append(scenes.objects)
        return xp.asarray(xp.concatenate(parts, 1), dtype=xp.float32)

    def _vary(self, mask: Array, ranges: DomainRandomization, uniforms: Uniforms) -> None:
        scenes = self._scenes
        scenes.vary()
        if ranges != self._ranges:  # a copy to the device makes the host wait
            self._ranges = ranges
            self._low, self._width = (self._arrays.of(ends[None]) for ends in ranges.spans())
            # Episodes under way may have drawn from earlier ranges.
            if not self._disturbs and (ranges.action_delay[1] > 0 or ranges.action_noise[1] > 0):
                self._disturbs = True
                self._every = self._arrays.of(np.arange(scenes.count))
                # Of each arm its last moves, by number of the step; what an earlier episode asked
                # for is never read.
                self._asked = self._arrays.of(np.zeros((MAX_DELAY + 1, scenes.count, 2)))
                self._pair = self._arrays.of(np.arange(2))
                self._noise = self._arrays.of(normals(_TABLE))
        numbers = self._low
        if ranges.varies:
            numbers = spread(uniforms(DRAWS, mask), self._low, self._width)
        scenes.set_params(mask, numbers)

    def _late(self, moves: Array) -> Array:
        """Return the ``(N, 2)`` moves to make now; zeros until the first one is due."""
        xp, slots, steps = self._arrays.xp, MAX_DELAY + 1, self._scenes.steps
        delays = xp.asarray(self._drawn("action_delay"), dtype=xp.int64)
        self._asked[steps % slots, self._every] = moves
        due = self._asked[(steps - delays) % slots, self._every]
        return xp.where((steps >= delays)[:, None], due, 0.0)

    def _error(self) -> Array:
        """Return by how many metres ``(N, 2)`` each move misses its end."""
        xp, steps = self._arrays.xp, self._scenes.steps
        at = xp.asarray(_TABLE * self._drawn("action_noise_at"), dtype=xp.int64) + 2 * steps
        noise = self._noise[(at[:, None] + self._pair) % _TABLE]
        return self._drawn("action_noise")[:, None] * noise

    def _drawn(self, name: str) -> Array:
        params: Array = self._scenes.params
        return params[:, COLUMNS[name]]
