"""PandaHover: a Panda arm learns to hover over an object; a network judges from the picture."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError, InputError, MissingDisplayError
from vinoreward.images import check_scene
from vinoreward.rewards.classifier import Classifier, check_origin
from vinoreward.rewards.decision import Decision, OnOdd, RewardOptions
from vinoreward.rewards.interventions import Intervention, SearchSpace
from vinoreward.rewards.prediction import Judged
from vinoreward_envs import constants as c
from vinoreward_envs.actuation import Actuation
from vinoreward_envs.arrays import Arrays
from vinoreward_envs.auditing import interventions, spaces
from vinoreward_envs.camera.spec import (
    CameraSpec,
    Mesh,
    Renderer,
    camera_spec,
    check_choice,
    resized,
    size_before_crop,
)
from vinoreward_envs.randomization import (
    DRAWS,
    DomainRandomization,
    Drawn,
    checked_randomization,
)
from vinoreward_envs.scene import HoverScene, Motion, check_renderer

ObjectPosition = Literal["fixed", "random"] | tuple[float, float]

DEFAULT_BUNDLE = "panda-hover-classifier"
ORACLE = "oracle"
UNJUDGED = "none"
# With motion="dynamics" the arm may come to rest slightly outside of the workspace.
_SLACK = 0.05
_SMALLEST_SIDE = 480
"""Pixels of a window."""
REWARDS: dict[str, Any] = {
    "success_reward": c.REWARD_SUCCESS,
    "env_reward_weight": 1.0,
    "success_replaces_env_reward": True,
}
"""Of a learned reward: the scene pays for the move, but for one that ends in a claimed success."""
# For Decision: every step is scored; the task itself ends no episode.
_SCORED, _NO_END = np.ones(1, np.bool_), np.zeros(1, np.bool_)


def check_picture(spec: CameraSpec, bundle: Bundle) -> None:
    """Check that the camera makes the bundle's training pictures; without a scene, their size."""
    picture = bundle.spec.picture
    ours, theirs = dict(spec.as_dict()), dict(picture.scene)
    if not theirs:
        if picture.resize != "none" or picture.crop is not None:
            return  # It takes pictures of several sizes, and checks each one itself.
        theirs = {"height": picture.height, "width": picture.width}
        ours = {name: ours[name] for name in theirs}
    check_scene(ours, theirs, bundle.spec.name, "leave image_size and mesh out")


class PandaHoverEnv(gym.Env[NDArray[Any], NDArray[np.float32]]):
    """Move the gripper over the object, at hover height, within ten steps.

    Action: ``(2,)`` float32, a move (dx, dy) in metres within ±0.1; larger values are clipped.
    Observation (``observation="state"``): float32 gripper x, y in metres, then the object's x, y
    where the object moves between episodes. ``observation="pixels"``: the ``(H, W, 3)`` uint8
    camera picture. Reward: +100 for success, -5 for a move refused at the edge of the workspace
    (the arm stays where it is), else -1. The episode terminates on success, as claimed by the
    classifier, and is truncated after ten steps.

    ``info`` holds ``is_success`` (claimed), ``true_success`` (the gripper within 3.5 cm of the
    point above the object), ``distance`` (metres), ``refused`` and, but for the oracle,
    ``reward_prob``, the calibrated probability behind the claim. If the bundle has a guard,
    ``reward_ood`` is how strange the picture is to it: above 1 no success is claimed.

    ``reset(options={"object_position": (x, y)})`` places the object for that episode.

    Args:
        backend: ``"openvino"``, ``"onnxruntime"``, ``"torch"`` or another registered one runs the
            classifier; ``"oracle"`` judges by the truth and needs no picture; ``"none"`` leaves
            the judging to a wrapper: no ``is_success``, no reward for success and no end by it.
        bundle: name or folder of the classifier's bundle, or a loaded one; None is the shipped
            one. With the oracle it only describes the picture.
        precision: ``"auto"`` takes INT8 where the bundle's gate passed; else ``"fp32"`` and so on.
        device: a device of the backend.
        threads: threads of one inference.
        object_position: ``"fixed"``, ``"random"`` in each episode, or ``(x, y)`` in metres.
        motion: ``"kinematic"`` or ``"dynamics"`` (500 physics sub-steps; needs PyBullet).
        camera: ``"fast"`` or ``"tiny"`` (PyBullet's TinyRenderer, the reference).
        mesh: ``"full"`` or ``"20"`` (a fifth of the triangles); None is the bundle's.
        image_size: ``(height, width)``; None is the bundle's.
        fidelity: ``"article"`` is the article's setting, the baseline of speed claims: 960x720 by
            TinyRenderer, full meshes, 500 sub-steps, PyBullet's default inverse kinematics, the
            picture resized with PIL. It replaces ``motion``, ``camera``, ``mesh`` and
            ``image_size``, and accepts a bundle of other pictures (whose card then does not hold).
        observation: ``"state"`` or ``"pixels"``.
        render_mode: None, ``"rgb_array"`` or ``"human"`` (needs a display).
        success_threshold: probability from which success is claimed; None is the bundle's.
        success_exit_threshold: probability that is enough after a step that reached it; None is
            the same.
        success_hold_steps: steps in a row that must reach it.
        on_ood: what becomes of a picture that the bundle's guard finds odd, as for
            :class:`~vinoreward.LearnedReward`; nothing looks for it with ``fidelity="article"``.
        accept_foreign_pictures: take a bundle that does not say what drew the pictures it was
            trained on (a foreign model, or one trained on a folder of pictures).
        randomization: ranges of what differs between episodes, a
            :class:`~vinoreward_envs.randomization.DomainRandomization`, a table of its fields, or
            ``"lab"``; None: nothing. Needs the kinematic motion and the fast camera.

    Raises:
        ConfigError: an argument that cannot work.
        PictureMismatchError: the bundle was trained on other pictures, or does not say on which.
        ModelNotFoundError: no such bundle.
        MissingExtraError: PyBullet or the camera's library is needed and not installed.
        MissingDisplayError: ``render_mode="human"`` without a display.
    """

    metadata = {"render_modes": ["rgb_array", "human"], "render_fps": 5}  # noqa: RUF012

    def __init__(
        self,
        *,
        backend: str = "openvino",
        bundle: Bundle | str | Path | None = None,
        precision: str = "auto",
        device: str = "CPU",
        threads: int = 1,
        object_position: ObjectPosition = "fixed",
        motion: Motion = "kinematic",
        camera: Renderer = "fast",
        mesh: Mesh | None = None,
        image_size: tuple[int, int] | None = None,
        fidelity: Literal["article"] | None = None,
        observation: Literal["state", "pixels"] = "state",
        render_mode: Literal["rgb_array", "human"] | None = None,
        success_threshold: float | None = None,
        success_exit_threshold: float | None = None,
        success_hold_steps: int = 1,
        on_ood: OnOdd = "withhold",
        accept_foreign_pictures: bool = False,
        randomization: DomainRandomization | Mapping[str, Any] | str | None = None,
    ) -> None:
        check_choice("fidelity", fidelity, (None, "article"))
        check_choice("observation", observation, ("state", "pixels"))
        check_choice("render_mode", render_mode, (None, "rgb_array", "human"))
        self.render_mode = render_mode
        self._object_position = checked_object_position(object_position)
        self._randomization = checked_randomization(randomization)
        self._batched_too = motion == "kinematic" and camera == "fast" and fidelity is None
        self._check_randomization()
        self._drawn: Drawn | None = None
        self._actuation = Actuation(Arrays(), 1)
        self._view = HumanView() if render_mode == "human" else None
        if backend != ORACLE or bundle is not None:
            named = DEFAULT_BUNDLE if bundle is None else bundle
            loaded = named if isinstance(named, Bundle) else Bundle.load(named)
        else:
            loaded = None
        if fidelity == "article":
            if image_size is not None:
                raise ConfigError(
                    f'Found image_size={image_size} with fidelity="article", whose picture is '
                    f"always {c.ARTICLE_WIDTH}x{c.ARTICLE_HEIGHT}. Leave one of them out."
                )
            spec = CameraSpec(
                height=c.ARTICLE_HEIGHT, width=c.ARTICLE_WIDTH, renderer="tiny", mesh="full"
            )
        else:
            spec = camera_spec(camera, mesh, image_size, loaded)
        self._classifier: Classifier | None = None
        self._network_size: tuple[int, int] | None = None
        threshold = 0.5 if success_threshold is None else success_threshold
        self._judged = backend != UNJUDGED
        if backend not in (ORACLE, UNJUDGED) and loaded is not None:
            if not accept_foreign_pictures:
                check_origin(loaded)
            if fidelity == "article":
                self._network_size = size_before_crop(loaded)
            else:
                check_picture(spec, loaded)
            self._classifier = Classifier(
                loaded,
                backend=backend,
                device=device,
                precision=precision,
                threads=threads,
                threshold=success_threshold,
                exit_threshold=success_exit_threshold,
                guarded=on_ood != "ignore" and fidelity is None,
            )
            threshold = self._classifier.threshold
        rewards = RewardOptions(success_hold_steps=success_hold_steps, on_ood=on_ood, **REWARDS)
        self._core = Decision(rewards, threshold, exit_threshold=success_exit_threshold)
        article: dict[str, Any] = {"motion": "dynamics", "ik": "article"}
        self.scene = HoverScene(camera=spec, **(article if fidelity else {"motion": motion}))
        self._pixels = observation == "pixels"
        if self._pixels or self._classifier is not None or render_mode is not None:
            check_renderer(spec.renderer)
        self.observation_space = self._observation_space(spec)
        self.action_space = gym.spaces.Box(-c.MAX_MOVE, c.MAX_MOVE, (2,), np.float32)
        self._steps: int | None = None
        self._frame: tuple[int, NDArray[np.uint8]] | None = None
        self._claimed: NDArray[np.uint8] | None = None

    @property
    def classifier(self) -> Classifier | None:
        """The classifier that judges, None for the oracle. It loads at the first picture."""
        return self._classifier

    @property
    def picture_scene(self) -> dict[str, str | int]:
        """What the picture depends on; a wrapper compares it with its bundle's."""
        return self.scene.camera_spec.as_dict()

    @property
    def randomization(self) -> DomainRandomization:
        """Ranges from which the episodes draw that begin from now on.

        Setting them takes what the argument takes, and raises ConfigError as that does.
        """
        return self._randomization

    @randomization.setter
    def randomization(self, value: DomainRandomization | Mapping[str, Any] | str | None) -> None:
        before, self._randomization = self._randomization, checked_randomization(value)
        try:
            self._check_randomization()
        except ConfigError:
            self._randomization = before
            raise

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """Place the object, bring the arm home; return the observation and info."""
        super().reset(seed=seed)
        place = self._next_object(options or {})
        self._vary()
        self.scene.place_object(place)
        self.scene.home()
        self._core.reset(_SCORED)
        self._steps = 0
        self._show()
        distance = self.scene.distance()
        return self._observe(), {
            "distance": distance,
            "true_success": distance <= c.SUCCESS_DISTANCE,
        }

    def step(
        self, action: NDArray[np.float32]
    ) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        """Move the gripper by ``action``, ``(2,)`` in metres, and judge."""
        if self._steps is None:
            raise ResetNeeded("Found a step before the first reset; call reset() first.")
        move, error = _checked_action(action), None
        if self._drawn is not None:
            before = np.array([self._steps])
            move = self._actuation.late(move[None], before, self._drawn)[0]
            error = self._actuation.error(before, self._drawn)
            self.scene.look(self._drawn, self._steps + 1)
        self._steps += 1
        refused = not self._move(move, error)
        distance = self.scene.distance()
        info: dict[str, Any] = {
            "true_success": distance <= c.SUCCESS_DISTANCE,
            "distance": distance,
            "refused": refused,
        }
        judged = self._look(info)
        paid = np.array([c.REWARD_REFUSED if refused else c.REWARD_STEP])
        scores = self._core.decide(
            _SCORED, judged.probability, judged.log_odds, paid, _NO_END, ood_score=judged.odd
        )
        claimed, reward = bool(scores.claimed[0]), float(scores.rewards[0])
        if self._judged:
            info["is_success"] = claimed
        if claimed and self._classifier is not None:
            self._claimed = self._picture()  # a new array at every pose
        self._show()
        truncated = not claimed and self._steps >= c.MAX_EPISODE_STEPS
        return self._observe(), reward, claimed, truncated, info

    def claimed_picture(self) -> NDArray[np.uint8] | None:
        """Return the picture of the last claim; None before it, and for the oracle."""
        return None if self._claimed is None else self._claimed.copy()

    def audit_interventions(self) -> list[Intervention]:
        """Return changes after which a success is none: object or arm taken elsewhere."""
        return interventions(self.scene)

    def audit_spaces(self) -> list[SearchSpace]:
        """Return the states that an audit searches: gripper and object, see :mod:`.auditing`."""
        return spaces(self.scene, self._randomization)

    def render(self) -> NDArray[np.uint8] | None:
        """Return the ``(H, W, 3)`` uint8 picture, or None unless ``render_mode="rgb_array"``."""
        if self.render_mode == "rgb_array":
            return self._picture().copy()
        self._show()
        return None

    def close(self) -> None:
        """Free the scene, the classifier and the window."""
        for part in (self.scene, self._classifier, self._view):
            if part is not None:
                part.close()

    def _observation_space(self, spec: CameraSpec) -> gym.spaces.Box:
        if self._pixels:
            return gym.spaces.Box(0, 255, (spec.height, spec.width, 3), np.uint8)
        return state_space(self._object_position)

    def _next_object(self, options: dict[str, Any]) -> tuple[float, float]:
        unknown = sorted(set(options) - {"object_position"})
        if unknown:
            raise ConfigError(
                f'Found reset options {unknown}; expected only "object_position". Remove them.'
            )
        if "object_position" in options:
            return place(options["object_position"], 'reset option "object_position"')
        if self._object_position == "random":
            low = np.array(c.WORKSPACE_LOW) + c.OBJECT_MARGIN
            high = np.array(c.WORKSPACE_HIGH) - c.OBJECT_MARGIN
            x, y = self.np_random.uniform(low, high).tolist()
            return (x, y)
        if self._object_position == "fixed":
            return c.FIXED_OBJECT
        return self._object_position

    def _vary(self) -> None:
        """Draw what differs in the episode that begins."""
        if self._randomization.varies:
            self._drawn = self._randomization.draw(self.np_random.random((1, DRAWS)))
            self.scene.look(self._drawn)
        elif self._drawn is not None:
            self._drawn = None
            self.scene.look(None)

    def _check_randomization(self) -> None:
        if self._randomization.varies and not self._batched_too:
            raise ConfigError(
                'Found randomization with motion="dynamics", camera="tiny" or fidelity="article"; '
                "expected the kinematic motion and the fast camera. Leave one of both out."
            )

    def _move(self, move: NDArray[np.float64], error: NDArray[np.float64] | None) -> bool:
        """Move the gripper unless that leaves the workspace; return whether it moved."""
        target = self.scene.gripper[:2] + move
        low, high = np.array(c.WORKSPACE_LOW), np.array(c.WORKSPACE_HIGH)
        if (target < low - c.EDGE_TOLERANCE).any() or (target > high + c.EDGE_TOLERANCE).any():
            return False
        if error is not None:
            target = target + error[0]
        x, y = np.clip(target, low, high).tolist()
        self.scene.move_gripper((x, y))
        return True

    def _look(self, info: dict[str, Any]) -> Judged:
        """Return what the classifier says, or the oracle: 0 or 1."""
        if self._classifier is None:
            truth = np.array([info["true_success"] and self._judged], np.float32)
            return Judged(truth, truth, None)
        frame = self._picture()
        if self._network_size is not None:
            frame = resized(frame, *self._network_size)
        judged = self._classifier.judge(frame[None])
        info["reward_prob"] = float(judged.probability[0])
        if judged.odd is not None:
            info["reward_ood"] = float(judged.odd[0])
        return judged

    def _observe(self) -> NDArray[Any]:
        if self._pixels:
            return self._picture().copy()
        values = self.scene.gripper[:2].tolist()
        if self._object_position == "random":
            values += self.scene.object_xy or (0.0, 0.0)
        return np.array(values, dtype=np.float32)

    def _picture(self) -> NDArray[np.uint8]:
        """Return the picture of the present pose, rendered at most once per pose."""
        if self._frame is None or self._frame[0] != self.scene.changes:
            self._frame = (self.scene.changes, self.scene.render())
        return self._frame[1]

    def _show(self) -> None:
        if self._view is not None:
            self._view.show(self._picture())


def state_space(object_position: ObjectPosition) -> gym.spaces.Box:
    """Return the space of states as observations."""
    repeats = 2 if object_position == "random" else 1
    low = np.tile(np.array(c.WORKSPACE_LOW) - _SLACK, repeats).astype(np.float32)
    high = np.tile(np.array(c.WORKSPACE_HIGH) + _SLACK, repeats).astype(np.float32)
    return gym.spaces.Box(low, high, dtype=np.float32)


def checked_object_position(value: ObjectPosition) -> ObjectPosition:
    """Return ``value`` if the object can be there, else raise ``ConfigError`` or ``InputError``."""
    if not isinstance(value, str):
        return place(value, "object_position")
    if value not in ("fixed", "random"):
        raise ConfigError(
            f'Found object_position={value!r}; expected "fixed", "random" or (x, y) in metres. '
            "Pass one of them."
        )
    return value


def place(value: Any, what: str) -> tuple[float, float]:
    """Return x, y in metres if they are a place in the workspace, else raise ``InputError``."""
    xy = _numbers(value)
    # NaN compares false, so this refuses it as well.
    if xy.shape == (2,) and (xy >= c.WORKSPACE_LOW).all() and (xy <= c.WORKSPACE_HIGH).all():
        return (float(xy[0]), float(xy[1]))
    raise InputError(
        f"Found {value!r} as {what}; expected x, y in metres from {c.WORKSPACE_LOW} to "
        f"{c.WORKSPACE_HIGH}, where the gripper can hover. Pass such a pair."
    )


def _numbers(value: Any) -> NDArray[np.float64]:
    """Return a value as float64, or nothing where it is no array of numbers."""
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        return np.empty(0)


def _checked_action(action: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the action as ``(2,)`` float64 within its bounds, or raise ``InputError``."""
    move = _numbers(action)
    if move.shape != (2,) or not np.isfinite(move).all():
        raise InputError(
            f"Found the action {action!r}; expected two finite numbers, (dx, dy) in metres within "
            f"{c.MAX_MOVE}. Check the policy that made it."
        )
    return np.clip(move, -c.MAX_MOVE, c.MAX_MOVE)


def has_display() -> bool:
    """Return whether a window can be opened; elsewhere than on Linux assume so."""
    shown = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return bool(shown) or not sys.platform.startswith("linux")


class HumanView:
    """One window that shows pictures, opened at the first one."""

    # Window, label and picture: Tk shows a picture only while it is referenced.
    _shown: tuple[Any, Any, Any] | None = None

    def __init__(self) -> None:
        if not has_display():
            raise MissingDisplayError(
                "Found no display (neither DISPLAY nor WAYLAND_DISPLAY is set); "
                'render_mode="human" opens a window and needs one. Use render_mode="rgb_array", or '
                '"vinoreward play", which writes a GIF.'
            )

    def show(self, frame: NDArray[np.uint8]) -> None:
        """Show an ``(H, W, 3)`` uint8 picture, enlarged by a whole number if it is small.

        If the user closes the window, the next picture opens it again.
        """
        try:
            import tkinter
        except ImportError as error:
            raise MissingDisplayError(
                'Found no tkinter in this Python; render_mode="human" opens its window with it. '
                'Install it (Debian and Ubuntu: apt install python3-tk) or use "rgb_array".'
            ) from error
        zoom = max(1, _SMALLEST_SIDE // min(frame.shape[:2]))
        large = frame.repeat(zoom, axis=0).repeat(zoom, axis=1)
        data = f"P6 {large.shape[1]} {large.shape[0]} 255 ".encode("ascii") + large.tobytes()
        try:
            if self._shown is None:
                root = tkinter.Tk()
                root.title("PandaHover")
                label = tkinter.Label(root)
                label.pack()
            else:
                root, label, _ = self._shown
            image = tkinter.PhotoImage(master=root, data=data, format="PPM")
            label.configure(image=image)
            self._shown = root, label, image
            root.update()
        except tkinter.TclError as error:
            self._shown = None
            if "destroyed" in str(error) or "invalid command name" in str(error):
                return
            raise MissingDisplayError(
                f"Found a display that opens no window ({error}); expected one that works. Check "
                'DISPLAY, or use render_mode="rgb_array".'
            ) from error

    def close(self) -> None:
        """Close the window."""
        shown, self._shown = self._shown, None
        if shown is not None:
            import tkinter

            with contextlib.suppress(tkinter.TclError):  # The user closed it already.
                shown[0].destroy()
