"""What a training leaves to look at: the curve, the report, the summary."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vinoreward.files import write_json
from vinoreward_training.policy.evaluate import rate_row
from vinoreward_training.runs.curves import draw_curve
from vinoreward_training.runs.report import Section, write_report
from vinoreward_training.runs.run_folder import NEVER_FROM_A_FILE, plain

if TYPE_CHECKING:
    from vinoreward_training.configs.train import TrainConfig
    from vinoreward_training.policy.callbacks import RunCallback
    from vinoreward_training.policy.train import TrainResult


def write_summary(config: TrainConfig, callback: RunCallback, result: TrainResult) -> None:
    """Write ``learning_curve.png``, ``report.html`` and ``summary.json`` into the run folder."""
    folder = result.folder
    title = f"{config.algorithm} on {config.env}, seed {config.seed}"
    curve = draw_curve(
        folder / "learning_curve.png", title, callback.episodes, callback.evaluations
    )
    rates = [
        rate_row("claimed by the classifier", result.final.claimed),
        rate_row("true, by the simulator", result.final.true),
    ]
    solved = "not reached" if result.solved_at is None else result.solved_at
    write_report(
        folder / "report.html",
        f"Training: {title}",
        [
            Section(
                "Result",
                f"The last policy over {config.final_episodes} fresh episodes; success is that of "
                "each episode's last state.",
                rates,
            ),
            Section(
                "In figures",
                rows=[
                    {"what": "steps", "value": result.steps},
                    {"what": "goal reached at step", "value": solved},
                    {"what": "seconds of learning", "value": round(result.seconds, 1)},
                    {"what": "of which evaluations", "value": round(result.evaluation_seconds, 1)},
                    {"what": "mean return", "value": result.final.mean_return},
                    {"what": "mean episode length", "value": result.final.mean_length},
                ],
            ),
            Section(
                "Learning curve",
                "Thin: the last 50 training episodes. Thick: evaluations. Where claimed and true "
                "part, the policy has found a way to fool the classifier.",
                pictures=[curve],
            ),
            Section("Evaluations", rows=callback.evaluations),
            Section(
                "Configuration",
                rows=[
                    {"name": name, "value": str(value)}
                    for name, value in plain(config).items()
                    if name not in NEVER_FROM_A_FILE
                ],
            ),
        ],
    )
    write_json(
        folder / "summary.json", {**plain(result), "folder": ".", "timesteps": config.timesteps}
    )
