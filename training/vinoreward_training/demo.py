"""``vinoreward demo``: from pictures to a trained arm, a film and a report, in one go."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vinoreward_training.run_folder import RunFolder

if TYPE_CHECKING:
    from vinoreward_training.demo_stages import Places

SHIPPED = "panda-hover-classifier"
"""Name of the bundle that comes with the package."""


@dataclass(frozen=True)
class DemoConfig:
    """Capture, fine-tune, quantize, check, train, play and report: under 5 minutes on two cores.

    1. capture: labelled pictures of the arm over, next to and away from the object.
    2. finetune: a classifier learns from them what success looks like. It starts from the weights
       of the shipped bundle, so few pictures are enough; with --from-scratch from random ones.
    3. quantize: an INT8 network, kept only if it makes the same decisions.
    4. check: this classifier and the shipped one judge scenes that neither has seen.
    5. train: SAC learns to hover; its only reward is what the classifier says of each picture.
    6. play: a film, and how often the policy truly succeeds (the simulator knows).
    7. report: all of it in one HTML file.

    Stop it with Ctrl-C and run the same command again: finished stages are not repeated, the one
    that was stopped goes on where it was.

    Examples:
        vinoreward demo
        vinoreward demo --out runs/second --seed 1
        vinoreward demo --out runs/moving --env PandaHoverRandom-v0
        vinoreward demo --out runs/scratch --from-scratch
    """

    out: Path = Path("runs/demo")
    """Folder for everything."""
    seed: int = 0
    """Of every stage; the pictures are never those that the shipped bundle was trained on."""
    from_scratch: bool = False
    """Start the classifier from random weights. It then needs 24000 pictures and 8 passes
    (unless --frames, --epochs say otherwise): about 15 minutes on two cores."""
    weights: Path | None = None
    """Start the classifier from these weights (.safetensors) instead of the shipped bundle's."""
    frames: int | None = None
    """Pictures to capture; None is 5000, from scratch 24000."""
    epochs: int | None = None
    """Passes over them; None is 2, from scratch 8."""
    target_fpr: float = 0.02
    """False-positive rate that the threshold must keep; 1 % needs more pictures than these."""
    scenes: int = 1000
    """Fresh scenes on which the classifier is compared with the shipped one."""
    env: str = "PandaHover-v0"
    """Environment to train in; PandaHoverRandom-v0 takes some minutes more."""
    timesteps: int | None = None
    """Most training steps; None is the preset's. Training stops when the task is solved."""
    episodes: int = 100
    """Episodes that are counted at the end."""


def run(config: DemoConfig) -> int:
    """Run what is left of the demo; return 0.

    Raises:
        ConfigError: a setting that cannot work, or the folder holds a demo with other settings.
        KeyboardInterrupt: Ctrl-C; the same command continues.
    """
    from vinoreward_training import demo_stages as stages
    from vinoreward_training.demo_plan import check_same, make_plan
    from vinoreward_training.demo_report import report

    # Before torch is loaded: on a machine that does other things too, threads that wait by spinning
    # take the time of those they wait for.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    plan = make_plan(config)
    check_same(config.out, plan)
    print(f"classifier starts from {plan.start}", flush=True)
    try:
        with RunFolder(config.out, config, resume=True) as folder, stages.kept_threads():
            places = stages.Places(folder)
            done = stages.Stages(folder, plan.settings)
            done.stage("capture", lambda: stages.capture(plan, places))
            done.stage("finetune", lambda: stages.finetune(plan, places))
            done.stage("quantize", lambda: stages.quantize(places))
            done.stage("check", lambda: stages.check(config, places))
            done.stage("train", lambda: stages.train(config, places))
            done.stage("play", lambda: stages.play(config, places))
            commands = next_commands(places)
            # Cheap, and always about what is there now: never skipped.
            done.stage("report", lambda: report(plan, places, done, commands), keep=False)
    except KeyboardInterrupt:
        print(
            f"\nStopped; what is done is kept in {config.out}. Run the same command to go on.",
            file=sys.stderr,
        )
        raise
    print(f"\n{sum(done.seconds.values()):.0f} s in all")
    print(f"true success:    {done.facts['true']}")
    print(f"claimed success: {done.facts['claimed']}")
    print(f"film:   {places.policy / 'play.gif'}")
    print(f"curve:  {places.policy / 'learning_curve.png'}")
    print(f"plots:  {places.bundle / 'pictures'}")
    print(f"card:   {places.bundle / 'README.md'}")
    print(f"report: {places.report}")
    print("\nnext:")
    for command, _ in commands:
        print(f"  {command}")
    return 0


def program() -> str:
    """Return how this program is called: its bare name only where that finds the same one."""
    called = Path(sys.argv[0])
    if called.name != "vinoreward" or not called.is_file():
        return "vinoreward"
    found = shutil.which("vinoreward")
    same = found is not None and Path(found).resolve() == called.resolve()
    return "vinoreward" if same else shlex.quote(str(called))


def next_commands(places: Places) -> list[tuple[str, str]]:
    """Return (command, what it does) of what one may try after the demo."""
    name = program()
    bundle, run = shlex.quote(str(places.bundle)), shlex.quote(str(places.policy))

    def beside(word: str) -> str:
        # A folder of its own: the commands' usual ones may hold an earlier run.
        return shlex.quote(str(places.folder.with_name(f"{places.folder.name}-{word}")))

    return [
        (
            f"{name} profile --bundle {bundle} --out {beside('profile')}",
            "where the time of a step goes",
        ),
        (f"{name} play --run {run} --episodes 500 --seed 5000", "count more episodes"),
        (
            f"{name} train --env PandaHoverRandom-v0 --bundle {bundle} --out {beside('random')}",
            "the object moves in every episode",
        ),
        (
            f"{name} bench --rows quick --out {beside('bench')}",
            "the comparisons of the README that need no training",
        ),
    ]
