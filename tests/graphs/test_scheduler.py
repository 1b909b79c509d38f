"""When steps start and what failures do: by hand for each rule, and over random graphs.

Steps end when the test says so, several in one instant where it wants that; nothing here
waits for time to pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_harbor.graphs.scheduler import (
    Ending,
    Node,
    Progress,
    Retry,
    Schedule,
    run_graph,
)


class Broken(Exception):
    pass


async def everybody_waits() -> None:
    """Give way until nothing can have anything left to do.

    (anyio's ``wait_all_tasks_blocked`` sleeps in between: thousands of times here.)
    """
    for _ in range(25):
        await checkpoint()


@dataclass
class Stage:
    """Steps that wait until they are told how to end, and a diary of what happened."""

    nodes: list[Node]
    max_concurrent: int | None = None
    diary: list[str] = field(default_factory=list)
    started: list[str] = field(default_factory=list)
    waiting: dict[str, anyio.Event] = field(default_factory=dict)
    outcomes: dict[str, Exception | None] = field(default_factory=dict)
    written: list[str] = field(default_factory=list)
    endings: list[Ending] = field(default_factory=list)
    undone: list[frozenset[str]] = field(default_factory=list)
    states: dict[str, str] = field(default_factory=dict)
    schedule: Schedule | None = None
    was_cancelled: bool = False

    async def run(self, step_id: str) -> None:
        assert step_id not in self.waiting, "runs twice at once"
        assert step_id not in self.written, "runs again though its work stands"
        self.started.append(step_id)
        self.diary.append(f"+{step_id}")
        self.states[step_id] = "running"
        self.waiting[step_id] = anyio.Event()
        try:
            await self.waiting[step_id].wait()
        finally:
            del self.waiting[step_id]
        error = self.outcomes.pop(step_id)
        if error is not None:
            raise error
        self.written.append(step_id)

    async def undo(self, step_ids: frozenset[str]) -> None:
        assert not step_ids & set(self.waiting), "undone while it runs"
        await checkpoint()
        self.undone.append(step_ids)
        for step in step_ids:
            del self.states[step]
        self.written = [step for step in self.written if step not in step_ids]

    def ended(self, ending: Ending) -> None:
        self.endings.append(ending)
        self.states[ending.step_id] = ending.status
        self.diary.append(f"{ending.step_id}:{ending.status}")

    async def perform(self, *instants: Mapping[str, bool]) -> Stage:
        """Run the graph; each instant tells steps to end, and whether well."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._drive)
            for instant in instants:
                await self.release(instant)
            await everybody_waits()
            assert not self.waiting, f"still waits for {sorted(self.waiting)}"
        return self

    async def release(self, instant: Mapping[str, bool]) -> None:
        await everybody_waits()
        self.diary.append("|")
        for step, is_well in instant.items():
            self.outcomes[step] = None if is_well else Broken(step)
            self.waiting[step].set()
        await everybody_waits()

    async def _drive(self) -> None:
        try:
            self.schedule = await run_graph(
                self.nodes, self, max_concurrent=self.max_concurrent
            )
        except anyio.get_cancelled_exc_class():
            self.was_cancelled = True
            raise

    def statuses(self) -> Mapping[str, str]:
        assert self.schedule is not None
        return self.schedule.statuses


def perform(nodes: list[Node], *instants: Mapping[str, bool], cap=None) -> Stage:
    return anyio.run(lambda: Stage(nodes, cap).perform(*instants))


def chain(*ids: str, **options) -> list[Node]:
    return [
        Node(step, ids[index - 1 : index] if index else (), **options)
        for index, step in enumerate(ids)
    ]


LIBRARY = [
    Node("library-up"),
    Node("reader-up"),
    Node("shelves", ("library-up",)),
    Node("clerk-up", ("library-up",)),
    Node("serve", ("shelves", "clerk-up", "reader-up")),
    Node("desk-manners", ("serve",)),
    Node("take", ("serve",)),
]


def test_the_worked_example_of_the_format():
    stage = perform(
        LIBRARY,
        {"library-up": True},
        {"shelves": True, "reader-up": True},
        {"clerk-up": True},
        {"serve": True},
        {"take": True},
        {"desk-manners": True},
    )
    assert " ".join(stage.diary) == (
        "+library-up +reader-up | library-up:passed +shelves +clerk-up | "
        "shelves:passed reader-up:passed | clerk-up:passed +serve | serve:passed "
        "+desk-manners +take | take:passed | desk-manners:passed"
    )
    assert stage.schedule.error is None
    assert stage.schedule.not_run == ()
    assert list(stage.statuses()) == [node.id for node in LIBRARY]


def test_no_steps_are_a_run_too():
    assert perform([]).schedule == Schedule({}, (), None)


def test_a_fatal_failure_starts_nothing_more_and_cancels_nothing():
    nodes = [Node("a"), Node("b"), Node("c", ("b",)), Node("d", ("a",))]
    stage = perform(nodes, {"a": False}, {"b": True})
    assert " ".join(stage.diary) == "+a +b | a:failed | b:passed"
    assert stage.written == ["b"]
    assert str(stage.schedule.error) == "a"
    assert stage.schedule.not_run == ("c", "d")


def test_the_first_fatal_error_is_the_tasks():
    stage = perform([Node("a"), Node("b")], {"b": False}, {"a": False})
    assert str(stage.schedule.error) == "b"
    assert stage.statuses() == {"a": "failed", "b": "failed"}


def test_dependents_of_a_tolerated_failure_start():
    nodes = [Node("a", fails_task=False), Node("b", ("a",))]
    stage = perform(nodes, {"a": False}, {"b": True})
    assert stage.statuses() == {"a": "tolerated", "b": "passed"}
    assert stage.schedule.error is None


def test_what_ends_after_a_fatal_failure_is_judged_by_its_own_flag():
    nodes = [Node("a"), Node("b", fails_task=False), Node("c", ("b",))]
    stage = perform(nodes, {"a": False}, {"b": False})
    assert stage.statuses() == {"a": "failed", "b": "tolerated"}
    assert stage.schedule.not_run == ("c",)


def test_a_cap_keeps_file_order():
    nodes = [Node("a"), Node("b"), Node("c")]
    stage = perform(nodes, {"b": True}, {"a": True}, {"c": True}, cap=2)
    assert " ".join(stage.diary) == ("+a +b | b:passed +c | a:passed | c:passed")


def test_a_retry_undoes_its_span_and_runs_it_again():
    nodes = [Node("up"), *chain("env", "load"), Node("ask", ("load",))]
    nodes[3] = Node("ask", ("load",), retry=Retry("load"))
    stage = perform(
        nodes,
        {"up": True, "env": True},
        {"load": True},
        {"ask": False},
        {"load": True},
        {"ask": True},
    )
    assert stage.undone == [{"load", "ask"}]
    assert stage.started == ["up", "env", "load", "ask", "load", "ask"]
    assert [end.status for end in stage.endings if end.step_id == "ask"] == [
        "retried",
        "passed",
    ]
    assert stage.schedule.error is None


def test_a_retry_takes_along_what_else_hangs_on_its_first_step():
    retry = Retry("env")
    nodes = [Node("env"), Node("side", ("env",)), Node("ask", ("env",), retry=retry)]
    stage = perform(
        nodes,
        {"env": True},
        {"side": True},
        {"ask": False},
        {"env": True},
        {"side": True, "ask": True},
    )
    assert stage.undone == [{"env", "side", "ask"}]
    assert sorted(stage.written) == ["ask", "env", "side"]


def test_a_retry_cancels_what_runs_beside_it_and_starts_it_again():
    nodes = [Node("a", retry=Retry("a")), Node("b"), Node("c")]
    stage = perform(nodes, {"c": True}, {"a": False}, {"a": True, "b": True})
    assert stage.undone == [{"a", "b"}]
    assert " ".join(stage.diary) == (
        "+a +b +c | c:passed | a:retried b:cancelled +a +b | a:passed b:passed"
    )


def test_a_retry_comes_before_tolerance_and_its_budget_ends():
    node = Node("a", fails_task=False, retry=Retry("a", 2))
    stage = perform([node], {"a": False}, {"a": False}, {"a": False})
    assert [end.status for end in stage.endings] == ["retried", "retried", "tolerated"]


def test_a_retry_without_budget_is_none():
    stage = perform([Node("a", retry=Retry("a", 0))], {"a": False})
    assert stage.statuses() == {"a": "failed"}


def test_two_failures_in_one_instant_that_could_be_retried_are_fatal():
    nodes = [
        Node("a", retry=Retry("a"), fails_task=False),
        Node("b", retry=Retry("b"), fails_task=False),
    ]
    stage = perform(nodes, {"a": False, "b": False})
    assert stage.statuses() == {"a": "failed", "b": "failed"}
    assert str(stage.schedule.error) == "a"


def test_two_failures_one_after_the_other_are_retried_each():
    nodes = [Node("a", retry=Retry("a")), Node("b", retry=Retry("b"))]
    stage = perform(nodes, {"a": False}, {"b": False}, {"a": True, "b": True})
    assert stage.schedule.error is None
    assert stage.undone == [{"a", "b"}, {"a", "b"}]


def test_nothing_is_retried_after_a_fatal_failure():
    nodes = [
        Node("a"),
        Node("b", retry=Retry("b"), fails_task=False),
        Node("c", retry=Retry("c")),
    ]
    stage = perform(nodes, {"a": False, "b": False}, {"c": False})
    assert stage.statuses() == {"a": "failed", "b": "tolerated", "c": "failed"}
    assert stage.undone == []


def test_a_tolerated_failure_beside_a_retry_stays_settled():
    nodes = [Node("a", fails_task=False), Node("b", retry=Retry("b"))]
    stage = perform(nodes, {"a": False, "b": False}, {"b": True})
    assert stage.statuses() == {"a": "tolerated", "b": "passed"}
    assert stage.started == ["a", "b", "b"]


def test_a_step_that_cancels_itself_has_failed_and_nobody_else():
    class Leaking(Stage):
        async def run(self, step_id: str) -> None:
            if step_id == "leak":
                raise anyio.get_cancelled_exc_class()
            await super().run(step_id)

    nodes = [Node("leak", fails_task=False), Node("other")]
    stage = anyio.run(lambda: Leaking(nodes).perform({"other": True}))
    assert stage.statuses() == {"leak": "tolerated", "other": "passed"}
    assert "cancelled by something inside it" in str(stage.endings[0].error)


def test_a_step_that_exits_has_failed():
    class Exiting(Stage):
        async def run(self, step_id: str) -> None:
            raise SystemExit(3)

    stage = anyio.run(Exiting([Node("a")]).perform)
    assert stage.statuses() == {"a": "failed"}


def test_trouble_of_the_listener_ends_the_run_and_is_raised_as_it_is():
    class Listener(Stage):
        def ended(self, ending: Ending) -> None:
            if ending.status == "passed":
                raise OSError("disk full")

    stage = Listener([Node("a"), Node("b")])

    async def run() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(release)
            with pytest.raises(OSError, match="disk full"):
                await run_graph(stage.nodes, stage)

    async def release() -> None:
        await stage.release({"a": True})

    anyio.run(run)
    assert not stage.waiting


def test_cancelling_waits_for_running_steps_and_says_which():
    async def run() -> Stage:
        stage = Stage([Node("a"), Node("b"), Node("c", ("a",)), Node("d", ("b",))])
        async with anyio.create_task_group() as group:
            group.start_soon(stage._drive)
            await stage.release({"a": True})
            group.cancel_scope.cancel()
        return stage

    stage = anyio.run(run)
    assert stage.was_cancelled
    assert not stage.waiting
    assert sorted((end.step_id, end.status) for end in stage.endings) == [
        ("a", "passed"),
        ("b", "cancelled"),
        ("c", "cancelled"),
    ]


def test_clean_up_of_a_cancelled_step_is_waited_for():
    cleaned = []

    class Careful(Stage):
        async def run(self, step_id: str) -> None:
            try:
                await super().run(step_id)
            except anyio.get_cancelled_exc_class():
                with anyio.CancelScope(shield=True):
                    await everybody_waits()
                    cleaned.append(step_id)
                raise

    async def run() -> None:
        stage = Careful([Node("a"), Node("b")])
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(stage._drive)
                await everybody_waits()
                scope.cancel()
        assert len(stage.endings) == 2

    anyio.run(run)
    assert sorted(cleaned) == ["a", "b"]


def test_times_are_those_of_the_step():
    stage = perform([Node("a")], {"a": True})
    (ending,) = stage.endings
    assert ending.started_at > 1e9
    assert 0 <= ending.seconds < 60


# Random graphs


@st.composite
def graphs(draw: st.DrawFn, retries: bool) -> list[Node]:
    nodes: list[Node] = []
    for number in range(draw(st.integers(1, 8))):
        earlier = [node.id for node in nodes]
        depends = draw(
            st.lists(st.sampled_from(earlier), unique=True, max_size=3)
            if earlier
            else st.just([])
        )
        step = f"s{number}"
        retry = None
        if retries and draw(st.booleans()):
            above = ancestors(nodes, depends)
            first = draw(st.sampled_from([step, *above]))
            retry = Retry(first, draw(st.integers(0, 2)))
        nodes.append(Node(step, tuple(depends), draw(st.booleans()), retry))
    return nodes


def ancestors(nodes: list[Node], ids: list[str]) -> list[str]:
    found = set(ids)
    for node in reversed(nodes):
        if node.id in found:
            found.update(node.depends_on)
    return sorted(found)


def could_run(stage: Stage) -> list[str]:
    """The steps that should have been started by now, from what was seen alone."""
    if "failed" in stage.states.values():
        return []
    return [
        node.id
        for node in stage.nodes
        if node.id not in stage.states
        and all(
            stage.states.get(step) in ("passed", "tolerated")
            for step in node.depends_on
        )
    ]


async def explore(
    data: st.DataObject, nodes: list[Node], cap: int | None, may_cancel: bool
) -> Stage:
    """Run a graph to its end, with the ends of steps drawn at random."""
    stage = Stage(nodes, cap)
    async with anyio.create_task_group() as group:
        group.start_soon(stage._drive)
        await everybody_waits()
        while stage.schedule is None:
            assert stage.waiting, f"nothing runs, and it does not end: {stage.diary}"
            missing = could_run(stage)
            if cap is None:
                assert not missing, f"{missing} could run: {stage.diary}"
            else:
                assert len(stage.waiting) <= cap
                assert not missing or len(stage.waiting) == cap
            if may_cancel and data.draw(st.integers(0, 3)) == 0:
                group.cancel_scope.cancel()
                break
            chosen = data.draw(
                st.lists(
                    st.sampled_from(sorted(stage.waiting)), min_size=1, unique=True
                )
            )
            await stage.release({step: data.draw(st.booleans()) for step in chosen})
    return stage


MANY = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def check_order(stage: Stage) -> None:
    """No step starts before all that it depends on has ended."""
    ended: set[str] = set()
    by_id = {node.id: node for node in stage.nodes}
    for entry in stage.diary:
        if entry.startswith("+"):
            missing = set(by_id[entry[1:]].depends_on) - ended
            assert not missing, f"{entry[1:]} started before {missing}: {stage.diary}"
            ended.discard(entry[1:])
        elif entry.endswith((":passed", ":tolerated")):
            ended.add(entry.partition(":")[0])


def check_instants_start_in_file_order(stage: Stage) -> None:
    order = {node.id: place for place, node in enumerate(stage.nodes)}
    run: list[int] = []
    for entry in stage.diary:
        if entry.startswith("+"):
            run.append(order[entry[1:]])
            assert run == sorted(run), stage.diary
        else:
            run = []


def check_nothing_starts_after_a_fatal_failure(stage: Stage) -> None:
    failures = [
        place for place, entry in enumerate(stage.diary) if entry.endswith(":failed")
    ]
    if failures:
        later = stage.diary[failures[0] :]
        assert not [entry for entry in later if entry.startswith("+")]
        assert not [
            entry for entry in later if entry.endswith((":cancelled", ":retried"))
        ]


def check_the_end(stage: Stage) -> None:
    schedule = stage.schedule
    assert schedule is not None
    passed = {step for step, status in schedule.statuses.items() if status == "passed"}
    assert set(stage.written) == passed, "what was written is what passed"
    assert not stage.waiting
    failed = [end for end in stage.endings if end.status == "failed"]
    assert schedule.error is (failed[0].error if failed else None)
    if not failed:
        assert schedule.not_run == ()
        assert set(schedule.statuses.values()) <= {"passed", "tolerated"}
    assert {*schedule.statuses, *schedule.not_run} == {node.id for node in stage.nodes}


@MANY
@given(st.data(), graphs(retries=False), st.one_of(st.none(), st.integers(1, 3)))
def test_random_graphs_without_retries(data, nodes, cap):
    stage = anyio.run(explore, data, nodes, cap, False)
    assert len(stage.started) == len(set(stage.started)), "something ran twice"
    check_order(stage)
    check_instants_start_in_file_order(stage)
    check_nothing_starts_after_a_fatal_failure(stage)
    check_the_end(stage)
    for node in nodes:
        if stage.statuses().get(node.id) in ("failed", "tolerated"):
            expected = "failed" if node.fails_task else "tolerated"
            assert stage.statuses()[node.id] == expected


@MANY
@given(st.data(), graphs(retries=True))
def test_random_graphs_with_retries(data, nodes):
    stage = anyio.run(explore, data, nodes, None, False)
    check_order(stage)
    check_nothing_starts_after_a_fatal_failure(stage)
    check_the_end(stage)
    for node in nodes:
        retried = [
            end
            for end in stage.endings
            if end.step_id == node.id and end.status == "retried"
        ]
        assert len(retried) <= (node.retry.max_retries if node.retry else 0)
    again = sum(len(steps) for steps in stage.undone)
    assert len(stage.started) <= len(nodes) + again


@MANY
@given(st.data(), graphs(retries=True))
def test_random_graphs_that_are_cancelled(data, nodes):
    stage = anyio.run(explore, data, nodes, None, True)
    assert not stage.waiting, "something still runs"
    assert stage.was_cancelled or stage.schedule is not None
    ends: dict[str, int] = {}
    for ending in stage.endings:
        ends[ending.step_id] = ends.get(ending.step_id, 0) + 1
    for step in stage.started:
        ends[step] -= 1
    assert not any(ends.values()), "each start has its end, and no other"
    check_order(stage)


def test_progress_offers_nothing_twice():
    progress = Progress([Node("a"), Node("b", ("a",))])
    assert progress.ready() == ["a"]
    progress.start("a")
    assert progress.ready() == []
    assert progress.running == {"a"}
    assert progress.not_run == ("b",)
