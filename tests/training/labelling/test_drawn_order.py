"""vinoreward label --order drawn: a run's claims in the order of its random draw."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vinoreward_training.cli import main
from vinoreward_training.configs import LabelConfig
from vinoreward_training.labelling.command import _session
from vinoreward_training.labelling.labels import Label, LabelLog, now
from vinoreward_training.labelling.sources import digest_of, of_run
from vinoreward_training.policy.claims import ClaimSample


def test_claims_come_in_the_order_of_the_draw_however_doubtful(tmp_path: Path) -> None:
    sample = ClaimSample(tmp_path, 20, seed=1)
    random = np.random.default_rng(0)
    for episode in range(20):
        drawn = sample.wants(episode)
        assert drawn is not None
        image = random.integers(0, 256, (6, 8, 3), dtype=np.uint8)
        sample.add(image, drawn, step=episode, episode=episode, probability=0.5 + episode / 50)
    sample.write()
    source = of_run(tmp_path)
    order = np.argsort(source.numbers["drawn"]).tolist()
    assert order != sorted(order), "the draw is not the order of the episodes"
    config = LabelConfig(run=tmp_path, order="drawn", duplicates=0.0)
    with LabelLog(tmp_path / "labels.jsonl") as log:
        shown = [one.index for one in _session(config, source, log, "ann")._queue]
        assert shown == order
        for index in order[:7]:
            digest = digest_of(source.read(index))
            log.add(Label(source.names[index], digest, "success", "ann", now(), 1.0))
        assert [one.index for one in _session(config, source, log, "ann")._queue] == order[7:]
    bound = sample.labelled()
    assert bound is not None and bound.successes == bound.labels == 7


def test_it_needs_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data").mkdir()
    assert main(["label", "--data", str(tmp_path / "data"), "--order", "drawn"]) == 1
    assert "--order drawn without --run" in capsys.readouterr().err
