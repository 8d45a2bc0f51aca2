"""Storages: where records lie."""
