"""The coordinator's half of the random model, the steps of a schedule, and its end: everything drains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cutline.barrier import LocalSnapshot, Member, actions, commit, recovery, wire
from cutline.barrier.cut import claims_of
from cutline.barrier.endpoint import Endpoint
from cutline.barrier.events import AtBoundary, CoordinatorOpened, Initiated, Settled, Told

from .model import DISK, RUN, Host, Wrong
from .oracle import Oracle

UNDECIDED = 4


class World(Oracle):
    """One system and one schedule of it."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        rng = self.rng
        self.commit = commit.GlobalCommit()
        self.recovery = recovery.Recovery(0)
        self.epoch = 0
        self.newest = 0
        self.floor = 0
        self.newest_committed = 0
        self.births = 0
        # Who hears nothing of the coordinator for a while.
        self.deaf: Member | None = None
        self.hasty = False
        self.rosters: dict[int, tuple[Member, ...]] = {}
        self.manifests: list[int] = []
        self.rows: list[commit.Decide] = []
        self.confirmed: list[recovery.Confirmed] = []
        # Who came from which spawn: spawner and its number.
        self.origins: dict[Member, tuple[Member, int]] = {}
        members = tuple(self.birth() for _ in range(rng.randint(2, 4)))
        self.rosters[0] = members
        self.fates[0] = True
        for member in members:
            self.hosts[member] = Host(member)
            self.durable.add((0, member))
        self.recover(0)
        for host in self.hosts.values():
            for order in (*host.orders, recovery.Resume(self.epoch, 0, ())):
                self.obey(host, order)
            host.orders.clear()
        self.confirm_all()

    def birth(self) -> Member:
        self.births += 1
        return Member("ABCDEFGHIJKLMNOPQRSTUVWXYZ"[(self.births - 1) % 26], self.births)

    # -- checkpoints ---------------------------------------------------------------------------

    def tell(self, members: tuple[Member, ...], event: Any) -> None:
        for member in members:
            if member in self.hosts:
                self.hosts[member].orders.append(event)

    def initiated(self) -> Initiated:
        return Initiated(self.epoch, tuple(self.commit.undecided), self.newest, self.newest_committed)

    def coordinate(self, event: commit.Event) -> None:
        for action in self.commit.handle(event):
            if isinstance(action, commit.Prepare):
                self.tell(tuple(self.hosts), self.initiated())
            elif isinstance(action, commit.WriteManifest):
                self.check_reports(action.checkpoint, action.reports)
                self.manifests.append(action.checkpoint)
            elif isinstance(action, commit.Decide):
                if "prove itself" in action.reason:
                    raise Wrong(f"cut {action.checkpoint} was refused: {action.reason}")
                self.rows.append(action)
            else:
                if self.fates.get(action.checkpoint) is not action.committed:
                    raise Wrong(f"{action.checkpoint} was announced before its row")
                self.seen["committed" if action.committed else "aborted"] += 1
                self.tell(action.roster, Settled(self.epoch, action.checkpoint, action.committed))

    def check_reports(self, checkpoint: int, reports: Mapping[Member, Mapping[str, Any]]) -> None:
        for member in self.rosters[checkpoint]:
            if reports[member] != {"checkpoint": checkpoint} or (checkpoint, member) not in self.durable:
                raise Wrong(f"{member.name} has not prepared {checkpoint}, its manifest is written")

    def begin(self) -> None:
        if self.recovery.restoring or len(self.commit.undecided) >= UNDECIDED:
            return
        self.newest += 1
        roster = self.rosters[self.newest] = tuple(self.hosts)
        self.seen["begun while another is undecided"] += bool(self.commit.undecided)
        self.coordinate(commit.Begun(self.newest, self.rng.random() < 0.3, roster, 0.0))

    def hear(self, host: Host, report: actions.Report | actions.Complain | actions.AskBirth) -> None:
        """What a participant reported reaches the coordinator."""
        if isinstance(report, actions.AskBirth):
            self.bear(host, report.spawn.number)
            return
        if isinstance(report, actions.Complain):
            self.coordinate(commit.Complained(host.member, report.checkpoint, report.reason))
            return
        claims = wire.claims_from_doc(wire.claims_to_doc(report.channels))
        if claims != claims_of(report.channels):
            raise Wrong(f"claims changed on their way: {claims}")
        self.coordinate(commit.Prepared(host.member, report.checkpoint, claims, report.image))

    def write_row(self, row: commit.Decide) -> None:
        """The catalog's compare-and-set; the first to come decides."""
        if row.checkpoint not in self.fates:
            if row.commit:
                self.check_cut(row.checkpoint)
                self.newest_committed = max(self.newest_committed, row.checkpoint)
            self.fates[row.checkpoint] = row.commit
        self.coordinate(commit.RowDecided(row.checkpoint, self.fates[row.checkpoint], row.reason))

    # -- births, ends, recovery ----------------------------------------------------------------

    def spawn(self) -> None:
        """Somebody is born, and spoken to by one who has not captured what was begun before."""
        if self.recovery.restoring or len(self.hosts) >= 5:
            return
        host = self.bring_up()
        spawner = self.rng.choice([other for other in self.hosts.values() if other is not host])
        if spawner.works:
            self.say(spawner, 1, self.rng.randint(1, 3), [host.member])

    def bear(self, spawner: Host, number: int) -> None:
        """A participant asks for a newborn, for the first time or again."""
        if self.recovery.restoring or spawner.epoch != self.epoch or spawner.retired:
            return
        origin = spawner.member, number
        newborn = next((member for member in self.hosts if self.origins.get(member) == origin), None)
        self.seen["spawn asked for again"] += newborn is not None
        if newborn is None:
            newborn = self.bring_up().member
            self.origins[newborn] = origin
        undecided = tuple(self.commit.undecided)
        word = number, newborn
        spawner.orders.append(Told(self.epoch, undecided, self.newest, self.newest_committed, word))

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
        old, self.hosts = self.hosts, {}
        self.history[self.epoch] = {
            (member, peer): list(ids)
            for member, image in images.items()
            if image
            for peer, ids in image.state.sent.items()
        }
        for member in {**images, **named}:
            host = old.pop(member, None)
            if host is None or host.dead or (host.epoch and self.rng.random() < 0.3):
                self.retire(host)
                host = Host(member)
            self.hosts[member] = host
        for host in old.values():
            self.retire(host)
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
            if host.works:
                self.ask_again(host)

    # -- steps ---------------------------------------------------------------------------------

    def step_packet(self) -> None:
        waits = [self.rng.random() < slow for slow in self.faults.slow]
        lanes = [lane for lane in self.lanes() if not waits[lane[2]]]
        if lanes:
            link, end, control = self.rng.choice(lanes)
            lane = link.lanes[end, control]
            index = self.rng.randrange(len(lane)) if self.rng.random() < self.faults.reorder else 0
            self.deliver(link, end, control, index, self.rng.random() < self.faults.double)

    def step_host(self) -> None:
        kind = self.rng.random()
        able = [host for host in self.everybody() if host.works and host.endpoint]
        if kind < 0.5:
            able = [host for host in able if host.endpoint and host.endpoint.head]
        if not able:
            return
        host = self.rng.choice(able)
        if kind < 0.5:
            self.work(host)
        elif kind < 0.75:
            self.flush(host)
        elif kind < 0.9:
            if self.rng.random() < self.faults.busy:
                self.say(host, self.rng.randint(0, 3), self.rng.choice((1, 3, 12, 30)))
        elif kind < 0.97:
            self.feed(host, AtBoundary())
        elif host.endpoint is not None and host.endpoint.outgoing:
            channel = self.rng.choice(list(host.endpoint.outgoing.values()))
            channel.budget = self.rng.choice((0, 1, 20, 1 << 20))

    def step_notice(self) -> None:
        waiting = [host for host in self.everybody() if host.notices]
        if waiting:
            self.notice(self.rng.choice(waiting))

    def step_order(self) -> None:
        waiting = [host for host in self.hosts.values() if host.orders and host.member != self.deaf]
        if waiting:
            host = self.rng.choice(waiting)
            index = self.rng.randrange(len(host.orders))
            again = self.rng.random() < self.faults.double
            order = host.orders[index] if again else host.orders.pop(index)
            vital = isinstance(order, (recovery.RollBack, recovery.Resume))
            if self.rng.random() >= self.faults.lose * (0.3 if vital else 1):
                self.obey(host, order)

    def step_persist(self) -> None:
        waiting = [host for host in self.everybody() if host.persisting and not host.dead]
        if waiting:
            self.persist(self.rng.choice(waiting), self.rng.random() < 0.03)

    def step_report(self) -> None:
        if self.confirmed and self.rng.random() < 0.5:
            self.recovering(self.confirmed.pop(self.rng.randrange(len(self.confirmed))))
        elif self.reports:
            index = self.rng.randrange(len(self.reports))
            again = self.rng.random() < self.faults.double
            host, report = self.reports[index] if again else self.reports.pop(index)
            if self.rng.random() >= self.faults.lose:
                self.hear(host, report)

    def step_coordinator(self) -> None:
        if self.manifests and self.rng.random() < 0.5:
            number = self.manifests.pop()
            failed = self.rng.random() < 0.1
            self.coordinate(commit.ManifestFailed(number, DISK) if failed else commit.ManifestDurable(number))
        elif self.rows:
            self.write_row(self.rows.pop(self.rng.randrange(len(self.rows))))
        elif self.hasty and self.commit.undecided:
            self.coordinate(commit.GiveUp(self.commit.undecided[-1].checkpoint, "in haste"))

    def step_rare(self) -> None:
        kind = self.rng.random()
        undecided = self.commit.undecided
        if kind < 0.35:
            self.begin()
        elif kind < 0.6:
            self.repeat()
        elif kind < 0.72 and undecided:
            self.coordinate(commit.GiveUp(self.rng.choice(undecided).checkpoint, "overdue"))
        elif kind < 0.85:
            self.feed(self.rng.choice(list(self.hosts.values())), CoordinatorOpened())
        elif kind < 0.97:
            if self.rng.random() < 0.5:
                self.begin()
            able = [host for host in self.hosts.values() if host.works and host.endpoint]
            if able and len(self.hosts) < 6 and self.rng.random() < 0.5:
                self.make(self.rng.choice(able))
            else:
                self.spawn()
        elif kind < 0.98:
            self.crash()
        elif kind > 0.99:
            self.recover()
        if self.rng.random() < 0.3 and any(host.dead for host in self.hosts.values()):
            self.recover()

    def step_break(self) -> None:
        if self.links:
            link = self.rng.choice(self.links)
            if not link.broken:
                self.break_link(link)

    def run(self, steps: int = 800) -> None:
        """The whole schedule: faults, then calm, a checkpoint, a recovery, calm, a checkpoint."""
        kinds: list[Callable[[], None]] = [
            self.step_packet,
            self.step_host,
            self.step_notice,
            self.step_order,
            self.step_persist,
            self.step_report,
            self.step_coordinator,
            self.step_rare,
            self.step_break,
        ]
        # Some phases starve something: queues get long, links stay unnoticed, images are slow.
        for _ in range(10):
            self.deaf = self.rng.choice([None, *self.hosts])
            self.hasty = self.rng.random() < 0.15
            if self.rng.random() < 0.04:
                self.recover()
            weights = [self.rng.choice((0.1, 1, 2, 5)) * w for w in (20, 24, 5, 6, 3, 4, 4, 2, 0.5)]
            for step in self.rng.choices(kinds, weights, k=steps // 10):
                step()
        self.calm()
        self.checkpoint()
        if self.rng.random() < 0.5:
            self.recover()
            self.calm()
            self.checkpoint()

    # -- the end -------------------------------------------------------------------------------

    def calm(self) -> None:
        """No more faults: everything drains, and all that was sent was applied, once and in order."""
        self.zombies.clear()
        if any(host.dead for host in self.hosts.values()):
            self.recover()
        for host in self.hosts.values():
            for channel in host.endpoint.outgoing.values() if host.endpoint else ():
                channel.budget = 1 << 20
        for _ in range(4):
            rounds = 0
            while self.round():
                rounds += 1
                if rounds > 2000:
                    raise Wrong("there is no end to it")
            self.repeat()
            for host in self.hosts.values():
                self.feed(host, CoordinatorOpened())
        self.check_drained()

    def round(self) -> bool:
        """Everybody does what there is to do, once; whether anything happened."""
        moved = bool(self.reports or self.manifests or self.rows or self.confirmed)
        for link, end, control in self.lanes():
            moved = True
            for _ in range(len(link.lanes[end, control])):
                self.deliver(link, end, control, 0, False)
        for host in list(self.hosts.values()):
            moved |= bool(host.notices or host.orders or host.persisting)
            while host.notices:
                self.notice(host)
            for _ in range(len(host.orders)):
                self.obey(host, host.orders.pop(0))
            while host.works and self.work(host):
                moved = True
            while host.persisting:
                self.persist(host, False)
            self.flush(host)
        self.confirm_all()
        while self.reports:
            self.hear(*self.reports.pop(0))
        while self.manifests:
            self.coordinate(commit.ManifestDurable(self.manifests.pop(0)))
        while self.rows:
            self.write_row(self.rows.pop(0))
        return moved

    def checkpoint(self) -> None:
        """After the faults, the next checkpoint commits."""
        self.begin()
        number = self.newest
        self.calm()
        if self.fates.get(number) is not True:
            raise Wrong(f"checkpoint {number} did not commit after the faults had ended")
