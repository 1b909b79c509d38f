"""Start a scripted agent: ``python -m pytest_harbor.agents.scripted [SCRIPT]``.

The script is that file (default: ``script.json`` here), or the content of the environment
variable ``SCRIPTED_AGENT``. ``A2A_PORT`` says where to listen.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import anyio

from pytest_harbor.agents.scripted.agent import ScriptedAgent
from pytest_harbor.agents.scripted.script import Script, read_script
from pytest_harbor.errors import HarborError
from pytest_harbor.protocols.agent_server import serve

SCRIPT_VARIABLE = "SCRIPTED_AGENT"
DEFAULT_SCRIPT = "script.json"


def find_script(arguments: list[str]) -> Script:
    """The script of a command line. Raises SettingsError, OSError."""
    inline = os.environ.get(SCRIPT_VARIABLE)
    if inline and not arguments:
        return read_script(inline, SCRIPT_VARIABLE)
    file = Path(arguments[0] if arguments else DEFAULT_SCRIPT)
    return read_script(file.read_text(encoding="utf-8"), str(file))


def main() -> None:
    """Read the script and serve it."""
    try:
        agent = ScriptedAgent(find_script(sys.argv[1:]))
        anyio.run(serve, agent)
    except (HarborError, OSError) as error:
        sys.exit(f"scripted agent: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
