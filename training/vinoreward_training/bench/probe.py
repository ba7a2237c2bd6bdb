"""Bench rows about what an encoder's latent knows: places read from it on fresh scenes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from vinoreward.encoders.encoder import Encoder
from vinoreward_envs.camera.spec import CameraSpec
from vinoreward_envs.scene.hover import HoverScene
from vinoreward_training.bench.network import scene_camera
from vinoreward_training.bench.statistics import Row
from vinoreward_training.classifier.fresh_scenes import fresh_frames
from vinoreward_training.configs.bench import BenchConfig
from vinoreward_training.data.capture_hover import HoverFrame, hover_frame
from vinoreward_training.encoder.probe import ProbeError, fit_places, judge_places

if TYPE_CHECKING:
    from vinoreward.bundles.bundle import Bundle
    from vinoreward_envs.camera.spec import CameraSpec

PROBE_FRAMES = 4000
"""Frames that the probe is fitted on, drawn the way a capture draws them."""
PROBE_LIMIT_MM = 5.0
BATCH = 64

Pictures = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


def probe_rows(config: BenchConfig, bundle: Bundle) -> list[Row]:
    """Read gripper and object from the latent by a linear map; say how far off it is."""

    camera = scene_camera(bundle)
    fitted = captured_frames(PROBE_FRAMES, config.seed, camera)
    fresh = fresh_frames(config.scenes, config.seed, camera=camera)
    rows = []
    with Encoder(bundle) as encoder:
        for error in probe_errors(encoder.encode, fitted, fresh):
            rows.append(
                Row(
                    "encoders",
                    f"encoder {bundle.spec.name} ({encoder.precision}), fresh scenes: mean error "
                    f"of a linear probe, {error.name}",
                    error.mean_mm,
                    "mm",
                    spread=f"95 % below {error.p95_mm:.2f} mm; {error.frames} scenes",
                    target=f"<= {PROBE_LIMIT_MM:g} mm",
                    met=error.mean_mm <= PROBE_LIMIT_MM,
                    note=f"R2 {error.r2:.5f}; fitted on {error.fitted_on} other scenes; the mean "
                    f"place would be {error.chance_mm:.0f} mm off",
                    details=dict(error.as_dict()),
                )
            )
    return rows


def captured_frames(count: int, seed: int, camera: CameraSpec | None) -> list[HoverFrame]:
    """Draw frames as a capture of that seed does."""

    scene = HoverScene(camera=camera or CameraSpec())
    try:
        return [hover_frame(scene, seed, index) for index in range(count)]
    finally:
        scene.close()


def probe_errors(
    encode: Callable[[Pictures], Floats],
    fitted: Sequence[HoverFrame],
    fresh: Sequence[HoverFrame],
) -> list[ProbeError]:
    """Fit the probe on some frames and judge it on others; absent objects are left out.

    Args:
        encode: pictures (N, H, W, 3) to latents (N, D).
        fitted: frames to fit on.
        fresh: frames to judge on.
    """
    latents = [_latents(encode, frames) for frames in (fitted, fresh)]
    places = [_places(frames) for frames in (fitted, fresh)]
    probes = fit_places(latents[0], places[0], np.arange(len(fitted)))
    held = np.arange(len(fresh))
    return [
        judge_places(probe, name, latents[1], places[1][name], held, count)
        for name, (probe, count) in probes.items()
    ]


def _latents(encode: Callable[[Pictures], Floats], frames: Sequence[HoverFrame]) -> Floats:
    parts = [
        encode(np.stack([frame.image for frame in frames[start : start + BATCH]]))
        for start in range(0, len(frames), BATCH)
    ]
    return np.concatenate(parts)


def _places(frames: Sequence[HoverFrame]) -> dict[str, npt.NDArray[np.float64]]:
    absent = (math.nan, math.nan)
    return {
        "gripper": np.array([frame.gripper for frame in frames]),
        "object": np.array([frame.object or absent for frame in frames]),
    }
