"""A script: eight threads make a camera at once, and need its kernels; prints how many drew well.

Kernels must not be loaded before, so it runs in a process of its own.
"""

from __future__ import annotations

import threading

import numpy as np

from vinoreward_envs import constants as c
from vinoreward_envs.camera.fast import Appearance, FastCamera
from vinoreward_envs.camera.spec import CameraSpec
from vinoreward_envs.randomization import DRAWS, LAB

THREADS = 8


def main() -> None:
    """Draw on threads, then again, and compare."""
    spec = CameraSpec(24, 32)
    appearance = Appearance(spec, THREADS)
    drawn = LAB.draw(np.random.default_rng(0).random((THREADS, DRAWS)))
    appearance.set(np.ones(THREADS, np.bool_), drawn)
    scenes = np.zeros((THREADS, c.JOINTS)), np.tile(np.eye(4), (THREADS, 1, 1))
    absent = np.zeros(THREADS, np.bool_)
    together = threading.Barrier(THREADS)
    images = {}

    def draw(i: int) -> None:
        together.wait()
        camera, row = FastCamera(spec, appearance=appearance), np.array([i])
        images[i] = camera.render_batch(scenes[0][row], scenes[1][row], absent[row], row)[0]

    threads = [threading.Thread(target=draw, args=(i,)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    again = FastCamera(spec, appearance=appearance).render_batch(*scenes, absent)
    print(sum((images[i] == again[i]).all() for i in range(THREADS)))


if __name__ == "__main__":
    main()
