"""Tests mirror the tree of the packages."""
