"""The classifier's network on each backend and precision, one image, against eager PyTorch."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from harness import Benchmark, Row, Value, interleaved, one_thread, times
from scenes import shipped

NAMES = ("openvino int8", "openvino fp32", "onnxruntime fp32", "onnxruntime int8")
EAGER = "torch fp32"
ROWS = {
    f"backends {name}": Row(
        f"SqueezeNet 1.1, 96×128, batch 1, against eager PyTorch: {name}",
        "≥5×" if name == "openvino int8" else "",
    )
    for name in NAMES
}


def measure(options: Any) -> Iterator[tuple[str, Value]]:
    """Time them in turns."""
    one_thread()
    bundle = shipped()
    image = np.ascontiguousarray(bundle.golden.images[:1])
    with contextlib.ExitStack() as stack:
        calls = {}
        for name in (EAGER, *NAMES):
            backend, precision = name.split()
            loaded = stack.enter_context(bundle.backend(backend, precision=precision))
            calls[name] = functools.partial(loaded.infer, image)
        timings = interleaved(calls, rounds=options.rounds, calls=20, warm_up=20)
    for name in NAMES:
        yield f"backends {name}", times(timings[EAGER], timings[name])


BENCH = Benchmark("Learned rewards", ROWS, measure, rounds=20)

if __name__ == "__main__":
    sys.exit(BENCH.main())
