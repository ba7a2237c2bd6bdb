"""How many threads a training computes on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from vinoreward_training.configs import FinetuneConfig, TrainVaeConfig
from vinoreward_training.runs.fit import prepare_torch


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("config", [FinetuneConfig(), TrainVaeConfig()])
def test_a_training_computes_on_the_threads_that_the_user_has_set(
    config: FinetuneConfig | TrainVaeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for asked in (1, 3):
        monkeypatch.setenv("OMP_NUM_THREADS", str(asked))
        prepare_torch(config)
        assert torch.get_num_threads() == asked


def test_the_option_goes_before_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    prepare_torch(FinetuneConfig(threads=2))
    assert torch.get_num_threads() == 2
