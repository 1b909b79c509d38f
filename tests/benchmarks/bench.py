"""Measures the performance budget: ratios, from interleaved rounds, as medians.

::

    python tests/benchmarks/bench.py                 # everything, about 15 minutes
    python tests/benchmarks/bench.py --quick         # a tenth of it, rough
    python tests/benchmarks/bench.py --only local docker

Absolute times differ from machine to machine and with what else it does; so every measure
is a ratio to something that is timed in the same rounds: pytest without the plugin, or a bare
``docker run --rm --network none IMAGE true``.
"""

# ruff: noqa: T201 - a script that prints its table
from __future__ import annotations

import argparse
import contextlib
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio

from pytest_harbor import Settings, episodes, load_task, plan_episode
from pytest_harbor.agents.registry import resolve_agent
from pytest_harbor.sandboxes.api import Provider
from pytest_harbor.sandboxes.environment import EnvironmentSpec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

TURNS = 10
DOCKER_EPISODES = 10
DOCKER_WORKERS = 4


@dataclass(frozen=True)
class Measure:
    """One row of the table. ``limit`` is an upper bound unless ``at_least``."""

    name: str
    value: float
    limit: float
    unit: str = "x"
    at_least: bool = False
    detail: str = ""

    @property
    def is_met(self) -> bool:
        """True when the value keeps the budget."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def __str__(self) -> str:
        sign = ">=" if self.at_least else "<="
        verdict = "ok" if self.is_met else "OVER"
        budget = f"{sign} {self.limit:g} {self.unit}"
        value = f"{self.value:.3f} {self.unit}"
        return f"{self.name:<52} {value:>14}  {budget:<12} {verdict:<5} {self.detail}"


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    rounds: int
    folders: int
    episodes: int
    memory_episodes: int


FULL = Scale(rounds=12, folders=8000, episodes=100, memory_episodes=1000)
QUICK = Scale(rounds=3, folders=800, episodes=20, memory_episodes=60)


def seconds(work: Callable[[], object]) -> float:
    """How long ``work`` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def interleaved(rounds: int, **works: Callable[[], object]) -> dict[str, float]:
    """Median seconds of each work; one of each per round, so load hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds):
        names = list(works) if number % 2 == 0 else list(reversed(works))
        for name in names:
            times[name].append(seconds(works[name]))
    return {name: statistics.median(values) for name, values in times.items()}


def pytest(*arguments: str | Path, cwd: Path, codes: tuple[int, ...] = (0,)) -> str:
    """Run pytest in a process of its own, without the caches."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            *map(str, arguments),
        ],
        cwd=cwd,
        # Bytecode is cached as for everybody, whatever this shell says.
        env={**os.environ, "PYTEST_ADDOPTS": "", "PYTHONDONTWRITEBYTECODE": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in codes:
        raise SystemExit(
            f"pytest ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    return done.stdout


def write_task(folder: Path, *, image: str | None = None) -> Path:
    """A one-step task that its oracle solves."""
    (folder / "tests").mkdir(parents=True)
    (folder / "solution").mkdir()
    environment = f'[environment]\ndocker_image = "{image}"\n' if image else ""
    (folder / "task.toml").write_text(
        'schema_version = "1.4"\n[agent]\ntimeout_sec = 60\n'
        f"[verifier]\ntimeout_sec = 60\n{environment}"
    )
    (folder / "instruction.md").write_text("Write ok into done.txt.\n")
    (folder / "solution" / "solve.sh").write_text("echo ok > done.txt\n")
    (folder / "tests" / "test.sh").write_text(
        "test -f done.txt && echo 1 > /logs/verifier/reward.txt\n"
    )
    return folder


# -- pytest ---------------------------------------------------------------------------


def processor_seconds(work: Callable[[], object]) -> float:
    """Processor time of the processes that ``work`` starts and waits for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    work()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def import_cost(scale: Scale, scratch: Path) -> Iterator[Measure]:
    """What the installed plugin adds to a session that has no task.

    In processor time, and as the median of the rounds' differences: 20 ms would drown in
    the waiting of a busy machine.
    """
    (scratch / "test_one.py").write_text("def test_one():\n    pass\n")
    arguments = ("--collect-only", "-q", "test_one.py")
    without, added = [], []
    for _ in range(max(scale.rounds, 10) * 2):
        bare = processor_seconds(
            lambda: pytest("-p", "no:harbor", *arguments, cwd=scratch)
        )
        installed = processor_seconds(lambda: pytest(*arguments, cwd=scratch))
        without.append(bare)
        added.append(installed - bare)
    yield Measure(
        "plugin installed, no task collected: added",
        statistics.median(added) * 1000,
        20,
        "ms",
        detail=f"of {statistics.median(without) * 1000:.0f} ms",
    )


def collection(scale: Scale, scratch: Path) -> Iterator[Measure]:
    """Collecting many folders, and naming one of them."""
    tasks, files = scratch / "tasks", scratch / "files"
    for number in range(scale.folders):
        write_task(tasks / f"task-{number:05}")
        folder = files / f"case_{number:05}"
        folder.mkdir(parents=True)
        (folder / f"test_{number:05}.py").write_text("def test_it():\n    pass\n")
    one = f"tasks/task-{scale.folders // 2:05}"
    quiet = ("--collect-only", "-q")
    median = interleaved(
        max(2, scale.rounds // 3),
        tasks=lambda: pytest(*quiet, "tasks", cwd=scratch),
        files=lambda: pytest(*quiet, "-p", "no:harbor", "files", cwd=scratch),
        one=lambda: pytest(*quiet, one, cwd=scratch),
    )
    yield Measure(
        f"collecting {scale.folders} task folders / Python files",
        median["tasks"] / median["files"],
        1.5,
        detail=f"{median['tasks']:.1f} s / {median['files']:.1f} s",
    )
    yield Measure(
        "naming one of them by path / the whole",
        median["one"] / median["tasks"],
        0.1,
        detail=f"{median['one']:.2f} s",
    )


def workers(scale: Scale, scratch: Path) -> Iterator[Measure]:
    """Local episodes with two workers against none.

    What a worker costs before its first episode (its imports, its probe) is taken off by
    a run of a tenth of the episodes.
    """
    few = max(4, scale.episodes // 10)
    for number in range(scale.episodes):
        write_task(scratch / "many" / f"task-{number:03}")
    for number in range(few):
        write_task(scratch / "few" / f"task-{number:03}")
    base = ("-q", "--harbor-sandbox", "local", "--harbor-results", scratch / "results")
    median = interleaved(
        max(1, scale.rounds // 4),
        few0=lambda: pytest(*base, "few", cwd=scratch),
        few2=lambda: pytest(*base, "-n2", "few", cwd=scratch),
        many0=lambda: pytest(*base, "many", cwd=scratch),
        many2=lambda: pytest(*base, "-n2", "many", cwd=scratch),
    )
    serial = median["many0"] - median["few0"]
    parallel = median["many2"] - median["few2"]
    yield Measure(
        f"{scale.episodes - few} local episodes, -n 2 against -n 0",
        serial / parallel,
        1.7,
        at_least=True,
        detail=f"{serial:.1f} s / {parallel:.1f} s, {os.cpu_count()} cores",
    )


# -- the engine -----------------------------------------------------------------------


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    """As :func:`seconds`, for a coroutine."""
    start = time.perf_counter()
    await work()
    return time.perf_counter() - start


async def run_episode(provider: Provider, folder: Path, logs: Path) -> None:
    """One oracle episode; it must be solved."""
    plan = plan_episode(load_task(folder), Settings(), agent="oracle")
    agent = resolve_agent("oracle", model=None)
    result = await episodes.run(plan, provider, agent, logs=logs)
    shutil.rmtree(logs, ignore_errors=True)
    if result.reward != 1.0:
        raise SystemExit(f"episode: {result.status}: {result.failure_reason}")


def bare_docker(image: str) -> Callable[[], Awaitable[object]]:
    """The yardstick: the least that a container costs."""
    command = ["docker", "run", "--rm", "--network", "none", image, "true"]

    async def run() -> None:
        await anyio.run_process(command)

    return run


async def medians(
    rounds: int, **works: Callable[[], Awaitable[object]]
) -> dict[str, float]:
    """As :func:`interleaved`, in one event loop; the first round is thrown away."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            took = await timed(work)
            if number:
                times[name].append(took)
    return {name: statistics.median(values) for name, values in times.items()}


def local(scale: Scale, scratch: Path) -> Iterator[Measure]:
    """The local sandbox against a bare container."""
    from docker_images import busybox_image
    from pytest_harbor.sandboxes.local.provider import LocalProvider

    folder, image = write_task(scratch / "local"), busybox_image()
    starts: list[float] = []

    async def measure() -> dict[str, float]:
        provider = LocalProvider()
        found = await provider.probe()
        if not found.available:
            raise SystemExit(f"no local sandbox: {found.reason}")

        async def start() -> None:
            began = time.perf_counter()
            sandbox = await provider.start(EnvironmentSpec(), name="bench", labels={})
            starts.append(time.perf_counter() - began)
            await sandbox.stop()

        try:
            return await medians(
                max(scale.rounds, 10),
                bare=bare_docker(image),
                start=start,
                episode=lambda: run_episode(provider, folder, scratch / "logs"),
            )
        finally:
            await provider.aclose()

    median = anyio.run(measure)
    bare, start = median["bare"], statistics.median(starts[1:])
    yield Measure(
        "local: start / bare docker run",
        start / bare,
        0.05,
        detail=f"{start * 1000:.0f} ms / {bare * 1000:.0f} ms",
    )
    yield Measure(
        "local: one-turn oracle episode / bare docker run",
        median["episode"] / bare,
        0.15,
        detail=f"{median['episode'] * 1000:.0f} ms",
    )


def write_steps_task(folder: Path, steps: int) -> Path:
    """As :func:`write_task`, with steps; each is graded by the task's own tests."""
    write_task(folder)
    tables = "".join(
        f'[[steps]]\nname = "{number:02}"\n[steps.verifier]\ntimeout_sec = 60\n'
        for number in range(steps)
    )
    with (folder / "task.toml").open("a") as file:
        file.write(tables)
    for number in range(steps):
        step = folder / "steps" / f"{number:02}"
        step.mkdir(parents=True)
        (step / "instruction.md").write_text("Write ok into done.txt.\n")
    return folder


def turns(scale: Scale, scratch: Path) -> Iterator[Measure]:
    """One episode of ten turns against ten episodes of one, in local sandboxes."""
    from pytest_harbor.sandboxes.local.provider import LocalProvider

    single = write_task(scratch / "single")
    multi = write_steps_task(scratch / "multi", TURNS)

    async def measure() -> dict[str, float]:
        provider = LocalProvider()

        async def ten_episodes() -> None:
            for _ in range(TURNS):
                await run_episode(provider, single, scratch / "logs")

        try:
            return await medians(
                max(scale.rounds, 10),
                ten_turns=lambda: run_episode(provider, multi, scratch / "logs"),
                ten_episodes=ten_episodes,
            )
        finally:
            await provider.aclose()

    median = anyio.run(measure)
    yield Measure(
        f"local: {TURNS} turns / {TURNS} one-turn episodes",
        median["ten_turns"] / median["ten_episodes"],
        1.0,
        detail=f"{median['ten_turns'] * 1000:.0f} ms / "
        f"{median['ten_episodes'] * 1000:.0f} ms",
    )


@contextlib.contextmanager
def counted_requests() -> Iterator[list[str]]:
    """Requests that the Docker SDK sends while the context is open."""
    import requests

    sent: list[str] = []
    original = requests.Session.send

    def send(self, request, **options):
        sent.append(f"{request.method} {request.path_url.partition('?')[0]}")
        return original(self, request, **options)

    requests.Session.send = send  # type: ignore[method-assign]
    try:
        yield sent
    finally:
        requests.Session.send = original  # type: ignore[method-assign]


def docker(scale: Scale, scratch: Path) -> Iterator[Measure]:
    """An episode in a container against a bare container, and its requests."""
    from docker_images import busybox_image
    from pytest_harbor.sandboxes.docker.provider import DockerProvider

    image = busybox_image()
    folder = write_task(scratch / "docker", image=image)

    async def measure() -> tuple[dict[str, float], int]:
        provider = DockerProvider()
        found = await provider.probe()
        if not found.available:
            raise SystemExit(f"no Docker: {found.reason}")

        def episode() -> Awaitable[None]:
            return run_episode(provider, folder, scratch / "logs")

        try:
            await episode()
            with counted_requests() as sent:
                await episode()
                # What is removed in the background belongs to the episode too.
                await anyio.sleep(1)
            median = await medians(
                max(scale.rounds, 10), bare=bare_docker(image), episode=episode
            )
        finally:
            await provider.aclose()
        for request in sent:
            print("  ", re.sub(r"[0-9a-f]{64}", "<id>", request), file=sys.stderr)
        return median, len(sent)

    median, requests_sent = anyio.run(measure)
    yield Measure(
        "docker: one-turn oracle episode / bare docker run",
        median["episode"] / median["bare"],
        1.6,
        detail=f"{median['episode'] * 1000:.0f} ms / {median['bare'] * 1000:.0f} ms",
    )
    yield Measure(
        "docker: API requests per episode, known image", requests_sent, 12, "req"
    )


COMPOSE_FILE = """\
services:
  main:
    image: {image}
    init: true
    command: [sleep, infinity]
    depends_on: {{redis: {{condition: service_healthy}}}}
  redis:
    image: {image}
    healthcheck: {{test: [CMD, redis-cli, ping], interval: 200ms, retries: 50}}
"""


def compose(scale: Scale, scratch: Path) -> Iterator[Measure]:
    """A project with a Redis, up and gone again, against Compose's own command."""
    import docker

    from docker_images import redis_image
    from pytest_harbor.sandboxes.docker.compose_cli import find_program
    from pytest_harbor.sandboxes.docker.provider import DockerProvider

    program = find_program()
    if program is None:
        raise SystemExit("no Docker Compose")
    path = scratch / "environment" / "docker-compose.yaml"
    path.parent.mkdir()
    path.write_text(COMPOSE_FILE.format(image=redis_image()))
    spec = EnvironmentSpec(compose_file=path)
    client = docker.from_env()
    critical: list[float] = []

    def is_there() -> bool:
        label = {"label": "pytest-harbor.task=bench"}
        return bool(client.networks.list(filters=label))

    async def measure() -> dict[str, float]:
        provider = DockerProvider()

        async def ours() -> None:
            began = time.perf_counter()
            sandbox = await provider.start(
                spec, name="bench", labels={"pytest-harbor.task": "bench"}
            )
            await sandbox.stop()
            critical.append(time.perf_counter() - began)
            # It is removed in the background, which nobody tells us of.
            while await anyio.to_thread.run_sync(is_there):  # noqa: ASYNC110
                await anyio.sleep(0.005)

        async def bare() -> None:
            command = [str(program), "-p", "pytest-harbor-bench", "-f", str(path)]
            await anyio.run_process([*command, "up", "-d", "--wait"])
            await anyio.run_process([*command, "down", "-t", "0", "-v"])

        try:
            return await medians(max(scale.rounds, 10), bare=bare, ours=ours)
        finally:
            await provider.aclose()
            client.close()

    median = anyio.run(measure)
    bare = median["bare"]
    yield Measure(
        "compose: up and gone again / up --wait and down -t 0",
        median["ours"] / bare,
        1.2,
        detail=f"{median['ours'] * 1000:.0f} ms / {bare * 1000:.0f} ms, "
        f"waited for {statistics.median(critical[1:]) * 1000:.0f} ms",
    )


def cli_episode(image: str, folder: Path, name: str) -> None:
    """What a careful person would do by hand with the docker command: seven calls."""

    def docker(*arguments: str | Path) -> None:
        subprocess.run(
            ["docker", *map(str, arguments)], check=True, capture_output=True
        )

    docker(
        *("run", "--detach", "--init", "--name", name, "--workdir", "/app"),
        *("--entrypoint", "/bin/sh", image, "-c", "sleep 1000000"),
    )
    try:
        docker("cp", folder / "solution", f"{name}:/solution")
        docker("exec", name, "bash", "/solution/solve.sh")
        docker("cp", folder / "tests", f"{name}:/tests")
        docker(
            *("exec", name, "sh", "-c"),
            "mkdir -p /logs/verifier; timeout 60 bash /tests/test.sh",
        )
        docker("cp", f"{name}:/logs", folder / "logs")
    finally:
        docker("rm", "--force", "--volumes", name)
    if (folder / "logs" / "verifier" / "reward.txt").read_text() != "1\n":
        raise SystemExit("the episode by hand was not solved")
    shutil.rmtree(folder / "logs")


def parallel(scale: Scale, scratch: Path) -> Iterator[Measure]:
    """Ten episodes in containers with four workers, against the same by hand.

    What pytest and its workers cost before their first episode is taken off by a run of
    one episode for each.
    """
    from docker_images import busybox_image

    image = busybox_image()
    for number in range(DOCKER_EPISODES + DOCKER_WORKERS):
        write_task(scratch / "many" / f"task-{number:02}", image=image)
    for number in range(DOCKER_WORKERS):
        write_task(scratch / "few" / f"task-{number:02}", image=image)
    folders = sorted((scratch / "many").iterdir())[:DOCKER_EPISODES]
    results = ("--harbor-results", scratch / "results")

    def by_hand() -> None:
        with ThreadPoolExecutor(DOCKER_WORKERS) as pool:
            names = [f"bench-{os.getpid()}-{folder.name}" for folder in folders]
            list(pool.map(partial(cli_episode, image), folders, names))

    median = interleaved(
        max(2, scale.rounds // 3),
        few=lambda: pytest("-q", f"-n{DOCKER_WORKERS}", *results, "few", cwd=scratch),
        many=lambda: pytest("-q", f"-n{DOCKER_WORKERS}", *results, "many", cwd=scratch),
        by_hand=by_hand,
    )
    ours = median["many"] - median["few"]
    yield Measure(
        f"docker: {DOCKER_EPISODES} episodes, -n {DOCKER_WORKERS} / by hand, as many",
        ours / median["by_hand"],
        1.0,
        detail=f"{ours:.1f} s / {median['by_hand']:.1f} s",
    )


def resident_kib() -> int:
    """Memory of this process that is in RAM now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() // 1024


def memory(scale: Scale, scratch: Path) -> Iterator[Measure]:
    """Growth per local episode, between the end of the first fifth and the end."""
    from pytest_harbor.sandboxes.local.provider import LocalProvider

    folder = write_task(scratch / "memory")
    warm_up = max(10, scale.memory_episodes // 5)

    async def measure() -> tuple[int, int]:
        provider = LocalProvider()
        before = 0
        try:
            for number in range(scale.memory_episodes):
                if number == warm_up:
                    before = resident_kib()
                await run_episode(provider, folder, scratch / "logs")
            return before, resident_kib()
        finally:
            await provider.aclose()

    before, after = anyio.run(measure)
    growth = (after - before) / (scale.memory_episodes - warm_up)
    yield Measure(
        f"memory: growth per episode, {scale.memory_episodes} local episodes",
        growth,
        1.0,  # flat: below what a single leaked list of paths would take
        "KiB",
        detail=f"{before // 1024} MiB, then {after // 1024} MiB",
    )


BENCHMARKS = {
    "import": import_cost,
    "collection": collection,
    "local": local,
    "turns": turns,
    "docker": docker,
    "compose": compose,
    "parallel": parallel,
    "workers": workers,
    "memory": memory,
}


def main() -> int:
    """Print the table; exit code 1 when a budget is not kept."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer and smaller rounds")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=BENCHMARKS,
        default=list(BENCHMARKS),
        metavar="NAME",
        help=f"some of: {', '.join(BENCHMARKS)}",
    )
    options = parser.parse_args()
    scale = QUICK if options.quick else FULL

    measures = []
    for name in options.only:
        with tempfile.TemporaryDirectory(prefix="pytest-harbor-bench-") as scratch:
            for measure in BENCHMARKS[name](scale, Path(scratch)):
                print(measure, flush=True)
                measures.append(measure)
    return 0 if all(measure.is_met for measure in measures) else 1


if __name__ == "__main__":
    sys.exit(main())
