"""The stages of the demo: each runs once, is skipped when it is done, goes on when stopped."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import QuantizationRefusedError, RunFolderError, UselessClassifierError
from vinoreward.files import write_json
from vinoreward_training.classifier.finetune import USELESS
from vinoreward_training.classifier.finetune import run as run_finetune
from vinoreward_training.configs.capture import CaptureConfig
from vinoreward_training.configs.finetune import FinetuneConfig
from vinoreward_training.configs.play import PlayConfig
from vinoreward_training.configs.quantize import QuantizeConfig
from vinoreward_training.configs.train import TrainConfig
from vinoreward_training.data.capture import run as run_capture
from vinoreward_training.demo.check import compare
from vinoreward_training.demo.plan import CAPTURE_SEED, Plan
from vinoreward_training.play.command import play as play_policy
from vinoreward_training.policy.train import train as train_policy
from vinoreward_training.quantize.command import run as run_quantize
from vinoreward_training.runs.machine import usable_cores

if TYPE_CHECKING:
    from vinoreward_training.configs.demo import DemoConfig

STAGES = ("capture", "finetune", "quantize", "check", "train", "play", "report")
SCENES_SEED = 2
"""Of the fresh scenes; ``vinoreward bench`` draws others."""
Facts = dict[str, Any]


@dataclass(frozen=True)
class Places:
    """Where a demo keeps what it makes."""

    folder: Path

    @property
    def data(self) -> Path:
        """The captured pictures."""
        return self.folder / "data"

    @property
    def classifier(self) -> Path:
        """Run folder of the classifier."""
        return self.folder / "classifier"

    @property
    def bundle(self) -> Path:
        """The classifier's bundle."""
        return self.classifier / "bundle"

    @property
    def policy(self) -> Path:
        """Run folder of the policy."""
        return self.folder / "policy"

    @property
    def report(self) -> Path:
        """The report."""
        return self.folder / "report.html"


class Stages:
    """Runs stages once: each writes a stamp when it ends, and is skipped where that is there.

    Args:
        folder: of the demo.
        settings: plain data, recorded in every stamp (compared by ``demo_plan.check_same``).
    """

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self._folder = folder / "stages"
        self._settings = settings
        self.seconds: dict[str, float] = {}
        self.facts: Facts = {}
        write_json(self._folder / "begun.json", {"settings": settings})

    def stage(self, name: str, work: Callable[[], Facts], *, keep: bool = True) -> None:
        """Run ``work``, which returns facts, unless it ended before; ``keep=False``: always.

        Raises:
            RunFolderError: the stamp cannot be read.
        """
        title = f"[{STAGES.index(name) + 1}/{len(STAGES)}] {name}"
        stamp = self._folder / f"{name}.json"
        if stamp.is_file():
            try:
                stored = json.loads(stamp.read_text(encoding="utf-8"))
                facts, seconds = dict(stored["facts"]), float(stored["seconds"])
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise RunFolderError(
                    f"{stamp} cannot be read ({error}). Expected what the demo writes; remove it "
                    "to run that stage again."
                ) from error
            print(f"{title}: done before ({seconds:.0f} s)", flush=True)
        else:
            print(f"{title} …", flush=True)
            # The time of a stage that was stopped counts too: the total is what the demo took.
            before = self._spent(name)
            began = time.perf_counter()
            try:
                with _without_next():
                    facts = work()
            except KeyboardInterrupt:
                spent = before + time.perf_counter() - began
                write_json(self._folder / "spent" / f"{name}.json", {"seconds": spent})
                raise
            seconds = before + time.perf_counter() - began
            if keep:
                record = {"settings": self._settings, "seconds": seconds, "facts": facts}
                write_json(stamp, record)
            print(f"{title}: {seconds:.0f} s", flush=True)
        self.seconds[name] = seconds
        self.facts.update(facts)

    def _spent(self, name: str) -> float:
        path = self._folder / "spent" / f"{name}.json"
        if not path.is_file():
            return 0.0
        return float(json.loads(path.read_text(encoding="utf-8"))["seconds"])


class _Filter(io.TextIOBase):
    """Passes on what is written, but for lines that say how to go on."""

    LEFT_OUT = ("next:", "Continue with:")

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._begun = ""

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            if not line.startswith(self.LEFT_OUT):
                self._stream.write(line + "\n")
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def finish(self) -> None:
        """End a last line that has no end."""
        if self._begun:
            self.write("\n")


@contextlib.contextmanager
def _without_next() -> Iterator[None]:
    """Leave out the next commands that stages print: here the next stage follows by itself."""
    kept = _Filter(sys.stdout)
    try:
        with contextlib.redirect_stdout(cast("Any", kept)):
            yield
    finally:
        kept.finish()


@contextlib.contextmanager
def kept_threads() -> Iterator[None]:
    """Give torch back the number of threads it had: stages set their own."""
    import torch

    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _started(folder: Path) -> bool:
    return (folder / "config.yaml").is_file()


def capture(plan: Plan, places: Places) -> Facts:
    """Take the pictures."""
    run_capture(
        CaptureConfig(
            out=places.data,
            frames=plan.frames,
            seed=CAPTURE_SEED + plan.config.seed,
            resume=_started(places.data),
        )
    )
    return {}


def finetune(plan: Plan, places: Places) -> Facts:
    """Train the classifier."""
    status = run_finetune(
        FinetuneConfig(
            data=places.data,
            out=places.classifier,
            name="demo-classifier",
            architecture=cast("Any", plan.architecture),
            weights=plan.weights,
            epochs=plan.epochs,
            learning_rate=plan.learning_rate,
            augment=0.1,
            target_fpr=plan.config.target_fpr,
            seed=plan.config.seed,
            threads=usable_cores(),
            resume=_started(places.classifier),
        )
    )
    if status == USELESS:
        raise UselessClassifierError(
            f"the demo's classifier in {places.bundle} is useless, as said above. Expected one "
            "that claims successes; ask for more --frames or --epochs in another folder."
        )
    return {"start": plan.start}


def quantize(places: Places) -> Facts:
    """Add INT8; a refusal is a result too."""
    try:
        run_quantize(QuantizeConfig(bundle=places.bundle, data=places.data))
    except QuantizationRefusedError as error:
        # The gate did what it is for. Training goes on with FP32, and the report says so.
        print(f"INT8 refused, going on with FP32: {error}")
        return {"int8": f"refused, FP32 is used. {error}"}
    found = Bundle.load(places.bundle).spec.quantization
    if found is None:
        return {"int8": "none"}
    text = f"passed the gate: {found.flips} of {found.frames} decisions differ from FP32"
    looks = found.detail.get("second_looks_held_out")
    if isinstance(looks, float):
        text += f"; FP32 looks again at {looks:.1%} of the held-out frames"
    return {"int8": text}


def check(config: DemoConfig, places: Places) -> Facts:
    """Compare the classifier with the shipped one on scenes that neither has seen."""
    print(f"{config.scenes} fresh scenes, judged by the shipped and by this demo's classifier …")
    found = compare(places.bundle, config.scenes, SCENES_SEED + config.seed)
    for row in found["rows"]:
        name, *values = row.values()
        print(f"  {name:<40}" + "".join(f"{value:>18}" for value in values))
    print(found["verdict"])
    return {"check": found}


def train(config: DemoConfig, places: Places) -> Facts:
    """Train the policy."""
    result = train_policy(
        TrainConfig(
            out=places.policy,
            env=config.env,
            bundle=str(places.bundle),
            timesteps=config.timesteps,
            final_episodes=config.episodes,
            seed=config.seed,
            resume=_started(places.policy),
        )
    )
    return {"steps": result.steps, "solved_at": result.solved_at}


def play(config: DemoConfig, places: Places) -> Facts:
    """Film and count."""
    found = play_policy(PlayConfig(run=places.policy, episodes=config.episodes)).evaluation
    return {"true": str(found.true), "claimed": str(found.claimed)}
