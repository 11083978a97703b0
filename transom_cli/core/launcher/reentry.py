"""In-process restart: ranks that survive a fault enter their training again, and only lost ones are started. Pure.

Survivors keep their processes while the lost ranks' logs are read. If the diagnosis allows a relaunch on the same
nodes, or with spares in place of nodes without survivors, that relaunch keeps the survivors. In all other cases the
launch is ended, and recovers as any other does. If a rank dies in a launch whose ranks have not stepped since they
entered it, its survivors may stay once more, then not again before a step. New ranks of such a launch that wait for no
order yet are killed, and started once more with the lost ones.

Survivors that do not enter the launch in time are stuck. They alone are killed and started again, in the same launch:
the others wait for them at its rendezvous. If that is not possible, the launch is ended.

Elastic replicas train on without the lost ranks, which join them later.
"""

from dataclasses import replace

from transom_cli.core.clocks import failed_first
from transom_cli.core.events import RankExit
from transom_cli.core.launcher.actions import EndLaunch, Journal, KillRanks, ReadLogs, ReplaceRanks
from transom_cli.core.launcher.events import RanksEntered, RanksExited, RanksKilled, StandbyTook
from transom_cli.core.launcher.judgement import Sign
from transom_cli.core.launcher.state import Decision, Phase, Reason, State
from transom_cli.plural import several, some, was

AGAIN = 1  # launches in a row without a step that survivors of a death may leave for another one


def lost(state: State) -> tuple[int, ...]:
    """The ranks that have ended, and those on nodes that did not answer when their ranks were to be killed."""
    ended, each = {x.rank for x in state.launch.exits}, state.tasks_on_node
    away = state.launch.unheard
    return tuple(rank for rank in range(state.tasks) if rank in ended or state.nodes.training[rank // each] in away)


def survivors(state: State) -> tuple[int, ...]:
    """The ranks that train. Those that have not joined elastic replicas yet stay too, but nobody waits for them."""
    out = {*lost(state), *state.launch.absent}
    return tuple(rank for rank in range(state.tasks) if rank not in out)


def obstacle(state: State, exits: tuple[RankExit, ...]) -> str:
    """Why the survivors of these exits cannot stay, as far as is known before the logs are read; "" if they may."""
    once_more = bool(state.launch.kept) and state.launch.fruitless < AGAIN
    if why := never(state, unstepped=once_more):
        return why
    return after_all(state, exits) if exits else "no rank has ended"


def after_all(state: State, exits: tuple[RankExit, ...]) -> str:
    """As `obstacle`, of what may change while the logs are read."""
    if state.launch.over_since is not None:
        return "the training step has ended"
    if not survivors(state):
        return "no rank survives"
    return "" if all(x.bad for x in exits) else "a rank has ended with exit code 0"


def reading(state: State) -> bool:
    """Whether the logs of ranks that have died are read while the others wait, and nobody is being killed."""
    launch = state.launch
    return state.phase is Phase.READING and bool(launch.exits) and launch.ended is None and not launch.culprits


def more_exits(state: State, e: RanksExited) -> Decision:
    """Note the ranks that end while the logs are read: they do not survive, and one of them may have failed first."""
    over = e.at if e.over and state.launch.over_since is None else state.launch.over_since
    state = replace(state, launch=replace(state.launch, exits=e.exits, over_since=over))
    incident = state.incident
    if incident is None or incident.outcome is None:
        return state, ()
    return replace(state, incident=replace(incident, outcome=replace(incident.outcome, exits=e.exits))), ()


def never(state: State, *, unstepped: bool = False) -> str:
    """Why ranks of this launch cannot enter another one, whatever has happened; "" if they may.

    unstepped: even if they have not stepped.
    """
    launch = state.launch
    if launch.over_since is not None:
        return "the training step has ended"
    if state.departure.reason is not Reason.NONE:
        return "the launch was to end anyway"
    return "" if unstepped or state.progress.step >= 0 else f"no rank has stepped in launch {launch.number}"


def end_all(state: State, at: float, why: str, *, evidence: bool = False) -> Decision:
    """End a launch whose survivors have waited for a decision."""
    name = _incident(state)
    entry = Journal(name, "reentry", f"the survivors are ended too: {why}")
    return state.enter(Phase.ENDING, at), (entry, EndLaunch(state.launch.number, name, evidence=evidence))


def fits(state: State, nodes: tuple[str, ...]) -> bool:
    """Whether all survivors could stay on their node if the next launch were on `nodes`."""
    before, each = state.nodes.training, state.tasks_on_node
    return len(nodes) == len(before) and all(nodes[r // each] == before[r // each] for r in survivors(state))


def begin(state: State, *, elastic: bool = False) -> State:
    """Note what the new launch waits for. Called for a launch that keeps the survivors of the one before."""
    gone, kept = lost(state), survivors(state)
    absent = tuple(sorted({*gone, *state.launch.absent})) if elastic else ()
    fruitless = state.launch.fruitless + 1 if state.progress.step < 0 else 0
    launch = replace(state.launch.next(), kept=kept, awaited=kept, replaced=gone, absent=absent, fruitless=fruitless)
    return replace(state, launch=launch)


def entered(state: State, e: RanksEntered) -> Decision:
    launch = state.launch
    if not state.trains(e.launch) or not (launch.awaited or launch.absent):
        return state, ()
    awaited = tuple(rank for rank in launch.awaited if rank not in e.ranks)
    absent = tuple(rank for rank in launch.absent if rank not in e.stepped)
    joined = tuple(rank for rank in launch.absent if rank not in absent)
    state = replace(state, launch=replace(launch, awaited=awaited, absent=absent))
    if not joined:
        return state, ()
    words = f"{named(joined)} joined the others, {e.at - state.since:.1f} s after launch {launch.number} began"
    return state, (Journal("", "joined", words),)


def standby_took(state: State, e: StandbyTook) -> Decision:
    return (replace(state, launch=replace(state.launch, standby=e.took)) if state.trains(e.launch) else state), ()


def late_at(state: State) -> float | None:
    """When survivors that have not entered the launch count as stuck; None: none is awaited."""
    waiting = state.phase is Phase.TRAINING and state.launch.awaited
    return state.since + state.policy.reenter if waiting else None


def late(state: State) -> Sign:
    launch = state.launch
    words = f"{named(launch.awaited)} did not enter launch {launch.number} within {state.policy.reenter:.0f} s"
    return Sign(words, exits=())


def kill_stuck(state: State, at: float) -> Decision | None:
    """Kill the survivors that are awaited. None: they cannot be replaced alone.

    Elastic replicas would form their group with a rank that lacks their state.
    """
    launch = state.launch
    leaves = state.stop is not None or state.departure.reason is not Reason.NONE
    if leaves or launch.over_since is not None or launch.absent or launch.awaited == launch.kept:
        return None
    entry = Journal(_incident(state), "reentry", f"{late(state).words}: killed, to be replaced alone")
    state = replace(state, launch=replace(launch, culprits=launch.awaited)).enter(Phase.READING, at)
    return state, (entry, KillRanks(launch.number, launch.awaited))


def replacing(state: State) -> bool:
    """Whether stuck survivors are being killed. A hang has culprits only after a step."""
    launch = state.launch
    awaited = launch.culprits == launch.awaited != ()
    return state.phase is Phase.READING and launch.ended is None and awaited and state.progress.step < 0


def stuck_killed(state: State, e: RanksKilled) -> Decision | None:
    """Replace the survivors that were stuck. None: they do not end, or others have ended with them."""
    launch = state.launch
    ended = {x.rank for x in e.exits}
    if state.stop or e.unheard or e.words or ended != set(launch.awaited):
        return None
    kept = tuple(rank for rank in launch.kept if rank not in launch.awaited)
    replaced = tuple(sorted((*launch.replaced, *launch.awaited)))
    now = replace(launch, kept=kept, awaited=(), culprits=(), replaced=replaced, standby=False)
    entry = Journal(_incident(state), "reentry", f"{named(launch.awaited)} to replace in launch {launch.number}")
    return replace(state, launch=now).enter(Phase.TRAINING, e.at), (entry, ReplaceRanks(launch.number, launch.awaited))


def kill_new(state: State, at: float, deaf: tuple[int, ...]) -> Decision | None:
    """Kill new ranks that wait for no order yet, after the death of another one. None: that would not help.

    They are still starting: nothing of them is worth more than the survivors.
    """
    launch = state.launch
    new = state.progress.step < 0 and set(deaf) <= set(launch.replaced)
    if not new or not deaf or launch.culprits or state.stop or len(deaf) == len(survivors(state)):
        return None
    entry = Journal(_incident(state), "reentry", f"{named(deaf)} had not begun yet: killed, to be replaced too")
    state = replace(state, launch=replace(launch, culprits=deaf)).enter(Phase.READING, at)
    return state, (entry, KillRanks(launch.number, deaf))


def killing_new(state: State) -> bool:
    """Whether new ranks are being killed."""
    launch = state.launch
    if state.phase is not Phase.READING or launch.ended is not None or state.progress.step >= 0:
        return False
    left = set(launch.culprits) - set(lost(state))
    return bool(left) and left <= set(launch.replaced)


def new_killed(state: State, e: RanksKilled) -> Decision:
    """Read the logs again, in which the survivors are asked again whether they may stay."""
    launch, outcome = state.launch, state.incident.outcome if state.incident is not None else None
    known = {x.rank: x for x in (*launch.exits, *e.exits)}
    exits = tuple(known[rank] for rank in sorted(known))
    after = replace(state, launch=replace(launch, exits=exits))
    if e.unheard or e.words or not set(launch.culprits) <= set(known):
        return end_all(state, e.at, e.words or f"{named(launch.culprits)} did not end")
    if not all(x.bad for x in exits) or not survivors(after):
        return end_all(state, e.at, f"others ended with {named(launch.culprits)}")
    first = failed_first(outcome.exits) if outcome is not None else ()
    read = ReadLogs(launch.number, first[0].rank if len(first) == 1 else None, alive=True)
    return after.enter(Phase.READING, e.at), (read,)


def words(state: State, at: float, step: int) -> str:
    """How the training recovered with the first `step` of a launch that keeps survivors, for a person; else ""."""
    launch, incident = state.launch, state.incident
    if not launch.kept or incident is None:
        return ""
    one, many = ("a standby", "standbys") if launch.standby else ("a new process", "new processes")
    took = f"{one if len(launch.replaced) == 1 else many} took {named(launch.replaced)}"
    words = f"recovered in {at - incident.began:.1f} s: {took}, {several(len(launch.kept), 'survivor')} re-entered"
    if incident.since_start:
        return words
    first, last = f"{step:,}", f"{incident.step:,}"
    again = incident.step - step + 1
    repeated = f"step {first} repeated" if again == 1 else f"steps {first} to {last} repeated"
    return f"{words}, {repeated if again > 0 else f'continued at step {first}'}"


def deaf(ranks: tuple[int, ...]) -> str:
    do = "does" if len(ranks) == 1 else "do"
    return f"{named(ranks)} {do} not wait for orders (failed too, or the training is not @recoverable)"


def entry(state: State) -> Journal:
    nodes = tuple(dict.fromkeys((*(x.node for x in state.launch.exits if x.node), *state.launch.unheard)))
    stay = several(len(survivors(state)), "rank")
    said = f"{stay} to enter the training again in the same process; {named(lost(state))} to replace"
    return Journal(_incident(state), "reentry", said, nodes=nodes)


def _incident(state: State) -> str:
    return state.incident.id if state.incident is not None else ""


def named(ranks: tuple[int, ...]) -> str:
    return f"{was(len(ranks), 'rank', 'ranks')} {some(ranks)}"
