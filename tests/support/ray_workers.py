"""A worker of a Ray cluster that judges pictures by its node's service; its module is light."""

from __future__ import annotations

from typing import Any

from vinoreward import Classifier


class Worker:
    """Judges pictures by its own node's service."""

    def __init__(self, services: Any) -> None:
        arguments = services.here()
        self.classifier = Classifier(arguments.pop("bundle"), **arguments)

    def judge(self, pictures: Any) -> Any:
        found = self.classifier.judge(pictures)
        return found.probability, self.classifier.threshold

    def pid(self) -> int:
        return int(self.classifier.backend.info()["service_pid"])
