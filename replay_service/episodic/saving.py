"""Keeping an episodic buffer: its state, pickles and HDF5 files. What never was stored takes no room in them."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from replay_service.episodic.hdf5 import Pickled, read_tree, write_tree
from replay_service.episodic.rings import Rings
from replay_service.episodic.store import StepStore
from replay_service.episodic.totals import EpisodeTotals
from replay_service.episodic.writing import BufferWriting
from replay_service.errors import LayoutError

__all__ = ["BufferSaving", "Restored"]

Kept = TypeVar("Kept", bound="BufferSaving")


class Restored(NamedTuple):
    """Parts made of a state, which only have to be put in their places; of the draws, the state that they can take."""

    rings: Rings
    store: StepStore
    totals: EpisodeTotals
    draws: dict[str, Any]
    random: np.random.RandomState
    done_only: bool
    written: int


class BufferSaving(BufferWriting):
    """State, pickle, HDF5."""

    _made_with: dict[str, Any]
    """Arguments that make a buffer like this one."""

    def state_dict(self) -> dict[str, Any]:
        """Copies of everything that the next reads, writes and draws depend on: nested dictionaries of arrays, tensors
        and numbers."""
        with self.lock:
            self._settle()
            _, keys, position, has_gauss, cached = self._random.get_state(legacy=True)
            return {
                "columns": self._store.rows(self._rings.stored()),
                "rings": self._rings.state_dict(),
                "totals": self._totals.state_dict(),
                "draws": self._draws.state_dict(),
                "random": {"keys": keys, "numbers": np.array([position, has_gauss]), "cached": cached},
                "done_only": self._done_only,
                "written": self._written,
            }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over, by copy, what `state_dict` of a buffer of the same size and rings gave.

        Raises:
            LayoutError: a buffer of another kind. Nothing was loaded.
            ValueError: rings of another shape. Nothing was loaded.
        """
        try:
            found = self._restored(state_dict)
        except (KeyError, TypeError, AttributeError, IndexError, ArithmeticError) as error:
            raise LayoutError(
                f"state_dict must be that of a {type(self).__name__}; {type(error).__name__}: {error}"
            ) from error
        self._take_over(found)

    def _restored(self, state: dict[str, Any]) -> Restored:
        """Parts made of a state; needs no lock, and changes nothing."""
        if not isinstance(state, Mapping):
            raise LayoutError(f"state_dict must be that of an episodic buffer; got {type(state).__name__}")
        missing = {"columns", "rings", "totals", "draws", "random", "done_only", "written"} - set(state)
        if missing:
            raise LayoutError(f"state_dict must be that of an episodic buffer; {sorted(missing)} are missing")
        if set(state["draws"]) != set(self._draws.state_keys):
            raise LayoutError(
                f"state_dict must be that of a buffer that draws alike; got {sorted(state['draws'])} instead of "
                f"{sorted(self._draws.state_keys)}"
            )
        rings, store = self._rings.like(), StepStore(self.maxsize)
        rings.load_state_dict(state["rings"])
        store.load_rows(rings.stored(), state["columns"])
        totals = EpisodeTotals(rings.edges[:-1])
        totals.load_state_dict(state["totals"])
        copy.deepcopy(self._draws).load_state_dict(state["draws"])  # finds out, on a copy, what is wrong
        random = np.random.RandomState()
        position, has_gauss = map(int, state["random"]["numbers"])
        keys, cached = state["random"]["keys"], float(state["random"]["cached"])
        random.set_state(("MT19937", np.asarray(keys, np.uint32), position, has_gauss, cached))
        done_only, written = bool(state["done_only"]), int(state["written"])
        return Restored(rings, store, totals, state["draws"], random, done_only, written)

    def _take_over(self, found: Restored) -> None:
        """Puts the parts in their places."""
        with self.lock:
            self._settle()
            self._draws.load_state_dict(found.draws)
            self._rings, self._store, self._totals, self._random = found.rings, found.store, found.totals, found.random
            self._done_only, self._written = found.done_only, found.written

    def __getstate__(self) -> dict[str, Any]:
        return {"made_with": self._made_with, "state": self.state_dict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state["made_with"])  # type: ignore[misc]
        self.load_state_dict(state["state"])

    def save_hdf5(self, path: str | os.PathLike[str], compression: str | None = None) -> None:
        """Writes everything to an HDF5 file, under another name first, so that a file is whole or is not there.

        Args:
            path: of the file.
            compression: as h5py takes it: `"gzip"`, `"lzf"`; None: none.
        """
        write_tree(path, type(self).__name__, {"made_with": Pickled(self._made_with), **self.state_dict()}, compression)

    @classmethod
    def load_hdf5(cls: type[Kept], path: str | os.PathLike[str], device: str | torch.device | None = None) -> Kept:
        """The buffer that `save_hdf5` wrote. Objects in it were pickled: load files of one's own only.

        Args:
            path: of the file.
            device: where tensors shall lie; None: on the CPU.

        Raises:
            LayoutError: the file holds a buffer of another class, or none.
        """
        name, tree = read_tree(path, torch.device(device or "cpu"))
        if name != cls.__name__:
            raise LayoutError(
                f"path ({os.fspath(path)!r}) must hold a {cls.__name__}; got {name or 'another kind of file'}"
            )
        made_with = tree.pop("made_with")
        buffer = cls(**made_with)
        buffer.load_state_dict(tree)
        return buffer
