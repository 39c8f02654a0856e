"""The whole backtest of one trace: everybody's schedule, judged alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from backtest.arena import Arena, Schedule
from backtest.clairvoyant import clairvoyant
from backtest.errors import BadArena, BadRules
from backtest.faults import replay_with_faults
from backtest.lower_bound import lower_bound
from backtest.outcome import Course, Score, course
from backtest.progress import Progress
from backtest.replay import Feed, Replay, feeds, in_arena, not_in_a_trace, replay
from backtest.rivals import RIVALS
from backtest.rules_file import Rules
from backtest.workload import Workload
from shared.autoscaling import Goal, Mode, Resource
from shared.autoscaling.deciding.validation import failing_policies
from shared.autoscaling.policy import described

RULES = "rules"


@dataclass(frozen=True, slots=True)
class Study:
    """What a backtest found out."""

    workload: Workload
    arena: Arena
    rules: Rules
    replay: Replay
    courses: Mapping[str, Course]
    clairvoyant: Course
    J_lp: float
    notices: tuple[str, ...] = ()
    faults: Mapping[str, Any] = field(default_factory=dict)
    unjudged: tuple[str, ...] = ()
    """The metrics that the rules read and of which the trace has no data. With any, the rules are
    not among the courses, because what they did says nothing about them."""
    mine: str = "your rules"
    """How the rules are called."""

    @property
    def no_verdict(self) -> str:
        """Why the rules are not judged, and what to do."""
        return no_verdict(self.unjudged, self.arena)

    @property
    def best_cost(self) -> float:
        return self.clairvoyant.score(self.arena).J

    def scores(self) -> dict[str, Score]:
        return {name: played.score(self.arena) for name, played in self.courses.items()}

    def as_dict(self) -> dict[str, Any]:
        """The JSON of ``--json``; its keys are a promise."""
        best = self.clairvoyant.score(self.arena)
        result = {
            "trace": {
                "name": self.workload.name,
                "minutes": self.workload.minutes,
                "arrivals": float(self.workload.arrivals.sum()),
                "notices": list(self.notices),
            },
            "arena": {**asdict(self.arena), "metrics": dict(_feeds(self.rules, self.arena))},
            "policies": {name: self._with_regret(score) for name, score in self.scores().items()},
            "clairvoyant": {
                "J_dp": best.J,
                "J_lp": self.J_lp,
                "gap": _above(best.J, self.J_lp),
                "actions": best.actions,
            },
        }
        if self.unjudged:
            result["not_judged"] = {"metrics": list(self.unjudged), "reason": self.no_verdict}
        return {**result, "faults": dict(self.faults)} if self.faults else result

    def _with_regret(self, score: Score) -> dict[str, Any]:
        regrets = {
            "regret_dp": _above(score.J, self.best_cost),
            "regret_lp": _above(score.J, self.J_lp),
        }
        return {"J": score.J, **regrets, **{k: v for k, v in asdict(score).items() if k != "J"}}


def study(
    arena: Arena,
    workload: Workload,
    rules: Rules,
    progress: Progress,
    faults_seed: int | None = None,
) -> Study:
    """Rules, rivals, clairvoyant and bound on one trace; faults, where asked for, hit the rules."""
    _check_backlog_metric(rules.resource, arena)
    check_policy(rules.resource, arena)
    minutes = workload.minutes
    play = partial(course, arena, workload.arrivals)
    with progress.task("your rules", minutes):
        replayed, faults = _replayed(arena, workload, rules, progress, faults_seed)
    blind = unjudged(rules.resource, arena)
    schedules: dict[str, Schedule] = {} if blind else {RULES: replayed.capacity}
    for name, rival in RIVALS.items():
        with progress.task(name, minutes):
            schedules[name] = rival(arena, workload)
    with progress.task("clairvoyant schedule", minutes):
        best = play(clairvoyant(arena, workload.arrivals))
    with progress.task("lower bound", minutes):
        bound = lower_bound(arena, workload.arrivals, progress.advance)
    return Study(
        workload=workload,
        arena=arena,
        rules=rules,
        replay=replayed,
        courses={name: play(schedule) for name, schedule in schedules.items()},
        clairvoyant=best,
        J_lp=bound,
        notices=(*workload.notices, *rules.notices, *_rule_notices(rules, arena, replayed)),
        faults=faults,
        unjudged=blind,
    )


def check_policy(resource: Resource, arena: Arena) -> None:
    """Raises BadRules if the policy fails even with a sample of every metric."""
    if wrong := failing_policies([in_arena(resource, arena)]):
        raise BadRules(*wrong)


def unjudged(resource: Resource, arena: Arena) -> tuple[str, ...]:
    """The metrics that the policy reads, or may read, and of which the trace has no data."""
    read = described(resource.policy).metric_names
    unknown = not_in_a_trace(in_arena(resource, arena), arena)
    return tuple(name for name in unknown if read is None or name in read)


def no_verdict(metrics: Sequence[str], arena: Arena) -> str:
    """Why rules on these metrics are not judged, and what to do."""
    given = "CPU and instances" if arena.cpu else "arrivals"
    return (
        f"your rules cannot be judged from {given} alone: the trace has no data of "
        f"{', '.join(metrics)}. A trace of CPU and instances has data of CpuPercentage: see Rules "
        "on CPU in docs/backtest.md. If your own policy does not read a metric, set its "
        "metric_names. If a metric is the backlog: --backlog-metric NAME"
    )


def _check_backlog_metric(resource: Resource, arena: Arena) -> None:
    if arena.backlog_metric not in (None, *resource.metrics):
        known = ", ".join(resource.metrics)
        raise BadArena(f"--backlog-metric {arena.backlog_metric}: must be one of {known}")


def _replayed(
    arena: Arena, workload: Workload, rules: Rules, progress: Progress, faults_seed: int | None
) -> tuple[Replay, Mapping[str, Any]]:
    if faults_seed is None:
        advance = progress.advance
        return replay(arena, workload, rules.resource, rules.timing, advance), {}
    return replay_with_faults(arena, workload, rules, faults_seed, progress)


def _not_as_declared(resource: Resource, arena: Arena) -> Iterator[str]:
    """In what the arena differs from what the rules say."""
    limits, goal = resource.limits, resource.goal
    if (limits.minimum, limits.maximum) != (arena.min_instances, arena.max_instances):
        yield (
            f"replayed with {arena.min_instances} to {arena.max_instances} instances, not with the "
            f"{limits.minimum} to {limits.maximum} of the rules: --min-instances, --max-instances"
        )
    if goal != Goal(arena.age_limit_minutes, arena.switch_cost, arena.late_penalty):
        yield (
            f"replayed with age limit {arena.age_limit_minutes}, switch cost {arena.switch_cost:g} "
            f"and late penalty {arena.late_penalty:g}, not with the rules' own goal"
        )
    if resource.mode is not Mode.ACTIVE:
        yield f"replayed as active, though the rules say {resource.mode}"
    fed = [n for n, feed in feeds(resource, arena).items() if feed == "backlog"]
    if len(fed) > 1:
        yield (
            f"{' and '.join(fed)} each see the whole backlog: a rule that adds them sees double; "
            "--backlog-metric NAME feeds one of them alone"
        )


def _rule_notices(rules: Rules, arena: Arena, replayed: Replay) -> tuple[str, ...]:
    """What the user should know of how the rules fared."""
    said = list(_not_as_declared(rules.resource, arena))
    read = described(rules.resource.policy).metric_names
    fed, unknown = _feeds(rules, arena), not_in_a_trace(in_arena(rules.resource, arena), arena)
    if unknown:
        said.append(
            f"not in a trace: {', '.join(unknown)}. Rules on these saw zeros: they never asked for "
            "more, and never stood in the way of less"
        )
    elif read != () and not {"backlog", "cpu"} & set(fed.values()):
        said.append("no metric of the resource counts waiting items: its rules saw only zeros")
    if replayed.rule_error:
        said.append(f"the rules failed: {replayed.rule_error}")
    if replayed.false_alarms:
        said.append(
            f"{replayed.false_alarms} times the app took its own change for one made by hand"
        )
    return tuple(said)


def _feeds(rules: Rules, arena: Arena) -> Mapping[str, Feed]:
    return feeds(in_arena(rules.resource, arena), arena)


def _above(cost: float, reference: float) -> float:
    return cost / reference - 1
