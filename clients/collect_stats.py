"""What one `collect` did, as a record and, under the names of the second seed document, as a mapping."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["CollectStats"]

KEYS = ("n/ep", "n/st", "rews", "lens", "idxs", "rew", "len", "rew_std", "len_std")


def _no_slots() -> np.ndarray:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class CollectStats(Mapping[str, Any]):
    """What one `collect` did. Episodes are in the order in which they ended.

    n_collected_steps: rows stored. n_collected_episodes: episodes that ended. returns: sum of rewards of each, float64.
    lens: steps of each, int64, counted from their true start also where that was an earlier call or is no longer stored.
    collect_time_s: seconds. policy_version: version of the weights that acted last (0: the policy as it was given).
    idxs: slot where each episode starts, int64, as an episodic buffer told it (empty with other buffers).

    As a mapping: "n/ep", "n/st", "rews", "lens", "idxs", and "rew", "len", "rew_std", "len_std" (means and standard
    deviations; 0 without an episode).
    """

    n_collected_steps: int
    n_collected_episodes: int
    returns: np.ndarray
    lens: np.ndarray
    collect_time_s: float
    policy_version: int = 0
    idxs: np.ndarray = field(default_factory=_no_slots)

    @property
    def collect_speed(self) -> float:
        """Rows per second."""
        return self.n_collected_steps / max(self.collect_time_s, 1e-9)

    def __getitem__(self, key: str) -> Any:
        if key in ("n/ep", "n/st"):
            return self.n_collected_episodes if key == "n/ep" else self.n_collected_steps
        if key in ("rews", "lens", "idxs"):
            return {"rews": self.returns, "lens": self.lens, "idxs": self.idxs}[key]
        if key not in KEYS:
            raise KeyError(f"key ({key!r}) must be one of {', '.join(KEYS)}")
        values = self.returns if key.startswith("rew") else self.lens
        if not self.n_collected_episodes:
            return 0.0
        return float(values.std() if key.endswith("_std") else values.mean())

    def __iter__(self) -> Iterator[str]:
        return iter(KEYS)

    def __len__(self) -> int:
        return len(KEYS)

    @classmethod
    def together(cls, parts: Sequence[CollectStats], collect_time_s: float) -> CollectStats:
        """One record of what several did within `collect_time_s` seconds; the oldest weights that acted count."""
        return cls(
            n_collected_steps=sum(part.n_collected_steps for part in parts),
            n_collected_episodes=sum(part.n_collected_episodes for part in parts),
            returns=np.concatenate([np.zeros(0), *(part.returns for part in parts)]),
            lens=np.concatenate([_no_slots(), *(part.lens for part in parts)]),
            collect_time_s=collect_time_s,
            policy_version=min((part.policy_version for part in parts), default=0),
            idxs=np.concatenate([_no_slots(), *(part.idxs for part in parts)]),
        )
