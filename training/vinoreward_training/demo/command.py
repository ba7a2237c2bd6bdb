"""``vinoreward demo``: from images to a trained policy, a film and a report, by one command.

Runs other commands, each of which continues where it was stopped.
"""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass

from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError, UselessClassifierError
from vinoreward_training.capture.command import run as run_capture
from vinoreward_training.classifier.finetune import USELESS
from vinoreward_training.classifier.finetune import run as run_finetune
from vinoreward_training.configs import CaptureConfig, DemoConfig, FinetuneConfig, PlayConfig
from vinoreward_training.demo.report import SHIPPED, STAGES, compare, demo_sections
from vinoreward_training.play.command import play as play_policy
from vinoreward_training.policy.train import SETTINGS as TRAIN
from vinoreward_training.policy.train import train as train_policy
from vinoreward_training.runs.next_command import command, option_words, sibling_path
from vinoreward_training.runs.report import write_report
from vinoreward_training.runs.run_folder import CONFIG, RunFolder
from vinoreward_training.runs.settings import checked, non_default_options, read_yaml
from vinoreward_training.runs.stages import Facts, Stages, resumed

CAPTURE_SEED = 710_000
"""Added to the capture's seed, so that its images differ from those of the shipped bundle."""
SCENES_SEED = 2
"""Seed of the fresh scenes; ``benchmarks/classifier.py`` uses another."""
NAMES = [one.name for one in dataclasses.fields(DemoConfig)]


@dataclass(frozen=True)
class Sizes:
    """How much a demo does."""

    frames: int = 5000
    """Images to capture."""
    epochs: int = 2
    target_fpr: float = 0.02
    """False-positive rate of the threshold; a lower one needs more images."""
    scenes: int = 1000
    """New scenes for the comparison with the shipped classifier."""
    timesteps: int | None = None
    """Maximum training steps; None is the preset's. Training stops when the task is solved."""
    episodes: int = 100
    """Of the final evaluation."""


FROM_SCRATCH = Sizes(frames=24_000, epochs=8)
"""What a classifier with random weights needs."""


class Demo:
    """The stages of a demo, which run other commands; each returns facts for the report."""

    def __init__(self, config: DemoConfig, sizes: Sizes) -> None:
        self.config, self.sizes, self.folder = config, sizes, config.out
        self.data, self.classifier = self.folder / "data", self.folder / "classifier"
        self.bundle, self.policy = self.classifier / "bundle", self.folder / "policy"

    def capture(self) -> Facts:
        """Take the images."""
        seed = CAPTURE_SEED + self.config.seed
        run_capture(CaptureConfig(frames=self.sizes.frames, seed=seed, **resumed(self.data)))
        return {}

    def finetune(self) -> Facts:
        """Train the classifier, with its INT8 network."""
        scratch, sizes = self.config.from_scratch, self.sizes
        status = run_finetune(
            FinetuneConfig(
                **resumed(self.classifier),
                data=self.data,
                name="demo-classifier",
                weights=None if scratch else Bundle.load(SHIPPED).path / "model.safetensors",
                epochs=sizes.epochs,
                # Low for pretrained weights, which a high rate would destroy.
                learning_rate=1.5e-3 if scratch else 1e-4,
                target_fpr=sizes.target_fpr,
                seed=self.config.seed,
            )
        )
        if status == USELESS:
            raise UselessClassifierError(
                f"the demo's classifier in {self.bundle} is useless (see above). Expected one "
                "that claims successes; try another `seed` in another folder."
            )
        gate = Bundle.load(self.bundle).spec.quantization
        if gate is None:
            return {"int8": "not used on this processor"}
        return {"int8": f"{gate.flips} of {gate.frames} decisions differ from FP32"}

    def check(self) -> Facts:
        """Compare the classifier with the shipped one on scenes that are new to both."""
        comparison = compare(self.bundle, self.sizes.scenes, SCENES_SEED + self.config.seed)
        for row in comparison["rows"]:
            name, *values = row.values()
            print(f"  {name:<40}" + "".join(f"{value:>18}" for value in values))
        print(comparison["verdict"])
        return {"check": comparison}

    def train(self) -> Facts:
        """Train the policy."""
        steps = self.sizes.timesteps
        result = train_policy(
            TRAIN.of(
                **resumed(self.policy),
                env=self.config.env,
                bundle=str(self.bundle),
                final_episodes=self.sizes.episodes,
                seed=self.config.seed,
                **({} if steps is None else {"timesteps": steps}),
            )
        )
        return {"steps": result.steps, "solved_at": result.solved_at}

    def play(self) -> Facts:
        """Evaluate the policy and film some episodes."""
        played = play_policy(PlayConfig(run=self.policy, episodes=self.sizes.episodes)).evaluation
        return {"true": str(played.true), "claimed": str(played.claimed)}

    def report(self, stages: Stages) -> Facts:
        """Write the report."""
        start = "random weights" if self.config.from_scratch else f"the weights of {SHIPPED}"
        facts = {**stages.facts, "start": start, "frames": self.sizes.frames}
        sections = demo_sections(
            self.config, facts, self.policy, self.bundle, stages.seconds, self.next_commands()
        )
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


def _check_same(config: DemoConfig) -> None:
    """Raise ConfigError if the demo in the folder was started with other options."""
    path = config.out / CONFIG
    before = checked(DemoConfig, read_yaml(path, NAMES)) if path.is_file() else config
    if dataclasses.replace(before, out=config.out) != config:
        started = command("demo", *option_words(non_default_options(before, NAMES)))
        raise ConfigError(
            field="out",
            value=str(config.out),
            expected=f"a new folder, as the demo in this one was started with: {started}",
        )


def run(config: DemoConfig, sizes: Sizes | None = None) -> int:
    """Run the unfinished stages of the demo; return 0."""
    # Before torch is imported: threads in a busy wait would slow down other processes.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    _check_same(config)
    demo = Demo(config, sizes or (FROM_SCRATCH if config.from_scratch else Sizes()))
    stages = Stages(config.out, list(STAGES))
    line = command("demo", *option_words(non_default_options(config, NAMES)))
    with RunFolder(config.out, config, resume=True, again=line):
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
        f"card:   {demo.bundle / 'README.md'}\n"
        f"report: {demo.folder / 'report.html'}\n"
        "\nnext:\n" + "\n".join(f"  {words}" for words, _ in demo.next_commands())
    )
    return 0
