"""References to frames, as frames."""

from __future__ import annotations

from typing import Any, Literal

import torch

from replay_service.errors import key_name
from replay_service.transforms.transform import Keys, Transform, copied, entry, keys_of

__all__ = ["DecodeVideoTransform"]

Place = Literal["service", "client"]
PLACES = ("service", "client")


class DecodeVideoTransform(Transform):
    """Decodes entries that are `VideoClipRef`s as records are sampled or read, so that only references are stored.

    Frames of a file are read together, each once, and neighbours as one range: a slice or window of steps is one ranged read.

    Args:
        in_keys: entries with references.
        out_keys: where frames go, `[B, *ref, C, H, W]`; None: in place of the references.
        device, dtype: where they come out, and as what; None: as the references say, or else on their device, as uint8.
        decode: where that happens if the buffer lives in a service. `"service"`: there, where the files must be; frames travel.
            `"client"`: at whoever samples, who must see the files under the same names; references travel, 16 bytes a frame, and this
            transform and all behind it run at the handle, in `prefetch` on threads. A buffer of one's own does both alike.

    Raises:
        TypeError: a key is no string and no tuple of strings, or `dtype` is none.
        ValueError: there are no `in_keys`, not as many keys on both sides, or `decode` is neither.
    """

    def __init__(
        self,
        in_keys: Keys,
        out_keys: Keys | None = None,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        decode: Place = "service",
    ) -> None:
        self.in_keys = keys_of("in_keys", in_keys)
        self.out_keys = keys_of("out_keys", out_keys, self.in_keys)
        if not self.in_keys or len(self.in_keys) != len(self.out_keys):
            raise ValueError(
                f"out_keys ({len(self.out_keys)}) must be as many as in_keys ({len(self.in_keys)}), at least one"
            )
        if decode not in PLACES:
            raise ValueError(f"decode ({decode!r}) must be one of {list(PLACES)}")
        if dtype is not None and not isinstance(dtype, torch.dtype):
            raise TypeError(f"dtype ({dtype!r}) must be a torch.dtype")
        self.device = None if device is None else torch.device(device)
        self.dtype = dtype
        self.decode: Place = decode

    @property
    def at_client(self) -> bool:
        """Whether a service leaves this transform, and those behind it, to its clients."""
        return self.decode == "client"

    def forward(self, data: Any) -> Any:
        """The batch with frames in `out_keys`; an error names the entry, the file and the rows concerned.

        Raises:
            KeyError: an entry is missing.
            TypeError: an entry is no reference.
            ImportError, FileNotFoundError, IndexError, ValueError, LookupError: as `VideoClipRef.decode`.
        """
        made = copied(self, data)
        for in_key, out_key in zip(self.in_keys, self.out_keys, strict=True):
            reference = entry(data, in_key)
            if not hasattr(type(reference), "decode"):
                raise TypeError(f"{key_name(in_key)} must be a VideoClipRef; got {type(reference).__name__}")
            try:
                frames = reference.decode(device=self.device, dtype=self.dtype)
            except (OSError, ValueError, LookupError) as error:
                raise type(error)(f"{key_name(in_key)}: {error}") from error
            made.set(out_key, frames)
        return made

    def __repr__(self) -> str:
        return f"DecodeVideoTransform({self.in_keys}, {self.out_keys}, decode={self.decode!r})"
