"""A command-line agent for tests: a shell script, no model.

It runs its instruction as a script, and keeps what it was told in ``~/.chatty/<session>``.
"""

from __future__ import annotations

from typing import Any

from pytest_harbor.agents.command.declaration import AgentDeclaration

SCRIPT = r"""#!/bin/sh
here=${0%/*}
session=none resume= file= model=none mcp=
while [ $# -gt 0 ]; do
  case $1 in
    --version) cat "$here/../version"; exit ;;
    --session) session=$2; shift 2 ;;
    --resume) session=$2 resume=yes; shift 2 ;;
    --model) model=$2; shift 2 ;;
    --mcp) mcp=$2; shift 2 ;;
    *) file=$1; shift ;;
  esac
done
mkdir -p "$HOME/.chatty"
talk=$HOME/.chatty/$session
if [ -n "$resume" ] && [ ! -f "$talk" ]; then echo "no session $session" >&2; exit 4; fi
if [ -n "$file" ]; then cat "$file" >/tmp/told.$$; else cat >/tmp/told.$$; fi
cat /tmp/told.$$ >>"$talk"
echo >>"$talk"
export talk model mcp file
sh /tmp/told.$$
"""

INSTALL = f"""\
cat >"$AGENT_PREFIX/bin/chatty" <<'THE_END'
{SCRIPT}THE_END
chmod 0755 "$AGENT_PREFIX/bin/chatty"
echo "chatty $AGENT_VERSION" >"$AGENT_PREFIX/version"
"""


def chatty(**changes: Any) -> AgentDeclaration:
    """The declaration, with some fields changed."""
    fields: dict[str, Any] = {
        "version": "1.0",
        "install": INSTALL,
        "probe": ("chatty", "--version"),
        "command": ("chatty", "--session", "{session}", "{instruction}"),
        "continue_command": ("chatty", "--resume", "{session}", "{instruction}"),
        "model_flag": ("--model", "{model}"),
        "mcp_flag": ("--mcp", "{mcp_config}"),
        "network": False,
    }
    return AgentDeclaration("chatty", **{**fields, **changes})
