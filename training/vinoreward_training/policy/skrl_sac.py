"""The SAC of skrl, with the loop, the replay, the networks and the checkpoints of the others.

At an episode's end skrl's trainers take the next episode's first observation for what followed.
Here its agent learns from a replay that holds what did follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vinoreward.errors import needed_for
from vinoreward_training.policy.tensor_sac import TensorReplay, TensorSAC

with needed_for("--learner skrl", "skrl"):
    from skrl.agents.torch.sac import SAC, SAC_CFG
    from skrl.memories.torch import Memory
    from skrl.models.torch import Model


class SkrlSAC(TensorSAC):
    """SB3's SAC whose agent is skrl's; it takes and writes the same."""

    LEARNER = "skrl"

    def _set_up_learner(self, entropy_weight: float, *, learned: bool) -> None:
        if (count := len(self.critic.q_networks)) != 2:
            raise ValueError(f"n_critics={count} is not for --learner skrl, which has 2")
        spaces = {"observation_space": self.observation_space, "action_space": self.action_space}
        place = {"device": self.device, **spaces}
        models: dict[str, Any] = {"policy": _Actor(self.actor, **place)}
        for of, critics in (("", self.critic), ("target_", self.critic_target)):
            for number, network in enumerate(critics.q_networks, 1):
                models[f"{of}critic_{number}"] = _Critic(network, **place)
        self.agent = SAC(
            models=models,
            memory=_Replay(self.replay_buffer),
            cfg=SAC_CFG(
                batch_size=self.batch_size,
                discount_factor=self.gamma,
                polyak=self.tau,
                learn_entropy=learned,
                initial_entropy_value=entropy_weight,
                target_entropy=self.target_entropy,
                # Logs and checkpoints are the training's own.
                experiment={"write_interval": 0, "checkpoint_interval": 0},
            ),
            **place,
        )
        self.agent.init()

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        names = ["policy_optimizer", "critic_optimizer"]
        learned = self.agent.cfg.learn_entropy
        names += ["entropy_optimizer"] if learned else []
        return ["policy", *(f"agent.{name}" for name in names)], ["log_weight"] if learned else []

    @property
    def log_weight(self) -> Tensor:
        """Logarithm of the weight of the entropy, (1,)."""
        found: Tensor = self.agent.log_entropy_coefficient
        return found

    def _act(self, seen: Tensor) -> Tensor:
        # The loop takes the random steps of the beginning, so skrl need not count.
        actions: Tensor = self.agent.act(seen, None, timestep=0, timesteps=0)[0]
        return actions

    def _learn_from_replay(self, gradient_steps: int, batch_size: int) -> tuple[float, float]:
        agent = self.agent
        agent.cfg.batch_size = batch_size
        # A checkpoint restores the logarithm.
        if agent.cfg.learn_entropy:
            agent._entropy_coefficient = self.log_weight.detach().exp()
        rate = self.lr_schedule(self._current_progress_remaining)
        for name, optimizer in vars(agent).items():
            if name.endswith("_optimizer"):
                for group in optimizer.param_groups:
                    group["lr"] = rate
        agent.enable_models_training_mode(True)
        for step in range(gradient_steps):
            # Only what the last one says is recorded: reading it waits for the device.
            agent.write_interval = int(step == gradient_steps - 1)
            agent.update(timestep=0, timesteps=0)
        agent.enable_models_training_mode(False)
        critic, actor = (
            agent.tracking_data[f"Loss / {name} loss"] for name in ("Critic", "Policy")
        )
        losses = float(critic[-1]), float(actor[-1])
        agent.tracking_data.clear()
        return losses

    def _entropy_weight(self) -> float:
        return float(self.agent._entropy_coefficient)


class _Actor(Model):  # type: ignore[misc]
    """SB3's actor as a model of skrl's."""

    def __init__(self, actor: nn.Module, **place: Any) -> None:
        super().__init__(**place)
        self.actor: Any = actor

    def compute(self, inputs: dict[str, Tensor], *, role: str = "") -> Any:
        return self.act(inputs, role=role)

    def act(self, inputs: dict[str, Tensor], *, role: str = "") -> tuple[Tensor, dict[str, Tensor]]:
        """Return actions (B, A) in -1 to 1 and their log densities (B, 1)."""
        actions, density = self.actor.action_log_prob(inputs["observations"])
        return actions, {"log_prob": density[:, None]}


class _Critic(Model):  # type: ignore[misc]
    """One of SB3's critics of vectors as a model of skrl's."""

    def __init__(self, network: nn.Module, **place: Any) -> None:
        super().__init__(**place)
        self.network = network

    def compute(self, inputs: dict[str, Tensor], *, role: str = "") -> Any:
        return self.act(inputs, role=role)

    def act(self, inputs: dict[str, Tensor], *, role: str = "") -> tuple[Tensor, dict[str, Tensor]]:
        """Return values (B, 1) of actions."""
        return self.network(torch.cat([inputs["observations"], inputs["taken_actions"]], 1)), {}


class _Replay(Memory):  # type: ignore[misc]
    """What skrl's agent samples from."""

    def __init__(self, replay: TensorReplay) -> None:
        super().__init__(memory_size=1, device=replay.rewards.device)
        self._replay = replay

    def create_tensor(self, name: str, **description: Any) -> bool:
        """Make none: the replay has its own."""
        return False

    def sample(
        self, names: Sequence[str], *, batch_size: int, **_: Any
    ) -> list[list[Tensor | None]]:
        """Return one batch, its tensors (B, ...) in the order of ``names``; None for a state."""
        batch = self._replay.sample(batch_size)
        found: dict[str, Tensor] = {**vars(batch)}
        found["rewards"] = batch.rewards[:, None]
        found["terminated"] = batch.terminated[:, None].bool()
        return [[found.get(name) for name in names]]
