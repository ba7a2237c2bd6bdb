"""PandaHover as one vector environment: thousands of arms in one batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from vinoreward.backends.runtime import import_openvino
from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError
from vinoreward.machine import usable_cores
from vinoreward.rewards.classifier import Classifier, check_origin
from vinoreward.rewards.decision import Decision, OnOdd, RewardOptions
from vinoreward_envs import constants as c
from vinoreward_envs.arrays import CPU, Array, Arrays, Kind
from vinoreward_envs.batched_hover import BatchedHover
from vinoreward_envs.batched_input import (
    check_memory,
    checked_actions,
    checked_count,
    checked_mask,
    checked_objects,
    checked_seeds,
    memory_needed,
    refuse_scalar_only,
)
from vinoreward_envs.batched_judging import (
    HostJudging,
    Judging,
    StepScores,
    taken_as_they_are,
)
from vinoreward_envs.batched_pictures import BatchedPictures
from vinoreward_envs.batched_random import BatchedPCG64
from vinoreward_envs.batched_variation import Variation, looks_of
from vinoreward_envs.camera.fast import CHUNK, check_device
from vinoreward_envs.camera.spec import Mesh, Pixels, camera_spec, check_choice
from vinoreward_envs.claimed_scenes import ClaimedScenes
from vinoreward_envs.panda_hover import (
    DEFAULT_BUNDLE,
    ORACLE,
    REWARDS,
    UNJUDGED,
    ObjectPosition,
    check_picture,
    checked_object_position,
    state_space,
)
from vinoreward_envs.randomization import (
    DomainRandomization,
    Drawn,
    checked_randomization,
    nominal,
)
from vinoreward_envs.scene import check_renderer

STAYS_ON_CPU = False
"""Tests set this: a batch of tensors then stays on a processor too, which does a GPU's work."""

Infos = dict[str, Any]
Mask = NDArray[np.bool_]


class PandaHoverVectorEnv(VectorEnv[Array, Array, Array]):
    """Many hover environments in one: :class:`~vinoreward_envs.panda_hover.PandaHoverEnv`, batched.

    ``gym.make_vec("PandaHoverRandom-v0", num_envs=4096, vectorization_mode="vector_entry_point")``
    makes it. Actions, observations, rewards and infos are those of the scalar environment, one row
    each: environment ``i`` after ``reset(seed=s)`` is the scalar one after ``reset(seed=s + i)``,
    whatever ``num_envs`` is. Only ``motion="kinematic"`` and ``camera="fast"`` are batched.

    An episode that ends is reset in the same step (``AutoresetMode.SAME_STEP``): the observation is
    the next episode's first, and ``infos["final_obs"]`` and ``infos["final_info"]`` hold what the
    episode ended with, where ``infos["_final_obs"]`` says so. ``final_obs`` is an array of
    objects, as Gymnasium has it, or with ``array="torch"`` a tensor like the observations.

    An environment whose action is NaN or infinite does not move and earns 0; its episode is
    truncated, and ``infos["invalid_action"]`` says where that happened. The others go on.

    ``reset(options={"reset_mask": mask})`` resets where the ``(num_envs,)`` bool mask is True;
    ``"object_position"`` places the objects, ``(x, y)`` or one per environment.

    ``randomization`` lets light, camera, object, table, noise and delays differ between episodes;
    each environment draws with its own random numbers, after the object's place.

    Observations are those of the scalar environment: to rounding where each step draws pictures on
    the host, else to 1e-5 m, as the gripper then counts as where it was sent. Pictures of a batch
    that stays on a GPU may differ in pixels at edges.

    Args:
        num_envs: how many.
        array: ``"numpy"`` or ``"torch"`` (float32, bool and uint8 tensors on ``device``).
        device: ``"cpu"``, ``"cuda"`` or ``"cuda:N"``: where pictures are drawn, and where tensors
            are. On CUDA a step of tensors copies nothing to the host with the backend ``"torch"``,
            ``"oracle"`` or ``"none"`` and an ``on_ood`` that neither warns nor raises.
        threads: threads that draw and judge on a processor, each with networks of its own; None is
            as many as there are cores.
        backend: as for the scalar environment; None is ``"openvino"`` on a processor and
            ``"torch"`` on CUDA, where ``precision="auto"`` is half precision.
        bundle: and all others, see :class:`~vinoreward_envs.panda_hover.PandaHoverEnv`.

    Raises:
        ConfigError: an argument that cannot work, or too little memory.
        UnknownDeviceError: there is no such device.
        MissingExtraError: PyTorch or the camera's library is needed and not installed.
        PictureMismatchError: the bundle was trained on other pictures, or does not say on which.
        ModelNotFoundError: no such bundle.
    """

    metadata = {  # noqa: RUF012
        "render_modes": ["rgb_array"],
        "render_fps": 5,
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }

    def __init__(
        self,
        num_envs: int = 1,
        *,
        array: Kind = "numpy",
        device: str = CPU,
        threads: int | None = None,
        backend: str | None = None,
        bundle: Bundle | str | Path | None = None,
        precision: str = "auto",
        object_position: ObjectPosition = "fixed",
        motion: str = "kinematic",
        camera: str = "fast",
        mesh: Mesh | None = None,
        image_size: tuple[int, int] | None = None,
        fidelity: str | None = None,
        observation: Literal["state", "pixels"] = "state",
        render_mode: Literal["rgb_array"] | None = None,
        success_threshold: float | None = None,
        success_exit_threshold: float | None = None,
        success_hold_steps: int = 1,
        on_ood: OnOdd = "withhold",
        accept_foreign_pictures: bool = False,
        randomization: DomainRandomization | Mapping[str, Any] | str | None = None,
    ) -> None:
        self._arguments = {
            name: value
            for name, value in locals().items()
            if name not in ("self", "num_envs", "__class__")
        }
        self.num_envs = checked_count("num_envs", num_envs)
        refuse_scalar_only(motion=motion, camera=camera, fidelity=fidelity, render_mode=render_mode)
        check_choice("observation", observation, ("state", "pixels"))
        check_choice("render_mode", render_mode, (None, "rgb_array"))
        self.render_mode = render_mode
        self._object_position = checked_object_position(object_position)
        self._given_as = Arrays(array, device)
        device = self._given_as.device
        if backend is None:
            backend = "openvino" if device == CPU else "torch"
        loaded = None
        if backend != ORACLE or bundle is not None:
            named = DEFAULT_BUNDLE if bundle is None else bundle
            loaded = named if isinstance(named, Bundle) else Bundle.load(named)
        self._spec = camera_spec("fast", mesh, image_size, loaded)
        self._classifier: Classifier | None = None
        threshold = 0.5 if success_threshold is None else success_threshold
        self._judged = backend != UNJUDGED
        if backend not in (ORACLE, UNJUDGED) and loaded is not None:
            if not accept_foreign_pictures:
                check_origin(loaded)
            check_picture(self._spec, loaded)
            on_cuda = backend == "torch" and device != CPU
            self._classifier = Classifier(
                loaded,
                backend=backend,
                device=_device_of(backend, device),
                precision="fp16" if on_cuda and precision == "auto" else precision,
                threshold=success_threshold,
                exit_threshold=success_exit_threshold,
                guarded=on_ood != "ignore",
            )
            threshold = self._classifier.threshold
        self._pixels = observation == "pixels"
        looks = self._pixels or self._classifier is not None
        if looks or render_mode is not None:
            check_renderer("fast")
        if device != CPU and (looks or array == "numpy"):
            check_device(device)
        cores = usable_cores() if threads is None else checked_count("threads", threads)
        self._pictures = BatchedPictures(self._spec, self._classifier, device=device, threads=cores)
        self._own_pictures = True
        self._drawing_threads = cores if looks or render_mode is not None else 0
        stays = (
            array == "torch"
            and (device != CPU or STAYS_ON_CPU)
            and backend in ("torch", ORACLE, UNJUDGED)
            and on_ood in ("withhold", "ignore")
            and taken_as_they_are(self._classifier, self._spec)
        )
        # Where each step computes: on the device, or with NumPy.
        self._arrays = self._given_as if stays else Arrays()
        self._drawn_at_once = 0
        if stays and looks:
            from vinoreward_envs.device_judging import piece_of

            self._drawn_at_once = piece_of(self.num_envs, device)
        self._variation: Variation | None = None
        self._randomization = checked_randomization(randomization)
        self.memory = self._memory()
        """Bytes that the environments need, by what: ``"state"``, ``"pictures"``, ``"drawing"`` and
        ``"looks"``; not those of libraries and networks."""
        check_memory(self.num_envs, self.memory, self._given_as, on_device=stays)
        options = RewardOptions(success_hold_steps=success_hold_steps, on_ood=on_ood, **REWARDS)
        self._judging = self._make_judging(
            options, threshold, success_exit_threshold, on_device=stays
        )
        self._hover = BatchedHover(self._arrays, self.num_envs, joints=looks and not stays)
        self._random = BatchedPCG64(self._arrays, self.num_envs)
        self._seeded = np.zeros(self.num_envs, np.bool_)
        self._begun = False
        self._steps: Array = self._arrays.of(np.zeros(self.num_envs, np.int64))
        self._claims: ClaimedScenes | None = None
        if self._classifier is not None:
            self._claims = ClaimedScenes(self._arrays, self._hover, self._steps, on_device=stays)
        of = self._arrays.of
        low, high = np.array(c.WORKSPACE_LOW), np.array(c.WORKSPACE_HIGH)
        low, high = low + c.OBJECT_MARGIN, high - c.OBJECT_MARGIN
        self._least, self._span = of(low), of(high - low)
        fixed = c.FIXED_OBJECT if object_position in ("fixed", "random") else object_position
        self._fixed = of(np.array(fixed, np.float64))[None]
        if self._randomization.varies:
            self._open_looks()
        self.single_observation_space = self._observation_space()
        self.single_action_space = gym.spaces.Box(-c.MAX_MOVE, c.MAX_MOVE, (2,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    @property
    def classifier(self) -> Classifier | None:
        """The classifier that judges, None for the oracle. Further threads have copies of it."""
        return self._classifier

    @property
    def picture_scene(self) -> dict[str, str | int]:
        """What the picture depends on; a wrapper compares it with its bundle's."""
        return self._spec.as_dict()

    @property
    def busy_cores(self) -> int:
        """Cores that someone else computes on, such as a learner in another thread.

        So many threads fewer draw and judge, but at least one."""
        return self._pictures.busy_cores

    @busy_cores.setter
    def busy_cores(self, count: int) -> None:
        self._pictures.busy_cores = count

    @property
    def randomization(self) -> DomainRandomization:
        """Ranges from which the episodes draw that begin from now on.

        Setting them takes what the argument takes; episodes under way go on as they drew.

        Raises:
            ConfigError: on setting, as the argument does, or too little memory.
        """
        return self._randomization

    @randomization.setter
    def randomization(self, value: DomainRandomization | Mapping[str, Any] | str | None) -> None:
        before, self._randomization = self._randomization, checked_randomization(value)
        if not self._randomization.varies or self._variation is not None:
            return
        memory = self._memory()
        try:
            check_memory(self.num_envs, memory, self._given_as, on_device=self._judging.on_device)
        except ConfigError:
            self._randomization = before
            raise
        self.memory = memory
        self._open_looks()
        self._seed([None] * self.num_envs, np.zeros(self.num_envs, np.bool_))

    @property
    def drawn(self) -> Drawn:
        """What each environment's episode drew, ``(num_envs,)`` with a field of float64 for each of
        the ranges': ``envs.drawn["light"]``. A copy."""
        return nominal(self.num_envs) if self._variation is None else self._variation.drawn()

    @property
    def generators(self) -> list[np.random.Generator]:
        """Of each environment, that with which it places the next object; a copy."""
        return self._random.generators()

    def set_generator(self, index: int, generator: np.random.Generator) -> None:
        """Let an environment place its next objects as this generator says, a PCG64."""
        self._seed([None] * self.num_envs, np.zeros(self.num_envs, np.bool_))
        self._random.follow(index, generator)

    def prepare(self) -> None:
        """Begin to load the networks that the first step would load, in a thread.

        OpenVINO compiles them without Python's lock, so that other libraries can be imported
        meanwhile. With another backend nothing is done.
        """
        classifier = self._classifier
        if classifier is None or classifier.backend_name != "openvino":
            return
        import_openvino()  # here: two threads should not import large libraries together
        self._pictures.prepare(self.num_envs)

    def beside(self, num_envs: int) -> PandaHoverVectorEnv:
        """Return other environments that draw and judge with this batch's cameras and networks.

        Their arguments are the same, and their episodes are their own. One thread steps both, and
        closing this batch closes what they share.
        """
        arguments = {**self._arguments, "randomization": self._randomization}
        if self._classifier is not None:
            arguments["bundle"] = self._classifier.bundle
        other = PandaHoverVectorEnv(num_envs, **arguments)
        other._classifier, other._pictures = self._classifier, self._pictures
        other._judging.share(self._judging)
        other._own_pictures = False
        return other

    def claimed_picture(self, index: int) -> Pixels | None:
        """Return the ``(H, W, 3)`` picture of an environment's last claim; None before it."""
        return None if self._claims is None else self._claims.picture(index, self._pictures)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Array, Infos]:
        """Start new episodes, in all environments or where ``options["reset_mask"]`` says.

        ``seed`` is of the first environment, the others get the numbers that follow; or one per
        environment, None for those whose random numbers shall go on. Seeds are of those that are
        reset.

        Raises:
            ConfigError: an unknown option.
            InputError: a wrong shape, no place for an object, or a seed that is none.
            ResetNeeded: a mask in the first reset, which starts all environments.
            OutputError: on a device, where a step does not check it: the network gave NaN since.
        """
        with self._arrays.plain():
            return self._reset(seed, dict(options or {}))

    def _reset(
        self, seed: int | Sequence[int | None] | None, given: dict[str, Any]
    ) -> tuple[Array, Infos]:
        unknown = sorted(set(given) - {"reset_mask", "object_position"})
        if unknown:
            raise ConfigError(
                f'Found reset options {unknown}; expected only "reset_mask" and "object_position". '
                "Remove them."
            )
        mask = checked_mask(given.get("reset_mask"), self.num_envs)
        if not (self._begun or mask.all()):
            raise ResetNeeded("Found a reset mask in the first reset; call reset() first.")
        objects = checked_objects(given.get("object_position"), self.num_envs)
        self._judging.check()
        self._seed(checked_seeds(seed, self.num_envs), mask)
        self._begun = True
        which = self._arrays.of(mask)
        self._restart(which, objects)
        pictures = self._judging.pictures_of(self._hover) if self._pixels else None
        infos: Infos = {}
        self._add_state(infos, which, self._hover.distance())
        return self._observe(pictures), self._given(infos)

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, Infos]:
        """Move the grippers by ``(num_envs, 2)`` metres, judge, and reset where episodes end.

        Returns:
            Observations, rewards, terminations, truncations ``(num_envs, ...)`` and infos.

        Raises:
            InputError: actions of another shape, or no numbers.
            ResetNeeded: a step before the first reset.
        """
        if not self._begun:
            raise ResetNeeded("Found a step before the first reset; call reset() first.")
        with self._arrays.plain():
            return self._step(actions)

    def _step(self, actions: Array) -> tuple[Array, Array, Array, Array, Infos]:
        arrays, hover, judging = self._arrays, self._hover, self._judging
        moves, valid = checked_actions(actions, self.num_envs, arrays)
        error = None
        if self._variation is not None:
            moves, error = self._variation.moves(moves)
        refused = hover.move(moves, valid, error)
        distance = hover.distance()
        self._steps += 1
        scores, pictures = judging.score(
            hover,
            valid,
            arrays.xp.where(refused, c.REWARD_REFUSED, c.REWARD_STEP),
            (distance <= c.SUCCESS_DISTANCE) & self._judged,
            pictures=self._pixels,
        )
        claimed = scores.claimed
        if self._claims is not None:
            self._claims.keep(claimed)
        truncated = ~claimed & (self._steps >= c.MAX_EPISODE_STEPS) | ~valid
        over = claimed | truncated
        final: Infos = {}
        last = self._last(over, pictures) if judging.on_device or over.any() else None
        infos = self._report(scores, over, refused, distance, final)
        if judging.on_device or not valid.all():
            for place in (infos, final):
                place["invalid_action"], place["_invalid_action"] = ~valid, ~valid
        if last is not None:
            infos |= {"final_obs": last, "_final_obs": over}
            infos |= {"final_info": final, "_final_info": over}
            self._restart(over, None)
            if pictures is not None:
                judging.redraw(hover, pictures, over)
            distance = hover.distance()
        self._add_state(infos, arrays.xp.ones_like(over), distance)
        return (
            self._observe(pictures),
            self._numbers(scores.rewards),
            self._out(claimed),
            self._out(truncated),
            self._given(infos),
        )

    def render(self) -> tuple[Pixels, ...] | None:
        """Return a ``(H, W, 3)`` uint8 picture of each environment, None without a render mode."""
        if self.render_mode is None:
            return None
        if not self._begun:
            raise ResetNeeded("Found a picture asked for before the first reset; call reset().")
        host = self._arrays.host
        joints, objects = self._hover.joints, host(self._hover.objects)
        if self._variation is None or not self._judging.on_device:
            looks = None if self._variation is None else self._variation.looks
            return tuple(self._pictures.draw(joints, objects, looks=looks))
        pictures: list[Pixels] = []
        for start in range(0, self.num_envs, CHUNK):  # each has a background of its own
            piece = slice(start, start + CHUNK)
            drew = host(self._variation.values)[piece], host(self._steps)[piece]
            looks = looks_of(self._spec, *drew)
            pictures += list(self._pictures.draw(joints[piece], objects[piece], looks=looks))
        return tuple(pictures)

    def close_extras(self, **kwargs: Any) -> None:
        """Free the cameras and the classifier."""
        if not self._own_pictures:
            return
        self._pictures.close()
        self._judging.close()
        if self._classifier is not None:
            self._classifier.close()

    def _observation_space(self) -> gym.spaces.Box:
        if self._pixels:
            shape = (self._spec.height, self._spec.width, 3)
            return gym.spaces.Box(0, 255, shape, np.uint8)
        return state_space(self._object_position)

    def _make_judging(
        self, options: RewardOptions, threshold: float, leave: float | None, *, on_device: bool
    ) -> Judging:
        core = Decision(options, threshold, self.num_envs, leave)
        if not on_device:
            return HostJudging(self._pictures, self._classifier, core, self.num_envs)
        from vinoreward_envs.device_judging import DeviceJudging

        with self._arrays.plain():
            return DeviceJudging(
                self._spec,
                self._classifier,
                options,
                (core.detector.enter, core.detector.exit),
                device=self._given_as.device,
                count=self.num_envs,
            )

    def _seed(self, seeds: list[int | None], mask: Mask) -> None:
        draws = self._object_position == "random" or self._variation is not None
        if draws and not self._seeded.all():
            # As a scalar environment that never was given a seed: from the system's entropy.
            fresh = np.random.SeedSequence().generate_state(self.num_envs, np.uint64).tolist()
            unknown = [i for i in np.flatnonzero(~self._seeded).tolist() if seeds[i] is None]
            self._random.seed(unknown, [fresh[i] for i in unknown])
            self._seeded[unknown] = True
        rows = [i for i in np.flatnonzero(mask).tolist() if seeds[i] is not None]
        self._random.seed(rows, [seed for i in rows if (seed := seeds[i]) is not None])
        self._seeded[rows] = True

    def _memory(self) -> dict[str, int]:
        return memory_needed(
            self.num_envs,
            self._spec,
            threads=self._drawing_threads,
            pixels=self._pixels,
            rendered=self.render_mode is not None,
            varied=self._variation is not None or self._randomization.varies,
            at_once=self._drawn_at_once,
        )

    def _open_looks(self) -> None:
        """Make room for what episodes draw."""
        with self._arrays.plain():
            looks = self._judging.vary_looks() if self._drawing_threads else None
            self._variation = Variation(self._arrays, self.num_envs, self._steps, looks)
            if self._claims is not None:
                self._claims.vary(self._variation)

    def _restart(self, mask: Array, objects: NDArray[np.float64] | None) -> None:
        """Start episodes where ``mask`` is True; ``objects`` are ``(N, 2)``, None as configured."""
        arrays = self._arrays
        if objects is not None:
            places = arrays.of(objects)
        elif self._object_position == "random":
            places = self._least + self._span * self._random.uniforms(2, mask)
        else:
            places = self._fixed
        if self._variation is not None:
            self._variation.begin(mask, self._randomization, self._random)
        self._hover.restart(mask, places)
        self._steps *= ~mask  # in place: what the environments look like depends on it
        self._judging.begin(mask)

    def _report(
        self,
        scores: StepScores,
        over: Array,
        refused: Array,
        distance: Array,
        final: Infos,
    ) -> Infos:
        """Return the infos of those that go on; put those of episodes that end into ``final``."""
        told: dict[str, Array] = {
            "true_success": distance <= c.SUCCESS_DISTANCE,
            "distance": distance,
            "refused": refused,
        }
        if self._classifier is not None:
            told["reward_prob"] = scores.probability
            if scores.odd is not None:
                told["reward_ood"] = scores.odd
        if self._judged:
            told["is_success"] = scores.claimed
        infos: Infos = {}
        for key, values in told.items():
            for place, mask in ((infos, ~over), (final, over)):
                place[key], place[f"_{key}"] = self._arrays.masked(mask, values), mask
        return infos

    def _add_state(self, infos: Infos, mask: Array, distance: Array) -> None:
        """Write what is known of the present states where ``mask`` is True."""
        infos["distance"] = self._arrays.masked(mask, distance)
        infos["true_success"] = mask & (distance <= c.SUCCESS_DISTANCE)
        infos["_distance"], infos["_true_success"] = mask, mask

    def _last(self, over: Array, pictures: Array | None) -> Array:
        """Return the last observations of episodes that end, in memory of their own."""
        if self._given_as.kind == "torch":
            return self._observe(None if pictures is None else self._arrays.copy(pictures))
        observations = self._observe(None) if pictures is None else pictures
        last = np.full(self.num_envs, None, object)
        for i in np.flatnonzero(over).tolist():
            last[i] = observations[i].copy()
        return last

    def _observe(self, pictures: Array | None) -> Array:
        """Return the observations; ``pictures`` are the caller's from now on."""
        if pictures is not None:
            return self._out(pictures)
        xp, parts = self._arrays.xp, [self._hover.gripper]
        if self._object_position == "random":
            parts.append(self._hover.objects)
        return self._out(xp.asarray(xp.concatenate(parts, 1), dtype=xp.float32))

    def _out(self, values: Array) -> Array:
        """Return an array that nobody else uses as the caller wants it."""
        if self._arrays.kind == self._given_as.kind:
            return values
        return self._given_as.take_over(values)

    def _numbers(self, values: Array) -> Array:
        """Return rewards: float64 as Gymnasium has them, float32 as learners in PyTorch do."""
        if self._given_as.kind == "numpy":
            return values
        xp = self._arrays.xp
        return self._out(xp.asarray(values, dtype=xp.float32))

    def _given(self, infos: Infos) -> Infos:
        """Return infos as arrays of this kind, the masks each in memory of their own."""
        given: Infos = {}
        for key, values in infos.items():
            if isinstance(values, dict):
                given[key] = self._given(values)
            elif key == "final_obs":  # as it shall be
                given[key] = values
            else:
                given[key] = self._out(self._arrays.copy(values) if key[0] == "_" else values)
        return given


def _device_of(backend: str, device: str) -> str:
    """Return the classifier's device: CUDA for PyTorch beside a camera there, else the CPU."""
    if backend != "torch" or device == CPU:
        return "CPU"
    if device != "cuda:0":
        raise ConfigError(
            f'Found device={device!r} with backend="torch", which uses the first CUDA device. '
            'Expected "cuda:0"; choose it with CUDA_VISIBLE_DEVICES, or backend="openvino".'
        )
    return "CUDA"
