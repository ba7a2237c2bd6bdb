"""``vinoreward demo``: from pictures to a trained arm, a film and a report, in one go."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from vinoreward_training.configs.demo import DemoConfig
from vinoreward_training.demo import stages
from vinoreward_training.demo.plan import check_same, make_plan
from vinoreward_training.demo.report import report
from vinoreward_training.runs.next_command import beside
from vinoreward_training.runs.run_folder import RunFolder

if TYPE_CHECKING:
    from vinoreward_training.demo.stages import Places


def run(config: DemoConfig) -> int:
    """Run what is left of the demo; return 0.

    Raises:
        ConfigError: a setting that cannot work, or the folder holds a demo with other settings.
        KeyboardInterrupt: Ctrl-C; the same command continues.
    """

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

    def own(word: str) -> str:
        # A folder of its own: the commands' usual ones may hold an earlier run.
        return shlex.quote(str(beside(places.folder, word)))

    return [
        (
            f"{name} profile --bundle {bundle} --out {own('profile')}",
            "where the time of a step goes",
        ),
        (f"{name} play --run {run} --episodes 500 --seed 5000", "count more episodes"),
        (
            f"{name} train --env PandaHoverRandom-v0 --bundle {bundle} --out {own('random')}",
            "the object moves in every episode",
        ),
        (
            f"{name} bench --rows quick --out {own('bench')}",
            "the comparisons of the README that need no training",
        ),
    ]
