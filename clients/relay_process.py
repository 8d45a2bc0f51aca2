"""The relay: a process that joins Ray in place of a forked one, which cannot, and says over it what a rendezvous needs.

`python -m clients.relay_process ADDRESS` reads requests from its input and answers on its output, one after the other. It ends
with its input, so it never outlives the process that started it.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from typing import Any

from clients.introductions import RayIntroduction
from clients.joining import join_ray
from clients.relay_frames import bytes_of, frame_of, taken_from, text_of
from replay_service.errors import ReplayError
from replay_service.wire.failures import code_of, words_of

__all__ = ["Answering"]

INPUT = 0
OUTPUT = 1
CHUNK_BYTES = 1 << 16


class Answering:
    """Answers requests, each a dict with `verb`, `service` (name and namespace), `timeout_s` and the verb's own arguments.

    Args:
        address: the Ray to join, at the first request.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._known: dict[tuple[str, str], RayIntroduction] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The reply: `result`, or `error` (code and text)."""
        try:
            join_ray(self._address)
            return {"id": request["id"], "result": self._done(request)}
        except ReplayError as error:
            return {"id": request["id"], "error": [code_of(error), words_of(error)]}

    def _done(self, request: dict[str, Any]) -> Any:
        verb, timeout_s = request["verb"], request["timeout_s"]
        name, namespace = request["service"]
        service = self._known.setdefault((name, namespace), RayIntroduction(name, namespace))
        if verb == "describe":
            return _plain(service, timeout_s)
        if service.actor is None:
            service.describe(timeout_s)
        if verb == "open_channel":
            number, token = service.open_channel(request["backend"], timeout_s)
            return [number, text_of(token)]
        if verb == "look":
            return text_of(service.look(request["number"], request["key"], timeout_s))
        if verb == "put":
            service.put(request["number"], request["key"], bytes_of(request["value"]) or b"", timeout_s)
        elif verb == "tell_of":
            service.tell_of(request["client"], request["process"])
        elif verb == "tell_no_more_of":
            service.tell_no_more_of(request["client"], timeout_s)
        else:
            raise ReplayError(f"verb ({verb!r}) must be one of the relay's")
        return None


def _plain(service: RayIntroduction, timeout_s: float) -> dict[str, Any]:
    """What the service says of itself, as far as JSON can hold it."""
    known = service.describe(timeout_s)
    said = {key: known[key] for key in ("columnar", "transport", "backends")}
    return {**said, "has_transforms": known["transforms"] is not None, "node": service.node_address()}


def _end_with_input() -> None:
    """Ends this process when nobody can write to its input any more, whatever it is doing."""
    hangup = select.poll()
    hangup.register(INPUT, 0)  # a hangup is reported in any case
    hangup.poll()
    os._exit(0)


def main() -> None:
    """Answers until its input ends."""
    threading.Thread(target=_end_with_input, daemon=True).start()
    output = os.dup(OUTPUT)
    os.dup2(2, OUTPUT)  # what anyone prints must not get among the answers
    answering, received = Answering(sys.argv[1]), bytearray()
    while chunk := os.read(INPUT, CHUNK_BYTES):
        received += chunk
        while (request := taken_from(received)) is not None:
            reply = memoryview(frame_of(answering.answer(request)))
            while reply:
                reply = reply[os.write(output, reply) :]
    os._exit(0)  # Ray sees the end of a process; its own farewell takes half a second


if __name__ == "__main__":
    main()
