"""Bundles of vinoreward inside LeRobot, registered as ``vinoreward`` when LeRobot looks for
plugins: a step of its pipelines, and a reward model of its factory."""

from lerobot_env_vinoreward.configuration_vinoreward import VinorewardConfig
from lerobot_env_vinoreward.processor_vinoreward import VinorewardProcessorStep

__all__ = ["VinorewardConfig", "VinorewardProcessorStep"]
