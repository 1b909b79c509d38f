"""A mailbox: what agents find in it, and what they send from it."""

from __future__ import annotations

from pytest_harbor.env import Environment

Mail = dict[str, str]

env = Environment("mail", state={"inbox": [], "sent": []})


@env.tool
def email_search(query: str) -> list[Mail]:
    """Find mails whose sender, subject or text holds the query."""
    wanted = query.lower()
    return [
        mail
        for mail in env.state["inbox"]
        if any(wanted in part.lower() for part in mail.values())
    ]


@env.tool
def send(to: str, subject: str, text: str) -> str:
    """Send a mail."""
    env.state["sent"].append({"to": to, "subject": subject, "text": text})
    return f"sent to {to}"


if __name__ == "__main__":
    env.run()
