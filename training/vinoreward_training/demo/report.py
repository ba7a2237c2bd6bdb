"""The demo's report: what came out, how it was measured, what to try next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vinoreward_training.demo.plan import Plan
from vinoreward_training.demo.stages import Facts, Places, Stages
from vinoreward_training.runs.machine import describe_machine
from vinoreward_training.runs.report import Section, write_report

CAPTIONS = {
    "play.gif": "The first episodes of the trained policy. The classifier sees the same scene "
    "smaller.",
    "learning_curve.png": "Thin: the last 50 training episodes, in which the policy explores. "
    "Thick: evaluations, in which it does not.",
    "history.png": "Training of the classifier, epoch by epoch; the best epoch is kept.",
    "roc.png": "Held-out frames: recall against false positives.",
    "pr.png": "Held-out frames: precision against recall.",
    "mistakes.png": "The held-out frames it is most wrong about; millimetres between gripper and "
    "object, success is up to 35 mm.",
}
WHAT = {
    "capture": "take and label the pictures",
    "finetune": "train the classifier, choose its threshold, export it",
    "quantize": "make INT8 and compare its decisions",
    "check": "compare with the shipped classifier",
    "train": "train the policy, evaluations included",
    "play": "film and count",
}


def report(
    plan: Plan, places: Places, stages: Stages, commands: Sequence[tuple[str, str]]
) -> Facts:
    """Write the report; return no facts.

    Raises:
        RunFolderError: it cannot be written.
    """
    facts = stages.facts
    write_report(
        places.report,
        "vinoreward demo: an arm that learned from pictures alone",
        [
            _result(plan, facts, places),
            Section(
                "Learning curve",
                "Where claimed and true part, the policy has found a way to fool the classifier.",
                pictures=_there(places.policy / "learning_curve.png"),
                captions=CAPTIONS,
            ),
            *_classifier(plan, facts["check"], places),
            _time(stages.seconds),
            Section(
                "What to try next",
                rows=[{"command": command, "what it does": what} for command, what in commands],
            ),
            _versions(plan),
        ],
    )
    return {}


def _there(path: Path) -> list[Path]:
    return [path] if path.is_file() else []


def _result(plan: Plan, facts: Mapping[str, Any], places: Places) -> Section:
    solved = facts.get("solved_at")
    rows = [
        {"what": "true success, by the simulator", "value": facts["true"]},
        {"what": "claimed success, by the classifier", "value": facts["claimed"]},
        {
            "what": "training steps",
            "value": f"{facts['steps']}, "
            + ("the goal was not reached" if solved is None else "then the task was solved"),
        },
        {"what": "classifier started from", "value": plan.start},
        {"what": "INT8", "value": facts["int8"]},
    ]
    return Section(
        "Result",
        f"{plan.config.env}, {plan.config.episodes} episodes after training. Success of an episode "
        "is that of its last state: the gripper within 35 mm of the point above the object. The "
        "classifier's claims were the only reward in training; the simulator's truth was only "
        "watched, and decided when to stop.",
        rows,
        _there(places.policy / "play.gif"),
        CAPTIONS,
    )


def _classifier(plan: Plan, check: Mapping[str, Any], places: Places) -> list[Section]:
    folder = places.bundle / "pictures"
    pictures = [folder / name for name in CAPTIONS if (folder / name).is_file()]
    return [
        Section(
            "The classifier beside the shipped one",
            f"It started from {plan.start} and saw {plan.frames} pictures, {plan.epochs} times the "
            f"part for training. Both judged the same {plan.config.scenes} fresh scenes, which "
            "neither was trained on. Intervals are Clopper-Pearson; average precision needs no "
            f"threshold.\n{check['verdict']} Their thresholds differ, and a threshold trades "
            "recall for false positives.",
            check["rows"],
        ),
        Section("What the threshold may claim", check["claim"]),
        Section("Wrong decisions on the fresh scenes", rows=check["categories"]),
        Section(
            "The classifier in pictures",
            "From its model card.",
            pictures=pictures,
            captions=CAPTIONS,
        ),
    ]


def _time(seconds: Mapping[str, float]) -> Section:
    machine = describe_machine()
    total = sum(seconds.values())
    rows: list[dict[str, object]] = [
        {"stage": name, "what it did": WHAT[name], "seconds": round(seconds[name])}
        for name in WHAT
        if name in seconds
    ]
    rows.append({"stage": "all", "what it did": "", "seconds": round(total)})
    load = machine["load_average"]
    busy = f" Load average {load[0]:.1f} at the end." if isinstance(load, list) else ""
    return Section("Time", f"On {machine['cpu']}, {machine['cores']} cores.{busy}", rows)


def _versions(plan: Plan) -> Section:
    machine: dict[str, Any] = describe_machine()
    commit = f", commit {machine['commit']}" if machine["commit"] else ""
    return Section(
        "Versions",
        f"Python {machine['python']}{commit}, seed {plan.config.seed}.",
        [
            {"package": name, "version": version}
            for name, version in machine["versions"].items()
            if version
        ],
    )
