"""What users do with locks, what goes wrong meanwhile, and what must hold at each step.

``World(seed).run()`` draws a plan, and plays it. It raises ``Violation``, with the seed:

- *Two believers*: grants that exclude each other, whose leases run, and none of whose nodes an
  operator has deleted.
- *Tokens*: a grant's token is higher than those of all grants before it that exclude it.
- *Order*: nobody is granted while a node stands before it in the queue.
- *Loss*: a lost grant is told once, and soon; a lease that is over is noticed soon.
- *Time*: a call with a limit returns within it, and a release within a second.
- *Rest*: once nothing goes wrong any more, everybody is granted or in error, no node is left, and a
  stopped client leaves no thread.
- *Reach*: where one of two servers is out of reach, or none, no grant is lost.
- *Model*: what telemetry is told, of all processes together, is a behaviour of the model of the
  recipe (``tests.trace``), but for nodes that an operator has deleted.
- *Errors*: no thread ends by an error, no error is logged as unexpected, and users see only the
  errors that the documentation names.
- *Closed*: users hear that their client is closed only in a call during which it was; a client that
  was started again serves as before.
"""

from __future__ import annotations

import gc
import logging
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any

from kazoo.handlers.threading import KazooTimeoutError

import zklock
from tests import trace
from tests.unit.simulator import plans, system as simulated
from tests.unit.simulator.elections import Elections
from tests.unit.simulator.ensemble import HOSTS, Ensemble
from tests.unit.simulator.kept import Keepers
from tests.unit.simulator.marks import Marks
from tests.unit.simulator.network import Network
from tests.unit.simulator.plans import (
    AGAIN,
    FORBID,
    INTERRUPT,
    MOMENT,
    PATHS,
    POOL,
    RULES,
    SOON,
    START_AGAIN,
    Member,
    Plan,
    plan_of,
)
from tests.unit.simulator.pools import Planned, Workers
from tests.unit.simulator.rights import Rights
from tests.unit.simulator.several import Multimap
from tests.unit.simulator.substituted import substituted
from tests.unit.simulator.system import Over, Process, System, Violation
from zklock import LossReason, telemetry
from zklock._core import nodes, watches
from zklock._core.grant import GrantBase
from zklock._core.link import Flight, Link
from zklock._core.watches import LOOK_AGAIN
from zklock._core.wire import Codec
from zklock._recipes import names
from zklock._shell import handler as shell
from zklock._telemetry import emit, subscriptions as hub
from zklock.errors import (
    AccessDenied,
    AcquireCancelled,
    ClientClosed,
    LockLost,
    NoAnswer,
    ZkLockError,
)
from zklock.testing.zookeeper.machine import Rules


class World:
    """One run."""

    def __init__(self, seed: int, plan: Plan | None = None) -> None:
        self.plan = plan or plan_of(seed)
        self.system = System(seed)
        self.system.noise = self.plan.noise
        self.system.each_step = self._check
        self.rng = random.Random(f"world {seed}")
        self.network = Network(self.system)
        self.ensemble: Ensemble
        self.members = [Member(Process(f"p{number}")) for number in range(self.plan.processes)]
        self.story: list[str] = []
        self.grants: list[GrantBase] = []
        self.given_at: dict[GrantBase, float] = {}
        self.told = Told()
        self.struck: Counter[str] = Counter()
        self.cancelled: dict[str, float] = {}  # when the acquire of a user was cancelled last
        self.several = Multimap(self)
        self.elections = Elections(self)
        self.workers = Workers(self)
        self.marks = Marks(self)
        self.rights = Rights(self)
        self.keepers = Keepers(self)
        self._active: list[tuple[GrantBase, Member]] = []
        self._deleted: set[str] = set()
        self._reading: set[GrantBase] = set()  # write locks that were downgraded, or perhaps
        self._pending: dict[str, Any] = {}  # the locks that are being acquired
        self.left = 0  # users that are not through
        self.calm: Any = simulated.Event()  # nothing goes wrong any more

    def run(self) -> None:
        """Play the plan; raise ``Violation`` if something does not hold."""
        collects = gc.isenabled()
        gc.disable()  # what a collection ends, it ends at another step each time
        try:
            with _substituted(self), simulated.running(self.system):
                self.ensemble = Ensemble(self.system, self.network, RULES)
                self.ensemble.machine.hears = self.marks
                self.ensemble.machine.rights = self.rights
                self.system.run(self._script)
        finally:
            if collects:
                gc.enable()

    def say(self, what: str) -> None:
        """Note what happens."""
        self.story.append(f"{self.system.now - simulated.BEGIN:9.4f}  {what}")

    # The script.

    def _script(self) -> None:
        plan, rng = self.plan, self.rng
        for member in self.members:
            self.system.spawn(
                f"{member.process.name} main", partial(self._main, member), member.process
            )
            self.left += 1
        if AGAIN in plan.faults:
            self.system.again = rng.choice((0.1, 0.3))
        if INTERRUPT in plan.faults or AGAIN in plan.faults:
            self._interrupt(rng.uniform(0.0, 2.0))  # what users begin with, too
        for _ in range(plan.troubles):
            simulated.sleep(rng.uniform(0.1, 1.5) * plan.timeout)
            self._trouble(rng.choice(plan.faults))
        simulated.sleep(rng.uniform(0.3, 2.0) * plan.timeout)
        self._mend()
        self.calm.set()
        self.workers.rest()
        if not self.system.block(lambda: not self.left, 40 * plan.timeout + 60):
            raise Violation("somebody is left waiting")
        simulated.sleep(2 * plan.timeout + 5)
        self._check_rest()
        self._stop_all()
        left = self.ensemble.ephemerals()
        if left:
            raise Violation(f"left by a client that has stopped: {', '.join(left)}")
        self._check_model()

    def _main(self, member: Member) -> None:
        while member.client is None:
            try:
                member.client = zklock.connect(HOSTS, self.plan.timeout)
            except NoAnswer:
                self.say(f"{member.process.name} does not connect")
        for number in range(self.plan.users):
            self.left += 1
            name = f"{member.process.name}u{number}"
            rng = random.Random(f"{self.system.seed} {name}")
            self.system.spawn(name, partial(self._use, member, name, rng), member.process)
        self.left -= 1

    def _use(self, member: Member, name: str, rng: random.Random) -> None:
        simulated.sleep(rng.uniform(0, 1.0))
        if self.plan.kind == "election":
            self.elections.stand(member, name, rng)
        elif self.plan.kind == "pool":
            self.workers.work(member, name, rng)
        else:
            for _ in self._rounds():
                begin = self.system.now
                try:
                    self._play_round(member, name, rng)
                except (AcquireCancelled, LockLost, KeyboardInterrupt):
                    continue
                except ClientClosed:
                    if not member.may_be_closed(begin):
                        raise
                    if not self.comes_back(member):
                        break
                except ZkLockError as error:
                    if not self.may_fail(error, begin, "to watch the grant"):
                        raise
                    simulated.sleep(0.5)
        self.left -= 1

    def _play_round(self, member: Member, name: str, rng: random.Random) -> None:
        match self.plan.kind:
            case "several":
                self.several.use(member, name, rng)
            case plans.KEPT:
                self.keepers.use(member, name, rng)
            case _:
                self._round(member, name, rng)

    def comes_back(self, member: Member) -> bool:
        """Wait for a client that was found closed → whether it runs again."""
        self.system.block(lambda: member.stopped or member.back < math.inf)
        return not member.stopped

    def may_fail(self, error: BaseException, since: float, unstarted: str = "thread") -> bool:
        """Whether a call of a user may have failed so: no thread can start, or it is forbidden."""
        if isinstance(error, AccessDenied):
            return self.rights.may_refuse(since)
        return unstarted in str(error)

    def _rounds(self) -> Iterator[int]:
        """Go on until nothing goes wrong any more; in a burst, ask once."""
        most = 1 if self.plan.kind == "burst" else self.plan.rounds
        for number in count():
            if self.calm.is_set() or number == most:
                return
            yield number

    def options(self, member: Member, name: str) -> dict[str, Any]:
        """Return what all locks of a user are made with."""
        return {
            "identity": name,
            "on_lost": lambda loss: member.told.setdefault(loss.grant, []).append(self.system.now),
        }

    @staticmethod
    def way(rng: random.Random) -> tuple[dict[str, Any], float]:
        """Draw how a user acquires, and for how long that may take, in seconds."""
        how: dict[str, Any] = rng.choice(
            ({}, {}, {"timeout": rng.uniform(0.0, 8.0)}, {"blocking": False})
        )
        return how, how.get("timeout", math.inf if how.get("blocking", True) else 0.0)

    @contextmanager
    def asking(self, name: str, lock: Any) -> Iterator[None]:
        """Have what a user acquires cancelled, if that goes wrong."""
        self._pending[name] = lock
        before = self.held_by(name)
        try:
            with self.system.exposed():
                yield
        except KeyboardInterrupt:
            self.say(f"{name} is interrupted")
            if self._more(name, before):
                # It may just arrive on another thread, which gives it back.
                simulated.sleep(0.1)
            if more := self._more(name, before):
                raise Violation(f"{name} is interrupted, and holds {more}") from None
            raise
        finally:
            del self._pending[name]

    def _more(self, name: str, before: list[GrantBase]) -> list[GrantBase]:
        return [grant for grant in self.held_by(name) if grant not in before]

    def _lock(self, member: Member, name: str, rng: random.Random) -> Any:
        options = self.options(member, name)
        path = PATHS[0] if rng.random() < 0.85 or self.plan.kind == "burst" else PATHS[1]
        match self.plan.kind:
            case "read and write":
                kind: Any = rng.choice((zklock.ReadLock, zklock.ReadLock, zklock.WriteLock))
            case "semaphore" | "burst":
                return zklock.Semaphore(member.client, path, limit=self.plan.permits, **options)
            case "re-entrant":
                kind = zklock.RLock
            case "tracked":
                kind = zklock.Lock
                options["tidy"] = rng.random() < 0.3
                options["track_abandoned"] = True
                options["lock_delay"] = self.plan.delay
            case _:
                kind = zklock.Lock
                options["tidy"] = rng.random() < 0.3
        return kind(member.client, path, **options)

    def acquire(
        self, member: Member, name: str, lock: Any, how: dict[str, Any], limit: float
    ) -> Any:
        """Acquire, and look at the time that it took: None is for a limit alone."""
        begin = self.system.now
        try:
            with self.asking(name, lock):
                grant = lock.acquire(**how)
        finally:
            self.check_time(member, f"{name} acquire({how})", begin, max(limit, MOMENT))
        self.say(f"{name} {how}: {grant}")
        if grant is None and limit == math.inf:
            raise Violation(f"{name}: acquire() without a limit has given up")
        return grant

    def _round(self, member: Member, name: str, rng: random.Random) -> None:
        lock = self._lock(member, name, rng)
        how, limit = self.way(rng)
        if self.plan.kind == "semaphore":
            how["permits"] = rng.choice((1, 1, 2))
        elif self.plan.kind == "burst":
            how, limit = {"blocking": False}, 0.0
        grant = self.acquire(member, name, lock, how, limit)
        if grant is None:
            if self.plan.kind == "burst":
                raise Violation(f"{name} is refused, and there are enough permits")
            return
        self.marks.reached(grant)
        if self.plan.kind == "re-entrant" and rng.random() < 0.6:
            simulated.sleep(rng.uniform(0, 0.5) * self.plan.timeout)
            again = lock.acquire()
            if again is not grant:
                raise Violation(f"{name}: a second acquire of an RLock has another grant")
            simulated.sleep(rng.uniform(0, 2.0))
            self.release(member, name, lock.release)
        self._hold(member, name, rng, lock, grant)
        self.marks.harm(member)
        if rng.random() < 0.3:
            grant.abandon()
        else:
            self.release(member, name, lock.release)

    def _hold(
        self, member: Member, name: str, rng: random.Random, lock: Any, grant: GrantBase
    ) -> None:
        for _ in range(rng.choice((0, 1, 4))):
            simulated.sleep(rng.uniform(0, 0.4) * self.plan.timeout)
            if not grant.held:
                break
            if isinstance(lock, zklock.WriteLock) and rng.random() < 0.3:
                self._downgrade(member, name, lock, grant)

    def _downgrade(self, member: Member, name: str, lock: Any, grant: GrantBase) -> None:
        begin = self.system.now
        self._reading.add(grant)  # from now on readers may come in
        try:
            lock.downgrade(self.plan.timeout)
        except (NoAnswer, AccessDenied) as error:
            if isinstance(error, AccessDenied) and not self.rights.may_refuse(begin):
                raise
            self.say(f"{name}: {error}")
        finally:
            self.check_time(member, f"{name} downgrade()", begin, self.plan.timeout)

    def release(
        self, member: Member, name: str, release: Callable[[], object], limit: float = MOMENT
    ) -> None:
        """Give back, within a limit in seconds."""
        begin = self.system.now
        try:
            with self.system.exposed():
                release()
        except KeyboardInterrupt:
            self.say(f"{name} is interrupted in a release")
            for grant in self.held_by(name):
                grant.abandon()
            raise
        finally:
            self.check_time(member, f"{name} release()", begin, limit)

    # What goes wrong.

    def _trouble(self, what: str) -> None:
        rng = self.rng
        self.struck[what] += 1
        member = rng.choice(self.members)
        follower = rng.choice(self.ensemble.followers)
        long = rng.choice((0.2, 0.5, 0.9, 1.5, 1.5)) * self.plan.timeout
        self.say(f"{what}: {member.process.name} {follower.address} {long:.2f} s")
        home = {
            **dict.fromkeys(("cut", "cut off", "slow"), self._trouble_of_network),
            **dict.fromkeys(
                ("isolate", "pause server", "throttle", "lose"), self._trouble_of_server
            ),
            **dict.fromkeys(("restart", "restart shorter"), self._restart),
            START_AGAIN: self._start_again,
            FORBID: self._forbid,
            **dict.fromkeys(
                ("freeze", "stall", "no threads", "kill", INTERRUPT, AGAIN),
                self._trouble_of_process,
            ),
        }.get(what, self._trouble_of_session)
        home(what, member, follower, long)

    def _trouble_of_network(self, what: str, member: Member, follower: Any, long: float) -> None:
        if what == "slow":
            self.network.slow = self.rng.uniform(0.02, 0.3) * self.plan.timeout
            self.system.after(long, self._speed_up)
            return
        self._cut(member, [follower] if what == "cut" else self.ensemble.followers)
        self.system.after(long, self.network.heal)

    def _cut(self, member: Member, followers: list[Any]) -> None:
        for each in followers:
            self.network.cuts.add((member.process.name, each.address))

    def _trouble_of_server(self, what: str, member: Member, follower: Any, long: float) -> None:
        rng, ensemble = self.rng, self.ensemble
        match what:
            case "isolate":
                ensemble.isolate(follower)
                self.system.after(long, partial(ensemble.rejoin, follower))
            case "pause server":
                ensemble.pause(follower)
                self.system.after(long, partial(ensemble.resume, follower))
            case "throttle":
                ensemble.throttles = rng.choice((0.1, 0.3, 0.7))
                self.system.after(rng.uniform(0.5, 3.0), self._calm)
            case "lose":
                ensemble.loses = rng.choice((0.05, 0.2))
                self.system.after(rng.uniform(0.5, 3.0), self._calm)

    def _restart(self, what: str, member: Member, follower: Any, long: float) -> None:
        rng, timeout = self.rng, self.plan.timeout
        rules = RULES
        if what == "restart shorter":
            most = round(rng.uniform(0.3, 0.6) * timeout * 1000)
            rules = Rules(tick_time=rng.choice((250, 500)), max_session_timeout=most)
        self.ensemble.restart(rules, rng.uniform(0.05, 0.3) * timeout)
        if rng.random() < 0.5:
            simulated.sleep(rng.uniform(0.5, 0.8) * timeout)
            self._cut(member, self.ensemble.followers)
            self.system.after(1.5 * timeout, self.network.heal)

    def _forbid(self, what: str, member: Member, follower: Any, long: float) -> None:
        self.rights.forbid(long)

    def _start_again(self, what: str, member: Member, follower: Any, long: float) -> None:
        process, rng = member.process, self.rng
        pause = rng.choice((0.0, 0.0, 0.01, 0.3, long))
        closes = rng.random() < 0.3
        if member.client is None or member.stopped or member.back == math.inf or process.dead:
            return
        member.back = math.inf
        self.left += 1
        name = f"{process.name} starts again"
        self.system.spawn(name, partial(self._stop_and_start, member, pause, closes), process)

    def _stop_and_start(self, member: Member, pause: float, closes: bool) -> None:
        client = member.client
        client.stop()
        self.say(f"{member.process.name} has stopped its client")
        if closes:
            client.close()
        simulated.sleep(pause)
        while True:
            try:
                client.start()
                break
            except KazooTimeoutError:
                self.say(f"{member.process.name} does not connect")
        self.say(f"{member.process.name} has started its client again")
        member.back = self.system.now
        self.left -= 1

    def saw_the_end(self) -> None:
        """Have a thread that has seen that a client is stopped stand still, perhaps."""
        me, rng = self.system.current, self.rng
        if me is not None and START_AGAIN in self.plan.faults and rng.random() < 0.3:
            self.system.stall(me, rng.uniform(0.0, 1.0))
            self.system.block(lambda: True)

    def _trouble_of_process(self, what: str, member: Member, follower: Any, long: float) -> None:
        process, rng = member.process, self.rng
        match what:
            case "freeze":
                self.system.freeze(process, long)
            case "stall":
                tasks = [each for each in self.system.tasks if each.process is process]
                if tasks:
                    self.system.stall(rng.choice(tasks), rng.uniform(0.01, 2.0))
            case "no threads":
                for each in self.members:
                    each.process.threads_fail = True
                self.system.after(long, self._let_start)
            case "interrupt" | "interrupt twice":
                self._interrupt(long)
            case "kill":
                if not any(each.process.dead for each in self.members):
                    self.kill(member)

    def _interrupt(self, long: float) -> None:
        self.system.interrupts = self.rng.choice((0.002, 0.02, 0.1))
        self.system.after(long, self._let_be)
        for _ in range(3):
            self.system.after(self.rng.uniform(0.0, long), self.system.interrupt)

    def _trouble_of_session(self, what: str, member: Member, follower: Any, long: float) -> None:
        client, rng = member.client, self.rng
        match what:
            case "expire":
                self.expire(member)
            case "delete node":
                path = POOL if self.plan.kind == "pool" else rng.choice(PATHS[:2])
                found = [it for it in self.ensemble.ephemerals() if it.startswith(f"{path}/")]
                if found:
                    node = rng.choice(sorted(found))
                    self._deleted.add(node)
                    self.ensemble.delete(node)
            case "stop client":
                if client is not None and not member.stopped and member.back < math.inf:
                    member.stopped = True
                    self.system.spawn("stops", client.stop, member.process)
            case "cancel":
                for name, lock in list(self._pending.items()):
                    self.cancelled[name] = self.system.now
                    lock.cancel()

    def expire(self, member: Member) -> None:
        """End the session of a process from outside."""
        if member.client is not None and member.client.client_id is not None:
            self.expire_session(member.client.client_id[0])

    def expire_session(self, session: int) -> None:
        """End a session from outside."""
        self.delete_all_of(session)
        self.ensemble.expire(session)

    def delete_all_of(self, session: int) -> None:
        """Note that the nodes of a session are being deleted from outside."""
        self._deleted.update(self.ensemble.machine.tree.ephemerals.get(session, ()))

    def was_deleted(self, node: str) -> bool:
        """Whether a node was deleted from outside, or its session ended so."""
        return node in self._deleted

    def kill(self, member: Member) -> None:
        """Kill a process; its users are through."""
        process = member.process
        process.dead = True
        for grant, owner in self._active:
            if owner is member:
                self.told.dead(grant, self.system.now)
        self.system.freeze(process, math.inf)
        self.network.kill(process)
        for task in self.system.tasks:
            ends = task.name.endswith((" main", " starts again")) or "u" in task.name[:4]
            if task.process is process and ends:
                self.left -= 1

    def _calm(self) -> None:
        self.ensemble.throttles = self.ensemble.loses = 0.0

    def _speed_up(self) -> None:
        self.network.slow = 0.0

    def _let_be(self) -> None:
        self.system.interrupts = 0.0

    def _let_start(self) -> None:
        for member in self.members:
            member.process.threads_fail = False

    def _mend(self) -> None:
        self._calm()
        self._speed_up()
        self._let_start()
        self._let_be()
        self.network.heal()
        self.rights.give_back()
        for follower in self.ensemble.followers:
            if follower.mute:
                self.ensemble.resume(follower)
            elif follower.isolated is not None:
                self.ensemble.rejoin(follower)
        self.say("nothing goes wrong any more")

    def is_planned(self, error: BaseException) -> bool:
        """Whether an error may be logged: users' code has raised it, or something is forbidden.

        Or no thread can start.
        """
        if isinstance(error, AccessDenied):
            return self.struck[FORBID] > 0
        if self.plan.kind == "pool" and "can't start new thread" in str(error):
            return self.struck["no threads"] > 0
        return isinstance(error, Planned)

    # What must hold.

    def given(self, grant: GrantBase) -> None:
        """Hear of a grant, at the moment at which it is given."""
        try:
            self._take(grant)
        except Violation as violation:  # zklock would take it for an error of its own
            self.system.fail(violation)
            raise Over from None

    def _take(self, grant: GrantBase) -> None:
        current = self.system.current
        assert current is not None
        member = next(each for each in self.members if each.process is current.process)
        self.say(f"granted {grant}")
        if grant._keeper.lease_end <= self.system.now:
            raise Violation(f"{grant} is given without a lease")
        if not self._deleted.intersection(grant._paths):  # its client has not heard of that yet
            for other in self.grants:
                if self._exclude(grant, other) and not self._rises(grant, other):
                    raise Violation(f"{grant} has no higher token than {other}")
        self._check_order(grant)
        self.keepers.given(grant)
        self.grants.append(grant)
        self.given_at[grant] = self.system.now
        self._active.append((grant, member))
        self.marks.given(grant)
        self._check()

    def _rises(self, grant: GrantBase, other: GrantBase) -> bool:
        """Whether the token is higher than one before it, or equal, on the same kept node."""
        again = grant.kept and grant.path == other.path
        return grant.token == other.token if again else grant.tokens[0] > other.token

    def _check_order(self, grant: GrantBase) -> None:
        parent, _, own = grant.path.rpartition("/")
        me = names.parse(own)
        assert me is not None
        if me.kind is names.Kind.LEASE:
            return
        reading = {each.path for each in self._reading}
        for each in self.ensemble.names(parent):
            name = names.parse(each)
            if name is None or not name.sequence < me.sequence:
                continue
            if me.kind is names.Kind.READ and (
                name.kind is names.Kind.READ or f"{parent}/{each}" in reading
            ):
                continue
            raise Violation(f"{grant} was given while {each} stands before it")

    def _check(self) -> None:
        """Look whether two believe, and whether each end is noticed and told in time."""
        now = self.system.now
        believing: list[GrantBase] = []
        for pair in self._active[:]:
            grant, member = pair
            if member.process.dead:
                self._active.remove(pair)
            elif grant._ended:
                if grant._loss is None or self._is_told(grant, member):
                    self._active.remove(pair)
            elif grant._keeper.lease_end > now:
                believing.append(grant)
            else:
                end = grant._keeper.lease_end
                begin = max(end, 0.0)
                if now - begin > SOON + member.process.stalled(begin, now):
                    raise Violation(f"nobody notices that the lease of {grant} is over")
        if len(believing) > 1:
            self._check_believers(believing)
        self.several.check()
        self.elections.check()
        self.workers.check()
        self.keepers.check()

    def _is_told(self, grant: GrantBase, member: Member) -> bool:
        loss = grant._loss
        assert loss is not None
        if self.plan.keeps:
            raise Violation(f"{grant} is lost: {loss.reason}")
        told = member.told.get(grant, [])
        late = self.system.now - loss.noticed
        event: Any = getattr(grant, "should_stop", None) or getattr(grant, "lost", None)
        if (told or grant.lock_path.startswith(POOL)) and event.is_set():
            return True
        if late > SOON + member.process.stalled(loss.noticed, self.system.now):
            raise Violation(f"nobody is told that {grant} is lost: {loss.reason}")
        return False

    def _check_believers(self, believing: list[GrantBase]) -> None:
        held = [each for each in believing if not self._deleted.intersection(each._paths)]
        permits: Counter[str] = Counter()
        for each in held:
            if "/leases/" in each.path:
                permits[each.lock_path] += len(each.tokens)
        if permits and max(permits.values()) > self.plan.permits:
            raise Violation(f"{permits} permits of {self.plan.permits} are believed in")
        for number, grant in enumerate(held):
            for other in held[:number]:
                if self._exclude(grant, other):
                    raise Violation(f"{grant} and {other} are believed in at the same time")

    def _exclude(self, one: GrantBase, other: GrantBase) -> bool:
        """Whether two grants exclude each other; those of a semaphore never do."""
        if one.lock_path != other.lock_path or "/leases/" in one.path:
            return False
        return not all(
            each in self._reading or names.kind_of(each.path) is names.Kind.READ
            for each in (one, other)
        )

    def held_by(self, name: str) -> list[GrantBase]:
        """Return the grants of a user that are neither given back nor lost."""
        owner = self.keepers.owners.get(name)
        return [
            grant
            for grant, _ in self._active
            if not grant._ended
            and (grant.identity == name if owner is None else grant._terms.owner is owner)
        ]

    def check_time(self, member: Member, what: str, begin: float, limit: float) -> None:
        """Look whether a call returns within its limit, in seconds."""
        now = self.system.now
        if self.system.over:
            return
        late = now - begin - limit - member.process.stalled(begin, now)
        if late > SOON:
            raise Violation(f"{what} took {now - begin:.2f} s, {late:.2f} s too long")

    def _check_rest(self) -> None:
        left = set(self.ensemble.ephemerals()) - self.keepers.kept()
        if left:
            raise Violation(f"left behind: {', '.join(sorted(left))}")
        self.marks.check_rest()
        for grant, member in self._active:
            if not member.process.dead:
                raise Violation(f"{grant} has not ended, or was not told")
        for member in self.members:
            for grant, told in member.told.items():
                if len(told) != 1:
                    raise Violation(f"the loss of {grant} was told {len(told)} times")
                if grant._loss is None:
                    raise Violation(f"{grant} is told to be lost, and is not")

    def _stop_all(self) -> None:
        alive = [each for each in self.members if not each.process.dead]
        for member in alive:
            done = self.system.spawn("stops", partial(_stop, member.client), member.process)
            if not self.system.block(lambda task=done: task.done, 30):  # type: ignore[misc]
                raise Violation(f"the client of {member.process.name} does not stop")
        processes = [each.process for each in alive]

        def are_gone() -> bool:
            return not any(task.process in processes for task in self.system.tasks)

        if not self.system.block(are_gone, 20):
            left = [task.name for task in self.system.tasks if task.process in processes]
            raise Violation(f"threads of stopped clients go on: {', '.join(left)}")

    def _check_model(self) -> None:
        found = trace.faults(self.told.but_of(self._deleted))
        if found:
            raise Violation(f"no behaviour of the model: {found[0].why} ({found[0].rule})")


class Told:
    """What telemetry is told, by zklock itself: no thread of telemetry's runs."""

    def __init__(self) -> None:
        self._events: list[telemetry.Event] = []

    def _put(self, event: telemetry.Event, over: hub.Over | None) -> None:
        if over is not None:
            if self in over:
                return
            if isinstance(event, telemetry.Released | telemetry.Lost):
                over[self] = None
        self._events.append(event)

    def dead(self, grant: GrantBase, now: float) -> None:
        """Note that a grant's process is killed: it believes no more."""
        end = min(now, grant._keeper.lease_end)
        event = telemetry.Lost(
            at=now,
            reason=LossReason.CLIENT_CLOSED,
            lease_end=end,
            lasted=None,
            **emit._grant(grant),
        )
        self._put(event, grant._end_told)

    def but_of(self, nodes: set[str]) -> list[telemetry.Event]:
        """Return all events but those of grants on these nodes."""
        return [
            event
            for event in self._events
            if not (isinstance(event, telemetry.GrantEvent) and event.node in nodes)
        ]


def _stop(client: Any) -> None:
    client.stop()
    client.close()


class _Log(logging.Handler):
    """Fails the run for what is logged as unexpected."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.WARNING)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        if self._world.system.over:
            return
        text = record.getMessage()
        self._world.say(f"[{record.name}] {text}")
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not self._world.is_planned(error):
            self._world.system.fail(Violation(f"unexpected: {text}: {error!r}"), error)


@contextmanager
def _substituted(world: World) -> Iterator[None]:
    """Put the simulated system under zklock and kazoo, and this world's looks into them."""
    with substituted(world.system, world.network) as put:
        # Who looks again would hide that nobody was woken. Where ACLs change, it has to.
        put(watches, "LOOK_AGAIN", LOOK_AGAIN if FORBID in world.plan.faults else math.inf)
        give = nodes.OwnNodes.give

        def given(self: nodes.OwnNodes, grant: GrantBase) -> None:
            give(self, grant)
            world.given(grant)

        put(nodes.OwnNodes, "give", given)
        ask = Link.ask

        def asked(self: Link, codec: Codec, flight: Flight, most: int) -> None:
            world.system.point()  # in a step of the core
            ask(self, codec, flight, most)

        put(Link, "ask", asked)
        closed_error = shell.closed_error

        def closed(client: Any) -> ClientClosed | None:
            found = closed_error(client)
            if found is not None:
                world.saw_the_end()
            return found

        put(shell, "closed_error", closed)
        put(hub, "hooks", {world.told: None})
        handler = _Log(world)
        for name in LOGGERS:
            logger = logging.getLogger(name)
            put(logger, "propagate", False)
            put(logger, "handlers", [handler])
            put(logger, "level", logging.WARNING)
            logger.manager._clear_cache()  # type: ignore[attr-defined]
        yield


LOGGERS = ("zklock", "kazoo", "concurrent")
