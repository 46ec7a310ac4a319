"""The coordinator of the model where people come and go: births, departures, losses, recoveries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from cutline.barrier import LocalSnapshot, Member, actions, commit, recovery, wire
from cutline.barrier.cut import Departed
from cutline.barrier.endpoint import Endpoint
from cutline.barrier.events import Initiated, Told

from .model import RUN, Host, Wrong
from .oracle import Oracle


class Membership(Oracle, ABC):
    """See the module's head."""

    births = 0
    newest = 0
    newest_committed = 0
    floor = 0
    # Who had left by the cut that everybody went back to last: what `Resume` says.
    left_then: Mapping[Member, Departed] = {}
    manifests: list[int]
    rows: list[commit.Decide]
    confirmed: list[recovery.Confirmed]

    def birth(self) -> Member:
        self.births += 1
        taken = [member.name for member in self.hosts]
        free = [member.name for member in self.left if member.name not in taken]
        if free and self.rng.random() < 0.5:
            self.seen["name used again"] += 1
            return Member(self.rng.choice(free), self.births)
        return Member("ABCDEFGHIJKLMNOPQRSTUVWXYZ"[(self.births - 1) % 26], self.births)

    def tell(self, members: Sequence[Member], event: Any) -> None:
        for member in members:
            if member in self.hosts:
                self.hosts[member].orders.append(event)

    def initiated(self) -> Initiated:
        return Initiated(self.epoch, tuple(self.commit.undecided), self.newest, self.newest_committed)

    @abstractmethod
    def coordinate(self, event: commit.Event) -> None:
        """One event into the commit automaton, its actions performed."""

    @abstractmethod
    def write_row(self, row: commit.Decide) -> None:
        """The catalog's compare-and-set."""

    def spawn(self) -> None:
        """Somebody is born, and spoken to by one who has not captured what was begun before."""
        if self.recovery.restoring or len(self.hosts) >= 5:
            return
        host = self.bring_up()
        spawner = self.rng.choice([other for other in self.hosts.values() if other is not host])
        if spawner.works and not spawner.state.leaving:
            self.say(spawner, 1, self.rng.randint(1, 3), [host.member])

    def bear(self, spawner: Host, number: int) -> None:
        """A participant asks for a newborn, for the first time or again."""
        if self.recovery.restoring or spawner.epoch != self.epoch or spawner.retired:
            return
        origin = spawner.member, number
        known = {**self.hosts, **self.commit.departed}
        newborn = next((member for member in known if self.origins.get(member) == origin), None)
        self.seen["spawn asked for again"] += newborn is not None
        if newborn is None:
            newborn = self.bring_up().member
            self.origins[newborn] = origin
        self.say_of(spawner, "born", number, newborn)
        if newborn in self.left:
            self.seen["spawn of one that left asked for again"] += 1
            self.say_left(spawner, newborn)

    def say_of(self, host: Host, what: str, number: int, member: Member) -> None:
        """The coordinator's word on who there is, with what is undecided when it is said."""
        word = what, number, member
        undecided = tuple(self.commit.undecided)
        host.orders.append(Told(self.epoch, undecided, self.newest, self.newest_committed, word))

    def say_left(self, host: Host, member: Member) -> None:
        self.say_of(host, "left", self.taken(member, host.member), member)

    def taken(self, member: Member, sender: Member) -> int:
        """How many messages of `sender` one that left has taken, as far as the coordinator knows."""
        end = self.commit.departed.get(member) or self.left_then.get(member)
        into = end.claims.incoming.get(sender) if end is not None else None
        return into.processed if into is not None else 0

    def depart(self, host: Host, report: actions.Depart) -> None:
        """Somebody has nothing more to do; from now on it is in no roster."""
        member = host.member
        late = self.recovery.restoring or host.epoch != self.epoch or host.retired or member in self.left
        if late or self.hosts.get(member) is not host:
            return
        claims = wire.claims_from_doc(wire.claims_to_doc(report.channels))
        self.left[member] = host.state.copy()
        self.seen["left"] += 1
        self.seen["left while a checkpoint was open"] += bool(self.commit.undecided)
        self.coordinate(commit.Leaves(member, Departed(claims, self.origins.get(member))))
        for peer in {**claims.incoming, **claims.outgoing}:
            if peer in self.hosts:
                self.say_left(self.hosts[peer], member)

    def bring_up(self) -> Host:
        host = Host(self.birth(), epoch=self.epoch)
        undecided = self.commit.undecided
        self.seen["born into an open checkpoint"] += bool(undecided)
        host.endpoint = Endpoint(
            host.member,
            RUN,
            self.epoch,
            LocalSnapshot.newborn(self.newest, undecided),
            window=self.faults.window,
            mailbox_bytes=self.faults.mailbox,
        )
        self.hosts[host.member] = host
        host.flowing = True
        return host

    def crash(self) -> None:
        host = self.rng.choice(list(self.hosts.values()))
        host.dead = True
        for link in self.links:
            if host in link.ends and not link.broken:
                self.break_link(link)

    def decide_all(self) -> None:
        while self.rows:
            self.write_row(self.rows.pop(self.rng.randrange(len(self.rows))))
        self.manifests.clear()
        for number, _ in self.commit.undecided:
            self.coordinate(commit.GiveUp(number, "recovery"))
            self.write_row(self.rows.pop())

    def recover(self, checkpoint: int | None = None) -> None:
        """Every begun id is decided, the epoch raised, a committed cut chosen; lost hosts start again."""
        self.decide_all()
        cuts = [n for n, committed in self.fates.items() if committed and n <= self.newest_committed]
        if checkpoint is None:
            checkpoint = self.rng.choice(cuts) if self.rng.random() < 0.3 else max(cuts)
        self.seen["recovery during a recovery"] += self.recovery.restoring and self.epoch > 0
        self.seen["recovery"] += self.epoch > 0
        self.epoch += 1
        self.floor = self.newest
        self.newest_committed = checkpoint
        members = self.rosters[checkpoint]
        images = {member: self.images.get((checkpoint, member)) for member in members}
        # Who is only known as a receiver was born too late for the cut: it starts again, with nothing.
        named = {p: None for image in images.values() if image for p in image.table.outgoing}
        self.left = dict(self.left_at[checkpoint])
        named = {member: None for member in named if member not in self.left}
        old, self.hosts = self.hosts, {}
        self.history[self.epoch] = {
            (member, peer): list(ids)
            for member, image in images.items()
            if image
            for peer, ids in image.state.sent.items()
        }
        for member, state in self.left.items():
            for peer, ids in state.sent.items():
                self.history[self.epoch][member, peer] = list(ids)
        for member in {**images, **named}:
            host = old.pop(member, None)
            if host is None or host.dead or (host.epoch and self.rng.random() < 0.3):
                self.retire(host)
                host = Host(member)
            self.hosts[member] = host
        for host in old.values():
            self.retire(host)
        self.left_then = self.departed_at[checkpoint]
        self.commit.handle(commit.WentBack(self.left_then))
        self.recovering(recovery.Begin(self.epoch, checkpoint, tuple(self.hosts)))

    def retire(self, host: Host | None) -> None:
        """A host that was given up: dead, or only paused and soon to go on in its old epoch."""
        if host is not None:
            host.retired = True
            if not host.dead and host.endpoint is not None:
                self.seen["zombie"] += 1
                self.zombies.append(host)

    def recovering(self, event: recovery.Begin | recovery.Confirmed) -> None:
        for action in self.recovery.handle(event):
            if isinstance(action, recovery.RollBack):
                self.hosts[action.member].orders.append(action)
            else:
                late = [host.member.name for host in self.hosts.values() if host.epoch != action.epoch]
                if late:
                    raise Wrong(f"data flows in epoch {action.epoch}, {late} are not restored")
                self.tell(action.roster, action)

    def confirm_all(self) -> None:
        while self.confirmed:
            self.recovering(self.confirmed.pop(0))

    def obey(self, host: Host, order: Any) -> None:
        """A word of the coordinator arrives."""
        if host.dead:
            return
        if isinstance(order, recovery.RollBack):
            if host.epoch < order.epoch == self.epoch:
                self.restore(host, order.epoch, order.checkpoint, self.floor, self.rosters[order.checkpoint])
            if host.epoch == order.epoch:
                self.confirmed.append(recovery.Confirmed(host.member, order.epoch))
        elif isinstance(order, recovery.Resume):
            if host.epoch == order.epoch and not host.flowing:
                for member in self.left_then:
                    self.part(host, member, self.taken(member, host.member))
                self.resume(host)
        else:
            self.feed(host, order)

    def repeat(self) -> None:
        """The coordinator says again what was not answered."""
        state = self.recovery.state
        if isinstance(state, recovery.Restoring):
            for member in state.waiting:
                self.hosts[member].orders.append(recovery.RollBack(member, state.epoch, state.checkpoint))
            return
        for host in self.hosts.values():
            if host.epoch == self.epoch and not host.flowing:
                host.orders.append(recovery.Resume(self.epoch, 0, ()))
            host.orders.append(self.initiated())
            if host.works and host.endpoint:
                self.ask_again(host)
                for member in {**host.endpoint.incoming, **host.endpoint.outgoing}:
                    if member in self.left and member != host.member:
                        self.say_left(host, member)
