"""``vinoreward demo``: from nothing to a trained arm, a film and a report, in one go."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vinoreward.errors import ConfigError, QuantizationRefusedError, RunFolderError
from vinoreward.files import write_json
from vinoreward_training.machine import describe_machine
from vinoreward_training.report import Section, write_report
from vinoreward_training.run_folder import RunFolder

STAGES = ("capture", "finetune", "quantize", "train", "play", "report")


@dataclass(frozen=True)
class DemoConfig:
    """Capture, fine-tune, quantize, train, play and report: under five minutes on two cores.

    Stop it with Ctrl-C and run it again: finished stages are not repeated, the one that was
    stopped goes on where it was.

    Examples:
        vinoreward demo
        vinoreward demo --out runs/second --seed 1
        vinoreward demo --out runs/random --env PandaHoverRandom-v0
    """

    out: Path = Path("runs/demo")
    """Folder for everything."""
    seed: int = 0
    """Of every stage."""
    frames: int = 4500
    """Pictures to capture."""
    epochs: int = 8
    """Passes over them."""
    weights: Path | None = None
    """Start the classifier from these weights (.safetensors); None is from scratch."""
    target_fpr: float = 0.02
    """False-positive rate that the threshold must keep; 1 % needs more pictures than these."""
    env: str = "PandaHover-v0"
    """Environment to train in."""
    timesteps: int | None = None
    """Most training steps; None is the preset's. Training stops when the task is solved."""
    episodes: int = 100
    """Episodes that are counted at the end."""


class Stages:
    """Runs stages once: each writes a stamp when it ends, and is skipped where that is there."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self._folder = folder
        self._settings = settings
        self.seconds: dict[str, float] = {}
        self.facts: dict[str, Any] = {}

    def stage(self, name: str, work: Callable[[], dict[str, Any] | None]) -> None:
        """Run ``work`` unless it ended before with the same settings; it may return facts.

        Raises:
            ConfigError: it ended before with other settings.
            RunFolderError: the stamp cannot be read.
        """
        title = f"[{STAGES.index(name) + 1}/{len(STAGES)}] {name}"
        stamp = self._folder / "stages" / f"{name}.json"
        if stamp.is_file():
            try:
                stored = json.loads(stamp.read_text(encoding="utf-8"))
                before, seconds = stored["settings"], float(stored["seconds"])
                facts = dict(stored["facts"])
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise RunFolderError(
                    f"{stamp} cannot be read ({error}). Expected what the demo writes; remove it "
                    "to run that stage again."
                ) from error
            if before != self._settings:
                raise ConfigError(
                    f"{self._folder} holds a demo with {before}, now asked for {self._settings}. "
                    "Expected the same when continuing; choose another folder with --out."
                )
            print(f"{title}: done before ({seconds:.0f} s)", flush=True)
        else:
            print(f"{title} …", flush=True)
            began = time.perf_counter()
            facts = work() or {}
            seconds = time.perf_counter() - began
            write_json(stamp, {"settings": self._settings, "seconds": seconds, "facts": facts})
            print(f"{title}: {seconds:.0f} s", flush=True)
        self.seconds[name] = seconds
        self.facts.update(facts)


def run(config: DemoConfig) -> int:
    """Run what is left of the demo; return 0."""
    settings = {
        "seed": config.seed,
        "frames": config.frames,
        "epochs": config.epochs,
        "weights": None if config.weights is None else str(config.weights),
        "target_fpr": config.target_fpr,
        "env": config.env,
        "timesteps": config.timesteps,
        "episodes": config.episodes,
    }
    with RunFolder(config.out, config, resume=True) as folder:
        stages = Stages(folder, settings)
        data, classifier, policy = folder / "data", folder / "classifier", folder / "policy"
        bundle = classifier / "bundle"
        with _kept_threads():
            stages.stage("capture", lambda: _capture(config, data))
            stages.stage("finetune", lambda: _finetune(config, data, classifier))
            stages.stage("quantize", lambda: _quantize(bundle, data))
            stages.stage("train", lambda: _train(config, bundle, policy))
            stages.stage("play", lambda: _play(config, policy))
        # Cheap, and always about what is there now.
        began = time.perf_counter()
        report = _report(config, folder, stages)
        stages.seconds["report"] = time.perf_counter() - began
    title = f"[{len(STAGES)}/{len(STAGES)}] report"
    print(f"{title}: {sum(stages.seconds.values()):.0f} s in all\n")
    print(f"true success:    {stages.facts['true']}")
    print(f"claimed success: {stages.facts['claimed']}")
    print(f"film:   {policy / 'play.gif'}")
    print(f"curve:  {policy / 'learning_curve.png'}")
    print(f"card:   {bundle / 'README.md'}")
    print(f"report: {report}")
    print("\nnext:")
    print(f"  vinoreward profile --bundle {bundle}")
    print(f"  vinoreward train --env PandaHoverRandom-v0 --bundle {bundle} --out runs/random")
    print("  vinoreward bench --rows quick")
    return 0


@contextmanager
def _kept_threads() -> Iterator[None]:
    """Give torch back the number of threads it had: stages set their own."""
    import torch

    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _started(folder: Path) -> bool:
    return (folder / "config.yaml").is_file()


def _capture(config: DemoConfig, data: Path) -> None:
    from vinoreward_training import capture

    capture.run(
        capture.CaptureConfig(
            out=data, frames=config.frames, seed=config.seed, resume=_started(data)
        )
    )


def _finetune(config: DemoConfig, data: Path, classifier: Path) -> None:
    from vinoreward_training import finetune

    finetune.run(
        finetune.FinetuneConfig(
            data=data,
            out=classifier,
            name="demo-classifier",
            weights=config.weights,
            epochs=config.epochs,
            target_fpr=config.target_fpr,
            seed=config.seed,
            resume=_started(classifier),
        )
    )


def _quantize(bundle: Path, data: Path) -> dict[str, Any]:
    from vinoreward_training import quantize

    try:
        quantize.run(quantize.QuantizeConfig(bundle=bundle, data=data))
    except QuantizationRefusedError as error:
        # The gate did what it is for. Training goes on with FP32, and the report says so.
        print(f"INT8 refused, going on with FP32: {error}")
        return {"int8": str(error)}
    return {"int8": "passed the gate"}


def _train(config: DemoConfig, bundle: Path, policy: Path) -> dict[str, Any]:
    from vinoreward_training.train import TrainConfig, train

    result = train(
        TrainConfig(
            out=policy,
            env=config.env,
            bundle=str(bundle),
            timesteps=config.timesteps,
            final_episodes=config.episodes,
            seed=config.seed,
            resume=_started(policy),
        )
    )
    return {"steps": result.steps, "solved_at": result.solved_at}


def _play(config: DemoConfig, policy: Path) -> dict[str, Any]:
    from vinoreward_training.play import PlayConfig, play

    found = play(PlayConfig(run=policy, episodes=config.episodes)).evaluation
    return {"true": str(found.true), "claimed": str(found.claimed)}


def _report(config: DemoConfig, folder: Path, stages: Stages) -> Path:
    machine: dict[str, Any] = describe_machine()
    policy, bundle = folder / "policy", folder / "classifier" / "bundle"
    pictures = sorted((bundle / "pictures").glob("*.png"))
    facts = stages.facts
    solved = facts.get("solved_at")
    return write_report(
        folder / "report.html",
        "vinoreward demo: an arm that learned from pictures alone",
        [
            Section(
                "Result",
                "Success of an episode is that of its last state. True: by the simulator. Claimed: "
                "by the classifier, the only reward that training saw.",
                [
                    {"what": "true success", "value": facts["true"]},
                    {"what": "claimed success", "value": facts["claimed"]},
                    {
                        "what": "training steps",
                        "value": f"{facts['steps']}"
                        + ("" if solved is None else f", solved at {solved}"),
                    },
                    {"what": "INT8", "value": facts["int8"]},
                ],
                [path for path in [policy / "play.gif"] if path.is_file()],
            ),
            Section(
                "Learning curve",
                "Where claimed and true part, the policy has found a way to fool the classifier.",
                pictures=[p for p in [policy / "learning_curve.png"] if p.is_file()],
            ),
            Section(
                "The classifier",
                "From its model card: what it can tell apart, and its worst mistakes.",
                pictures=pictures,
            ),
            Section(
                "Time",
                f"Seconds on {machine['cpu']}, {machine['cores']} cores.",
                [{"stage": name, "seconds": value} for name, value in stages.seconds.items()],
            ),
            Section(
                "Versions",
                f"Python {machine['python']}, commit {machine['commit']}, seed {config.seed}.",
                [
                    {"package": name, "version": version}
                    for name, version in machine["versions"].items()
                    if version
                ],
            ),
        ],
    )
