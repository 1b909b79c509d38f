"""What one pytest process keeps for the whole session. Heavy parts come on first use."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from pytest_harbor.collection import options

if TYPE_CHECKING:
    from pytest_harbor.agents.api import Agent
    from pytest_harbor.agents.command.config import RunConfig
    from pytest_harbor.agents.registry import Declared, Offer
    from pytest_harbor.collection.bridge import Bridge
    from pytest_harbor.collection.interrupts import Interrupts
    from pytest_harbor.collection.providers import Providers
    from pytest_harbor.graphs.agents import AgentSource
    from pytest_harbor.graphs.steps.api import RunSettings
    from pytest_harbor.results.run_folder import RunFolder
    from pytest_harbor.results.summary import Summary
    from pytest_harbor.settings import Settings
    from pytest_harbor.verification.judges.api import JudgeFactory

KEY: Final = pytest.StashKey["HarborSession"]()
CHAT: Final = "chat"
"""The built-in agent that has settings; like the catalogue's, one may declare another."""
_WORKER_INPUT: Final = "pytest_harbor"


class HarborSession:
    """State of one process: controller, worker, or the only one.

    ``tasks_seen`` turns true with the first task that is collected (in the controller of
    pytest-xdist: with the first worker that tells of one). Until then nothing was imported, made or started.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        inherited: dict[str, Any] = getattr(config, "workerinput", {}).get(
            _WORKER_INPUT, {}
        )
        self.worker: str = getattr(config, "workerinput", {}).get("workerid", "main")
        self.run_id: str = inherited.get("run_id") or new_run_id()
        self.owner: str = inherited.get("owner", "")
        given = inherited.get("results")
        self.results = Path(given) if given else options.results_folder(config)
        if options.any_given(config):
            _ = self.settings  # a bad value is told at once
        self.tasks_seen = False
        self.folders_seen = False
        """Whether some of them are task folders, which are worked on by ``--harbor-agent``."""
        self.needs: set[bool] = set()
        """Whether collected tasks need a container: True, False or both."""
        self.summary: Summary | None = None
        """The roll-up, once the run is over; in the controller only."""
        self.trouble: list[str] = []
        """What went wrong while cleaning up; told at the end."""
        self._below: dict[Path, bool] = {}

    @cached_property
    def settings(self) -> Settings:
        """Resolved on first use: the defaults cost nobody anything.

        Raises:
            pytest.UsageError: a value cannot be used.
        """
        return options.resolve(self.config).with_changes(results=self.results)

    @property
    def is_worker(self) -> bool:
        """True in a worker of pytest-xdist."""
        return self.worker != "main"

    @property
    def is_controller(self) -> bool:
        """True in the process that reports: not in a worker."""
        return not self.is_worker

    def worker_input(self) -> dict[str, object]:
        """What a worker must know to write into the same run folder."""
        return {
            _WORKER_INPUT: {
                "run_id": self.run_id,
                "owner": _own_name(),
                "results": str(self.results),
            }
        }

    @cached_property
    def run_folder(self) -> RunFolder:
        """The folder of this run; made when the first episode starts."""
        from pytest_harbor.results.run_folder import RunFolder

        owner = self.owner or _own_name()
        return RunFolder(self.results, self.run_id, owner=owner)

    @cached_property
    def interrupts(self) -> Interrupts:
        """Ctrl-C and SIGTERM, once something runs that has to be removed."""
        from pytest_harbor.collection.interrupts import Interrupts

        return Interrupts(is_worker=self.is_worker)

    @cached_property
    def bridge(self) -> Bridge:
        """The event loop of this process, in a thread of its own."""
        from pytest_harbor.collection.bridge import Bridge

        return Bridge()

    @cached_property
    def providers(self) -> Providers:
        """The sandbox providers of this process."""
        from pytest_harbor.collection.providers import Providers

        return Providers(self)

    def has(self, part: str) -> bool:
        """True when a part that is made on first use was made."""
        return part in self.__dict__

    def holds_results(self, path: Path) -> bool:
        """True for the results folder, and for a run in one that holds other things."""
        if path.parent != self.results:
            return path == self.results
        from pytest_harbor.results.run_folder import LATEST, RUN_NAME

        return path.name == LATEST or RUN_NAME.fullmatch(path.name) is not None

    def is_below_named(self, session: pytest.Session, path: Path) -> bool:
        """True when ``path`` is, or lies in, what pytest was asked to collect."""
        known = self._below.get(path)
        if known is None:
            known = session.isinitpath(path) or (
                path.parent != path and self.is_below_named(session, path.parent)
            )
            self._below[path] = known
        return known

    def check_names(self) -> None:
        """Refuse agents and sandboxes that do not exist before anything starts.

        Raises:
            pytest.UsageError: lists the known ones.
        """
        from pytest_harbor.errors import SettingsError
        from pytest_harbor.sandboxes.choose import check_known

        try:
            check_known(self.settings.sandbox, self.providers.registered)
            for name in self.settings.agents:
                self.make_agent(name, self.settings.model)
        except SettingsError as error:
            raise pytest.UsageError(str(error)) from None

    def tasks_ran(self) -> bool:
        """True when some process of this run wrote a record.

        Only the disk knows: a worker's Python tests may run episodes that nobody here heard of.
        """
        return (self.results / self.run_id).is_dir()

    def make_agent(self, name: str, model: str | None) -> Agent:
        """A new agent of that name. Raises SettingsError."""
        from pytest_harbor.agents.registry import BUILT_IN, resolve_agent

        # The built-in ones need nobody's configuration files.
        declared = {} if name in BUILT_IN else self.declared_agents
        known = dict(self.offered_agents)
        if CHAT not in declared:
            known.setdefault(CHAT, self._chat_agent)
        return resolve_agent(name, model=model, known=known, declared=declared)

    @cached_property
    def offered_agents(self) -> dict[str, Offer]:
        """Agents that plugins and ``conftest.py`` files offer. Raises SettingsError."""
        from pytest_harbor.agents.command.declaration import AgentDeclaration
        from pytest_harbor.collection import offers

        return offers.collect(
            self.config, "pytest_harbor_agents", also=AgentDeclaration
        )

    def _chat_agent(self, *, model: str | None = None) -> Agent:
        from pytest_harbor.agents.chat import ChatAgent

        return ChatAgent(
            model=model,
            api_base=self.settings.model_api_base,
            max_turns=self.settings.chat_max_turns,
            max_tokens=self.settings.chat_max_tokens,
        )

    @cached_property
    def agent_config(self) -> RunConfig:
        """What configuration files say about agents. Raises SettingsError."""
        from pytest_harbor.agents.command.config import read_config

        return read_config(self.config.rootpath, self.settings.agents_file)

    @cached_property
    def declared_agents(self) -> Declared:
        """Agents that configuration files declare. Raises SettingsError."""
        from pytest_harbor.agents.registry import declaration_of

        return self.agent_config.declared(
            lambda name: declaration_of(
                name, known={CHAT: self._chat_agent, **self.offered_agents}
            )
        )

    @cached_property
    def step_agents(self) -> dict[str, AgentSource]:
        """Agents that step tasks deploy by name: built-in and declared ones.

        Raises SettingsError.
        """
        from pytest_harbor.agents.registry import all_declarations
        from pytest_harbor.graphs.bridges import bridged_agents
        from pytest_harbor.graphs.built_in_agents import built_in_agents

        declared = bridged_agents(
            all_declarations(known=self.offered_agents, declared=self.declared_agents)
        )
        return {**built_in_agents(), **declared}

    def run_settings(self, settings: Settings) -> RunSettings:
        """What the settings mean for a run of steps. Raises SettingsError."""
        from pytest_harbor.graphs.steps.api import RunSettings

        return replace(RunSettings.of(settings), judges=self._judges)

    @cached_property
    def _judges(self) -> dict[str, JudgeFactory]:
        from pytest_harbor.collection import offers

        return offers.collect(self.config, "pytest_harbor_judges")

    def record_broken(self, item: pytest.Item, task_id: str, reason: str) -> None:
        """Write an item that never became an episode into the records."""
        from pytest_harbor.results.records import Origin, Records

        origin = Origin(item.nodeid, min_reward=0.0, worker=self.worker)
        try:
            Records(self.run_folder.path).broken(
                origin=origin, task_id=task_id, reason=reason
            )
        except OSError as error:
            self.trouble.append(f"records cannot be written: {error}")

    def close(self) -> None:
        """End providers and loop. May be called again."""
        if self.has("providers"):
            self.providers.close()
            del self.providers
        if self.has("bridge"):
            self.bridge.close()
            del self.bridge


def new_run_id() -> str:
    """Sorts by time; unique among sessions that start in the same second."""
    return time.strftime("%Y%m%d-%H%M%S") + "-" + os.urandom(3).hex()


def _own_name() -> str:
    """This process as an owner; empty where there is no /proc to tell."""
    from pytest_harbor.sandboxes.owner import Owner

    try:
        return str(Owner.current())
    except OSError:
        return ""


def of(config: pytest.Config) -> HarborSession:
    """The state that :func:`pytest_configure` made."""
    return config.stash[KEY]
