"""The coordinator's part in effects: claims are granted and outcomes recorded here, under the lease.

What has come in a round is written in one transaction (`Catalog.journal`), and only then answered. A claim
counts in the epoch that it was made in; an outcome counts whenever it comes, because the call has happened.

A claim whose attempt another process has left open waits until that process is surely gone, or its deadline
has passed. A process of this machine that no seat knows any more is ended first: it may be stopped, and would
call when it is woken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from cutline.barrier import Member
from cutline.errors import Corrupt, Fenced, Misuse, StorageError
from cutline.participant.effect_calls import unknown_error
from cutline.participant.messages import pack_error
from cutline.participant.places import machine_id
from cutline.participant.processes import process_alive
from cutline.storage.effects import BLOCK, LIVE, RECORDED, Claim, EffectRow, Ending, Verdict

from .effect_rows import forgotten, resolved
from .launch import ProcessLauncher
from .questions import Questions
from .recorded import Recorded, refusal
from .roster import Seat
from .settings import Ticket

if TYPE_CHECKING:
    from .runner import Coordinator

__all__ = ("Effects",)

# Seconds between two looks at claims that wait, and after a catalog that did not answer.
POLL = 0.5
# Seconds by which clocks may differ where a deadline is all there is.
MARGIN = 2.0
# Seconds that a commit's sweep waits for the claims that the commit brings.
PUT_OFF = 0.1
# Seconds after a rest in which nothing is granted.
QUIET = 10.0
# Seconds between two removals of rows that no cut can ask for any more.
TIDY = 10.0


class Effects:
    """See the module's head."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.c = coordinator
        self.rule = coordinator.catalog.effects_rule(coordinator.lineage)
        self.recorded = Recorded(coordinator)
        # By participant and key: what is to be judged, what waits for a process to be gone, what is blocked.
        self.claims: dict[tuple[str, str], tuple[Seat, Claim]] = {}
        self.waiting: dict[tuple[str, str], tuple[Seat, Claim]] = {}
        self.blocked: dict[tuple[str, str], tuple[Seat, Claim]] = {}
        # By participant, key and attempt: requests of several may have one key.
        self.endings: dict[tuple[str, str, int], tuple[Seat, Ending]] = {}
        self.unknown: dict[str, str] = {}
        # Attempts that only a person can end; the driver was told of them.
        self.endless: set[tuple[str, int]] = set()
        # Whether claims will follow on the next commit, and what waits for them.
        self.is_awaited = False
        self.put_off: Callable[[], None] | None = None
        self.put_off_until = 0.0
        # Launches that have ended, as the system that runs them says.
        self.ended: set[str] = set()
        # Attempts that were granted here and have no outcome yet.
        self.under_way: dict[tuple[str, int], str] = {}
        self.again_at = 0.0
        self.look_at = 0.0
        self.tidy_at = coordinator.now() + TIDY
        self.done: dict[Member, tuple[int, int, frozenset[int]]] = {}
        self.resting: Ticket | None = None
        self.rest_until = 0.0
        self.quiet_until = 0.0
        self.quiet_at_most = 0.0
        self.questions = Questions(coordinator, self)
        # How far the wall clock was ahead of the steady one at the beginning, and by the steady one when
        # attempts were granted here. Whoever calls measures by a steady clock: one that is set ends nothing.
        self.ahead = coordinator.wall() - coordinator.now()
        self.granted_at: dict[tuple[str, int], float] = {}

    # -- what participants say -----------------------------------------------------------------

    def heard(self, seat: Seat, kind: str, doc: dict[str, Any]) -> None:
        """A packet of a participant."""
        if kind == "effect_ending":
            self._ending(seat, doc)
        elif kind == "effect_answered":
            self.questions.look()
        elif doc["epoch"] != self.c.epoch:
            return
        elif kind == "effect_claim":
            self._claim(seat, doc)
        elif kind == "effect_watch":
            self.questions.watch(seat, doc)
        elif kind == "effect_cut":
            self.is_awaited = True
            self.c.trigger.want_early()
        elif kind == "effect_done":
            pending = frozenset(doc["pending"])
            self.done[seat.member] = doc["checkpoint"], doc["below"], pending
            self.questions.pending(seat.member, doc["below"], pending)
        else:
            self.unknown[doc["key"]] = doc["text"]

    def _ending(self, seat: Seat, doc: dict[str, Any]) -> None:
        # A reconcile function speaks for an attempt of another process.
        launch = "" if doc["by"] else seat.launch
        blob = None if doc["blob"] is None else (doc["blob"][0], doc["blob"][1], doc["blob"][2])
        ending = Ending(doc["key"], doc["attempt"], launch, doc["state"], doc["answer"], blob, doc["by"])
        self.endings[seat.member.name, ending.key, ending.attempt] = seat, ending

    def _claim(self, seat: Seat, doc: dict[str, Any]) -> None:
        claim = Claim(
            doc["key"],
            seat.member.name,
            seat.member.birth,
            doc["number"],
            doc["function"],
            doc["digest"],
            doc["repeatable"],
            doc["checkpoint"],
            doc["since"],
            seat.launch,
            doc["executor"],
            doc["epoch"],
            doc["after"],
            doc["timeout"],
        )
        place = claim.participant, claim.key
        self.waiting.pop(place, None)
        if self.rule != BLOCK or claim.repeatable:
            self.claims[place] = seat, claim
        else:
            if not self.blocked:
                self.c.notice("effects_blocked", participant=claim.participant, function=claim.function)
            self.blocked[place] = seat, claim

    # -- what happens ----------------------------------------------------------------------------

    def process_ended(self, launch: str) -> None:
        """The process of a launch has ended."""
        if not launch:
            return
        self.ended.add(launch)
        self.under_way = {place: each for place, each in self.under_way.items() if each != launch}
        self.look_at = 0.0

    def recovering(self) -> None:
        """Everybody goes back: who still wants something says it again afterwards."""
        self.claims.clear()
        self.waiting.clear()
        self.blocked.clear()
        self.unknown.clear()
        self.done.clear()
        self.questions.recovering()

    @property
    def live(self) -> bool:
        """Whether commit-gated effects of this lineage run, and what is emitted is published."""
        return self.rule == LIVE

    def allow(self) -> None:
        """Commit-gated effects of this lineage run from now on."""
        c = self.c
        c.catalog.rule_effects(c.lease, c.lineage, LIVE)
        self.rule = LIVE
        self.claims.update(self.blocked)
        self.blocked.clear()

    def resolve(self, doc: dict[str, Any]) -> dict[str, Any]:
        """A person says what became of an effect; see `effect_rows.resolved`."""
        c = self.c
        return resolved(c.catalog, c.lease, c.lineage, doc, c.wall())

    def go_first(self, work: Callable[[], None]) -> None:
        """Does what a commit leaves to be done; where effects wait for that commit, after their claims."""
        if not self.is_awaited:
            work()
            return
        self.put_off, self.put_off_until = work, self.c.now() + PUT_OFF

    def rest(self, ticket: Ticket, seconds: float) -> None:
        """Nothing more is granted; the reply follows when no call is under way, or after so many seconds."""
        if self.resting is not None:
            raise Misuse("the system's effects are coming to rest already")
        self.resting, self.rest_until = ticket, self.c.now() + seconds
        self.look_for_calls()

    def look_for_calls(self) -> None:
        """What an older coordinator has granted may be under way too."""
        launches = {seat.launch for seat in self.c.roster}
        for row in self.c.catalog.effects(self.c.lineage):
            if not row.state and row.launch in launches and row.launch not in self.ended:
                self.under_way[row.key, row.attempt] = row.launch

    def tick(self) -> None:
        """Writes what has come, and answers it."""
        now = self.c.now()
        if self.unknown and self.c.halted is None and self.c.flowing:
            error = unknown_error(sorted(self.unknown.values()))
            self.c.halt(f"{error}.", pack_error(error, participant="coordinator"))
        if self.c.open and now < self.quiet_until:
            # The last checkpoint takes long, and what it holds must not begin before the end.
            self.quiet_until = min(now + QUIET, self.quiet_at_most)
        # Whatever is held up, what has happened is recorded.
        held = self.c.halted is not None or self.resting is not None or now < self.quiet_until
        if self.waiting and now >= self.look_at:
            self.look_at = now + POLL
            self.claims.update(self.waiting)
            self.waiting.clear()
        # Who is being ended, to be moved, claims anew where it comes up; its call would be cut off.
        ending = self.c.mover.ending
        claims = [] if held else [each for each in self.claims.values() if each[1].launch not in ending]
        if (self.endings or claims) and now >= self.again_at:
            self._write(now, claims)
        self.questions.tick(now)
        if self.put_off is not None and (not self.is_awaited or now >= self.put_off_until):
            work, self.put_off, self.is_awaited = self.put_off, None, False
            work()
        self._tidy(now)
        if self.resting is not None and (not self.under_way or now > self.rest_until):
            ticket, self.resting = self.resting, None
            # The last checkpoint and the end are about to come.
            self.quiet_until = now + QUIET
            self.quiet_at_most = now + self.c.settings.checkpoint_timeout + QUIET
            self.c.reply(ticket, {"under_way": len(self.under_way)})

    def _write(self, now: float, claims: list[tuple[Seat, Claim]]) -> None:
        c = self.c
        endings = list(self.endings.values())
        try:
            claims = self._without_refused(claims)
            finals, verdicts = c.catalog.journal(
                c.lease,
                c.lineage,
                [ending for _, ending in endings],
                [claim for _, claim in claims],
                self._is_over,
                c.wall(),
            )
        except StorageError as error:
            self.again_at = now + POLL
            self.not_written(error)
            if isinstance(error, Corrupt):
                self._write_apart()
            return
        self.endings.clear()
        if claims:
            self.is_awaited = False
        for _, claim in claims:
            del self.claims[claim.participant, claim.key]
        for (seat, ending), final in zip(endings, finals, strict=True):
            self._confirm(seat, ending, final)
        for (seat, claim), verdict in zip(claims, verdicts, strict=True):
            self._answer(seat, claim, verdict)
        if endings:
            self.look_at = 0.0

    def _confirm(self, seat: Seat, ending: Ending, final: EffectRow | None) -> None:
        self.under_way.pop((ending.key, ending.attempt), None)
        self.granted_at.pop((ending.key, ending.attempt), None)
        attempt = 0 if final is None else final.attempt
        self.c.say(seat.link, "effect_confirmed", key=ending.key, attempt=ending.attempt, final=attempt)

    def _write_apart(self) -> None:
        """What is recorded under some key is damaged: outcomes under other keys are recorded all the same."""
        c = self.c
        for place, (seat, ending) in list(self.endings.items()):
            try:
                finals, _ = c.catalog.journal(c.lease, c.lineage, [ending], [], self._is_over, c.wall())
            except Corrupt:
                # Its process keeps it, and says it again to the next coordinator.
                del self.endings[place]
                continue
            except StorageError as error:
                self.not_written(error)
                return
            del self.endings[place]
            self._confirm(seat, ending, finals[0])

    def not_written(self, error: StorageError) -> None:
        """What happens when outcomes cannot be written, or read."""
        c = self.c
        if isinstance(error, Fenced):
            c.ended = f"fenced: {error}"
        elif not isinstance(error, Corrupt):
            c.notice("catalog_unreachable", text=str(error))
        elif c.halted is None:
            # What became of one cannot be read, and no other is written in a round with it: asking again
            # would keep all of them waiting for ever.
            c.halt(f"{error}.", pack_error(error, participant="coordinator"))

    def _without_refused(self, claims: list[tuple[Seat, Claim]]) -> list[tuple[Seat, Claim]]:
        """Those that are to be judged; in a fork that gets its origin's outcomes, the others are refused."""
        if self.rule != RECORDED or not claims:
            return claims
        refused = self.recorded.taken_over([claim for _, claim in claims])
        rest = []
        for seat, claim in claims:
            if claim.key not in refused:
                rest.append((seat, claim))
                continue
            del self.claims[claim.participant, claim.key]
            self._say(seat, claim.key, claim.launch, Verdict("recorded"), False, refusal(claim))
        return rest

    def _answer(self, seat: Seat, claim: Claim, verdict: Verdict) -> None:
        if verdict.kind == "wait":
            self.waiting[claim.participant, claim.key] = seat, claim
            if verdict.row is not None:
                self._tell_if_endless(verdict.row)
            return
        if verdict.kind == "stale":
            # A recovery is about to make everybody claim anew.
            return
        if verdict.kind == "granted":
            self.under_way[claim.key, verdict.attempt] = claim.launch
            # An attempt that was not begun may be granted once more, after a rollback: it has its time anew.
            self.granted_at[claim.key, verdict.attempt] = self.c.now()
        self.say_verdict(seat, claim.key, claim.launch, verdict)

    def say_verdict(self, seat: Seat, key: str, launch: str, verdict: Verdict) -> None:
        """The answer to whoever claims, or waits for an outcome."""
        row = verdict.row if verdict.kind == "recorded" else None
        if row is None:
            self._say(seat, key, launch, verdict)
        else:
            self._say(seat, key, launch, verdict, row.state == "done", row.answer, row.blob)

    def _say(
        self,
        seat: Seat,
        key: str,
        launch: str,
        verdict: Verdict,
        ok: bool = False,
        answer: bytes | None = None,
        blob: tuple[str, bytes, int] | None = None,
    ) -> None:
        self.c.say(
            seat.link,
            "effect_verdict",
            key=key,
            launch=launch,
            verdict=verdict.kind,
            attempt=verdict.attempt,
            raised=verdict.raised,
            ok=ok,
            answer=answer,
            blob=blob,
        )

    def _tell_if_endless(self, row: EffectRow) -> None:
        """Nobody here sees that a process of another machine is gone, or of this one before it was booted."""
        place = row.key, row.attempt
        elsewhere = row.executor["machine"] != machine_id() and self.c.roster.by_launch(row.launch) is None
        if row.deadline is None and elsewhere and place not in self.endless:
            self.endless.add(place)
            self.c.notice("effect_waits", participant=row.participant, number=row.number, text=str(row))

    def _is_over(self, row: EffectRow) -> bool:
        """Whether an attempt's process can surely not act any more, or its deadline has passed."""
        c = self.c
        if row.launch in self.ended:
            return True
        pid, started = int(row.executor["pid"]), float(row.executor["started"])
        if row.executor["machine"] == machine_id():
            if not process_alive(pid, started):
                return True
            if isinstance(c.launcher, ProcessLauncher) and c.roster.by_launch(row.launch) is None:
                # Whatever the deadline says: a stopped one would call when it is woken.
                c.launcher.end(Seat(Member(row.participant, row.birth), "", pid=pid, started=started))
                return False
        if row.deadline is None:
            return False
        granted_at = self.granted_at.get((row.key, row.attempt))
        if granted_at is not None:
            return c.now() - granted_at > row.deadline - row.claimed_at + MARGIN
        return c.now() + self.ahead > row.deadline + MARGIN

    # -- rows that nobody needs any more -----------------------------------------------------------

    def _tidy(self, now: float) -> None:
        if now < self.tidy_at or not self.done:
            return
        self.tidy_at = now + TIDY
        c = self.c
        try:
            rows = c.catalog.effects(c.lineage)
            # An older one than the newest committed may yet be committed.
            cuts = [row.checkpoint for row in c._rows("begun", "committed")]
            start = 0 if c.origin is None else c.origin[1]
            done, gone = forgotten(rows, self.done, [*self._origins(rows), *cuts], c.wall(), start)
            if not done and not gone:
                return
            c.catalog.effects_done(c.lease, c.lineage, done, [row.key for row in gone])
            for row in gone:
                if row.blob is not None:
                    c.store.blobs.delete(row.blob[0])
        except Fenced as error:
            c.ended = f"fenced: {error}"
        except StorageError as error:
            c.notice("sweep_failed", text=str(error))

    def _origins(self, rows: Sequence[EffectRow]) -> list[int]:
        """Where this lineage forked off, as long as a recovery may go back to there.

        It may until something has left from a cut of its own. What that cut of the origin has pending counts
        as that when a cut has its outcome: or its row would have to stay for ever.
        """
        c = self.c
        if c.origin is None:
            return []
        origin, horizon = c.origin[1], c.catalog.horizon(c.lineage)
        gated = [row for row in rows if not row.repeatable and row.since <= origin]
        pending = [row.done for row in gated if row.done is not None]
        newest = max((row.checkpoint for row in c._rows("committed")), default=0)
        if horizon <= origin and pending and newest >= min(pending):
            c.catalog.raise_horizon(c.lease, c.lineage, newest)
            horizon = newest
        return [origin] if horizon <= origin else []
