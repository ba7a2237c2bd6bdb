"""Learners: they train full-precision networks on trajectories, in one process.

Importing a module of this package imports torch; actors never do.

==========  =====================================  ==========================================
module      class                                  takes
==========  =====================================  ==========================================
`impala`    :class:`~.impala.Impala`               trajectories, each once; logits, Gaussians
`dqn`       :class:`~.dqn.DQN`                     a replay of transitions; action values
`d4pg`      :class:`~.d4pg.D4PG`                   a replay; deterministic continuous actions
`sac`       :class:`~.sac.SAC`                     a replay; stochastic continuous actions
`sb3`       :class:`~.sb3.SB3Learner`              the replay of a Stable-Baselines3 model
==========  =====================================  ==========================================
"""
