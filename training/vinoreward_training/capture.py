"""``vinoreward capture``: labelled pictures from any environment that knows the truth."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from vinoreward.errors import ConfigError, DatasetError
from vinoreward.files import write_json
from vinoreward_training.capture_table import Row, Table, make_row
from vinoreward_training.run_folder import RunFolder

if TYPE_CHECKING:
    from vinoreward_envs.camera import CameraSpec


@dataclass(frozen=True)
class CaptureConfig:
    """Write labelled pictures of successes, near misses and traps.

    The result is an image folder (``success/``, ``failure/``) with a table, ``metadata.csv``.

    Examples:
        vinoreward capture --out data/hover --frames 6000
        vinoreward capture --out data/hover --frames 20000 --resume
        vinoreward capture --out data/mine --env my_package:MyEnv-v0 --truth-key at_goal
        vinoreward capture --out data/article --fidelity article
    """

    out: Path = Path("data/hover")
    """Folder to write."""
    env: str = "PandaHoverRandom-v0"
    """Gymnasium id. PandaHover ids place arm and object directly; any other is played at random."""
    frames: int = 6000
    """How many pictures."""
    seed: int = 0
    """Frame i depends on the seed and i only."""
    resume: bool = False
    """Continue a capture that was stopped, or add frames to it."""
    height: int = 96
    """Rows of a hover picture."""
    width: int = 128
    """Columns of a hover picture."""
    renderer: Literal["fast", "tiny"] = "fast"
    """Camera of the hover scene."""
    mesh: Literal["full", "20"] = "20"
    """Mesh level of the hover scene."""
    fidelity: Literal["article"] | None = None
    """article: the hover pictures of ``fidelity="article"``, drawn at 960x720 with full meshes and
    resized by PIL to --height x --width. --renderer fast draws them like tiny, 15 times faster."""
    truth_key: str = "true_success"
    """Key in ``info`` that holds the truth, for other environments."""
    save_every: int = 500
    """The table is saved after so many pictures."""


def _hover(config: CaptureConfig, scene: Any, table: Table) -> Iterator[None]:
    from vinoreward_envs.picture_spec import resized
    from vinoreward_training.capture_hover import hover_frame

    done = {int(row["episode"]) for row in table.rows.values()}
    for index in range(config.frames):
        if index in done:
            continue
        frame = hover_frame(scene, config.seed, index)
        row = make_row(f"{index:06d}.png", frame.success, frame.category, index, config.seed)
        row["gripper_x"], row["gripper_y"] = (f"{value:.6f}" for value in frame.gripper)
        if frame.object is not None:
            row["object_x"], row["object_y"] = (f"{value:.6f}" for value in frame.object)
        row["distance"] = f"{frame.distance:.6f}"
        # Only the article's pictures are drawn at another size than they are kept at.
        table.add(resized(frame.image, config.height, config.width), row)
        yield


def _truth(info: dict[str, Any], key: str, env: str) -> bool:
    if key not in info:
        raise ConfigError(
            f"{env} gave an info without {key!r} (it has {sorted(info)}). Expected the truth about "
            "success in every step's info; name its key with --truth-key."
        )
    return bool(info[key])


def _generic(config: CaptureConfig, env: Any, table: Table) -> Iterator[None]:
    """Play at random; keep frames until both labels have their half."""
    wanted = {"success": config.frames // 2, "failure": config.frames - config.frames // 2}
    have = {label: table.count(label) for label in wanted}
    episode = max((int(row["episode"]) + 1 for row in table.rows.values()), default=0)
    barren = 0
    while any(have[label] < wanted[label] for label in wanted):
        # An episode is drawn by its number alone, so a resumed capture goes on as if never stopped.
        seed = int(np.random.default_rng([config.seed, episode]).integers(2**31))
        env.action_space.seed(seed)
        env.reset(seed=seed)
        kept: list[tuple[npt.NDArray[np.uint8], Row]] = []
        step, over = 0, False
        while not over and step < 10_000:
            _, _, terminated, truncated, info = env.step(env.action_space.sample())
            over = bool(terminated or truncated)
            success = _truth(info, config.truth_key, config.env)
            label = "success" if success else "failure"
            if have[label] < wanted[label]:
                image = np.asarray(env.render())
                if image.dtype != np.uint8 or image.ndim != 3 or image.shape[-1] != 3:
                    raise ConfigError(
                        f"{config.env} renders {image.dtype} {image.shape}. Expected uint8 "
                        "(height, width, 3) pictures from render_mode='rgb_array'."
                    )
                row = make_row(f"{episode:06d}-{step:05d}.png", success, label, episode, seed)
                kept.append((image, row))
                have[label] += 1
            step += 1
        # All frames of an episode or none: a stop in between would shift what follows.
        for image, row in kept:
            table.add(image, row)
            yield
        barren = 0 if kept else barren + 1
        if barren >= max(200, config.frames):
            missing = [label for label in wanted if have[label] < wanted[label]]
            raise DatasetError(
                f"{barren} episodes of {config.env} played at random gave no {missing[0]} "
                f"({have['success']} successes, {have['failure']} failures kept). Expected both: "
                "use an environment that random play can solve, or label pictures of your own in "
                f"{config.out}/success and {config.out}/failure."
            )
        episode += 1


def article_camera(renderer: Literal["fast", "tiny"] = "fast") -> CameraSpec:
    """Return the camera of the article's setting: 960x720, full meshes."""
    from vinoreward_envs.camera import CameraSpec
    from vinoreward_envs.constants import ARTICLE_HEIGHT, ARTICLE_WIDTH

    return CameraSpec(height=ARTICLE_HEIGHT, width=ARTICLE_WIDTH, renderer=renderer, mesh="full")


def _open(config: CaptureConfig) -> tuple[Any, Any, dict[str, Any]]:
    """Return (scene or None, environment or None, what draws the pictures)."""
    from vinoreward_training.capture_hover import is_scene

    if "PandaHover" in config.env:
        # The scene alone: no bundle is needed to take pictures for the first one.
        from vinoreward_envs.camera import CameraSpec
        from vinoreward_envs.scene import HoverScene

        if config.fidelity == "article":
            spec = article_camera(config.renderer)
            # "drawn" keeps a bundle trained on these from environments with other pictures.
            kept = {"height": config.height, "width": config.width}
            drawn = {"drawn": f"{spec.width}x{spec.height}"}
            return HoverScene(camera=spec), None, {**spec.as_dict(), **kept, **drawn}
        spec = CameraSpec(
            height=config.height, width=config.width, renderer=config.renderer, mesh=config.mesh
        )
        return HoverScene(camera=spec), None, dict(spec.as_dict())
    import gymnasium
    from gymnasium.error import Error

    try:
        env = gymnasium.make(config.env, render_mode="rgb_array")
    except (Error, ImportError, TypeError) as error:
        raise ConfigError(
            f"gymnasium cannot make {config.env!r} ({error}). Expected an id as package:Name-v0 "
            "whose environment takes render_mode='rgb_array'."
        ) from error
    scene = getattr(env.unwrapped, "scene", None)
    return (scene if is_scene(scene) else None), env, {"env": config.env}


def _check(config: CaptureConfig) -> None:
    if config.frames < 2 or config.seed < 0 or min(config.height, config.width) < 16:
        raise ConfigError(
            f"frames={config.frames}, seed={config.seed}, {config.height}x{config.width} pixels. "
            "Expected at least 2 frames, a seed of 0 or more and pictures of 16x16 or more."
        )
    if config.fidelity is not None and "PandaHover" not in config.env:
        raise ConfigError(
            f"found fidelity={config.fidelity!r} with {config.env}. Expected it with a PandaHover "
            "id, whose pictures it is about; leave --fidelity out."
        )
    about = config.out / "dataset.json"
    if config.resume and about.is_file():
        before = json.loads(about.read_text(encoding="utf-8"))
        asked = {"seed": config.seed, "env": config.env}
        if "PandaHover" in config.env:
            spec = article_camera() if config.fidelity == "article" else None
            drawn = None if spec is None else f"{spec.width}x{spec.height}"
            mesh = config.mesh if spec is None else spec.mesh
            asked |= {"height": config.height, "width": config.width, "mesh": mesh, "drawn": drawn}
        scene = before.get("scene", {})
        found = {name: before.get(name, scene.get(name)) for name in asked}
        if found != asked:
            raise ConfigError(
                f"{config.out} was captured with {found}, now asked for {asked}. Expected the same "
                "when resuming; repeat the old options or choose another folder with --out."
            )


def _describe(
    config: CaptureConfig, table: Table, scene: dict[str, Any], complete: bool
) -> dict[str, Any]:
    from PIL import Image

    counts: dict[str, int] = {}
    for row in table.rows.values():
        for name in {row["label"], f"category:{row['category']}"}:
            counts[name] = counts.get(name, 0) + 1
    width, height = config.width, config.height
    if table.rows:
        with Image.open(config.out / next(iter(table.rows))) as image:
            width, height = image.size
    return {
        "format": "vinoreward image folder 1",
        "picture": {"height": height, "width": width, "color_order": "RGB"},
        "scene": scene,
        "env": config.env,
        "seed": config.seed,
        "frames": len(table.rows),
        "episodes": len({row["episode"] for row in table.rows.values()}),
        "counts": dict(sorted(counts.items())),
        "complete": complete,
    }


def run(config: CaptureConfig) -> int:
    """Capture; return 0. Stopped with Ctrl-C it saves what it has and raises KeyboardInterrupt."""
    from tqdm import tqdm

    from vinoreward_training.environments import dependencies_named

    _check(config)
    with RunFolder(config.out, config, resume=config.resume) as folder:
        for label in ("success", "failure"):
            (folder / label).mkdir(exist_ok=True)
        table = Table(folder)
        scene, env, about = _open(config)
        work = _generic(config, env, table) if scene is None else _hover(config, scene, table)
        complete = False
        # Written first, so that a capture killed at any moment can be read and resumed.
        write_json(folder / "dataset.json", _describe(config, table, about, False))
        try:
            with (
                dependencies_named(config.env),
                tqdm(
                    total=config.frames, initial=len(table.rows), desc="capture", unit="frame"
                ) as bar,
            ):
                for _ in work:
                    bar.update()
                    if len(table.rows) % config.save_every == 0:
                        table.save()
            complete = True
        finally:
            table.save()
            write_json(folder / "dataset.json", _describe(config, table, about, complete))
            for used in (env, scene if env is None else None):
                if used is not None:
                    used.close()
    free = shutil.disk_usage(config.out).free / 1e9
    print(
        f"{len(table.rows)} pictures in {config.out}: {table.count('success')} successes, "
        f"{table.count('failure')} failures ({free:.0f} GB free)."
    )
    print(f"next: vinoreward finetune --data {config.out} --out runs/classifier")
    return 0
