"""The lists of stages, correctors and monitors: what they make, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vinoreward.errors import ConfigError
from vinoreward_actors.command.stages import (
    chain_of,
    correctors_of,
    monitor_of,
    setting_of,
)
from vinoreward_actors.compression import Compile, Distill, Prune, Quantize
from vinoreward_actors.tasks.networks import network


def student(name: str) -> Any:
    return network("pong", name)


@settings(deadline=None)
@given(st.text(alphabet="prunedistlw48 0.5[]{}:,'", max_size=24))
def test_any_compression_is_made_or_refused_in_a_sentence(text: str) -> None:
    try:
        chain_of(text, "openvino", student)
    except ConfigError as error:
        assert "Expected" in str(error)


def test_a_compression_is_the_chain_that_it_says() -> None:
    chain = chain_of(
        "[{prune: 0.5}, {distill: {steps: 20}}, {quantize: {precision: int8, margin: 1.5}},"
        " {compile: openvino}]", "numpy", student,
    )  # fmt: skip
    assert chain is not None
    kinds = [type(stage) for stage in chain.stages]
    assert kinds == [Prune, Distill, Quantize, Compile]
    assert chain.parameters() == {"bits": 8.0, "sparsity": 0.5}
    assert setting_of(chain.parameters(), 7).pull_period == 7


def test_a_student_is_a_network_of_the_task() -> None:
    chain = chain_of("[{distill: net3}, {quantize: int8}]", "openvino", student)
    assert chain is not None
    stage = chain.stages[0]
    assert isinstance(stage, Distill) and stage.student == network("pong", "net3")


@pytest.mark.parametrize(("backend", "taken"), [("numpy", "numpy"), ("torch", "openvino")])
def test_without_a_stage_for_it_full_precisions_backend_is_taken(backend: str, taken: str) -> None:
    chain = chain_of("quantize: int8", backend, student)
    assert chain is not None and isinstance(last := chain.stages[-1], Compile)
    assert last.backend == taken


@pytest.mark.parametrize("text", ["none", "", "off", " None ", "[]"])
def test_nothing_may_be_compressed(text: str) -> None:
    assert chain_of(text, "openvino", student) is None
    assert monitor_of("default", "logits", None, 10) is None


def test_pushes_with_few_bits_are_watched_without_a_chain() -> None:
    monitor = monitor_of("default", "logits", None, 10, 4)
    assert monitor is not None and monitor.setting.bits == 4
    assert monitor_of("off", "logits", None, 10, 4) is None
    for text in ("alpha: {low: 0.05, high: 0.3}", "sparsity"):
        with pytest.raises(ConfigError, match="Expected"):
            monitor_of(text, "logits", None, 10, 4)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prune: 0.5", "not followed by Distill"),
        ("[{prune: 1.5}, distill]", "sparsity is 1.5"),
        ("[prune, distill]", "prune with no sparsity"),
        ("[{prune: half}, distill]", "prune with sparsity='half'. Expected a finite number"),
        ("int9", "'int9'"),
        ("quantize: int9", "precision 'int9'"),
        ("[{quantize: int8}, {quantize: int8}]", "two Quantize"),
        ("[{compile: openvino}, {quantize: int8}]", "too late in the chain"),
        ("compile: tensorrt", "compile with backend='tensorrt'. Expected one of openvino,"),
        ("compile", "compile with backend=None. Expected one of openvino,"),
        ("quantize: {precision: int8, margin: 0.1}", "margin"),
        ("quantize: {margin: wide}", "quantize with margin='wide'. Expected a finite number"),
        ("quantize: {colour: red}", "colour='red'. Expected settings of: precision"),
        ("distill: net9", "net9"),
        ("distill: {steps: 1.5}", "distill with steps=1.5. Expected a whole number"),
        ("distill: {steps: true}", "distill with steps=True. Expected a whole number"),
        ("fuse: 3", "fuse with value=3. Expected settings of: none"),
        ("low-rank", "low-rank"),
        ("low-rank: 2.5", "rank=2.5. Expected a whole number"),
        ("[{prune: 0.5, distill: 3}]", "Expected a name, or one name with"),
        ("[[distill]]", "Expected a name, or one name with"),
        ("3", "3. Expected a name, or one name with"),
        ("{prune", "which is no YAML"),
        ("prune 0.5 | distill", "Expected some of prune, distill, low-rank, fuse, quantize"),
    ],
)
def test_a_compression_that_cannot_be_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match="Expected") as error:
        chain_of(text, "openvino", student)
    assert said in str(error.value)


def test_correctors_are_named() -> None:
    found = correctors_of("[{vtrace: {rho: 2, c: 1}}, {importance: {mix: ess}}]")
    assert found is not None
    assert [type(one).__name__ for one in found] == ["VTrace", "ImportanceSampling"]
    assert correctors_of(None) is None
    for text in ("vtrac", "none", "vtrace: {rho: 0}"):
        with pytest.raises(ConfigError, match=r"[Ee]xpected"):
            correctors_of(text)


@pytest.mark.parametrize(
    "text", ["default", "watch", "kl: 14", "kl: {threshold: 5, good: 1}", "staged", "sparsity",
             "alpha: {low: 0.02, high: 0.3}", "sparsity: {bad: 0.5, good: 0.2}",
             "[{kl: 14}, staged]"],
)  # fmt: skip
def test_monitors_begin_with_the_chains_own_settings(text: str) -> None:
    chain = chain_of("[{prune: 0.25}, distill, {quantize: w5}]", "openvino", student)
    monitor = monitor_of(text, "logits", chain, 33)
    assert monitor is not None
    assert (monitor.setting.bits, monitor.setting.sparsity) == (5, 0.25)
    assert monitor.setting.pull_period == 33


@pytest.mark.parametrize(
    ("text", "chain", "head"),
    [
        ("kl: 14", "distill: net3", "logits"),
        ("sparsity", "quantize: int8", "logits"),
        ("alpha: {low: 0.1, high: 0.2}", "quantize: int8", "q"),
        ("alpha: {low: 0.3, high: 0.2}", "quantize: int8", "logits"),
        ("dfault", "quantize: int8", "logits"),
        ("default: 3", "quantize: int8", "logits"),
    ],
)
def test_a_monitor_that_could_do_nothing_is_refused(text: str, chain: str, head: Any) -> None:
    with pytest.raises(ConfigError, match="Expected"):
        monitor_of(text, head, chain_of(chain, "openvino", student), 10)


@pytest.mark.parametrize(
    ("text", "first"),
    [
        # Half precision would act more slowly than the learner's own weights.
        ("quantize: int8", {"enabled": False}),
        ("quantize: w4", {"enabled": False}),
        ("distill: net3", {"enabled": False}),
        ("[{prune: 0.5}, distill, {compile: openvino}]", {"enabled": False}),
        # A smaller network is faster without its quantization, too.
        ("[{prune: 0.5}, distill, {quantize: int8}]", {"bits": None}),
        ("[{distill: net3}, {quantize: int8}]", {"bits": None}),
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
