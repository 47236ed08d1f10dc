"""Orders of operators at any moment of a run: each goes through the parser, the plan and the door of its
command, in a thread of its own, and is taken back by the command that its answer prints.
"""

from __future__ import annotations

import random
import re
import shlex
import sqlite3
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from slurm_elastic.base.errors import SlurmElasticError, SlurmError
from slurm_elastic.cli.operate.status import with_kept
from slurm_elastic.cli.orders import clear, page_actions
from slurm_elastic.config import Config
from slurm_elastic.model.cluster import Limits
from slurm_elastic.state.store.trouble import MAY_COUNT_TEXT
from slurm_elastic.watch.door import orders, records
from slurm_elastic.watch.door.questions import Order
from slurm_elastic.watch.door.rights import Person
from slurm_elastic.watch.door.saves import Saver, save_now
from slurm_elastic.watch.view import Facts
from tests.chaos.drawn_site import is_drawn
from tests.chaos.order_books import OrderBooks

if TYPE_CHECKING:
    from tests.chaos.stage import Stage

OPERATOR = "operator"
"""Whose threads give orders."""
PRINTED = re.compile(r"until: slurm-elastic ((?:resume|limit) .+)")
"""The line of an answer that says how its order ends, if it does not end when it was carried out."""
ROOT = Person(uid=0, name="root", groups=frozenset())
TIMES = ("30s", "2m", "10m")


def ordered(seed: int) -> bool:
    """Whether operators give orders on that seed's site: on one in five, and on half of the drawn
    ones.
    """
    return random.Random(f"{seed} orders").random() < (0.5 if is_drawn(seed) else 0.2)


class OrderWeather:
    """``later`` has something done in so many seconds. ``printed`` are the commands that answers of
    orders in force have printed.
    """

    def __init__(
        self, stage: Stage, rng: random.Random, later: Callable[[float, Callable[[], None]], None]
    ) -> None:
        self._stage, self._rng, self._later = stage, rng, later
        self.books = OrderBooks(stage)
        few = (6, 11) if is_drawn(stage.seed) else (3, 8)
        self.families = sorted(rng.sample(tuple(ORDERS), rng.randint(*few)))
        self.often = rng.choice((0.03, 0.08, 0.15))
        self.printed: dict[str, None] = {}
        self._number = 0
        self._plain = stage.config

    def blow(self) -> None:
        if self._rng.random() < self.often:
            ORDERS[self._rng.choice(self.families)](self)

    # the door

    def give(self, *words: str) -> None:
        """An operator types that command now, and is answered some time later."""
        self._number += 1
        name = f"{OPERATOR}-{self._number}"
        self._stage.note(f"order {shlex.join(words)}")
        self._stage.sched.spawn(OPERATOR, name, lambda: self.answered(words))

    def answered(self, words: Sequence[str]) -> bool:
        """Whether the order was accepted. One that is not has a sentence that says why."""
        stage, name = self._stage, words[0]
        try:
            lines = self._lines(words)
        except (SlurmElasticError, sqlite3.Error, OSError) as error:
            # The command's ``main`` says all three in one line.
            stage.struck[f"orders: {name} refused"] += 1
            stage.note_alike(f"refused: {shlex.join(words)}: {error}")
            if MAY_COUNT_TEXT in str(error):
                self._may_have_ended(words)
            if not str(error).strip():
                stage.books.wrong("order", f"{shlex.join(words)} is refused without a reason")
            return False
        stage.struck[f"orders: {name} accepted"] += 1
        stage.note_alike(f"accepted: {shlex.join(words)}: {lines}")
        self.printed |= {m.group(1): None for line in lines if (m := PRINTED.fullmatch(line))}
        return True

    def _may_have_ended(self, words: Sequence[str]) -> None:
        """The answer has said that these words may count, so what they end is promised no more."""
        if tuple(words) == ("resume", "--all"):
            self.printed.clear()
        self.printed.pop(shlex.join(words), None)

    def _lines(self, words: Sequence[str]) -> Sequence[str]:
        stage, now = self._stage, self._stage.now()
        config = stage.config
        if words[0] in ("save", "clear"):
            return self._carry_out(words, None, now)
        args = page_actions._parsed(words[0], list(words[1:]))
        plan, _ = page_actions._PLANS[words[0]]
        facts = self._facts(config, now)
        planned = plan(args, config, facts)
        forgotten = self.books.begin(planned.ask, facts.directives)
        lines = self._carry_out(words, planned.ask, now)
        self.books.accept(planned.ask, now)
        for directive in forgotten:
            self.printed.pop(directive.word.ending_command.removeprefix("slurm-elastic "), None)
        return lines

    def _carry_out(self, words: Sequence[str], ask: Order | None, now: float) -> Sequence[str]:
        """The lines of the answer. ``ask``: what the words order; None of a save and a clear."""
        config = self._stage.config
        if ask is not None:
            return orders.carry_out(config, ask, "root", now)
        if words[0] == "save":
            saver = Saver(uid=0, name="root", is_trusted=True)
            return save_now(config, self._stage.slurm.jobs(), int(words[1]), saver, now)
        args = page_actions._parsed(words[0], list(words[1:]))
        args.dry_run = False
        return clear._cleared(args, config, config.state / "ledger.db", ROOT, now)

    def _facts(self, config: Config, now: float) -> Facts:
        facts = records._read_facts(config, now)
        if facts.ledger_error:
            raise SlurmElasticError(f"nothing was ordered: {facts.ledger_error}")
        slurm: Any = self._stage.slurm
        try:
            facts = replace(facts, nodes=slurm.nodes(), jobs=slurm.jobs())
        except SlurmError as error:
            raise SlurmElasticError(f"nothing was ordered: {error}") from error
        return with_kept(facts, slurm)

    # what is ordered

    def _place(self, *, nodes: bool = True) -> str:
        config, rng = self._stage.config, self._rng
        choices = [c.name for c in config.clouds] + [p.name for p in config.pools]
        if nodes and rng.random() < 0.6:
            return rng.choice(sorted(self._stage.nodes))
        return rng.choice(choices)

    def _for(self) -> Sequence[str]:
        return ("--for", self._rng.choice(TIMES)) if self._rng.random() < 0.4 else ()

    def _reason(self) -> Sequence[str]:
        words = ("new image", "UserId=0 \\n", "Grüße; slurm-elastic resume x")
        return ("--reason", self._rng.choice(words)) if self._rng.random() < 0.3 else ()

    def pause(self) -> None:
        place = "cluster" if self._rng.random() < 0.3 else self._place(nodes=False)
        self.give("pause", place, *self._for(), *self._reason())

    def limit(self) -> None:
        rng, config = self._rng, self._stage.config
        pool, cloud = rng.choice(config.pools).name, rng.choice(config.clouds).name
        scope, key = rng.choice((
            ("cluster", "nodes"), (cloud, "nodes"), (pool, "max_nodes"),
            ("cluster", "dollars_per_hour"), (cloud, "dollars_per_hour"),
            *((("account:physics", "per_day"), ("cluster", "per_month")) * (rng.random() < 0.2)),
        ))  # fmt: skip
        wrong = ("-1", "nan", "1e400", "many", "0.15")
        value = rng.choice(("1", "2", "3", "0") if rng.random() < 0.8 else wrong)
        self.give("limit", scope, key, value, *self._for(), *self._reason())

    def _leave(self, verb: str, *options: str) -> None:
        rng = self._rng
        at_most = ("--max-unavailable", "1") if rng.random() < 0.3 else ()
        begin = ("--at", "now+1m") if rng.random() < 0.2 else ()
        self.give(verb, self._place(), *options, *at_most, *begin, *self._reason())

    def _aggressive(self) -> Sequence[str]:
        return ("--aggressive",) if self._rng.random() < 0.4 else ()

    def drain(self) -> None:
        self._leave("drain", *self._aggressive(), *self._for())

    def replace(self) -> None:
        self._leave("replace", *self._aggressive())

    def migrate(self) -> None:
        rng = self._rng
        to = rng.choice(self._stage.config.clouds).name
        after = ("--after-jobs",) if rng.random() < 0.4 else ()
        ahead = ("--start-replacements",) if rng.random() < 0.3 else ()
        self._leave("migrate", "--to", to, *after, *ahead, *self._for())

    def clear(self) -> None:
        place = self._place(nodes=False)
        self.give("clear", *(("--all",) if self._rng.random() < 0.5 else (place,)))

    def save(self) -> None:
        running = sorted(j.id for j in self._stage.slurm.queue().values() if "RUNNING" in j.states)
        if running:
            self.give("save", str(self._rng.choice(running)))

    def take_back(self) -> None:
        """By a command that was printed, or of all at once."""
        if self.printed and self._rng.random() < 0.7:
            self.give(*shlex.split(self._rng.choice(list(self.printed))))
        else:
            self.give("resume", "--all")

    def reload(self) -> None:
        """Both services are restarted with another configuration."""
        rng, plain = self._rng, self._plain
        limits = rng.choice((plain.limits, Limits(nodes=2), Limits(nodes=3)))
        self._reload(limits, [rng.choice((None, 1, 2)) for _ in plain.pools])
        self._stage.struck["orders: configuration reloaded"] += 1

    def reload_plain(self) -> None:
        """The configuration is as it was, so that all jobs have room."""
        self._reload(self._plain.limits, [pool.max_nodes for pool in self._plain.pools])

    def _reload(self, limits: Limits, most: Sequence[int | None]) -> None:
        config = self._stage.config
        pools = tuple(replace(p, max_nodes=n) for p, n in zip(config.pools, most, strict=True))
        self.books.reload()
        self._stage.restart_with(replace(config, limits=limits, pools=pools))

    def restart(self) -> None:
        """As systemctl does."""
        stage = self._stage
        owner = stage.acting(self._rng.choice(("elasticd", "elasticd", "ckptman")))
        if stage.end_gently(owner):
            stage.struck["orders: service restarted"] += 1

    def swap(self) -> None:
        pair = self._stage.pair
        if pair is None or len(pair.up) < len(self._stage.owners) / 2:
            return
        other = next(host for host in sorted(pair.up) if host != pair.acting)
        pair.take_over(other, forgets=False)
        self._stage.struck["orders: heads swapped"] += 1

    # the end

    def take_all_back(self) -> bool:
        """Whether nothing is ordered any more. Each printed command of an order in force must be
        accepted now that nothing is wrong.
        """
        pair = self._stage.pair
        if pair is not None and not pair.books.acts(self._stage.acting("elasticd")):
            return False  # the head that is to act has not begun yet, and the other one is refused
        if not self._can_read():
            return False
        for command in list(self.printed):
            if command not in self.printed:
                continue  # an earlier one of these has ended its order, too
            del self.printed[command]
            if not self.answered(shlex.split(command)) and not self.books.forgave:
                self._stage.books.wrong("order", f"`{command}` was printed, and is refused")
        config, now = self._stage.config, self._stage.now()
        facts = self._facts(config, now)
        if any(not d.word.is_limit for d in facts.directives):
            self.answered(("resume", "--all"))
        for directive in facts.directives:
            if directive.word.is_limit:
                self.answered(shlex.split(directive.word.ending_command)[1:])
        left = self._facts(config, now).directives
        return not left

    def _can_read(self) -> bool:
        """Whether the records answer. A ledger that the storm damaged in its last moment does not
        until slurm-elasticd has noticed the damage and made the view again.
        """
        try:
            self._facts(self._stage.config, self._stage.now())
        except SlurmElasticError as error:
            self._stage.note_alike(f"orders cannot be read: {error}")
            return False
        return True


ORDERS: dict[str, Callable[[OrderWeather], None]] = {
    "pause": OrderWeather.pause,
    "limit": OrderWeather.limit,
    "drain": OrderWeather.drain,
    "replace": OrderWeather.replace,
    "migrate": OrderWeather.migrate,
    "clear": OrderWeather.clear,
    "save": OrderWeather.save,
    "take back": OrderWeather.take_back,
    "reload": OrderWeather.reload,
    "restart": OrderWeather.restart,
    "swap": OrderWeather.swap,
}
