"""Off-policy correction: learning for one policy from what another policy did.

In an actor-learner the actions come from a compressed and slightly old copy of the network that is
being trained. A corrector turns such a batch into targets for the critic and advantages for the
policy gradient as if the current network had acted. Everything here is plain NumPy on time-major
``(T, B)`` arrays; a learner calls it with detached arrays and makes tensors of the answer.

Notation, for step ``t`` of one trajectory:

* ``pi`` the target policy: the learner's network, at the time of learning;
* ``mu`` the behaviour policy: the network that **really acted** (compressed, of an older version,
  with its exploration), whose log-probability the actor stored beside the action. One ratio
  ``rho_t = pi(a_t|s_t) / mu(a_t|s_t)`` thus covers compression, staleness, exploration and the
  mixing of two networks at once;
* ``d_t = gamma * (1 - terminated_t)`` the discount, and ``V'_t`` the value of the **true**
  successor of step ``t`` (never of a reset observation). Termination does not bootstrap;
  truncation bootstraps from ``V'_t``. The trace is cut at both;
* the last step bootstraps from ``V'_{T-1}``.

Correctors of role ``target`` make the critic's targets and the advantages:

* :class:`VTrace`: ``v_t = V_t + delta_t + d_t c_t (v_{t+1} - V_{t+1})`` with
  ``delta_t = min(rho, rho_t) (r_t + d_t V'_t - V_t)`` and ``c_t = lam min(c, rho_t)``, which is
  the sum of Espeholt et al. 2018, eq. 1, as a recursion;
* :class:`NoCorrection`: uncorrected lambda-returns, said explicitly.

A corrector of role ``policy_gradient`` makes the weight of ``grad log pi(a_t|s_t)`` times the
advantage: :class:`ImportanceSampling`, ``min(rho, rho_t)``.

Exactly one corrector of role ``target`` is needed and at most one of role ``policy_gradient``.
V-trace brings its own policy-gradient weight ``min(rho, rho_t)``; beside
:class:`ImportanceSampling`, as the AcceRL paper composes them, the weight is applied once::

    from vinoreward_actors.correction import Correction, ImportanceSampling, OffPolicyBatch, VTrace

    correction = Correction([VTrace(rho=1.0, c=1.0), ImportanceSampling(rho=1.0)])
    corrected = correction(OffPolicyBatch(log_pi=..., log_mu=..., ...))
    value_loss = ((corrected.targets - values) ** 2).mean()
    policy_loss = -(corrected.advantages * log_pi).mean()   # the weight is already in it

Learners with a replay (DQN, D4PG) take no corrector: to one-step targets a compressed actor is one
more behaviour policy, and targets of several steps stay uncorrected.

Paper:

* L. Espeholt et al., *IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner
  Architectures*, ICML 2018, section 4.
"""

from __future__ import annotations

from vinoreward_actors.correction.corrector import (
    Corrected,
    Correction,
    Corrector,
    Estimate,
    OffPolicyBatch,
    check_correctors,
)
from vinoreward_actors.correction.correctors import (
    ImportanceSampling,
    NoCorrection,
    VTrace,
)

__all__ = [
    "Corrected",
    "Correction",
    "Corrector",
    "Estimate",
    "ImportanceSampling",
    "NoCorrection",
    "OffPolicyBatch",
    "VTrace",
    "check_correctors",
]
