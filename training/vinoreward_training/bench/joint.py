"""Bench rows about classifier and encoder together: what drawing, or computing, once saves."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

import vinoreward  # noqa: F401  (registers the environments)
from vinoreward.backends.base import TensorSpec
from vinoreward.backends.openvino_core import shared_core
from vinoreward.backends.registry import load_backend
from vinoreward.backends.telemetry import import_openvino
from vinoreward.bundles.bundle import Bundle
from vinoreward.wrappers.render_once import RenderOnce
from vinoreward_training.bench.encoders import encoder_bundle, not_there
from vinoreward_training.bench.env import Stepper
from vinoreward_training.bench.statistics import Row, interleaved, speed_row
from vinoreward_training.configs.bench import BenchConfig

if TYPE_CHECKING:
    from vinoreward.backends.spec import NetworkSpec
    from vinoreward.bundles.bundle import Bundle

ENVIRONMENT = "PandaHoverRandom-v0"


class DrawsAnew(gym.Wrapper[Any, Any, Any, Any]):
    """Draws at every ``render()``, as most environments do; ours keeps its last frame by itself."""

    def render(self) -> Any:
        """Return a frame drawn now."""
        scene: Any = self.get_wrapper_attr("scene")
        return scene.render()


def joint_rows(config: BenchConfig) -> list[Row]:
    """Time frames drawn once against twice, and two networks in one compiled graph."""

    encoder = encoder_bundle(config)
    if encoder is None:
        return [not_there(config, "joint", "classifier and encoder in one graph", "")]
    return [render_row(config), graph_row(config, Bundle.load(config.bundle), encoder)]


def render_row(config: BenchConfig) -> Row:
    """Time a step whose frame two wrappers ask for, with and without keeping it."""

    def looked_at_twice(env: gym.Env[Any, Any]) -> Any:
        stepper = Stepper(env, config.seed)

        def step() -> None:
            stepper()
            env.render()
            env.render()

        return step

    with contextlib.ExitStack() as stack:

        def made() -> gym.Env[Any, Any]:
            env = gym.make(ENVIRONMENT, backend="oracle", render_mode="rgb_array")
            stack.callback(env.close)
            return DrawsAnew(env)

        candidates = {
            "twice": looked_at_twice(made()),
            "once": looked_at_twice(RenderOnce(made())),
        }
        times = interleaved(candidates, rounds=config.rounds, calls=40, warm_up=20)
    return speed_row(
        "joint",
        f"a step of {ENVIRONMENT} whose frame two wrappers look at: drawn twice over drawn once",
        times["twice"],
        times["once"],
        note=f"{times['twice'].median_cpu * 1e3:.3g} and {times['once'].median_cpu * 1e3:.3g} ms; "
        "what LearnedReward and EncodedObservation around one environment share",
    )


def graph_row(config: BenchConfig, classifier: Bundle, encoder: Bundle) -> Row:
    """Time classifier and encoder one after the other against one graph with both outputs."""

    networks = [bundle.network(precision(bundle)) for bundle in (classifier, encoder)]
    shapes = {network.input.shape for network in networks}
    what = (
        f"{classifier.spec.name} ({precision(classifier)}) and {encoder.spec.name} "
        f"({precision(encoder)}): one after the other over one graph with both outputs"
    )
    if len(shapes) != 1:
        note = f"they take pictures of different sizes: {sorted(map(str, shapes))}"
        return Row("joint", what, None, note=note)
    picture = np.ascontiguousarray(classifier.golden.images[:1])
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        first, second = (
            stack.enter_context(load_backend("openvino", network)) for network in networks
        )
        both = stack.enter_context(load_backend("openvino", joined(networks, Path(folder))))
        separate = np.concatenate([first.infer(picture), second.infer(picture)], axis=1)
        difference = float(np.abs(both.infer(picture) - separate).max())

        def apart() -> None:
            first.infer(picture)
            second.infer(picture)

        times = interleaved(
            {"apart": apart, "together": functools.partial(both.infer, picture)},
            rounds=config.rounds,
            calls=20,
            warm_up=20,
        )
    return speed_row(
        "joint",
        what,
        times["apart"],
        times["together"],
        note="they share no layer: a call and the picture's conversion are all that it saves; "
        f"largest difference of their outputs {difference:.2g}",
    )


def precision(bundle: Bundle) -> str:
    """Return the precision in which a bundle is run by default."""
    return bundle.resolve_precision("openvino", "auto")


def joined(networks: list[NetworkSpec], folder: Path) -> NetworkSpec:
    """Write one graph with the input of the first network and the outputs of both.

    Args:
        networks: two, with their preprocessing inside, for pictures of one size.
        folder: where to.
    """

    ov = import_openvino()
    core = shared_core(ov)
    first, second = (core.read_model(network.path) for network in networks)
    picture = first.input(0).node
    for reader in second.input(0).get_target_inputs():
        reader.replace_source_output(picture.output(0))
    whole = ov.Model([*first.get_results(), *second.get_results()], [picture], "joined")
    ov.save_model(whole, folder / "joined.xml", compress_to_fp16=False)
    widths = [network.output.shape[1] or 0 for network in networks]
    return dataclasses.replace(
        networks[0],
        path=folder / "joined.xml",
        sha256=None,
        output=TensorSpec((None, sum(widths)), "float32"),
        output_index=0,
        joined_index=1,
    )
