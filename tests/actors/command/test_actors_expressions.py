"""The small language of vinoreward actors: what its words make, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vinoreward.errors import ConfigError
from vinoreward_actors.command.expressions import (
    Part,
    chain_of,
    correctors_of,
    monitor_of,
    parse,
    setting_of,
)
from vinoreward_actors.compression import Compile, Distill, Prune, Quantize
from vinoreward_actors.tasks.networks import network


def student(name: str) -> Any:
    return network("pong", name)


names = st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True).filter(
    lambda name: name not in ("none", "off")
)
keys = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
values = (
    st.booleans()
    | st.integers(-(10**6), 10**6)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.from_regex(r"[b-dg-hj-mo-su-z][a-z0-9]{0,6}", fullmatch=True)
)
parts = st.builds(
    Part,
    names,
    st.lists(values, max_size=3).map(tuple),
    st.dictionaries(keys, values, max_size=3),
)


@given(st.lists(parts, min_size=1, max_size=4))
def test_an_expression_is_read_as_it_is_written(written: list[Part]) -> None:
    assert parse(" | ".join(map(str, written)), "--compress") == written


@given(st.text(alphabet="ab1.|= \t-e", max_size=30))
def test_any_text_is_read_or_refused_in_a_sentence(text: str) -> None:
    try:
        found = parse(text, "--compress")
    except ConfigError as error:
        assert "Expected" in str(error)
    else:
        assert parse(" | ".join(map(str, found)), "--compress") == found


@settings(deadline=None)
@given(st.text(alphabet="prunedistlw48 0.5|=", max_size=24))
def test_any_compression_is_made_or_refused_in_a_sentence(text: str) -> None:
    try:
        chain_of(text, "openvino", student)
    except ConfigError as error:
        assert "Expected" in str(error)


def test_a_compression_is_the_chain_that_it_says() -> None:
    chain = chain_of("prune 0.5 | distill steps=20 | int8 margin=1.5 | openvino", "numpy", student)
    assert chain is not None
    kinds = [type(stage) for stage in chain.stages]
    assert kinds == [Prune, Distill, Quantize, Compile]
    assert chain.parameters() == {"bits": 8.0, "sparsity": 0.5}
    assert setting_of(chain.parameters(), 7).pull_period == 7


def test_a_student_is_a_network_of_the_task() -> None:
    chain = chain_of("distill net3 | int8", "openvino", student)
    assert chain is not None
    stage = chain.stages[0]
    assert isinstance(stage, Distill) and stage.student == network("pong", "net3")


@pytest.mark.parametrize(("backend", "taken"), [("numpy", "numpy"), ("torch", "openvino")])
def test_without_a_stage_for_it_full_precisions_backend_is_taken(backend: str, taken: str) -> None:
    chain = chain_of("int8", backend, student)
    assert chain is not None and isinstance(last := chain.stages[-1], Compile)
    assert last.backend == taken


@pytest.mark.parametrize("text", ["none", "", "off", " None "])
def test_nothing_may_be_compressed(text: str) -> None:
    assert chain_of(text, "openvino", student) is None
    assert monitor_of("default", "logits", None, 10) is None


def test_pushes_with_few_bits_are_watched_without_a_chain() -> None:
    monitor = monitor_of("default", "logits", None, 10, 4)
    assert monitor is not None and monitor.setting.bits == 4
    assert monitor_of("off", "logits", None, 10, 4) is None
    for text in ("alpha 0.05 0.3", "sparsity"):
        with pytest.raises(ConfigError, match="Expected"):
            monitor_of(text, "logits", None, 10, 4)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prune 0.5", "not followed by Distill"),
        ("prune 1.5 | distill", "sparsity is 1.5"),
        ("prune | distill", "sparsity"),
        ("int9", "int9"),
        ("int8 | int8", "two Quantize"),
        ("openvino | int8", "too late in the chain"),
        ("int8 margin=0.1", "margin"),
        ("int8 colour=red", "colour"),
        ("distill net9", "net9"),
        ("low-rank", "low-rank"),
        ("int8 | | openvino", "the part ''"),
        ("int8 margin=1 margin=2", "margin=2"),
        ("distill steps=1.5", "steps=1.5. Expected a whole number"),
        ("distill steps=true", "steps=true. Expected a whole number"),
        ("distill steps=many", "steps=many. Expected a whole number"),
        ("distill colour=red", "some of: steps, cold_steps"),
        ("distill self=3", "'self'"),
        ("int8 margin=wide", "margin=wide. Expected a finite number"),
        ("int8 margin=true", "margin=true. Expected a finite number"),
        ("int8 precision=w4", "'precision'"),
        ("int8 | openvino compiler=x", "some of: blob"),
        ("int8 | openvino engine=numpy", "some of: blob"),
        ("prune half | distill", "sparsity=half. Expected a finite number"),
        ("prune " + "9" * 5000 + " | distill", "sparsity"),
        ("low-rank " + "9" * 5000, "a whole number"),
        ("low-rank 2.5", "rank=2.5. Expected a whole number"),
        ("prune | distill", "prune needs its sparsity. Expected such a value, as in prune 0.5."),
        ("prune frozen_for=9 | distill", "as in prune 0.5 frozen_for=9."),
        ("low-rank", "low-rank needs its rank. Expected such a value, as in low-rank 8."),
    ],
)
def test_a_compression_that_cannot_be_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match="Expected") as error:
        chain_of(text, "openvino", student)
    assert said in str(error.value)


def test_correctors_are_named() -> None:
    found = correctors_of("vtrace rho=2 c=1 | importance mix=ess")
    assert found is not None
    assert [type(one).__name__ for one in found] == ["VTrace", "ImportanceSampling"]
    assert correctors_of(None) is None
    for text in ("vtrac", "none", "vtrace rho=0"):
        with pytest.raises(ConfigError, match=r"[Ee]xpected"):
            correctors_of(text)


@pytest.mark.parametrize(
    "text", ["default", "watch", "kl 14", "kl threshold=5 good=1", "alpha 0.02 0.3", "staged",
             "sparsity", "sparsity 0.5 good=0.2", "kl 14 | staged"],
)  # fmt: skip
def test_monitors_begin_with_the_chains_own_settings(text: str) -> None:
    chain = chain_of("prune 0.25 | distill | w5", "openvino", student)
    monitor = monitor_of(text, "logits", chain, 33)
    assert monitor is not None
    assert (monitor.setting.bits, monitor.setting.sparsity) == (5, 0.25)
    assert monitor.setting.pull_period == 33


@pytest.mark.parametrize(
    ("text", "chain", "head"),
    [
        ("kl 14", "distill net3", "logits"),
        ("sparsity", "int8", "logits"),
        ("alpha 0.1 0.2", "int8", "q"),
        ("alpha 0.3 0.2", "int8", "logits"),
        ("dfault", "int8", "logits"),
        ("default 3", "int8", "logits"),
    ],
)
def test_a_monitor_that_could_do_nothing_is_refused(text: str, chain: str, head: Any) -> None:
    with pytest.raises(ConfigError, match="Expected"):
        monitor_of(text, head, chain_of(chain, "openvino", student), 10)


@pytest.mark.parametrize(
    ("text", "first"),
    [
        # Half precision would act more slowly than the learner's own weights.
        ("int8", {"enabled": False}),
        ("w4", {"enabled": False}),
        ("distill net3", {"enabled": False}),
        ("prune 0.5 | distill | openvino", {"enabled": False}),
        # A smaller network is faster without its quantization, too.
        ("prune 0.5 | distill | int8", {"bits": None}),
        ("distill net3 | int8", {"bits": None}),
    ],
)
def test_the_default_monitor_turns_to_nothing_slower_than_no_compression(
    text: str, first: Any
) -> None:
    chain = chain_of(text, "openvino", student)
    monitor = monitor_of("default", "logits", chain, 10)
    assert monitor is not None and monitor._strategy is not None
    found = begun = monitor.setting
    for _ in range(10):
        if found == begun:
            found = monitor._strategy.decide({"compression_kl_mu_pi_max": 100.0}, found)
    assert found == begun.changed(first)
