"""``vinoreward demo``: from images to a trained policy, a film and a report, by one command.

Runs other commands, which can be resumed. ``stages/NAME.json`` has a finished stage's facts.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError, UselessClassifierError
from vinoreward.rewards.calibration import negatives_needed
from vinoreward_training.capture.command import run as run_capture
from vinoreward_training.classifier.finetune import USELESS
from vinoreward_training.classifier.finetune import run as run_finetune
from vinoreward_training.configs import (
    CaptureConfig,
    DemoConfig,
    FinetuneConfig,
    PlayConfig,
)
from vinoreward_training.data.dataset import load_labelled
from vinoreward_training.data.provenance import HELD_OUT_SHARES
from vinoreward_training.demo.report import CAPTIONS, SHIPPED, STAGES, compare, demo_sections
from vinoreward_training.play.command import play as play_policy
from vinoreward_training.policy.train import SETTINGS as TRAIN
from vinoreward_training.policy.train import train as train_policy
from vinoreward_training.quantize.int8 import classifier_int8
from vinoreward_training.runs.next_command import command, option_words, sibling_path
from vinoreward_training.runs.report import write_report
from vinoreward_training.runs.run_folder import CONFIG, RunFolder
from vinoreward_training.runs.settings import checked, non_default_options, read_yaml
from vinoreward_training.runs.stages import Facts, Stages, resumed

CAPTURE_SEED = 710_000
"""Added to the capture's seed, so that its images differ from those of the shipped bundle."""
SCENES_SEED = 2
"""Seed of the fresh scenes; ``benchmarks/classifier.py`` uses another."""
FAILURE_SHARE = 2 / 3
"""Share of failures in a capture."""
QUANTIZE_NEEDS = 200
"""Minimum number of held-out frames to compare the decisions of INT8 and FP32."""
SPARE = 1.2
"""Factor on the frames needed on average: the split is by hash, so the sizes of parts vary."""


def settled(config: DemoConfig) -> DemoConfig:
    """Return the configuration with defaults filled in; ConfigError for too few images."""
    frames = config.frames or (24_000 if config.from_scratch else 5000)
    epochs = config.epochs or (8 if config.from_scratch else 2)
    validation, test = HELD_OUT_SHARES
    # Twice the minimum, because false positives may occur and the split is random.
    needed = 2 * negatives_needed(config.target_fpr)
    fewest = max(needed / validation / FAILURE_SHARE, SPARE * QUANTIZE_NEEDS / (validation + test))
    if frames < fewest:
        raise ConfigError(
            field="frames",
            value=frames,
            expected=f"at least {int(fewest) + 1}, to choose a threshold for a false-positive rate "
            f"of {config.target_fpr:g} by about {needed} failures",
            remedy="ask for more, or accept a higher `target_fpr`",
        )
    return dataclasses.replace(config, frames=frames, epochs=epochs)


FIXED = (
    "seed", "frames", "epochs", "target_fpr", "scenes", "env", "timesteps", "episodes",
    "from_scratch",
)  # fmt: skip
"""Options that cannot change when a demo is continued."""


def _check_same(config: DemoConfig) -> None:
    """Raise ConfigError if the demo in the folder was started with other options."""
    path = config.out / CONFIG
    if not path.is_file():
        return
    names = [one.name for one in dataclasses.fields(DemoConfig)]
    before = settled(checked(DemoConfig, read_yaml(path, names)))
    for name in FIXED:
        if (value := getattr(config, name)) != getattr(before, name):
            raise ConfigError(
                field=name,
                value=value,
                expected=f"{getattr(before, name)!r}, as when the demo in {config.out} was started",
                remedy="give that value to continue, or choose another folder with `out`",
            )


class Demo:
    """The stages of a demo, which run other commands; each returns facts for the report."""

    def __init__(self, config: DemoConfig, folder: Path) -> None:
        self.config = config
        self.folder = folder
        self.data = folder / "data"
        self.classifier = folder / "classifier"
        self.bundle = self.classifier / "bundle"
        self.policy = folder / "policy"

    @property
    def start(self) -> str:
        """What the classifier starts from, in words."""
        if self.config.from_scratch:
            return "random weights (--from-scratch)"
        return f"the weights of the shipped bundle {SHIPPED}"

    def capture(self) -> Facts:
        """Take the images."""
        frames, seed = self.config.frames or 0, CAPTURE_SEED + self.config.seed
        run_capture(CaptureConfig(frames=frames, seed=seed, **resumed(self.data)))
        return {}

    def finetune(self) -> Facts:
        """Train the classifier."""
        config = self.config
        status = run_finetune(
            FinetuneConfig(
                **resumed(self.classifier),
                data=self.data,
                name="demo-classifier",
                weights=None if config.from_scratch else _shipped_weights(),
                epochs=config.epochs or 0,
                # Low for pretrained weights, which a high rate would destroy.
                learning_rate=1.5e-3 if config.from_scratch else 1e-4,
                target_fpr=config.target_fpr,
                int8="off",
                seed=config.seed,
            )
        )
        if status == USELESS:
            raise UselessClassifierError(
                f"the demo's classifier in {self.bundle} is useless (see above). Expected one "
                "that claims successes; ask for more --frames or --epochs in another folder."
            )
        return {}

    def quantize(self) -> Facts:
        """Add an INT8 network, or record why it failed the gate."""
        bundle = Bundle.load(self.bundle)
        dataset = load_labelled(self.data, bundle.spec.image, "success")
        result = classifier_int8(bundle, dataset, "auto")
        print(f"INT8: {result}")
        gate = Bundle.load(self.bundle).spec.quantization
        if gate is None:
            return {"int8": result}
        text = f"passed the gate: {gate.flips} of {gate.frames} decisions differ from FP32"
        return {"int8": text}

    def check(self) -> Facts:
        """Compare the classifier with the shipped one on scenes that are new to both."""
        scenes = self.config.scenes
        print(f"{scenes} fresh scenes, scored by the shipped and by this demo's classifier …")
        comparison = compare(self.bundle, scenes, SCENES_SEED + self.config.seed)
        for row in comparison["rows"]:
            name, *values = row.values()
            print(f"  {name:<40}" + "".join(f"{value:>18}" for value in values))
        print(comparison["verdict"])
        return {"check": comparison}

    def train(self) -> Facts:
        """Train the policy."""
        config = self.config
        timesteps = {} if config.timesteps is None else {"timesteps": config.timesteps}
        result = train_policy(
            TRAIN.of(
                **resumed(self.policy),
                env=config.env,
                bundle=str(self.bundle),
                final_episodes=config.episodes,
                seed=config.seed,
                **timesteps,
            )
        )
        return {"steps": result.steps, "solved_at": result.solved_at}

    def play(self) -> Facts:
        """Evaluate the policy and film some episodes."""
        played = play_policy(PlayConfig(run=self.policy, episodes=self.config.episodes)).evaluation
        return {"true": str(played.true), "claimed": str(played.claimed)}

    def report(self, stages: Stages) -> Facts:
        """Write the report."""
        paths = [self.policy / "play.gif", self.policy / "learning_curve.png"]
        paths += [self.bundle / "images" / name for name in CAPTIONS]
        facts, seconds, commands = stages.facts, stages.seconds, self.next_commands()
        sections = demo_sections(self.config, self.start, facts, paths, seconds, commands)
        title = "vinoreward demo: an arm that learned from images alone"
        write_report(self.folder / "report.html", title, sections)
        return {}

    def next_commands(self) -> list[tuple[str, str]]:
        """Return commands to try after the demo, as (command, what it does)."""
        # In separate folders, because the default ones may contain an earlier run.
        profile, random = (
            ("--out", sibling_path(self.folder, word)) for word in ("profile", "random")
        )
        bundle = ("--bundle", self.bundle)
        play = ("play", "--run", self.policy, "--episodes", 500, "--seed", 5000)
        train = ("train", "--env", "PandaHoverRandom-v0", *bundle, *random)
        commands: list[tuple[tuple[object, ...], str]] = [
            (("profile", *bundle, *profile), "where the time of a step goes"),
            (play, "count more episodes"),
            (train, "the object moves in every episode"),
        ]
        return [(command(*words), what) for words, what in commands]


def _shipped_weights() -> Path:
    return Bundle.load(SHIPPED).path / "model.safetensors"


def run(config: DemoConfig) -> int:
    """Run the unfinished stages of the demo; return 0."""
    # Before torch is imported: threads in a busy wait would slow down other processes.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    given, config = config, settled(config)
    _check_same(config)
    demo, stages = Demo(config, config.out), Stages(config.out, list(STAGES))
    print(f"classifier starts from {demo.start}", flush=True)
    names = [one.name for one in dataclasses.fields(DemoConfig)]
    line = command("demo", *option_words(non_default_options(given, names)))
    with RunFolder(config.out, given, resume=True, again=line):
        for name in list(STAGES)[:-1]:
            stages.stage(name, getattr(demo, name))
        # Never skipped, because it is cheap.
        stages.stage("report", lambda: demo.report(stages), keep=False)
    print(
        f"\n{sum(stages.seconds.values()):.0f} s in all\n"
        f"true success:    {stages.facts['true']}\n"
        f"claimed success: {stages.facts['claimed']}\n"
        f"film:   {demo.policy / 'play.gif'}\n"
        f"curve:  {demo.policy / 'learning_curve.png'}\n"
        f"plots:  {demo.bundle / 'images'}\n"
        f"card:   {demo.bundle / 'README.md'}\n"
        f"report: {demo.folder / 'report.html'}\n"
        "\nnext:\n" + "\n".join(f"  {words}" for words, _ in demo.next_commands())
    )
    return 0
