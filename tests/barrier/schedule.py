"""The coordinator's half of the random model, the steps of a schedule, and its end: everything drains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cutline.barrier import Member, actions, commit, recovery, wire
from cutline.barrier.cut import Departed, claims_of
from cutline.barrier.events import AtBoundary, CoordinatorOpened, Settled

from .membership import Membership
from .model import DISK, Host, Reported, State, Wrong

UNDECIDED = 4


class World(Membership):
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
        # Of each checkpoint: who had left when it was begun, and whom its manifest names of them.
        self.left_at: dict[int, dict[Member, State]] = {0: {}}
        self.departed_at: dict[int, Mapping[Member, Departed]] = {0: {}}
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

    # -- checkpoints ---------------------------------------------------------------------------

    def coordinate(self, event: commit.Event) -> None:
        for action in self.commit.handle(event):
            if isinstance(action, commit.Prepare):
                self.tell(tuple(self.hosts), self.initiated())
            elif isinstance(action, commit.WriteManifest):
                self.check_reports(action.checkpoint, action.reports)
                self.departed_at[action.checkpoint] = action.departed
                self.seen["cut that speaks of one that left"] += bool(action.departed)
                self.manifests.append(action.checkpoint)
            elif isinstance(action, commit.Bury):
                # Its process may only be paused.
                self.retire(self.hosts.pop(action.member))
            elif isinstance(action, commit.Forget):
                self.seen["forgotten"] += 1
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
        roster = self.rosters[self.newest] = tuple(m for m in self.hosts if m not in self.left)
        self.left_at[self.newest] = dict(self.left)
        self.seen["begun while another is undecided"] += bool(self.commit.undecided)
        self.coordinate(commit.Begun(self.newest, self.rng.random() < 0.3, roster, 0.0))

    def hear(self, host: Host, report: Reported) -> None:
        """What a participant reported reaches the coordinator."""
        if isinstance(report, actions.Depart):
            self.depart(host, report)
            return
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
            if self.rng.random() < self.faults.busy and not host.state.leaving:
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
            able = [host for host in self.hosts.values() if host.works and not host.state.leaving]
            if len(able) > 2 and self.rng.random() < 0.4:
                self.leave(self.rng.choice(able))
            elif able and len(self.hosts) < 6 and self.rng.random() < 0.5:
                self.make(self.rng.choice(able))
            else:
                self.spawn()
        elif kind < 0.98:
            self.crash()
        elif kind > 0.99:
            self.recover()
        if self.rng.random() < 0.3 and any(host.dead for host in self.hosts.values()):
            self.recover()

    def leave_one(self) -> None:
        """Somebody comes to leave, and one of the others does not hear of it yet."""
        able = [host for host in self.hosts.values() if host.works and not host.state.leaving]
        if len(able) < 3:
            return
        leaver = self.rng.choice(able)
        self.deaf = self.rng.choice([host.member for host in able if host is not leaver])
        if self.rng.random() < 0.5:
            # A newborn whose spawner has not heard of its birth.
            spawner = next(host for host in able if host.member == self.deaf)
            self.make(spawner)
            self.bear(spawner, len(spawner.state.spawned))
            leaver = list(self.hosts.values())[-1]
        self.leave(leaver)
        for _ in range(self.rng.randint(1, 12)):
            self.round()
        if self.rng.random() < 0.7:
            self.begin()

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
            if self.rng.random() < 0.2:
                self.leave_one()
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
        self.deaf = None
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
            deaf = host.member == self.deaf
            while host.notices:
                self.notice(host)
            for _ in range(0 if deaf else len(host.orders)):
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
