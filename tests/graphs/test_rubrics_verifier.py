"""``rubrics_verifier`` with every kind of judge, on real servers, and what is no grade."""

from __future__ import annotations

import json
from dataclasses import replace

import anyio
import pytest

from pytest_harbor.errors import (
    JUDGE_ERROR,
    JudgeError,
    NotDeployed,
    SandboxLost,
    StepError,
)
from pytest_harbor.graphs import agent_judge
from pytest_harbor.graphs.context import Append, PromptResponse, Put
from pytest_harbor.graphs.steps.api import Models, RunSettings
from pytest_harbor.graphs.steps.rubrics_verifier import rubrics_verifier
from pytest_harbor.graphs.turns import take_turn
from pytest_harbor.sandboxes.output import Masker
from pytest_harbor.tasks.steps.model import RubricsVerifier
from scripted_sandbox import ScriptedProvider, ScriptedSandbox
from servers.scripted_model import Model
from step_runs import Run

pytestmark = pytest.mark.anyio

FOUND = {"id": "found", "criterion": "It says which shelf.", "weight": 2}
KIND = {"id": "kind", "criterion": "It is friendly."}


def grades(*scores):
    return {
        "results": [
            {"id": f"c{number}", "score": score, "justification": f"why {number}"}
            for number, score in enumerate(scores, 1)
        ]
    }


def saying(*scores, **more):
    return {"answer": grades(*scores), **more}


def step(*criteria, **fields):
    given = {"id": "manners-step", "prompt_id": "serve", "verifier_id": "manners"}
    given |= {"criteria": list(criteria or (FOUND, KIND)), **fields}
    return RubricsVerifier.model_validate(given)


def reply(*turns, **fields):
    given = {"prompt_text": "Where is the atlas?", **fields}
    return PromptResponse(
        "serve",
        "On shelf 4, dear reader.",
        target_agent_per_turn_trajectory_object_urls=turns,
        agent_trajectory_object_url=turns[-1] if turns else None,
        **given,
    )


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def run(tmp_path, servers):
    return Run(tmp_path, servers)


@pytest.fixture
def model(run):
    model = Model()
    models = Models(judge="openai/small", api_base=run.serve_app(model.app()) + "/v1")
    run.settings = RunSettings(models=models)
    return model


def entry(run, verifier_id="manners"):
    return run.context.metadata["verifications"][verifier_id]


async def by_model(run, *criteria, **fields):
    await rubrics_verifier(step(*criteria, use_agent_judge=False, **fields), run)
    return entry(run)


def sandbox():
    return ScriptedSandbox(ScriptedProvider(), "judge-box")


async def kept(run, url):
    return json.loads(await run.store.get(url))


class TestModelJudge:
    async def test_one_call_and_its_entry(self, run, model):
        run.write(reply())
        model.answers = [json.dumps(grades(1, 0))]
        found = await by_model(run, score_aggregator="weighted_average")
        assert found == {
            "format": "rubric_binary",
            "results": [
                {
                    **FOUND,
                    "score": 1,
                    "result": True,
                    "justification": "why 1",
                },
                {
                    **KIND,
                    "weight": 1,
                    "score": 0,
                    "result": False,
                    "justification": "why 2",
                },
            ],
            "score": pytest.approx(2 / 3),
            "judge_trajectory_object_url": found["judge_trajectory_object_url"],
            "trajectory": "missing",
        }
        (request,) = model.requests
        assert request["model"] == "small"
        schema = request["response_format"]["json_schema"]["schema"]
        assert schema["required"] == ["results"]
        assert run.context.metadata["models"]["judge"] == {
            "manners-step": "openai/small"
        }

    async def test_it_sees_prompt_reply_and_trajectory_with_turns_marked(
        self, run, model
    ):
        turns = [
            await run.store.put_json(f"t{number}.json", {"did": f"thing {number}"})
            for number in (1, 2)
        ]
        run.write(reply(*turns))
        model.answers = [json.dumps(grades(1))]
        found = await by_model(run, FOUND)
        text = model.requests[0]["messages"][0]["content"]
        for part in (
            "Where is the atlas?",
            "On shelf 4, dear reader.",
            "<<<trajectory of turn 1 ",
            "thing 2",
        ):
            assert part in text
        assert "trajectory" not in found

    async def test_its_own_dialogue_is_kept(self, run, model):
        run.write(reply())
        model.answers = ["Looks fine to me!", json.dumps(grades(1))]
        found = await by_model(run, FOUND, use_trajectory=False)
        document = await kept(run, found["judge_trajectory_object_url"])
        assert document["schema_version"] == "ATIF-v1.7"
        said = [step["message"] for step in document["steps"]]
        assert [step["source"] for step in document["steps"]] == ["user", "agent"] * 2
        assert said[1] == "Looks fine to me!"
        assert "it is not JSON" in said[2]
        assert found["judge_output_retries"] == 1
        assert "trajectory" not in found
        sent = model.requests[1]["messages"]
        assert [message["role"] for message in sent] == ["user", "assistant", "user"]

    async def test_prose_three_times_is_an_error_and_no_score(self, run, model):
        run.write(reply())
        model.answers = ["Fine!", "Good!", "I would say 9 of 10."]
        with pytest.raises(JudgeError) as failed:
            await by_model(run)
        assert failed.value.kind == JUDGE_ERROR
        assert failed.value.answers == ("Fine!", "Good!", "I would say 9 of 10.")
        assert "no grades in 3 attempts" in str(failed.value)
        assert "it was: I would say 9 of 10." in str(failed.value)
        url = str(failed.value).rpartition("what the judge did: ")[2]
        assert len((await kept(run, url))["steps"]) == 6
        assert "verifications" not in run.context.metadata

    async def test_an_endpoint_that_fails_is_an_error(self, run, model):
        run.write(reply())
        model.answers = [(500, {"error": {"message": "overloaded"}})]
        with pytest.raises(JudgeError, match="overloaded"):
            await by_model(run)
        assert "verifications" not in run.context.metadata

    async def test_the_step_s_own_model_and_endpoint_go_first(self, run, model):
        base = run.settings.models.api_base
        run.settings = RunSettings(
            models=Models(judge="m", api_base="http://x.invalid")
        )
        run.write(reply())
        model.answers = [json.dumps(grades(1))]
        await by_model(
            run,
            FOUND,
            default_model="judge-large",
            default_model_api_base=base,
            effort="high",
        )
        assert model.requests[0]["model"] == "judge-large"
        assert model.requests[0]["reasoning_effort"] == "high"

    async def test_no_model_is_asked_for(self, run):
        run.write(reply())
        with pytest.raises(StepError, match="give default_model, or"):
            await by_model(run)

    async def test_secrets_reach_neither_judge_nor_store(self, run, model):
        run.masker = Masker(["s3cr3t-value"])
        leaked = reply(prompt_text="use s3cr3t-value")
        run.write(replace(leaked, response="I used s3cr3t-value."))
        model.answers = [json.dumps(grades(1))]
        found = await by_model(run, FOUND)
        assert "s3cr3t-value" not in model.requests[0]["messages"][0]["content"]
        document = await run.store.get(found["judge_trajectory_object_url"])
        assert b"s3cr3t-value" not in document

    async def test_policy_and_facts(self, run, model):
        run.write(reply(), Put("loaded", [{"names": ["atlas"]}]))
        model.answers = [json.dumps(grades(1))]
        await by_model(
            run,
            FOUND,
            grading_policy_prompt="Be strict.",
            context_facts_for_judge={"books": "loaded.0.names", "fines": "loaded.7"},
        )
        text = model.requests[0]["messages"][0]["content"]
        assert "Be strict." in text
        assert '"books": [\n  "atlas"\n ],\n "fines": null' in text
        assert run.warnings == [
            "context_facts_for_judge: the run has nothing at 'loaded.7'"
        ]

    async def test_partial_grades(self, run, model):
        run.write(reply())
        model.answers = [json.dumps(grades(4, 0.25))]
        scale = {"id": "a", "criterion": "A", "outcomes": {"min": 1, "max": 5}}
        found = await by_model(
            run,
            scale,
            KIND,
            output_format="rubric_partial",
            score_aggregator="weighted_average",
        )
        assert found["format"] == "rubric_partial"
        assert [row["score"] for row in found["results"]] == [0.75, 0.25]
        assert [row["result"] for row in found["results"]] == [True, False]
        assert found["results"][0]["raw_score"] == 4
        assert found["score"] == 0.5


class TestReplies:
    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            (
                {"error_type": "agent_error", "error_message": "no paper"},
                "agent_error: no paper",
            ),
            ({"error_code": "E7"}, "E7"),
            ({"error_message": "no paper"}, "no paper"),
        ],
    )
    async def test_one_with_an_error_needs_no_judge(self, run, fields, message):
        run.write(reply(**fields))
        await rubrics_verifier(step(), run)
        assert entry(run) == {
            "format": "rubric_binary",
            "results": [
                {"id": "prompt_error", "score": 0, "result": False, "message": message}
            ],
            "score": 0,
        }
        assert run.launches == []

    async def test_one_that_is_not_there(self, run):
        with pytest.raises(
            StepError, match="Prompt response with id 'serve' not found"
        ):
            await rubrics_verifier(step(), run)

    async def test_a_trajectory_that_is_gone_is_said(self, run, model):
        run.write(reply("file:///no/such/file.json"))
        with pytest.raises(StepError, match="cannot read the trajectory"):
            await by_model(run)
        assert model.requests == []

    async def test_a_turn_without_one_is_noted(self, run, model):
        url = await run.store.put_json("t.json", {"did": "a thing"})
        run.write(reply(url, None))
        model.answers = [json.dumps(grades(1))]
        found = await by_model(run, FOUND)
        assert found["trajectory"] == "incomplete"
        assert "(not recorded)" in model.requests[0]["messages"][0]["content"]

    async def test_one_too_long_for_a_prompt_is_noted(self, run, model, monkeypatch):
        monkeypatch.setattr(
            "pytest_harbor.verification.judges.prompt.MAX_INLINE_CHARACTERS", 100
        )
        run.write(reply(await run.store.put_json("t.json", {"did": "x" * 200})))
        model.answers = [json.dumps(grades(1))]
        found = await by_model(run, FOUND)
        assert found["trajectory"] == "shortened"
        assert "characters left out" in model.requests[0]["messages"][0]["content"]

    async def test_a_random_verifier_id(self, run, model):
        run.write(reply())
        model.answers = [json.dumps(grades(1))] * 2
        for _ in range(2):
            await rubrics_verifier(
                step(FOUND, use_agent_judge=False, verifier_id=None), run
            )
        assert len(run.context.metadata["verifications"]) == 2


class TestDeployedJudge:
    async def test_it_is_started_asked_and_stopped(self, run):
        run.agent_sandbox = sandbox()
        run.scripts["wise"] = [saying(1, 1)]
        url = await run.store.put_json("t.json", {"did": "a thing"})
        run.write(reply(url))
        await rubrics_verifier(
            step(judge_a2a_agent_id="wise", default_model="openai/m"), run
        )
        assert entry(run)["score"] == 1.0
        (launch,) = run.launches
        assert (launch.agent_id, launch.model) == ("wise", "openai/m")
        assert launch.name == "judge of manners"
        (instance,) = run.instances.values()
        assert instance.is_stopped
        assert run.context.deployed_agents == []
        content = run.agent_sandbox.files["/tmp/prompt_trajectory.json"]
        assert json.loads(content) == {"did": "a thing"}
        document = await kept(run, entry(run)["judge_trajectory_object_url"])
        asked = document["steps"][0]["message"]
        assert "the JSON file /tmp/prompt_trajectory.json" in asked
        assert "a thing" not in asked
        assert document["agent"]["model_name"] == "openai/m"
        assert run.context.metadata["models"]["judge"] == {"manners-step": "openai/m"}

    async def test_the_default_agent(self, run):
        run.settings = RunSettings(default_agent="wise")
        run.scripts["wise"] = [saying(1, 0)]
        run.write(reply())
        await rubrics_verifier(step(), run)
        assert entry(run)["score"] == 0.0

    async def test_without_any_agent(self, run):
        run.write(reply())
        with pytest.raises(StepError, match="no judge: name a deployed agent"):
            await rubrics_verifier(step(), run)

    async def test_a_conversation_is_a_folder_of_turns(self, run):
        run.agent_sandbox = sandbox()
        run.agent_sandbox.files["/tmp/prompt_trajectory/turn_03.json"] = b"older"
        run.scripts["wise"] = [saying(1, 1)]
        urls = [await run.store.put_json(f"{n}.json", {"turn": n}) for n in (1, 2)]
        run.write(reply(*urls))
        await rubrics_verifier(step(judge_a2a_agent_id="wise"), run)
        names = sorted(run.agent_sandbox.files)
        assert names[-2:] == [
            "/tmp/prompt_trajectory/turn_01.json",
            "/tmp/prompt_trajectory/turn_02.json",
        ]

    @pytest.mark.parametrize(
        ("answers", "says"),
        [
            ([{"answer": "no", "state": "failed"}], "judge of manners' failed"),
            ([{"answer": "no", "state": "rejected"}], "rejected the prompt"),
            ([{"do": [{"hang": True}]}], "did not end its turn in time"),
            ([{"answer": "prose", "when": "."}], "no grades in 3 attempts"),
        ],
    )
    async def test_it_is_stopped_when_grading_fails(self, run, answers, says):
        hangs = "hang" in str(answers)
        run.scripts["wise"] = answers
        run.write(reply())
        limit = 0.5 if hangs else 60
        with pytest.raises(JudgeError, match=says) as failed:
            await rubrics_verifier(
                step(judge_a2a_agent_id="wise", judge_timeout_seconds=limit), run
            )
        (instance,) = run.instances.values()
        assert instance.is_stopped
        assert "verifications" not in run.context.metadata
        if not hangs:
            assert "what the judge did: file://" in str(failed.value)

    async def test_it_is_stopped_when_the_step_is_cancelled(self, run):
        run.scripts["wise"] = [{"do": [{"hang": True}]}]
        run.write(reply())
        scope = anyio.CancelScope()

        async def judge():
            with scope:
                await rubrics_verifier(step(judge_a2a_agent_id="wise"), run)

        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(judge)
                while not run.instances:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
                scope.cancel()
        assert scope.cancelled_caught
        (instance,) = run.instances.values()
        assert instance.is_stopped

    async def test_one_that_cannot_be_stopped_costs_no_score(self, run):
        class Stubborn(Run):
            async def start_agent(self, launch):
                instance = await super().start_agent(launch)
                instance.stop_error = SandboxLost("no answer")
                return instance

        stubborn = Stubborn(run.store.root.parent, run.servers)
        stubborn.scripts["wise"] = [saying(1, 1)]
        stubborn.write(reply())
        await rubrics_verifier(step(judge_a2a_agent_id="wise"), stubborn)
        assert entry(stubborn)["score"] == 1.0
        assert "no answer" in stubborn.warnings[0]

    async def test_grades_in_text_with_a_second_attempt(self, run):
        run.scripts["wise"] = [
            {"answer": "I think it is fine.", "times": 1},
            {"when": "could not be used", "answer": json.dumps(grades(1, 1))},
        ]
        run.write(reply())
        await rubrics_verifier(step(judge_a2a_agent_id="wise"), run)
        assert entry(run)["judge_output_retries"] == 1

    async def test_a_judge_that_asks_back_is_told_to_answer(self, run, monkeypatch):
        turns = []

        async def noted(*args, **options):
            answer = await take_turn(*args, **options)
            turns.append((options["task_id"], answer.task_id))
            return answer

        monkeypatch.setattr(agent_judge, "take_turn", noted)
        run.scripts["wise"] = [
            {"answer": "Which language?", "state": "input-required", "times": 1},
            {"when": "could not be used", **saying(1, 1)},
        ]
        run.write(reply())
        await rubrics_verifier(step(judge_a2a_agent_id="wise"), run)
        assert entry(run)["score"] == 1.0
        # It asked in a task, and is answered in the same one.
        (before, asking), (answered, after) = turns
        assert before is None
        assert asking == answered == after


class TestNamedJudge:
    async def test_it_sees_the_files_that_it_was_given(self, run):
        judge = run.deploy("auditor", saying(1, 1), sandbox=sandbox())
        run.write(
            reply(await run.store.put_json("t.json", {})),
            *(
                Append(
                    "loaded_file_artifact_universes",
                    {"agent_name": name, "destination_path": folder, "files": files},
                )
                for name, folder, files in (
                    ("auditor", "/tmp/file_artifacts", ["receipt.pdf"]),
                    ("auditor", "/app/loans", {"today.csv": "/store/1"}),
                    ("clerk", "/app/other", ["hidden.txt"]),
                )
            ),
        )
        await rubrics_verifier(step(agent_name="auditor"), run)
        document = await kept(run, entry(run)["judge_trajectory_object_url"])
        asked = document["steps"][0]["message"]
        assert 'in "/tmp/file_artifacts":\n- "receipt.pdf"' in asked
        assert 'in "/app/loans":\n- "today.csv"' in asked
        assert "hidden.txt" not in asked
        assert not judge.is_stopped
        assert run.launches == []

    async def test_without_a_sandbox_the_trajectory_is_inline(self, run):
        run.deploy("auditor", saying(1, 1))
        run.write(reply(await run.store.put_json("t.json", {"did": "a thing"})))
        await rubrics_verifier(step(agent_name="auditor"), run)
        document = await kept(run, entry(run)["judge_trajectory_object_url"])
        assert '"did": "a thing"' in document["steps"][0]["message"]

    async def test_one_that_is_not_there(self, run):
        run.write(reply())
        with pytest.raises(NotDeployed) as missing:
            await rubrics_verifier(step(agent_name="auditor"), run)
        assert str(missing.value) == (
            "Agent with name 'auditor' not found in context.deployed_agents"
        )

    async def test_two_verifiers_share_it_one_after_the_other(self, run):
        box = sandbox()
        run.deploy(
            "auditor",
            {"when": "ALPHA", "do": [{"wait": 0.3}], **saying(1)},
            {"when": "BETA", **saying(0)},
            sandbox=box,
        )
        run.write(reply(await run.store.put_json("t.json", {})))
        uploads = []
        original = box.upload

        async def upload(*args, **options):
            uploads.append(dict(run.context.metadata.get("verifications", {})))
            await original(*args, **options)

        box.upload = upload
        async with anyio.create_task_group() as group:
            for word in ("ALPHA", "BETA"):
                graded = step(
                    {"id": "x", "criterion": word},
                    agent_name="auditor",
                    verifier_id=word,
                    id=word,
                )
                group.start_soon(rubrics_verifier, graded, run)
        assert entry(run, "ALPHA")["score"] == 1.0
        assert entry(run, "BETA")["score"] == 0.0
        trajectories = run.stored("runs/run-1/verifications/*/trajectory-*.json")
        assert len(trajectories) == 2
        # The second begins when the first has written its entry.
        assert [len(entries) for entries in uploads] == [0, 1]

    async def test_a_model_judges_although_an_agent_is_named(self, run, model):
        run.write(reply())
        model.answers = [json.dumps(grades(1))]
        found = await by_model(run, FOUND, agent_name="auditor")
        assert found["score"] == 1.0


class TestOwnJudge:
    @pytest.mark.parametrize(
        "named",
        [
            {"judge_a2a_agent_id": "house"},
            {"use_agent_judge": False, "default_model": "house"},
        ],
    )
    async def test_it_is_found_by_its_name(self, run, named):
        made = []

        class House:
            def __init__(self, *, model):
                self.model = model
                self.closed = False
                made.append(self)

            async def ask(self, text, schema, *, timeout_seconds):
                assert "On shelf 4" in text
                assert timeout_seconds == 1000
                return grades(1, 0)

            async def aclose(self):
                self.closed = True

        run.settings = RunSettings(judges={"house": House})
        run.write(reply())
        await rubrics_verifier(step(score_aggregator="any_pass", **named), run)
        assert entry(run)["score"] == 1.0
        assert made[0].closed
        document = await kept(run, entry(run)["judge_trajectory_object_url"])
        assert json.loads(document["steps"][1]["message"]) == grades(1, 0)

    @pytest.mark.parametrize(
        ("judge", "says"),
        [
            ("cannot be made", "judge 'house': making it failed: ValueError: no"),
            ("raises", "the judge failed: KeyError: 'x'"),
            ("hangs", "the judge did not answer in 0.1 s"),
        ],
    )
    async def test_its_failures_are_no_score(self, run, monkeypatch, judge, says):
        monkeypatch.setattr(
            "pytest_harbor.verification.judges.grading._GRACE_SECONDS", 0
        )

        class House:
            def __init__(self, *, model):
                if judge == "cannot be made":
                    raise ValueError("no")

            async def ask(self, text, schema, *, timeout_seconds):
                if judge == "raises":
                    raise KeyError("x")
                await anyio.sleep_forever()

            async def aclose(self):
                pass

        run.settings = RunSettings(judges={"house": House})
        run.write(reply())
        limit = 0.1 if judge == "hangs" else 60
        with pytest.raises(JudgeError, match=says):
            await rubrics_verifier(
                step(judge_a2a_agent_id="house", judge_timeout_seconds=limit), run
            )
        assert "verifications" not in run.context.metadata
