"""EncodedObservation for one Gymnasium environment."""

from __future__ import annotations

from typing import Any, SupportsFloat

import gymnasium as gym

from vinoreward.wrappers.encoding import EncodedObservationBase, shown
from vinoreward.wrappers.layers import ImageSource, SingleForm, refuse_autoreset


class EncodedObservation(EncodedObservationBase[gym.Env[Any, Any]], SingleForm):
    """Replace the environment's observation by what an encoder sees in its picture.

    The observation is one flat float32 Box: the latent vectors of the last ``frame_stack`` steps,
    oldest first, then the kept parts of the environment's own observation, flattened. Its bounds
    are the bundle's and the parts' own.

    Stacked pictures, ``(k, H, W, 3)``, ``(k, 3, H, W)``, ``(H, W, 3 k)`` or ``(3 k, H, W)``, are
    encoded one by one, oldest first.

    All arguments but a callable ``image_source`` and a loaded ``bundle`` are YAML values, so that
    RL Zoo's ``env_wrapper`` can carry them. ``env.spec`` makes the same environment again; its JSON
    carries a loaded bundle too, but no functions.

    Args:
        env: the environment.
        bundle: a loaded encoder bundle, the folder of one, an installed one's name, or what
            ``env.spec`` recorded of one.
        backend: ``"openvino"``, ``"torch"``, ``"onnxruntime"`` or another registered one.
        device: device of the backend.
        precision: ``"auto"``, ``"fp32"``, ``"int8"``, …
        threads: threads of one inference.
        image_source: ``"obs"``, ``"obs:<key>"``, ``"render"`` or ``callable(env, observation)``
            returning ``(H, W, 3)`` uint8 RGB. None: the observation if it is a picture, its only
            picture key, else ``"render"``.
        keep: keys of the observation that the learner sees too, such as joint angles.
        frame_stack: latent vectors of so many steps; after a reset the first stands for those
            before it.
        sample: draw from the posterior instead of taking its mean.
        seed: of the draws, together with the seeds that ``reset`` is given; None: random where
            ``reset`` is given none.
        picture_in_info: put the newest picture into ``info["picture"]``, ``(H, W, 3)`` uint8.

    Raises:
        ConfigError: arguments that cannot work, on their own or with this environment.
        PictureMismatchError: the environment's picture is not the bundle's.
        ModelNotFoundError: no such bundle.
    """

    def _enclose(
        self, env: gym.Env[Any, Any], source: ImageSource, arguments: dict[str, Any]
    ) -> None:
        if arguments["frame_stack"] > 1:
            refuse_autoreset(env, "it would be stacked on those of the episode that ended")
        super()._enclose(env, source, arguments)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._core.seed(0, seed)
        return self._observe(observation, info, first=True)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the environment and encode the picture it ended with.

        Raises:
            InputError: the picture has a wrong shape or dtype.
            OutputError: the network returned NaN or infinity.
        """
        observation, reward, terminated, truncated, info = self.env.step(action)
        seen, info = self._observe(observation, info, first=False)
        return seen, reward, terminated, truncated, info

    def close(self) -> None:
        """Close the environment and free the network."""
        self._core.encoder.close()
        super().close()

    def _observe(
        self, observation: Any, info: dict[str, Any], *, first: bool
    ) -> tuple[Any, dict[str, Any]]:
        core = self._core
        frame = self.env.render() if core.source.renders else None
        pictures = core.source.single(self.env, observation, frame)
        latent = core.look([0], pictures)
        if first:
            core.begin([0], latent)
        else:
            core.push([0], latent)
        if core.options.picture_in_info:
            info = {**info, "picture": shown(pictures[0, -1])}
        return core.observations([0], [observation])[0], info
