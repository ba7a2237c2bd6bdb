"""The choice of a backend: by what was measured here."""

import pytest

from vinoreward_actors.policies.backends.choice import fastest, measure
from vinoreward_actors.policies.spec import mlp

SPEC = mlp(4, 2, head="logits", hidden=(64, 64))


@pytest.mark.parametrize("batch", [1, 8])
def test_the_fastest_of_those_measured_is_chosen(batch):
    seconds = measure(SPEC, batch)
    assert {"openvino", "openvino int8", "torch"} <= set(seconds)
    assert all(value > 0 for value in seconds.values())
    chosen = fastest(SPEC, batch)
    # Never slower than eager PyTorch.
    assert seconds[chosen] <= seconds["torch"]
    int8 = {name.removesuffix(" int8"): s for name, s in seconds.items() if name.endswith("int8")}
    assert int8[fastest(SPEC, batch, int8=True)] == min(int8.values())


def test_a_network_without_hidden_layers_between_has_no_int8():
    thin = mlp(4, 2, head="logits", hidden=(8,))
    assert not [name for name in measure(thin, 1) if "int8" in name]
    assert fastest(thin, 1, int8=True) == fastest(thin, 1)
