"""Checkpoints: folders of raw blocks and JSON, written beside their place and renamed."""
