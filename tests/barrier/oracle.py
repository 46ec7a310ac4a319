"""What must hold in every committed cut of the model, and when everything has drained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cutline.barrier import ChannelTable, Member
from cutline.barrier.commit import GlobalCommit
from cutline.barrier.cut import Departed, claims_of, in_flight
from cutline.barrier.recovery import Recovery

from .model import Hosts, Image, State, Wrong, ids_of


class Oracle(Hosts):
    """The half of the world that judges. It knows states, and of the automata only what images hold."""

    commit: GlobalCommit
    recovery: Recovery
    epoch: int
    rosters: dict[int, tuple[Member, ...]]
    left_at: dict[int, dict[Member, State]]
    departed_at: dict[int, Mapping[Member, Departed]]
    # Who came from which spawn: spawner and its number.
    origins: dict[Member, tuple[Member, int]]

    def check_cut(self, checkpoint: int) -> None:
        """For each channel: applied, then the channel's state, is exactly what was sent."""
        roster = self.rosters[checkpoint]
        images: dict[Member, Image] = {}
        for member in roster:
            if (checkpoint, member) not in self.durable:
                raise Wrong(f"{checkpoint} commits without the image of {member.name}")
            images[member] = self.images[checkpoint, member]
        claims = {member: claims_of(image.table) for member, image in images.items()}
        for member, state in self.left_at[checkpoint].items():
            images[member] = Image(state, ChannelTable({}, {}))
        self.check_spawns(checkpoint, images)
        flying = 0
        for sender in {**images, **{p: None for i in images.values() for p in i.table.incoming}}:
            for receiver in {**images, **{p: None for i in images.values() for p in i.state.sent}}:
                flying += self.check_channel(checkpoint, images, sender, receiver)
        if flying != in_flight(claims, self.departed_at[checkpoint]):
            raise Wrong(f"{flying} messages are in flight in cut {checkpoint}")
        self.seen["cut with messages in flight"] += flying > 0

    def check_spawns(self, checkpoint: int, images: Mapping[Member, Image]) -> None:
        """Each spawn of the cut is still to be done, or done."""
        for spawner, image in images.items():
            pending = [spawn.number for spawn in image.table.spawns]
            for number in image.state.spawned:
                born = [member for member in images if self.origins.get(member) == (spawner, number)]
                if len(born) > 1 or not (born or number in pending):
                    raise Wrong(f"cut {checkpoint}: spawn {number} of {spawner.name} became {born}")
            if not set(pending) <= set(image.state.spawned):
                raise Wrong(f"cut {checkpoint}: {spawner.name} keeps spawns {pending} that it never made")
            self.seen["cut with a spawn under way"] += bool(pending)

    def check_channel(
        self, checkpoint: int, images: dict[Member, Image], sender: Member, receiver: Member
    ) -> int:
        out, into = images.get(sender), images.get(receiver)
        sent = out.state.sent.get(receiver, []) if out else []
        applied = into.state.applied.get(sender, []) if into else []
        held: dict[int, int] = {}
        parts = [
            into.table.incoming.get(sender) if into else None,
            out.table.outgoing.get(receiver) if out else None,
        ]
        if into and parts[0] and parts[0].processed != len(applied):  # type: ignore[union-attr]
            raise Wrong(f"cut {checkpoint}: {len(applied)} applied, the image says {parts[0]}")
        for part in parts:
            for frame in part.frames if part else ():
                for number, message in ids_of(frame).items():
                    if held.setdefault(number, message) != message:
                        raise Wrong(f"cut {checkpoint}: two messages have number {number}")
        flying = [held[number] for number in sorted(held) if number > len(applied)]
        if applied + flying != sent or (flying and max(held) != len(sent)):
            raise Wrong(
                f"cut {checkpoint}, {sender.name} -> {receiver.name}: sent {sent}, "
                f"applied {applied}, in the channel {held}"
            )
        self.seen["message of a cut in both images"] += bool(
            parts[0] and parts[1] and set(parts[0].frames) & set(parts[1].frames)
        )
        return len(flying)

    def check_drained(self) -> None:
        if self.recovery.restoring or self.commit.undecided:
            raise Wrong(f"stuck: {self.recovery.state}, undecided {self.commit.undecided}")
        for host in self.hosts.values():
            endpoint = host.endpoint
            if endpoint is None or not host.flowing:
                raise Wrong(f"stuck: {host.member.name} does not flow")
            if endpoint.snapshot.full or endpoint.snapshot.captured or endpoint.queued_bytes:
                raise Wrong(f"stuck: {host.member.name} holds {endpoint.snapshot.full}")
            if endpoint.outbox_bytes or any(end.pending or end.frames for end in endpoint.outgoing.values()):
                raise Wrong(f"stuck: {host.member.name} keeps {endpoint.outbox_bytes} bytes for others")
            if host.state.leaving:
                raise Wrong(f"stuck: {host.member.name} does not come to leave")
            named = [peer for peer in (*endpoint.incoming, *endpoint.outgoing) if peer in self.left]
            if named:
                raise Wrong(f"{host.member.name} still speaks of {named}, who have left")
            self.check_born(host.member, host.state.spawned, endpoint.spawns)
        states = {**{member: host.state for member, host in self.hosts.items()}, **self.left}
        for (sender, receiver), sent in self.history[self.epoch].items():
            applied = states[receiver].applied.get(sender, [])
            if applied != sent:
                raise Wrong(f"{sender.name} -> {receiver.name}: sent {sent}, applied {applied}")
        for receiver, state in states.items():
            for sender, applied in state.applied.items():
                if applied != self.history[self.epoch].get((sender, receiver), []):
                    raise Wrong(f"{receiver.name} applied {applied} of {sender.name}, never sent")

    def check_born(self, spawner: Member, spawned: list[int], pending: Mapping[int, Any]) -> None:
        for number in spawned:
            everybody = {**self.hosts, **self.left}
            born = [member for member in everybody if self.origins.get(member) == (spawner, number)]
            if pending or len(born) != 1:
                raise Wrong(f"spawn {number} of {spawner.name} became {born}, {pending} are under way")
