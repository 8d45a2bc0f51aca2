"""Samplers: which records a batch is made of."""
