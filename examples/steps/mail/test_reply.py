"""The task of tasks/reply.json as a Python test: no JSON, and a look at the mailbox itself."""

from __future__ import annotations


def test_reply(deployed_env, deployed_agent, harbor_judge):
    mail = deployed_env("mail", artifact="inbox")
    assistant = deployed_agent("assistant", envs=[mail])

    reply = assistant.prompt(
        "When is the offsite? Tell Ines that I bring the projector."
    )

    assert [sent["to"] for sent in mail.state()["sent"]] == ["ines@example.org"]
    assert b"14 June" in assistant.collect("notes.md")["notes.md"]
    grade = harbor_judge(
        reply,
        [
            "The reply says that the offsite is on 14 June.",
            "It says that Ines was told.",
        ],
        judge_a2a_agent_id="judge",
    )
    assert grade.score == 1
