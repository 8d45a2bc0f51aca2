"""What a handle makes of records that arrive: it says which sources it knows, and runs the transforms that the service left to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from clients.decoding import decode_records, decode_sample
from clients.requests import sample_request
from replay_service.wire.message import Message

__all__ = ["Reception"]


class Reception:
    """Keeps, for one handle in one process, how much of the service's table of sources is known here, and the transforms left to it.

    It may be used by several threads.

    Args:
        transforms: asks the service for the transforms that run here; None: there are none.
    """

    def __init__(self, transforms: Callable[[], Any]) -> None:
        self._ask = transforms
        # Token of the service's table and the number of its sources that are known here; one tuple, so that threads see both or neither.
        self._known = (0, 0)
        self._chain: Any = None
        self._chain_of = (0, 0)

    @property
    def has_transforms(self) -> bool:
        """Whether records go through transforms here, as far as replies have told."""
        return self._chain is not None

    def request(self, batch_size: int | None, return_info: bool) -> Message:
        """The request for a sample.

        Raises:
            TypeError, ValueError: `batch_size` is none.
        """
        request = sample_request(batch_size, return_info)
        request.arguments = (*request.arguments, *self._known)
        return request

    def sample(self, reply: Message, return_info: bool) -> Any:
        """The sampled data, or `(data, info)`."""
        token, known = reply.argument(1), reply.argument(2)
        if self._known[0] != token or self._known[1] < known:
            self._known = (token, known)
        chain = self._chain_for(reply)
        if chain is None:
            return decode_sample(reply, return_info)
        # Where info was merged it came as part of the data, and must go along with it.
        data, info = decode_sample(reply, True)
        merges = reply.objects is None and bool(reply.statics["merges"])
        data = chain.sampled(data, info, merges)
        return (data, info) if return_info else data

    @staticmethod
    def is_left(reply: Message) -> bool:
        """Whether the service left transforms of the records in `reply` to its clients."""
        return reply.argument(0) != 0

    def records(self, reply: Message) -> Any:
        """Records read by index."""
        chain = self._chain_for(reply)
        data = decode_records(reply)
        return data if chain is None else chain.forward(data)

    def _chain_for(self, reply: Message) -> Any:
        """The transforms that the service left to its clients when it wrote `reply`."""
        left, token = reply.argument(0), reply.argument(1)
        if left == 0:
            return None
        if self._chain_of != (left, token):
            self._chain = self._ask()
            self._chain_of = (left, token)
        return self._chain
