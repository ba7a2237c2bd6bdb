"""Atari games as the papers play them: frames skipped, grey 84 x 84, four stacked, uint8.

The steps are those of Mnih et al. 2015 and Machado et al. 2018, on ``ale-py`` and NumPy alone.
Gymnasium's AtariPreprocessing and FrameStackObservation take 1.5 times the processor time a step
(465 to 310 microseconds on Pong) and need OpenCV, 150 MB, for a resize that is two small products.
"""

from __future__ import annotations

import importlib
import math
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from vinoreward.errors import ConfigError, needed_for

Bytes = NDArray[np.uint8]
SIDE = 84
STACK = 4
MAX_FRAMES = 108_000
"""Thirty minutes at 60 frames a second (Machado et al. 2018, table 2)."""


class AreaResize:
    """Shrinks grey images: each pixel is the mean of the area it covers, rounded to even.

    Sums are of whole numbers below 2^24, exact in float32: the same image on any machine.
    """

    def __init__(self, height: int, width: int, side: int = SIDE) -> None:
        self._width, self._side = width, side
        self._rows = _overlaps(height, side)
        self._columns = np.ascontiguousarray(_overlaps(width, side).T)
        self._total = float(self._rows[0].sum() * self._columns[:, 0].sum())
        if 255 * self._total >= 2**24:
            raise ConfigError(
                f"images of {height} x {width} cannot be resized to {side} x {side} exactly. "
                "Expected sides that share a larger factor with the result's."
            )

    def __call__(self, image: Bytes) -> Bytes:
        """Return the (side, side) uint8 image of a (height, width) one."""
        # An axis repeats after size / gcd(size, side) pixels, so one small matrix suffices. Down
        # comes first: it leaves fewer rows for the larger product.
        pixels = image.astype(np.float32)
        down = self._rows @ pixels.reshape(-1, self._rows.shape[1], self._width)
        across = down.reshape(-1, len(self._columns)) @ self._columns
        rounded: Bytes = np.rint(across / np.float32(self._total)).astype(np.uint8)
        return np.reshape(rounded, (self._side, self._side))


def _overlaps(size: int, side: int) -> NDArray[np.float32]:
    """Return lengths (outputs, inputs) that pixels share, over one repeat, as whole numbers."""
    repeats = math.gcd(size, side)
    inputs, outputs = size // repeats, side // repeats
    # An input is `outputs` units long and an output `inputs` units: their edges fall on units.
    starts, ends = np.arange(inputs) * outputs, np.arange(1, inputs + 1) * outputs
    low = np.arange(outputs)[:, None] * inputs
    shared = np.minimum(ends, low + inputs) - np.maximum(starts, low)
    lengths: NDArray[np.float32] = np.maximum(shared, 0).astype(np.float32)
    return lengths


class AtariEnv(gym.Env[Bytes, np.int64]):
    """One game.

    Observation: (4, 84, 84) uint8, the last four images, the newest last; each is the larger of
    the last two frames of a step, pixel by pixel, as sprites flicker. Action: a number of the
    game's minimal set of actions, 0 being none. Reward: points of the step.

    ``info``: ``score``, the game's points so far, neither clipped nor cut at a life; ``points`` of
    this step; ``lives`` left; ``game_over``, whether the game itself has ended; ``frames`` so far.

    Args:
        game: in ALE's spelling, ``"space_invaders"``.
        frame_skip: frames that an action is held.
        noops: a game starts after 1 to this many frames without action; 0 for none.
        sticky: probability that a frame repeats the action before (0.25 in Machado et al.).
        episodic_life: for training: a lost life terminates, and the next reset continues the game,
            unless it has a seed.
        clip_reward: for training: the sign of the points instead of the points.
        press_fire: press FIRE when a game or life begins, where it is the game's second action; a
            greedy policy that never fires would stand still until the last frame.
        max_frames: a game is truncated there.
        render_mode: None or ``"rgb_array"``.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012

    def __init__(
        self,
        game: str,
        *,
        frame_skip: int = 4,
        noops: int = 30,
        sticky: float = 0.0,
        episodic_life: bool = False,
        clip_reward: bool = False,
        press_fire: bool = False,
        max_frames: int = MAX_FRAMES,
        render_mode: str | None = None,
    ) -> None:
        if (
            min(frame_skip, max_frames) < 1
            or noops < 0
            or not 0.0 <= sticky < 1.0
            or render_mode not in (None, "rgb_array")
        ):
            raise ConfigError(
                f"found frame_skip={frame_skip}, max_frames={max_frames}, noops={noops}, "
                f"sticky={sticky}, render_mode={render_mode!r}. Expected whole numbers from 1, 1 "
                "and 0, a probability below 1, and None or 'rgb_array'."
            )
        self.render_mode = render_mode
        self._skip, self._noops = frame_skip, noops
        self._episodic_life, self._clip_reward = episodic_life, clip_reward
        self._ale, self._rom = _emulator(game, sticky, max_frames)
        self._ale.loadROM(self._rom)
        self._actions = self._ale.getMinimalActionSet()
        self._fire = press_fire and self._actions[1].name == "FIRE"
        height, width = self._ale.getScreenDims()
        self._frames = np.zeros((2, height, width), dtype=np.uint8)
        self._resize = AreaResize(height, width)
        self._stack = np.zeros((STACK, SIDE, SIDE), dtype=np.uint8)
        self.observation_space = gym.spaces.Box(0, 255, self._stack.shape, np.uint8)
        self.action_space = gym.spaces.Discrete(len(self._actions))
        self._score = 0.0
        self._lives = 0
        self._seeded = False
        self._over = self._game_over = True

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Bytes, dict[str, Any]]:
        """Start a game, or the next life; with a seed, the same game as in a new environment."""
        super().reset(seed=seed)
        if seed is not None or not self._seeded:
            self._ale.setInt("random_seed", int(self.np_random.integers(2**31)))
            self._ale.loadROM(self._rom)  # the emulator takes its seed when it loads
            self._seeded = self._game_over = True
        # A truncated game has not ended in the emulator, but it has for us.
        if self._game_over or self._ale.game_truncated() or not self._episodic_life:
            self._new_game()
        else:
            self._score += self._act(0)
        if self._fire:
            self._score += self._act(1)
        self._game_over = bool(self._ale.game_over(with_truncation=False))
        self._lives = self._ale.lives()
        self._over = False
        self._ale.getScreenGrayscale(self._frames[1])
        self._stack[:] = self._resize(self._frames[1])
        return self._stack.copy(), self._info(0.0)

    def step(self, action: np.int64 | int) -> tuple[Bytes, float, bool, bool, dict[str, Any]]:
        """Hold an action for ``frame_skip`` frames, or until the game ends."""
        if self._over:
            raise ResetNeeded("the episode is over, or has not begun; call reset() first.")
        points = 0.0
        seen = 0
        for frame in range(self._skip):
            points += self._act(int(action))
            ended = self._ale.game_over(with_truncation=True)
            if ended or frame >= self._skip - 2:
                self._ale.getScreenGrayscale(self._frames[seen])
                seen += 1
            if ended:
                break
        image = self._frames[0] if seen == 1 else np.maximum(self._frames[0], self._frames[1])
        self._stack[:-1] = self._stack[1:]
        self._stack[-1] = self._resize(image)
        self._score += points
        self._game_over = bool(self._ale.game_over(with_truncation=False))
        lives = self._ale.lives()
        terminated = self._game_over or (self._episodic_life and lives < self._lives)
        truncated = bool(self._ale.game_truncated()) and not terminated
        self._over = terminated or truncated
        if self._fire and lives < self._lives and not self._over:
            # The next life of the same episode waits for FIRE, as the first one did.
            self._score += self._act(1)
        self._lives = lives
        reward = float(np.sign(points)) if self._clip_reward else points
        return self._stack.copy(), reward, terminated, truncated, self._info(points)

    def render(self) -> Bytes | None:
        """Return the game's (210, 160, 3) uint8 image in colours."""
        if self.render_mode is None:
            return None
        image: Bytes = self._ale.getScreenRGB()
        return image

    def _new_game(self) -> None:
        self._ale.reset_game()
        self._score = 0.0
        for _ in range(int(self.np_random.integers(1, self._noops + 1)) if self._noops else 0):
            self._score += self._act(0)
            if self._ale.game_over(with_truncation=True):
                self._ale.reset_game()
                self._score = 0.0

    def _act(self, action: int) -> float:
        return float(self._ale.act(self._actions[action]))

    def _info(self, points: float) -> dict[str, Any]:
        return {
            "score": self._score,
            "points": points,
            "lives": self._lives,
            "game_over": self._game_over,
            "frames": self._ale.getEpisodeFrameNumber(),
        }


def _emulator(game: str, sticky: float, max_frames: int) -> tuple[Any, Any]:
    """Return an emulator with its settings, and the path of the game's ROM."""
    with needed_for("playing Atari games", "atari"):
        ale_py = importlib.import_module("ale_py")
        roms = importlib.import_module("ale_py.roms")
    if game not in roms.get_all_rom_ids():
        known = ", ".join(sorted(roms.get_all_rom_ids()))
        raise ConfigError(f"ale-py has no game {game!r}. Expected one of: {known}.")
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", sticky)
    ale.setInt("max_num_frames_per_episode", max_frames)
    return ale, roms.get_rom_path(game)
