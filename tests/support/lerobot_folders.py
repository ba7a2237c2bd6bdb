"""LeRobotDataset v3.0 folders, laid out as LeRobot 0.4.4 writes them."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

CAMERA = "observation.images.front"
FPS = 10
SIZE = (32, 48)


def image(success: bool, episode: int, frame: int) -> np.ndarray:
    """A lamp that is green for a success, and a bright dot that tells images apart."""
    image = np.full((*SIZE, 3), 60, np.uint8)
    image[:, 24:] = (20, 220, 20) if success else (220, 20, 20)
    image[8 * (episode % 4) : 8 * (episode % 4) + 8, frame % 20 : frame % 20 + 4] = 230
    return image


def shown(episode: int, length: int, wins: int) -> list[bool]:
    """Whether each image of an episode shows a success: at its end; every fourth fails."""
    return [bool(episode % 4) and frame >= length - wins for frame in range(length)]


def write_lerobot(
    folder: Path,
    *,
    episodes: int = 8,
    length: int = 12,
    wins: int = 3,
    video: bool = True,
    frame: str = "next",
    columns: Sequence[str] = ("next.success", "next.reward"),
    cameras: Sequence[str] = (CAMERA,),
    per_file: int = 5,
    fps: int | Fraction = FPS,
) -> Path:
    """Write a dataset; ``frame`` is the image that shows a row's outcome, next or same."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds: dict[str, Any] = {"next.success": ("bool", bool), "next.reward": ("float32", float)}
    features: dict[str, Any] = {
        name: {"dtype": "video" if video else "image", "shape": [*SIZE, 3]} for name in cameras
    }
    for name in (*columns, "timestamp", "frame_index", "episode_index", "index", "task_index"):
        dtype = kinds[name][0] if name in kinds else "float32" if name == "timestamp" else "int64"
        features[name] = {"dtype": dtype, "shape": [1], "names": None}
    info = {
        "codebase_version": "v3.0",
        "fps": float(fps),
        "total_episodes": episodes,
        "total_frames": episodes * length,
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "features": features,
    }
    about: list[dict[str, Any]] = []
    for file in range(-(-episodes // per_file)):
        numbers = range(file * per_file, min(episodes, (file + 1) * per_file))
        rows: list[dict[str, Any]] = []
        images: list[np.ndarray] = []
        for number in numbers:
            won = shown(number, length, wins)
            images += [image(won[i], number, i) for i in range(length)]
            outcome = won if frame == "same" else [*won[1:], won[-1]]
            for i in range(length):
                row = {"timestamp": np.float32(i / fps), "frame_index": i, "episode_index": number}
                row |= {"index": number * length + i, "task_index": 0}
                row |= {name: kinds[name][1](outcome[i]) for name in columns}
                if not video:
                    stream = io.BytesIO()
                    Image.fromarray(images[len(rows)]).save(stream, format="PNG")
                    row |= {c: {"bytes": stream.getvalue(), "path": f"{i}.png"} for c in cameras}
                rows.append(row)
            entry = {"episode_index": number, "tasks": ["lift"], "length": length}
            entry |= {"data/chunk_index": 0, "data/file_index": file}
            for name in cameras if video else ():
                begins = (number - numbers[0]) * length / float(fps)
                entry |= {f"videos/{name}/chunk_index": 0, f"videos/{name}/file_index": file}
                entry |= {
                    f"videos/{name}/from_timestamp": begins,
                    f"videos/{name}/to_timestamp": begins + length / float(fps),
                }
            about.append(entry)
        _write(pq, pa.Table.from_pylist(rows), folder / f"data/chunk-000/file-{file:03d}.parquet")
        for name in cameras if video else ():
            path = folder / f"videos/{name}/chunk-000/file-{file:03d}.mp4"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_video(path, images, fps)
    _write(pq, pa.Table.from_pylist(about), folder / "meta/episodes/chunk-000/file-000.parquet")
    (folder / "meta/info.json").write_text(json.dumps(info))
    return folder


def _write(pq: Any, table: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, compression="snappy")


def write_video(path: Path, images: Sequence[np.ndarray], fps: int | Fraction = FPS) -> None:
    import av

    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=fps)
        stream.height, stream.width = images[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        stream.bit_rate = 4_000_000
        for image in images:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode())


def change_info(folder: Path, **changes: Any) -> None:
    path = folder / "meta/info.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def moments(cameras: int) -> np.ndarray:
    """200 images of noise, ``(200, cameras * 128, 128, 3)``: the cameras' below each other."""
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (200, cameras, 8, 8, 3), dtype=np.uint8)
    large = blocks.repeat(16, 2).repeat(16, 3)
    return large.reshape(200, cameras * 128, 128, 3)
