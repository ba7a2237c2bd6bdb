"""The choice of a backend: by what was measured here."""

import pytest

from vinoreward_actors.policies.backends.choice import fastest, measure
from vinoreward_actors.policies.spec import mlp

SPEC = mlp(4, 2, head="logits", hidden=(64, 64))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "vinoreward" / "choices"


@pytest.mark.parametrize("batch", [1, 8])
def test_the_fastest_of_those_measured_is_chosen(batch):
    costs = measure(SPEC, batch)
    assert {"openvino fp32", "openvino int8", "torch fp32"} <= set(costs)
    assert all(cost.call > 0 and cost.refresh > 0 for cost in costs.values())
    chosen = fastest(SPEC, batch)
    # Never slower than eager PyTorch.
    assert costs[f"{chosen} fp32"].call <= costs["torch fp32"].call
    int8 = {name.split()[0]: cost.call for name, cost in costs.items() if name.endswith("int8")}
    assert int8[fastest(SPEC, batch, int8=True)] == min(int8.values())


def test_a_network_is_measured_once_on_a_processor(cache, monkeypatch):
    costs = measure(SPEC, 1)
    assert measure(SPEC, 1) == costs  # the same times to the last bit: nothing was measured
    (entry,) = cache.iterdir()
    assert measure(SPEC, 8) != costs
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")  # as another processor
    assert measure(SPEC, 1) != costs
    assert len(list(cache.iterdir())) == 3
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")
    entry.write_text('{"of": ')  # torn
    again = measure(SPEC, 1)
    assert again != costs and measure(SPEC, 1) == again


def test_a_network_without_hidden_layers_between_has_no_int8():
    thin = mlp(4, 2, head="logits", hidden=(8,))
    assert not [name for name in measure(thin, 1) if "int8" in name]
    assert fastest(thin, 1, int8=True) == fastest(thin, 1)
