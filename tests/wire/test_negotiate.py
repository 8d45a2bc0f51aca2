"""Routes: every combination of what is asked for, what there is to send and what is offered."""

from __future__ import annotations

from itertools import product

import pytest

from replay_service.errors import TransportUnavailableError
from replay_service.wire.negotiate import DISTRIBUTED, RAY, TRANSPORTS, Offer, Support, negotiate

CASES = list(product(TRANSPORTS, TRANSPORTS, ["", "info.name (str)"], ["", "the reply"], [(), ("gloo",)]))


@pytest.mark.parametrize(("mine", "theirs", "obstacle", "reply", "backends"), CASES)
def test_every_combination(mine: str, theirs: str, obstacle: str, reply: str, backends: tuple[str, ...]) -> None:
    offer, support = Offer(mine, obstacle, reply), Support(theirs, backends)
    wanted = mine if mine != "auto" else theirs
    dense = not obstacle and not reply
    if wanted == DISTRIBUTED and not (dense and backends):
        with pytest.raises(TransportUnavailableError, match="transport='auto' or 'ray'"):
            negotiate(offer, support)
        return
    route = negotiate(offer, support)
    assert route.kind == (RAY if wanted == RAY or not dense or not backends else DISTRIBUTED)
    assert route.why


def test_the_reason_names_what_is_in_the_way() -> None:
    support = Support("auto", ("gloo",))
    assert "info.name (str)" in negotiate(Offer("auto", "info.name (str)"), support).why
    assert "no GPU" in negotiate(Offer("auto"), Support("auto", (), "no GPU")).why
    with pytest.raises(TransportUnavailableError, match=r"info\.name \(str\)"):
        negotiate(Offer("distributed", "info.name (str)"), support)
    with pytest.raises(TransportUnavailableError, match="no GPU"):
        negotiate(Offer("distributed"), Support("auto", (), "no GPU"))


@pytest.mark.parametrize(("mine", "theirs"), [("tcp", "auto"), ("auto", "tcp"), ("", "ray")])
def test_a_transport_that_does_not_exist(mine: str, theirs: str) -> None:
    with pytest.raises(ValueError, match="must be one of"):
        negotiate(Offer(mine), Support(theirs))
