"""Tickets: bound to user, server and time."""

from __future__ import annotations

import hashlib
import hmac

import pytest

from worldloop.core.clock import ManualClock
from worldloop.core.errors import TicketError
from worldloop.session.tickets import Tickets


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def tickets(clock: ManualClock) -> Tickets:
    return Tickets(secret="s3cret", server_id="box-1", clock=clock)


def test_a_minted_ticket_admits(clock: ManualClock) -> None:
    tickets(clock).check("ann.b", tickets(clock).mint("ann.b", ttl_s=60))


def test_the_form_is_the_published_one(clock: ManualClock) -> None:
    expiry = int(clock.time()) + 60
    claim = f"ann.box-1.{expiry}"
    signature = hmac.new(b"s3cret", claim.encode(), hashlib.sha256).hexdigest()
    assert tickets(clock).mint("ann", ttl_s=60) == f"{claim}.{signature}"
    tickets(clock).check("ann", f" {claim}.{signature.upper()} ")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda t: "", "malformed"),
        (lambda t: t.rpartition(".")[0], "malformed"),
        (lambda t: t.replace("ann", "bob"), "another user"),
        (lambda t: t.replace("box-1", "box-2"), "another server"),
        (lambda t: t[:-1] + ("0" if t[-1] != "0" else "1"), "signature"),
        (lambda t: t[:-1] + "é", "signature"),
        (lambda t: t.replace(t.split(".")[2], "1e9"), "expiry"),
        (lambda t: t.replace(t.split(".")[2], str(int(t.split(".")[2]) + 1)), "signature"),
    ],
)
def test_anything_changed_is_refused_with_its_reason(clock: ManualClock, change, why) -> None:
    with pytest.raises(TicketError, match=why) as refusal:
        tickets(clock).check("ann", change(tickets(clock).mint("ann", ttl_s=60)))
    assert "s3cret" not in str(refusal.value)


def test_a_ticket_ends(clock: ManualClock) -> None:
    ticket = tickets(clock).mint("ann", ttl_s=60)
    clock.shift(60)
    tickets(clock).check("ann", ticket)
    clock.shift(1)
    with pytest.raises(TicketError, match="expired"):
        tickets(clock).check("ann", ticket)


def test_without_a_secret_everyone_is_admitted(clock: ManualClock) -> None:
    open_server = Tickets(secret=None, server_id=None, clock=clock)
    open_server.check("ann", None)
    assert not open_server.required
    with pytest.raises(ValueError, match="no ticket secret"):
        open_server.mint("ann", ttl_s=1)


def test_half_a_configuration_is_refused(clock: ManualClock) -> None:
    with pytest.raises(ValueError, match="together"):
        Tickets(secret="s", server_id=None, clock=clock)
