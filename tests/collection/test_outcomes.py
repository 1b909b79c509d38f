"""What becomes of an episode: passed, failed, error or skipped (design 4)."""

from __future__ import annotations

import gc
import re
import signal
import textwrap
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from scratch_project import Project

AGENTS = """
from pytest_harbor import AgentError

class Raises:
    name = "raises"
    def run(self, turn):
        raise AgentError("no more words", kind="agent_request_failed", status=500)

class Slow:
    name = "slow"
    def run(self, turn):
        turn.sandbox.exec("touch /app/begun; sleep 600")

class Model:
    name = "modelled"
    def __init__(self, *, model=None):
        self.model = model
    def run(self, turn):
        turn.sandbox.exec(f"echo {self.model} > /app/model")
"""


@pytest.fixture
def agents(project: Project) -> str:
    """Options that make agents of ``my_agents`` importable."""
    project.file("my_agents.py", AGENTS)
    return "-opythonpath=."


@pytest.mark.parametrize(
    ("reward", "toml", "args", "passes"),
    [
        ("1", "", [], True),
        ("0.999", "", [], False),
        ("0.9999999999", "", [], True),  # tolerance 1e-9
        ("-1", "", [], False),
        ("0.4", "", ["--harbor-min-reward=0.4"], True),
        ("0.4", "", ["-oharbor_min_reward=0.4"], True),
        ("0.4", "", ["-oharbor_min_reward=0.4", "--harbor-min-reward=0.5"], False),
        ("0.4", "min_reward = 0.4", ["--harbor-min-reward=0.9"], True),
        ("0.6", "min_reward = 0.9", ["--harbor-min-reward=0.4"], False),
    ],
)
def test_threshold(
    project: Project, reward: str, toml: str, args: list[str], passes: bool
) -> None:
    project.graded("t", reward, f"[metadata.pytest_harbor]\n{toml}\n")
    result = project.run("datasets", *args)
    result.assert_outcomes(passed=int(passes), failed=int(not passes))
    assert result.ret == (0 if passes else 1)


def test_marker_of_a_conftest_beats_the_task(project: Project) -> None:
    project.graded("t", 0.3, "[metadata.pytest_harbor]\nmin_reward = 0.9\n")
    project.file(
        "datasets/conftest.py",
        "import pytest\n"
        "def pytest_collection_modifyitems(items):\n"
        "    for item in items:\n"
        "        item.add_marker(pytest.mark.harbor(min_reward=0.2))\n",
    )
    project.run("datasets").assert_outcomes(passed=1)


def test_failure_text_begins_with_the_reward_and_shows_no_frames(
    project: Project,
) -> None:
    script = "\n".join(f"echo line {n}" for n in range(40))
    project.task("t", test=f"{script}\necho 0.4 > /logs/verifier/reward.txt; exit 3")
    result = project.run("datasets")
    text = str(result.stdout)
    section = text[text.index("_ t[oracle] _") :].splitlines()
    assert section[1] == "reward 0.40 < 1.00"
    assert "verifier: exit code 3" in section
    assert "  line 39" in section
    assert "  line 10" in section
    assert "  line 9" not in section
    assert "Traceback" not in text
    assert ".py:" not in text
    logs = next(line for line in section if line.startswith("logs: "))
    assert (project.path / logs[6:] / "episode.json").is_file()
    result.stdout.fnmatch_lines(
        ["FAILED datasets/t/task.toml::t[[]oracle[]] - reward 0.40 < 1.00"]
    )


def test_no_reward_is_a_failure_that_says_so(project: Project) -> None:
    project.task("t", test="echo boom; exit 1")
    result = project.run("datasets")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["reward 0.00 < 1.00: no reward: test.sh ended with exit code 1 and wrote *"]
    )


def test_inner_tests_of_the_verifier_are_named(project: Project) -> None:
    ctrf = (
        '{"results": {"tests": [{"name": "test_sugar", "status": "failed",'
        ' "message": "too sweet"}, {"name": "test_salt", "status": "passed"}]}}'
    )
    project.task(
        "t",
        test=f"echo '{ctrf}' > /logs/verifier/ctrf.json\n"
        "echo 0 > /logs/verifier/reward.txt",
    )
    result = project.run("datasets")
    result.stdout.fnmatch_lines(["failed: test_sugar: too sweet"])
    assert "test_salt" not in str(result.stdout)


def test_refused_at_seed_is_an_error(project: Project) -> None:
    project.task("t", '[verifier.env]\nKEY = "${NOBODY_SETS_THIS}"\n')
    result = project.run("datasets")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*'NOBODY_SETS_THIS' is not set*"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


# The Docker client leaves its socket to the garbage collector when nobody answers.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("choice", "outcome"), [("error", "errors"), ("skip", "skipped")]
)
def test_unavailable_sandbox(
    project: Project, monkeypatch: pytest.MonkeyPatch, choice: str, outcome: str
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    project.task("t", '[environment]\ndocker_image = "nobody/nothing:1"\n')
    project.task("local")
    result = project.run("datasets", f"--harbor-unavailable={choice}", "-rs")
    result.assert_outcomes(passed=1, **{outcome: 1})
    result.stdout.fnmatch_lines(["harbor: sandbox docker is not available: *"])
    if choice == "skip":
        result.stdout.fnmatch_lines(["SKIPPED*datasets/t/task.toml*"])
    gc.collect()


@pytest.mark.parametrize(
    ("policy", "outcome"),
    [
        ("default = fail", "errors"),
        ("default = retry", "errors"),
        ("status:500 = count_as_zero", "failed"),
        ("kind:agent_request_failed = verify", "passed"),
    ],
)
def test_agent_failures_follow_the_policy(
    project: Project, agents: str, policy: str, outcome: str
) -> None:
    project.task("t")
    result = project.run(
        "datasets",
        agents,
        "--harbor-agent=my_agents:Raises",
        f"-oharbor_agent_outcome_policy={policy}",
    )
    result.assert_outcomes(**{outcome: 1})
    if outcome != "passed":
        result.stdout.fnmatch_lines(["*no more words*"])


def test_model_reaches_the_agent(project: Project, agents: str) -> None:
    project.task(
        "t",
        test="grep -q great-one /app/model && echo 1 > /logs/verifier/reward.txt",
    )
    result = project.run(
        "datasets", agents, "--harbor-agent=my_agents:Model", "--harbor-model=great-one"
    )
    result.assert_outcomes(passed=1)
    row = project.rows("rollouts.jsonl")[0]
    assert (row["agent"], row["model"]) == ("modelled", "great-one")


def test_exit_codes(project: Project) -> None:
    project.task("good")
    assert project.run("datasets").ret == 0
    assert project.run("datasets", "-k", "nothing").ret == 5
    project.graded("bad", 0)
    assert project.run("datasets").ret == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--harbor-attempts=0"], "*--harbor-attempts must be at least 1*"),
        (["--harbor-attempts=x"], "*expected a whole number, got 'x'*"),
        (["--harbor-min-reward=nan"], "*--harbor-min-reward must be a number*"),
        (["--harbor-retries=-1"], "*--harbor-retries must be at least 0*"),
        (["--harbor-timeout-multiplier=0"], "*--harbor-timeout-multiplier must be*"),
        (["--harbor-keep=maybe"], "*expected never or failed or always*"),
        (["--harbor-unavailable=x"], "*expected error or skip*"),
        (["--harbor-turn-sessions=x"], "*expected fresh or continue*"),
        (["--harbor-agent=,"], "*expected NAME*"),
        (["--harbor-agent=nop,nop"], "*expected each name once*"),
        (["-oharbor_attempts=x"], "*harbor_attempts: expected a whole number*"),
        (["-oharbor_validate=perhaps"], "*harbor_validate: expected true or false*"),
        (["-oharbor_local_mode=open"], "*harbor_local_mode: expected auto*"),
        (["-oharbor_verifier_grace_s=-1"], "*verifier_grace_s must be*at least 0*"),
        (["--harbor-agent=noop"], "*unknown agent 'noop'*Did you mean 'nop'*"),
        (["--harbor-sandbox=dokcer"], "*unknown sandbox 'dokcer'*'docker'*"),
        (["--harbor-validate", "--harbor-agent=nop"], "*its own agents*"),
        (
            ["-oharbor_agent_outcome_policy=retry"],
            "*outcome_policy: 'retry' is no rule*",
        ),
    ],
)
def test_bad_values_are_usage_errors(
    project: Project, args: list[str], message: str
) -> None:
    project.task("t")
    result = project.run("datasets", *args)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])


@pytest.mark.slow
def test_unknown_agent_is_a_usage_error_with_workers(project: Project) -> None:
    project.task("t")
    result = project.run_apart("datasets", "-n2", "--harbor-agent=noop")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*unknown agent 'noop'*"])


def test_every_option_has_help_and_an_ini_twin(project: Project) -> None:
    from pytest_harbor.collection.options import OPTIONS

    text = str(project.run("--help").stdout)
    for option in OPTIONS:
        assert (option.flag in text) is not option.ini_only, option
        assert option.key + " (" in text, option


def test_ini_twins_count(project: Project) -> None:
    project.file(
        "tox.ini",
        "[pytest]\nharbor_agent = oracle, nop\nharbor_attempts = 2\n"
        "harbor_results = out/runs\n",
    )
    project.task("t")
    result = project.run("datasets")
    result.assert_outcomes(passed=4)
    assert (project.path / "out/runs/latest/summary.json").is_file()


def test_validate(project: Project) -> None:
    grade = (
        "test -e /app/done && echo 1 > /logs/verifier/reward.txt"
        " || echo 0 > /logs/verifier/reward.txt"
    )
    project.task("sound", solve="touch /app/done", test=grade)
    project.task("unsolved", solve="true", test=grade)
    project.task("free", solve="true")
    project.task("missing", test=grade)
    result = project.run("datasets", "--harbor-validate", "-rAs")
    result.assert_outcomes(passed=5, failed=2, skipped=1)
    result.stdout.fnmatch_lines(["FAILED*free/task.toml::free[[]nop[]]*"])
    result.stdout.fnmatch_lines(["FAILED*unsolved[[]oracle[]]*"])
    result.stdout.fnmatch_lines(["SKIPPED*missing/task.toml*unvalidated: *solve.sh*"])


@pytest.mark.slow
def test_validation_says_what_it_cannot_validate(project: Project) -> None:
    project.file(
        "datasets/own/conftest.py",
        "import pytest\n@pytest.fixture\ndef harbor_agent():\n    return 'oracle'\n",
    )
    for name in ("own/a", "own/b", "sound"):
        project.graded(name, 0, solve="true")
    assert "does not validate" not in str(project.run("datasets").stdout)
    result = project.run("datasets", "--harbor-validate")
    result.assert_outcomes(failed=3, passed=1, warnings=1)
    result.stdout.fnmatch_lines(["*--harbor-validate does not validate 'a'*"])


def test_attempts_are_rolled_up(project: Project) -> None:
    # Passes on every second attempt: the folder of the host is not in the sandbox, so
    # the agent's own counter decides.
    project.file(
        "my_agents.py",
        textwrap.dedent("""
        COUNT = 0
        class Fickle:
            name = "fickle"
            def run(self, turn):
                global COUNT
                COUNT += 1
                turn.sandbox.exec(f"echo {COUNT % 2} > /app/score")
        """),
    )
    project.task("t", test="cp /app/score /logs/verifier/reward.txt")
    result = project.run(
        "datasets",
        "-opythonpath=.",
        "--harbor-agent=my_agents:Fickle",
        "--harbor-attempts=4",
    )
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(
        [
            "fickle: 2 of 4 passed, mean reward 0.50, pass rate 50%, pass@4 1.00, pass^4 0.00"
        ]
    )


KEEPS = """
from pytest_harbor.sandboxes.local.provider import LocalProvider
class Keeps(LocalProvider):
    name = "keeps"
    async def start(self, *args, **options):
        sandbox = await super().start(*args, **options)
        sandbox.keep = keep
        sandbox.how_to_enter = lambda: "knock twice"
        return sandbox
async def keep():
    pass
def pytest_harbor_sandbox_providers(config):
    return {"keeps": Keeps}
"""


def test_keep_says_how_to_enter(project: Project) -> None:
    project.file("conftest.py", KEEPS)
    project.graded("t", 0)
    options = ("--harbor-keep=failed", "--harbor-sandbox=keeps")
    result = project.run("datasets", *options)
    result.assert_outcomes(failed=1)
    assert result.outlines.count("kept: knock twice") == 2  # failure and summary
    assert project.rows("rollouts.jsonl")[0]["kept_sandboxes"] == ["knock twice"]


def test_what_cannot_be_kept_is_said_once(project: Project) -> None:
    project.task("t")
    project.task("u")
    result = project.run("datasets", "--harbor-keep=always", "--harbor-sandbox=local")
    result.assert_outcomes(passed=2)
    assert str(result.stdout).count("not kept: a local sandbox ends with") == 1


def test_expected_failures_are_counted_as_such(project: Project) -> None:
    known = "xfail = 'known'"
    toml = f"[metadata.pytest_harbor]\n{known}\n"
    project.graded("a", 0, toml)
    project.graded("b", 1, toml)
    project.graded("c", 0)
    result = project.run("datasets")
    result.assert_outcomes(xfailed=1, xpassed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            (
                "3 episodes: 0 passed, 1 failed, 0 errors, 1 xfailed, 1 xpassed; "
                "mean reward 0.33, pass rate 33%"
            )
        ]
    )
    result = project.run("datasets", "--runxfail")
    result.stdout.fnmatch_lines(["3 episodes: 1 passed, 2 failed, 0 errors; *"])


def test_validation_does_not_expect_nothing_to_fail(project: Project) -> None:
    """A broken solution is no excuse for a reward that doing nothing gets."""
    toml = "[metadata.pytest_harbor]\nxfail = 'known'\n"
    project.graded("free", 1, toml, solve="true")
    project.graded("broken", 0, toml, solve="true")
    result = project.run("datasets", "--harbor-validate", "-rA")
    result.assert_outcomes(failed=1, passed=1, xfailed=1, xpassed=1)
    result.stdout.fnmatch_lines_random(
        ["FAILED*free[[]nop[]]*", "PASSED*broken[[]nop[]]*"]
    )


def test_debug_shows_frames(project: Project) -> None:
    project.task("t")
    project.file(
        "conftest.py",
        "import pytest\n@pytest.fixture\ndef harbor_agent():\n    return 'noop'\n",
    )
    quiet = project.run("datasets")
    quiet.assert_outcomes(errors=1)
    assert "registry.py" not in str(quiet.stdout)
    loud = project.run("datasets", "--harbor-debug")
    loud.assert_outcomes(errors=1)
    assert "registry.py" in str(loud.stdout)


@pytest.mark.slow
def test_item_time_limit_ends_the_episode(project: Project, agents: str) -> None:
    project.task("slow")
    result = project.run_apart(
        "datasets", agents, "--harbor-agent=my_agents:Slow", "--timeout=2"
    )
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*Timeout*2*"])
    result.stdout.fnmatch_lines(
        ["1 episode: 0 passed, 0 failed, 1 error; *", "interrupted: *slow*"]
    )
    (row,) = project.rows("rollouts_failures.jsonl")
    assert (row["failure_kind"], row["outcome"]) == ("cancelled", "error")
    assert row["failure_reason"].startswith("interrupted: Timeout")
    assert (row["agent"], row["terminal"], row["final"]) == ("slow", False, True)
    assert (project.latest / "slow_slow-1" / "episode.json").is_file()


def test_a_hook_that_raises_is_that_items_error(project: Project) -> None:
    project.file(
        "conftest.py",
        "def pytest_harbor_event(event, item):\n"
        "    if item.name.startswith('a'):\n"
        "        raise ValueError('no')\n",
    )
    project.task("a")
    project.task("b")
    result = project.run("datasets")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["2 episodes: 1 passed, 0 failed, 1 error; *"])
    reasons = [row["failure_reason"] for row in project.rows("rollouts_failures.jsonl")]
    assert reasons == ["interrupted: ValueError: no"]


def test_reruns_leave_single_properties(project: Project) -> None:
    project.graded("t", 0.5)
    result = project.run("datasets", *project.reruns, "--junitxml=j.xml")
    result.assert_outcomes(failed=1)
    text = (project.path / "j.xml").read_text()
    # One test case per try, with its own properties once each.
    for case in re.findall("<testcase.*?</testcase>", text, re.DOTALL):
        assert case.count('"harbor.reward"') <= 1
    assert len(project.rows("rollouts.jsonl")) == 2
    assert project.latest.joinpath("summary.json").read_text().count('"episodes": 1')


def test_last_failed_selects_exactly_the_failed(project: Project) -> None:
    project.graded("a", 1)
    project.graded("b", 0)
    project.graded("c", 1)
    project.task("d", "x = [")
    project.graded("e", 0)
    project.run("datasets").assert_outcomes(passed=2, failed=2, errors=1)
    assert project.ids("datasets", "--lf") == [
        "datasets/b/task.toml::b[oracle]",
        "datasets/d/task.toml::d",
        "datasets/e/task.toml::e[oracle]",
    ]


def test_stop_at_the_first_failure(project: Project) -> None:
    for name in "abc":
        project.graded(name, 0)
    project.run("datasets", "-x").assert_outcomes(failed=1)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupts_clean_up(
    project: Project, agents: str, number: signal.Signals
) -> None:
    """An agent interrupts pytest from inside the running episode."""
    project.file(
        "my_agents.py",
        AGENTS
        + textwrap.dedent(f"""
        import os
        class Interrupts:
            name = "interrupts"
            def run(self, turn):
                os.kill(os.getpid(), {int(number)})
                turn.sandbox.exec("sleep 600")
            def close(self):
                open("closed", "w").close()
        """),
    )
    project.task("t")
    result = project.run_apart(
        "datasets", agents, "--harbor-agent=my_agents:Interrupts", "--junitxml=j.xml"
    )
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert (project.path / "closed").exists()
    assert (project.path / "j.xml").exists()
    result.stdout.fnmatch_lines(
        ["1 episode: 0 passed, 0 failed, 1 error; *", "interrupted: *"]
    )


@pytest.mark.slow
def test_a_killed_worker_fails_its_item_and_is_swept(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # of these tests' own
    project.file(
        "my_agents.py",
        "import os\n"
        "class Dies:\n"
        "    name = 'dies'\n"
        "    def run(self, turn):\n"
        "        os.kill(os.getpid(), 9)\n",
    )
    project.task("t")
    project.file(
        "conftest.py",
        """
import os
from pytest_harbor.sandboxes.local.provider import LocalProvider
class Special(LocalProvider):
    name = "special"
    async def sweep(self):
        with open("swept", "a") as file:
            file.write(os.environ.get("PYTEST_XDIST_WORKER", "controller") + "\\n")
        return await super().sweep()
def pytest_harbor_sandbox_providers(config):
    return {"special": Special}
""",
    )
    result = project.run_apart(
        "datasets",
        "-opythonpath=.",
        "--harbor-agent=my_agents:Dies",
        "--harbor-sandbox=special",
        "-n1",
    )
    result.assert_outcomes(failed=1)
    swept = (project.path / "swept").read_text().splitlines()
    # The worker at its start; the controller when its provider is made, and then
    # once more for the crash.
    assert swept[0] == "gw0"
    assert swept[-1] == "controller"
    result.stdout.fnmatch_lines(["*worker 'gw0' crashed while running*"])
    result.stdout.fnmatch_lines(["started, not finished: *::t*"])
    assert "trouble" not in str(result.stdout)


@pytest.mark.parametrize(
    "args",
    [
        ["-p", "no:terminal"],
        ["-p", "no:xdist"],
        ["-p", "no:timeout"],
        ["-p", "rerunfailures"],
        ["-p", "no:junitxml"],
        ["-s"],
        ["--capture=sys"],
        ["-q"],
        ["-vv"],
    ],
)
def test_works_whatever_other_plugins_there_are(
    project: Project, args: list[str]
) -> None:
    project.task("good", "[metadata.pytest_harbor]\ntimeout = 60\n")
    assert project.run("datasets", *args).ret == 0
    assert project.rows("rollouts.jsonl")[0]["outcome"] == "passed"


@pytest.mark.slow
def test_a_time_limit_of_the_item_is_told_without_our_frames(project: Project) -> None:
    limit = "[metadata.pytest_harbor]\ntimeout = 3\n"
    project.task("t", limit, solve="sleep 60")
    result = project.run_apart("datasets")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["cancelled: interrupted: Timeout (>3.0s) from pytest-timeout.", "logs: *"]
    )
    result.stdout.no_fnmatch_line("*/pytest_harbor/collection/*")


TELLS = """
from pytest_harbor.sandboxes.local.provider import LocalProvider
class Tells(LocalProvider):
    name = "tells"
    async def start(self, *args, tell, **options):
        tell("pulling image x: 1 of 2 layers, 3 MB")
        return await super().start(*args, **options)
def pytest_harbor_sandbox_providers(config):
    return {"tells": Tells}
"""


def test_progress_lines_with_v_only(project: Project) -> None:
    project.task("t")
    project.file("conftest.py", TELLS)
    result = project.run("datasets", "-v", "--harbor-sandbox=tells")
    result.stdout.fnmatch_lines(
        [
            "  t[[]oracle[]]: pulling image x: 1 of 2 layers, 3 MB",
            "  t[[]oracle[]]: agent",
            "*PASSED*",
        ]
    )
    quiet = str(project.run("datasets", "--harbor-sandbox=tells").stdout)
    assert ": agent" not in quiet
    assert "pulling" not in quiet


def test_quiet_collection_lists_ids_only(project: Project) -> None:
    project.task("t")
    result = project.run("datasets", "--collect-only", "-q")
    assert "harbor:" not in str(result.stdout)
