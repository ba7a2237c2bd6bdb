"""Settings of vinoreward actors, and the lists of stages, correctors and monitors in them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vinoreward.errors import ConfigError
from vinoreward_actors.command.build import evaluation_options, settings_of
from vinoreward_actors.command.config import ActorsConfig
from vinoreward_actors.command.settings import SETTINGS, command, presets
from vinoreward_actors.command.stages import chain_of, correctors_of, monitor_of
from vinoreward_actors.compression import Compile, Distill, Prune, Quantize
from vinoreward_actors.tasks.networks import network


def student(name):
    return network("pong", name)


def made(text, backend="openvino"):
    found = chain_of(text, backend, student)
    assert found is not None
    return found


# Settings


def test_every_preset_is_settled_and_fits_its_task():
    found = presets()
    assert {"actorq/cartpole-int8", "accerl/pong-alpha"} <= set(found)
    for name, told in found.items():
        config = SETTINGS.of(**told)
        spec = network(config.task, config.network, config.algorithm)
        assert settings_of(config)[0].__name__.lower() == config.algorithm
        chain = chain_of(
            config.compress,
            "openvino",
            lambda name, config=config: network(config.task, name, config.algorithm),
        )
        monitor_of(config.monitor, spec.head, chain)
        assert (chain is None) == ("int8" not in name and config.compress == "none")


def test_what_is_given_wins_over_file_and_preset(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("steps: 777\nactors: 3\nlearner: {gamma: 0.9}\n")
    found = SETTINGS.of(preset="actorq/cartpole-int8", config=file, actors=1)
    assert (found.steps, found.actors) == (777, 1)
    assert found.compress == "[{quantize: int8}]"
    assert (found.learner["gamma"], found.learner["learning_rate"]) == (0.9, 0.00015)
    words = command(SETTINGS.of(preset="actorq/cartpole-int8", actors=2))
    assert words == "vinoreward actors --preset actorq/cartpole-int8 --actors 2"
    assert "--compress none" in command(found, compress="none")


def test_evaluations_play_the_game_itself():
    given = {"clip_reward": True, "terminal_on_life_loss": True, "frame_skip": 3}
    assert evaluation_options(ActorsConfig(env_kwargs=given)) == {"frame_skip": 3}


# Compressions


@settings(deadline=None)
@given(st.text(alphabet="prunedistlw48 0.5[]{}:,'", max_size=24))
def test_any_compression_is_made_or_refused_in_a_sentence(text):
    try:
        chain_of(text, "openvino", student)
    except ConfigError as error:
        assert "Expected" in str(error)


def test_a_compression_is_the_chain_that_it_says():
    stages = "{prune: 0.5}, {distill: {steps: 20}}, {quantize: {precision: int8, margin: 1.5}}"
    chain = made(f"[{stages}, {{compile: openvino}}]", "numpy")
    assert [type(stage) for stage in chain.stages] == [Prune, Distill, Quantize, Compile]
    assert chain.parameters() == {"bits": 8.0, "sparsity": 0.5}
    taught = made("[{distill: net3}, {quantize: int8}]").stages[0]
    assert isinstance(taught, Distill) and taught.student == network("pong", "net3")
    # Without a stage for it full precision's backend is taken, but for PyTorch's.
    for backend, taken in (("numpy", "numpy"), ("torch", "openvino")):
        last = made("quantize: int8", backend).stages[-1]
        assert isinstance(last, Compile) and last.backend == taken


def test_nothing_may_be_compressed():
    for text in ("none", "", "off", " None ", "[]"):
        assert chain_of(text, "openvino", student) is None
    assert monitor_of("default", "logits", None) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prune: 0.5", "not followed by Distill"),
        ("[{prune: 1.5}, distill]", "sparsity is 1.5"),
        ("[prune, distill]", "prune with no sparsity"),
        ("[{prune: half}, distill]", "prune with sparsity='half'. Expected a number"),
        ("int9", "'int9'"),
        ("quantize: int9", "precision 'int9'"),
        ("compile: tensorrt", "compile with backend='tensorrt'. Expected one of openvino,"),
        ("compile", "compile with backend=None. Expected one of openvino,"),
        ("quantize: {colour: red}", "colour='red'. Expected settings of: precision"),
        ("distill: net9", "net9"),
        ("distill: {steps: 1.5}", "distill with steps=1.5. Expected a whole number"),
        ("distill: {steps: true}", "distill with steps=True. Expected a whole number"),
        ("[{prune: 0.5, distill: 3}]", "Expected a name, or one name with"),
        ("[[distill]]", "Expected a name, or one name with"),
        ("{prune", "which is no YAML"),
        ("prune 0.5 | distill", "Expected some of prune, distill, quantize"),
    ],
)
def test_a_compression_that_cannot_be_is_refused(text, said):
    with pytest.raises(ConfigError, match="Expected") as error:
        chain_of(text, "openvino", student)
    assert said in str(error.value)


def test_correctors_are_named():
    found = correctors_of("[{vtrace: {rho: 2, c: 1}}, {importance: {rho: 2}}]")
    assert found is not None
    assert [type(one).__name__ for one in found] == ["VTrace", "ImportanceSampling"]
    for text in (
        "vtrac",
        "none",
        "vtrace: {rho: 0}",
        "vtrace: {c: x}",
        "uncorrected: {steps: 1.5}",
    ):
        with pytest.raises(ConfigError, match=r"[Ee]xpected"):
            correctors_of(text)


# Monitors


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dfault", "dfault"),
        ("[default, staged]", "one strategy"),
        ("default: {x: 1}", "x=1"),
        ("kl: {threshold: 14, good: 20}", "bad above good"),
        ("kl: -1", "bad above good"),
        ("kl: {patience: 1.5}", "a whole number"),
        ("kl: {limits: 3}", "limits=3"),
        ("alpha: {low: 0.1}", "no high"),
        ("alpha: {low: 0.3, high: 0.2}", ""),
        ("staged: {exploration: x}", "exploration='x'"),
    ],
)
def test_a_monitor_that_cannot_be_is_refused(text, said):
    with pytest.raises(ConfigError, match="Expected") as error:
        monitor_of(text, "logits", made("[{prune: 0.5}, distill, {quantize: int8}]"))
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("text", "chain", "head"),
    [
        ("kl: 14", "distill: net3", "logits"),
        ("alpha: {low: 0.1, high: 0.2}", "quantize: int8", "q"),
    ],
)
def test_a_monitor_that_could_do_nothing_is_refused(text, chain, head):
    with pytest.raises(ConfigError, match="Expected"):
        monitor_of(text, head, made(chain))


@pytest.mark.parametrize(
    ("text", "first"),
    [
        # Half precision would act more slowly than the learner's own weights.
        ("quantize: int8", {"enabled": False}),
        ("distill: net3", {"enabled": False}),
        ("[{prune: 0.5}, distill, {compile: openvino}]", {"enabled": False}),
        # A smaller network is faster without its quantization, too.
        ("[{prune: 0.5}, distill, {quantize: int8}]", {"bits": None}),
        ("[{distill: net3}, {quantize: int8}]", {"bits": None}),
    ],
)
def test_the_default_monitor_turns_to_nothing_slower_than_no_compression(text, first):
    monitor = monitor_of("default", "logits", made(text))
    assert monitor._strategy is not None
    found = begun = monitor.setting
    while found == begun:
        found = monitor._strategy.decide({"compression_kl_mu_pi_max": 100.0}, found)
    assert found == begun.changed(first)
