"""Links between machines: gRPC with a certificate on both sides. What all links promise: test_links.py."""

from __future__ import annotations

import grpc
import pytest

from cutline.errors import MissingPackage, PortInUse, RefusedOption
from cutline.participant import places
from cutline.participant.lanes import Reassembler
from cutline.participant.places import both, far_end, machine_id, nearest
from cutline.participant.tls import credentials_of
from cutline.participant.transport import WRONG_TOKEN, LinkUp, PacketIn
from cutline.participant.transport_grpc import METHOD, GrpcTransport
from cutline.participant.transport_mixed import MixedTransport
from tests.participant.peer import KINDS
from tests.participant.test_links import (
    SOON,
    End,
    MakeEnd,
    make_end,
    make_peer,
    test_a_stopped_peer_keeps_its_link,
    test_control_overtakes_64_megabytes,
    test_forty_links_and_no_descriptor_is_left,
    test_greetings_and_packets_both_ways,
    test_sigkill_of_a_dialer_is_seen_by_the_acceptor,
    test_what_was_accepted_arrives_before_the_link_ends,
    test_wrong_token_is_refused_on_every_lane,
)

__all__ = (
    "kind",
    "make_end",
    "make_peer",
    "test_a_stopped_peer_keeps_its_link",
    "test_control_overtakes_64_megabytes",
    "test_forty_links_and_no_descriptor_is_left",
    "test_greetings_and_packets_both_ways",
    "test_sigkill_of_a_dialer_is_seen_by_the_acceptor",
    "test_what_was_accepted_arrives_before_the_link_ends",
    "test_wrong_token_is_refused_on_every_lane",
)


@pytest.fixture
def kind() -> str:
    return "tls"


def test_a_killed_peers_port_is_vacant(make_end: MakeEnd) -> None:
    server = make_end("unix:")
    server.transport.close()
    refused = make_end().refused(server.address)
    assert refused.gone and server.address in refused.reason


def test_a_port_in_use_is_named(make_end: MakeEnd) -> None:
    first = make_end("unix:")
    with pytest.raises(PortInUse, match=first.address):
        End("tls", first.address)


@pytest.mark.parametrize("address", ["tls:", "tls:name:1", "tls:127.0.0.1:70000", "tls:127.0.0.1"])
def test_malformed_addresses(address: str) -> None:
    with pytest.raises(RefusedOption):
        End("tls", address)


def _speak(channel: grpc.Channel) -> grpc.StatusCode:
    """Calls with the right token in the metadata; how it was answered."""
    metadata = (("cutline-token-bin", b"secret"), ("cutline-wire", "1"), ("cutline-link", "aa"))
    call = channel.stream_stream(METHOD)(
        iter([b"x"]), metadata=(*metadata, ("cutline-lane", "data")), timeout=SOON
    )
    with pytest.raises(grpc.RpcError) as raised:
        next(call)
    code: grpc.StatusCode = raised.value.code()
    return code


def test_the_right_token_without_the_runs_certificate_opens_nothing(
    make_end: MakeEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In clear, without a certificate, and with one that another run's authority has signed."""

    def forbidden(*_: object) -> None:
        raise AssertionError("looked at what a stranger sent")

    server = make_end("unix:")
    monkeypatch.setattr(Reassembler, "feed", forbidden)
    monkeypatch.setattr(GrpcTransport, "accept_lane", forbidden)
    where = server.address.removeprefix("tls:")
    ours, theirs = credentials_of(b"secret"), credentials_of(b"another secret")
    named = (("grpc.ssl_target_name_override", ours.name),)
    with grpc.insecure_channel(where) as channel:
        assert _speak(channel) is grpc.StatusCode.UNAVAILABLE
    nobody = grpc.ssl_channel_credentials(ours.authority)
    stranger = grpc.ssl_channel_credentials(ours.authority, theirs.key, theirs.certificate)
    for credentials in (nobody, stranger):
        with grpc.secure_channel(where, credentials, options=named) as channel:
            assert _speak(channel) is grpc.StatusCode.UNAVAILABLE


def test_a_listener_of_another_run_is_told_nothing(make_end: MakeEnd) -> None:
    """Who dials checks as well: the token never leaves for a stranger."""
    stranger = make_end("unix:", token="another")
    assert make_end().refused(stranger.address).reason == WRONG_TOKEN
    assert stranger.events.empty()


def test_a_run_has_one_authority_and_each_process_its_own_key() -> None:
    first = credentials_of(b"of a run")
    credentials_of.cache_clear()
    second = credentials_of(b"of a run")
    assert first.name == second.name != credentials_of(b"of another").name
    assert first.key != second.key and first.certificate != second.certificate
    assert b"of a run" not in first.authority + first.certificate + first.key


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cryptography", None)
    credentials_of.cache_clear()
    with pytest.raises(MissingPackage, match=r"cutline\[ray\]"):
        credentials_of(b"secret")


# -- two ends ------------------------------------------------------------------------------------------


def test_an_address_with_two_ends_is_dialed_at_the_nearer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    address = both("unix:/s", "tls:10.0.0.1:7")
    assert nearest(address) == "unix:/s" and far_end(address) == "tls:10.0.0.1:7"
    monkeypatch.setattr(places, "machine_id", lambda: "another")
    assert nearest(address) == "tls:10.0.0.1:7"
    assert nearest("unix:/s") == both("unix:/s", "") == "unix:/s"
    assert far_end("unix:/s") == ""
    with pytest.raises(RefusedOption, match="MACHINE"):
        nearest("a|b")
    assert len(machine_id()) == 16


@pytest.mark.parametrize("here", [True, False])
def test_one_listener_at_both_ends(make_end: MakeEnd, monkeypatch: pytest.MonkeyPatch, here: bool) -> None:
    """As the coordinator listens, and as participants do."""
    for made in (GrpcTransport, MixedTransport):
        monkeypatch.setitem(KINDS, "double", lambda *a, made=made: made(*a, "tls:127.0.0.1:0"))
        with monkeypatch.context() as patch:
            server = End("double", "unix:")
            client = End("double")
            if not here:
                patch.setattr(places, "machine_id", lambda: "another")
            link = client.dial(server.address).link
            server.next(LinkUp)
            link.send(b"one")
            assert server.next(PacketIn).payload == b"one"
        client.transport.close()
        server.transport.close()
