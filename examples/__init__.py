"""Whole trainings, each a file that can be run: `python -m examples.dqn_cartpole`."""
