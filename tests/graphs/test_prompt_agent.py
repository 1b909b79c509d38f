"""``prompt_agent`` against real A2A servers: each final state, conversations, records."""

from __future__ import annotations

import json
from types import SimpleNamespace

import anyio
import pytest

from pytest_harbor.errors import (
    AGENT_COULD_NOT_RUN,
    AGENT_RUN_ERROR,
    AGENT_TIMEOUT,
    SERVER_UNREACHABLE,
    NotDeployed,
    ProtocolError,
    ServerNotReady,
    ServerUnreachable,
    StepError,
)
from pytest_harbor.graphs.context import DefaultModel, DeployedAgent, Put
from pytest_harbor.graphs.conversations import key_part
from pytest_harbor.graphs.ports import reserve_port
from pytest_harbor.graphs.steps.api import Models, RunSettings
from pytest_harbor.graphs.steps.prompt_agent import prompt_agent, wanted_model
from pytest_harbor.graphs.turns import turn_failure
from pytest_harbor.protocols.reply import State, conclude
from pytest_harbor.sandboxes.output import Masker
from pytest_harbor.tasks.steps.model import PromptAgent
from servers.extended_agent import Extended
from servers.sdk_agent import build
from step_runs import Run

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def run(tmp_path, servers):
    return Run(tmp_path, servers)


def step(**fields):
    given = {"prompt": "Hello?", "prompt_id": "serve", "agent_name": "clerk"}
    given |= {"id": "serve-step", "poll_interval_seconds": 0.05, **fields}
    if "parts" in fields:
        del given["prompt"]
    return PromptAgent(**given)


async def prompt(run, **fields):
    """Run the step; the reply it wrote, whether it failed or not."""
    try:
        await prompt_agent(step(**fields), run)
    except StepError as error:
        return run.context.response("serve"), error
    return run.context.response("serve"), None


class TestOneTurn:
    async def test_reply_trajectory_and_records(self, run, tmp_path):
        run.deploy(
            "clerk",
            {
                "do": [{"write": str(tmp_path / "x"), "text": "1"}],
                "answer": {"shelf": 4},
            },
        )
        reply, error = await prompt(run)
        assert error is None
        assert (reply.prompt_id, reply.prompt_text) == ("serve", "Hello?")
        assert reply.response == '{"shelf": 4}'
        assert reply.structured_output == {"shelf": 4}
        assert reply.tool_call_count == 1
        assert (reply.agent_name, reply.step_id) == ("clerk", "serve-step")
        assert reply.agent_session_id
        assert reply.a2a_context_id
        assert not reply.has_error
        assert reply.model is None
        assert reply.source_agent_per_turn_prompt_parts == (None,)
        assert reply.agent_trajectory_object_prefix == "runs/run-1/prompts/serve/"
        assert reply.target_agent_per_turn_trajectory_object_urls == (
            reply.agent_trajectory_object_url,
        )
        trajectory = json.loads(await run.store.get(reply.agent_trajectory_object_url))
        assert trajectory["steps"][0]["message"] == "Hello?"
        metadata = run.context.metadata
        assert metadata["models"] == {"solver": {"serve-step": None}}
        assert run.warnings == []

    async def test_the_conversation_store_has_the_turn(self, run):
        run.deploy("clerk", {"answer": "Shelf 4."})
        await prompt(run)
        (folder,) = (run.store.root / "runs/run-1/conversations").iterdir()
        assert run.context.metadata["a2a_conversations"] == {"serve-step": folder.name}
        (turn,) = run.stored("runs/run-1/conversations/*/turn_01.json")
        assert turn["state"] == "completed"
        assert turn["prompt"]["parts"] == [{"kind": "text", "text": "Hello?"}]
        assert turn["reply"]["parts"][0] == {"kind": "text", "text": "Shelf 4."}
        (whole,) = run.stored("runs/run-1/conversations/*/conversation.json")
        assert whole["conversation_id"] == folder.name
        assert whole["task_instance_id"] == "run-1"
        assert (whole["source_agent_name"], whole["target_agent_name"]) == (
            "task",
            "clerk",
        )
        assert (whole["status"], whole["end_reason"]) == ("closed", "answered")
        assert [message["role"] for message in whole["messages"]] == ["user", "agent"]
        said = whole["a2a_tasks"][0]
        assert [message["message_id"] for message in whole["messages"]] == [
            said["history"][0]["messageId"],
            said["status"]["message"]["messageId"],
        ]
        assert whole["a2a_tasks"][0]["status"]["state"] == "completed"

    async def test_the_time_of_a_prompt_is_when_it_was_sent(self, run):
        run.deploy("clerk", {"do": [{"wait": 0.2}], "answer": "Shelf 4."})
        await prompt(run)
        (turn,) = run.stored("runs/run-1/conversations/*/turn_01.json")
        assert turn["reply"]["at"] - turn["prompt"]["at"] >= 0.2

    async def test_parts_go_as_they_are(self, run):
        parts = (
            {"kind": "text", "text": "echo Look:"},
            {"kind": "data", "data": {"shelf": 4}},
        )
        url = run.serve_app(build("1.0")[0])
        run.journal.write("deploy", DeployedAgent("clerk", url, "none"))
        reply, _ = await prompt(run, parts=parts)
        assert reply.prompt_text is None
        assert reply.source_agent_per_turn_prompt_parts == ([*parts],)
        assert reply.response == "echo Look:"
        # An agent without the extension: no trajectory, no warning, and no count.
        assert reply.agent_trajectory_object_url is None
        assert reply.target_agent_per_turn_trajectory_object_urls == (None,)
        assert reply.tool_call_count is None
        assert run.warnings == []

    async def test_a_direct_message_is_a_completed_turn(self, run):
        run.deploy("clerk", {"answer": "hi", "message_only": True})
        reply, error = await prompt(run)
        assert (reply.response, reply.agent_session_id, error) == ("hi", None, None)

    async def test_no_agent_of_that_name(self, run):
        with pytest.raises(NotDeployed) as missing:
            await prompt_agent(step(agent_name="assistant"), run)
        assert str(missing.value) == (
            "Agent with name 'assistant' not found in context.deployed_agents"
        )
        assert run.context.prompt_responses == []

    async def test_a_random_prompt_id(self, run):
        run.deploy("clerk", {"answer": "a", "times": 2})
        await prompt_agent(step(prompt_id=None), run)
        await prompt_agent(step(prompt_id=None), run)
        ids = {reply.prompt_id for reply in run.context.prompt_responses}
        assert len(ids) == 2

    async def test_a_context_to_continue(self, run):
        run.deploy("clerk", {"answer": "a"})
        reply, _ = await prompt(run, context_id="desk-1")
        assert reply.a2a_context_id == "desk-1"

    async def test_a_trajectory_that_cannot_be_fetched_is_a_warning(self, run):
        from pytest_harbor.protocols.agent_card import TRAJECTORY

        params = {"endpoint": "/no/such/place"}
        url = run.serve_app(build("1.0", extensions={TRAJECTORY: params})[0])
        run.journal.write("deploy", DeployedAgent("clerk", url, "none"))
        reply, error = await prompt(run, prompt="say hi")
        assert (reply.response, error) == ("hi", None)
        assert reply.agent_trajectory_object_url is None
        assert "no trajectory of sample" in run.warnings[0]

    async def test_secrets_stay_out_of_the_store(self, run, tmp_path):
        run.masker = Masker(["s3cr3t-value"])
        run.deploy("clerk", {"answer": "the key is s3cr3t-value", "state": "failed"})
        _, error = await prompt(run, prompt="s3cr3t-value?")
        kept = [path.read_text() for path in (tmp_path / "objects").rglob("*.json")]
        assert len(kept) == 3
        assert "s3cr3t-value" not in "".join(kept) + str(error)
        assert "the key is ***" in str(error)


class TestFailures:
    @pytest.mark.parametrize("state", ["failed", "rejected", "canceled"])
    async def test_final_states_that_are_failures(self, run, state):
        run.deploy("clerk", {"answer": "Not today.", "state": state})
        reply, error = await prompt(run)
        assert reply.error_type == "agent_error"
        assert reply.error_message == "Not today."
        assert reply.response == "Not today."
        assert reply.agent_trajectory_object_url is not None
        assert error.kind == AGENT_RUN_ERROR
        assert "agent 'clerk'" in str(error)
        assert f"A2A task {reply.agent_session_id}" in str(error)
        assert "Not today." in str(error)
        (whole,) = run.stored("runs/run-1/conversations/*/conversation.json")
        assert (whole["status"], whole["end_reason"]) == ("closed", "agent_failed")

    async def test_what_the_agent_says_of_its_failure(self, run):
        error = {"type": "infra_error", "code": "E7", "message": "no disk left"}
        run.deploy("clerk", {"answer": "I cannot.", "state": "failed", "error": error})
        reply, failure = await prompt(run)
        assert (reply.error_type, reply.error_code, reply.error_message) == (
            "infra_error",
            "E7",
            "no disk left",
        )
        assert failure.kind == AGENT_COULD_NOT_RUN
        for part in ("infra_error", "code E7", "no disk left", "it said: I cannot."):
            assert part in str(failure)

    async def test_a_silent_failure_shows_the_log(self, run):
        run.deploy("clerk", {"state": "failed"}).log = "KeyError: 'shelf'"
        _, failure = await prompt(run)
        assert "its log ends:\nKeyError: 'shelf'" in str(failure)

    @pytest.mark.parametrize("state", ["input-required", "auth-required"])
    async def test_nobody_answers_an_agent_that_asks(self, run, state):
        run.deploy("clerk", {"answer": "Which one?", "state": state})
        with anyio.fail_after(30):
            reply, failure = await prompt(run)
        assert reply.error_type == "agent_error"
        assert reply.response == reply.error_message == "Which one?"
        assert "asks for" in str(failure)
        assert failure.kind == AGENT_RUN_ERROR

    async def test_an_agent_that_never_answers(self, run):
        app, executor = build("1.0")
        url = run.serve_app(app)
        run.journal.write("deploy", DeployedAgent("clerk", url, "none"))
        reply, failure = await prompt(run, prompt="work 60", timeout_seconds=1.5)
        assert reply.error_type == "timeout"
        assert failure.kind == AGENT_TIMEOUT
        assert executor.cancelled == [reply.agent_session_id]
        assert reply.response == "working on it"

    @pytest.mark.slow
    async def test_an_agent_that_dies_is_not_waited_for(self, run):
        served = run.deploy("clerk", {"do": [{"hang": True}]})
        reply = failure = None

        async def ask():
            nonlocal reply, failure
            reply, failure = await prompt(run, timeout_seconds=60)

        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(ask)
                await anyio.sleep(0.3)
                served.dies_with = "ended by itself (exit code 9):\nKilled"
        assert reply.error_type == "infra_error"
        assert failure.kind == SERVER_UNREACHABLE
        assert str(failure).count("agent 'clerk' ended by itself (exit code 9)") == 1

    async def test_an_agent_that_is_dead_already(self, run):
        run.deploy("clerk", {"answer": "x"}).dies_with = "ended by itself"
        reply, failure = await prompt(run)
        assert reply.error_type == "infra_error"
        assert reply.error_message == "agent 'clerk' ended by itself"
        assert isinstance(failure, ServerNotReady)

    async def test_what_answers_is_no_agent(self, run):
        async def app(scope, receive, send):
            await receive()
            start = {"type": "http.response.start", "status": 200, "headers": []}
            await send(start)
            await send({"type": "http.response.body", "body": b"<html>"})

        url = run.serve_app(app)
        run.journal.write("deploy", DeployedAgent("clerk", url, "none"))
        with pytest.raises(ProtocolError):
            await prompt_agent(step(), run)
        reply = run.context.response("serve")
        assert reply.error_type == "infra_error"
        assert reply.error_message


class TestConfiguration:
    async def asked(self, run, **fields):
        """What the agent was configured with, as its trajectory tells."""
        run.deploy("clerk", {"answer": "a"})
        reply, _ = await prompt(run, **fields)
        return reply, json.loads(await run.store.get(reply.agent_trajectory_object_url))

    async def test_values_are_set_before_the_prompt(self, run):
        reply, trajectory = await self.asked(
            run, model="openai/m", system_prompt="Be kind."
        )
        assert reply.model == "openai/m"
        assert trajectory["agent"]["model_name"] == "openai/m"
        assert trajectory["steps"][0] == {
            "step_id": 1,
            "source": "system",
            "message": "Be kind.",
        }
        assert run.context.metadata["models"] == {"solver": {"serve-step": "openai/m"}}

    async def test_what_an_agent_does_not_take_is_a_warning(self, run):
        url = run.serve_app(build("1.0")[0])
        run.journal.write("deploy", DeployedAgent("clerk", url, "none"))
        reply, error = await prompt(
            run, prompt="say x", model="m", system_prompt="Be kind.", effort="high"
        )
        assert (reply.model, error) == (None, None)
        assert run.warnings == [
            "agent 'clerk' does not take effort, system_prompt",
            "agent 'clerk' takes no model; it uses its own, not m",
        ]

    @pytest.mark.parametrize(
        ("override", "of_run", "of_step", "default", "wanted"),
        [
            ("o", "r", "s", "d", "o"),
            (None, "r", "s", "d", "r"),
            (None, None, "s", "d", "s"),
            (None, None, None, "d", "d"),
            (None, None, None, None, None),
        ],
    )
    async def test_order_of_models(
        self, run, override, of_run, of_step, default, wanted
    ):
        if override:
            params = {"step_params": {"serve-step": {"model": override}}}
            run.write(Put("user_overrides", params))
        run.context.agent_model = of_run
        if default:
            run.write(DefaultModel(default))
        assert wanted_model(step(model=of_step), run.context) == wanted


def converse(**fields):
    return {"max_conversation_turns": 4, "user_agent_name": "reader", **fields}


class TestConversations:
    async def test_turns_go_on_until_the_user_is_done(self, run):
        call = [{"run": ["true"]}]
        run.deploy(
            "clerk",
            {"when": "^Help", "answer": "What do you look for?", "do": call},
            {"when": "atlas", "answer": "Shelf 4.", "do": call * 2},
        )
        run.deploy(
            "reader",
            {
                "when": "look for",
                "answer": {"message": "The atlas.", "done": False, "mood": "calm"},
            },
            {"when": "Shelf 4", "answer": {"message": "Bye!", "done": True}},
        )
        reply, error = await prompt(run, prompt="Help.", **converse())
        assert error is None
        assert reply.response == "Shelf 4."
        assert reply.prompt_text == "Help."
        assert reply.source_agent_per_turn_prompt_parts == (
            None,
            [{"kind": "text", "text": "The atlas."}],
        )
        urls = reply.target_agent_per_turn_trajectory_object_urls
        assert len(set(urls)) == 2
        assert reply.agent_trajectory_object_url == urls[-1]
        assert reply.tool_call_count == 3
        metadata = run.context.metadata
        assert metadata["usersim_turn_outputs"] == {
            "serve-step": [{"turn": 1, "fields": {"mood": "calm"}}]
        }
        assert metadata["models"]["user simulator"] == {"serve-step": None}
        assert len(run.stored("runs/run-1/conversations/*/turn_*.json")) == 2
        (whole,) = run.stored("runs/run-1/conversations/*/conversation.json")
        assert whole["end_reason"] == "user_done"
        assert whole["source_agent_name"] == "reader"
        assert len(whole["a2a_tasks"]) == 4
        said = [message["parts"][0]["text"] for message in whole["messages"]]
        assert said[:4] == ["Help.", "What do you look for?", "The atlas.", "Shelf 4."]
        assert "Bye!" in said[4]

    async def test_all_turns_share_a_context(self, run):
        run.deploy("clerk", {"answer": "a", "when": "."})
        run.deploy("reader", {"answer": {"message": "b", "done": False}, "when": "."})
        reply, _ = await prompt(run, **converse())
        contexts = {
            turn["a2a_task"]["contextId"]
            for turn in run.stored("runs/run-1/conversations/*/turn_*.json")
        }
        assert contexts == {reply.a2a_context_id}

    async def test_the_limit_counts_agent_turns_and_its_last_reply_is_not_sent(
        self, run
    ):
        run.deploy("clerk", {"answer": "a", "when": "."})
        run.deploy(
            "reader",
            {"answer": {"message": "b", "done": False}, "when": ".", "times": 2},
        )
        reply, error = await prompt(run, **converse(max_conversation_turns=3))
        assert error is None
        assert len(reply.target_agent_per_turn_trajectory_object_urls) == 3
        (whole,) = run.stored("runs/run-1/conversations/*/conversation.json")
        assert whole["end_reason"] == "turn_limit"
        assert len(whole["a2a_tasks"]) == 5

    async def test_a_user_that_answers_text(self, run):
        run.deploy("clerk", {"when": "plain", "answer": "good"}, {"answer": "a"})
        run.deploy("reader", {"answer": "in plain words {"})
        reply, _ = await prompt(run, **converse(max_conversation_turns=2))
        assert reply.response == "good"

    async def test_a_user_with_a_format_of_the_task_s_own(self, run):
        run.deploy("clerk", {"when": "^b$", "answer": "good"}, {"answer": "a"})
        run.deploy("reader", {"answer": {"message": "b", "mood": "calm"}})
        schema = {"type": "json_schema", "schema": {"type": "object"}}
        own = converse(max_conversation_turns=2, user_output_format=schema)
        reply, _ = await prompt(run, **own)
        assert reply.response == "good"

    @pytest.mark.parametrize(
        ("answer", "reason"),
        [
            ({"answer": "x", "state": "failed"}, "user_failed"),
            ({"answer": "x", "state": "rejected"}, "user_rejected"),
            ({"answer": "x", "state": "input-required"}, "user_input-required"),
            ({"answer": ""}, "user_silent"),
            ({"answer": {"message": " ", "done": False}}, "user_silent"),
            ({"do": [{"hang": True}]}, "user_timeout"),
        ],
    )
    async def test_a_user_that_does_not_go_on_ends_it_well(self, run, answer, reason):
        run.deploy("clerk", {"answer": "a", "when": "."})
        run.deploy("reader", answer)
        limit = 0.5 if reason == "user_timeout" else 60
        reply, error = await prompt(run, **converse(user_agent_timeout_seconds=limit))
        assert error is None
        assert (reply.response, reply.has_error) == ("a", False)
        (whole,) = run.stored("runs/run-1/conversations/*/conversation.json")
        assert whole["end_reason"] == reason

    async def test_an_agent_that_says_nothing_ends_it(self, run):
        url = run.serve_app(build("1.0")[0])
        run.journal.write("deploy", DeployedAgent("clerk", url, "none"))
        run.deploy("reader")
        _, error = await prompt(run, prompt="lines ", **converse())
        (whole,) = run.stored("runs/run-1/conversations/*/conversation.json")
        assert whole["end_reason"] == "agent_silent"
        assert error is None

    async def test_an_agent_that_asks_goes_on_with_its_task(self, run):
        run.deploy(
            "clerk",
            {"answer": "Which one?", "state": "input-required"},
            {"when": "^atlas$", "answer": "Shelf 4."},
        )
        run.deploy("reader", {"answer": {"message": "atlas", "done": False}})
        reply, error = await prompt(run, **converse(max_conversation_turns=2))
        assert error is None
        assert reply.response == "Shelf 4."
        first, second = run.stored("runs/run-1/conversations/*/turn_*.json")
        assert first["state"] == "input-required"
        assert first["a2a_task"]["id"] == second["a2a_task"]["id"]

    async def test_an_agent_that_fails_in_a_later_turn(self, run):
        run.deploy(
            "clerk", {"answer": "a"}, {"answer": "Out of paper.", "state": "failed"}
        )
        run.deploy("reader", {"answer": {"message": "b", "done": False}})
        reply, failure = await prompt(run, **converse())
        assert failure is not None
        assert (reply.error_type, reply.response) == ("agent_error", "Out of paper.")
        assert len(reply.target_agent_per_turn_trajectory_object_urls) == 2

    async def test_a_person_gets_the_reply_and_answers_in_words_or_files(self, run):
        file = {
            "kind": "file",
            "file": {"uri": "https://example.org/a.png", "mimeType": "image/png"},
        }
        person = run.deploy(
            "not-in-the-context-of-the-step",
            {
                "when": "Which page",
                # A person's words are no protocol, whatever they look like.
                "answer": '{"message": "no", "done": true}',
                "parts": [file],
            },
        )
        app, _ = build("0.3")
        run.journal.write("deploy", DeployedAgent("clerk", run.serve_app(app), "none"))
        reply, error = await prompt(
            run,
            prompt="say Which page?",
            max_conversation_turns=2,
            user_a2a_url=person.url,
            user_agent_name="reader",
        )
        # The SDK's sample knows no such command and fails; what it was sent is the point.
        assert error is not None
        sent = reply.source_agent_per_turn_prompt_parts[1]
        assert sent[0] == {"kind": "text", "text": '{"message": "no", "done": true}'}
        assert file in sent
        assert "user simulator" not in run.context.metadata["models"]

    async def test_a_person_s_card_may_lead_elsewhere_and_nothing_is_set_there(
        self, run
    ):
        """Behind a gateway, for one: the card is here, the endpoint there."""
        person = run.deploy("behind", {"answer": "the atlas"})
        desk = Extended()
        card = {**desk.card(), "url": f"{person.url}/a2a"}
        desk.card = lambda: card
        run.deploy("clerk", {"when": "atlas", "answer": "Shelf 4."}, {"answer": "?"})
        url = run.serve_app(desk.app())
        reply, _ = await prompt(run, max_conversation_turns=2, user_a2a_url=url)
        assert reply.response == "Shelf 4."
        assert desk.posted == []

    async def test_a_person_who_is_not_there_is_named(self, run, monkeypatch):
        monkeypatch.setattr("pytest_harbor.graphs.turns.CONNECT_SECONDS", 0.0)
        run.deploy("clerk", {"answer": "a"})
        url = f"http://127.0.0.1:{reserve_port()}"
        fields = {"max_conversation_turns": 2, "user_a2a_url": url}
        with pytest.raises(
            ServerUnreachable, match=r"^the user \(person\) cannot be spoken to: http"
        ) as caught:
            await prompt_agent(step(**fields), run)
        reply = run.context.response("serve")
        assert (reply.error_type, reply.error_message) == (
            "infra_error",
            str(caught.value),
        )

    async def test_the_configured_person_is_the_last_resort(self, run, tmp_path):
        person = Run(tmp_path / "person", run.servers)
        url = person.deploy("human", {"answer": "the atlas"}).url
        run.settings = RunSettings(human_a2a_url=url)
        run.deploy("clerk", {"when": "atlas", "answer": "Shelf 4."}, {"answer": "?"})
        reply, _ = await prompt(run, max_conversation_turns=2)
        assert reply.response == "Shelf 4."

    async def test_without_a_user_nothing_is_prompted(self, run):
        run.deploy("clerk", {"answer": "a"})
        with pytest.raises(StepError, match="needs a user: name a deployed agent"):
            await prompt_agent(step(max_conversation_turns=2), run)
        assert run.stored("runs/**/*.json") == []

    async def test_a_named_user_must_be_there(self, run):
        run.deploy("clerk", {"answer": "a"})
        with pytest.raises(NotDeployed, match="Agent with name 'reader' not found in"):
            await prompt_agent(step(**converse()), run)

    async def test_a_user_that_cannot_be_reached_fails_before_the_first_turn(self, run):
        run.deploy("clerk", {"answer": "a"})
        run.deploy("reader").dies_with = "ended by itself"
        reply, failure = await prompt(run, **converse())
        assert isinstance(failure, ServerNotReady)
        assert (reply.response, reply.error_type) == ("", "infra_error")
        assert run.stored("runs/run-1/conversations/*/turn_*.json") == []

    async def test_the_user_agent_is_asked_for_message_and_done(self, run):
        from pytest_harbor.protocols import a2a

        run.settings = RunSettings(models=Models(user="openai/u"))
        run.deploy("clerk", {"answer": "a"})
        served = run.deploy("reader", {"answer": {"message": "", "done": True}})
        async with await a2a.connect(served.url) as connection:
            assert {"output_format", "model"} <= connection.configurable()
        await prompt(run, **converse())
        metadata = run.context.metadata
        assert metadata["models"]["user simulator"] == {"serve-step": "openai/u"}


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("serve", "serve"),
        ("a/b", "a%2Fb"),
        ("..", "%2E."),
        ("é", "%C3%A9"),
        ("\ud800", "%3F"),
    ],
)
def test_any_name_is_a_part_of_a_key(name, part):
    assert key_part(name) == part


def test_long_names_stay_apart():
    parts = {key_part("x" * 300), key_part("x" * 301)}
    assert len(parts) == 2
    assert max(map(len, parts)) < 130


def test_a_death_is_told_that_is_known_a_moment_after_the_connection_broke():
    class Dying:
        what = "agent 'clerk'"
        looks = 0

        @property
        def death(self):
            self.looks += 1
            return "ended by itself" if self.looks > 2 else None

        async def log_tail(self):
            return "the same log"

    reply = conclude(
        None, State.UNREACHABLE, message_id="m", context_id="c", error="broken"
    )
    run = SimpleNamespace(masker=Masker(()))
    error = anyio.run(turn_failure, run, "clerk", Dying(), reply)
    assert str(error).endswith("broken\nagent 'clerk' ended by itself")
