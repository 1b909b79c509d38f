"""The sandbox providers of one process: made on first use, swept once, closed at the end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from pytest_harbor.collection import offers
from pytest_harbor.errors import HarborError, SandboxUnavailable, SettingsError
from pytest_harbor.sandboxes.api import Capabilities, Provider
from pytest_harbor.sandboxes.choose import DOCKER, LOCAL, check_known, provider_name

if TYPE_CHECKING:
    from pytest_harbor.collection.session import HarborSession

T = TypeVar("T")
Choice: TypeAlias = "str | Provider"
"""What fixture ``harbor_provider`` gives: ``auto``, a name, or a provider."""


class Providers:
    """Providers by name, and those that a fixture brought."""

    def __init__(self, session: HarborSession) -> None:
        self._session = session
        self._made: dict[str, Provider] = {}
        self._foreign: list[Provider] = []
        self._registered: Mapping[str, Callable[[], Provider]] | None = None

    def choose(self, choice: Choice, *, needs_container: bool) -> Provider:
        """The provider for a task.

        Raises:
            SettingsError: nobody registered a provider of that name.
        """
        if isinstance(choice, Provider):
            if not any(choice is known for known in self._foreign):
                self._foreign.append(choice)
            return choice
        check_known(choice, self.registered)
        return self.by_name(provider_name(choice, needs_container))

    def by_name(self, name: str) -> Provider:
        """The one provider of that name; made, and swept, on first use."""
        if name not in self._made:
            provider = self.unswept(name)
            if self._session.worker in {"main", "gw0"}:
                self._sweep(provider)
        return self._made[name]

    def unswept(self, name: str) -> Provider:
        """As :meth:`by_name`, for somebody who sweeps."""
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    @property
    def registered(self) -> Mapping[str, Callable[[], Provider]]:
        """Providers of ``pytest_harbor_sandbox_providers`` hooks."""
        if self._registered is None:
            self._registered = offers.collect(
                self._session.config, "pytest_harbor_sandbox_providers"
            )
        return self._registered

    def probe(self, name: str) -> Capabilities:
        """What a provider found out about itself."""
        return self._session.bridge.run(self.by_name(name).probe)

    def sweep(self, names: Iterable[str]) -> None:
        """Remove what dead owners left."""
        for name in names:
            self._sweep(self.unswept(name))

    def close(self) -> None:
        """Finish removals. One provider's trouble does not keep the others open."""
        for provider in (*self._made.values(), *self._foreign):
            self._try("closing", provider, provider.aclose)
        self._made.clear()
        self._foreign.clear()

    def _make(self, name: str) -> Provider:
        if name in self.registered:
            return self._from_hook(name)
        if name == LOCAL:
            from pytest_harbor.sandboxes.local.provider import LocalProvider

            settings = self._session.settings
            return LocalProvider(mode=settings.local_mode, images=settings.local_images)
        if name == DOCKER:
            from pytest_harbor.sandboxes.docker.provider import DockerProvider

            return DockerProvider(egress_image=self._session.settings.egress_image)
        check_known(name, self.registered)
        raise AssertionError(name)

    def _from_hook(self, name: str) -> Provider:
        origin = f"sandbox provider {name!r} of pytest_harbor_sandbox_providers"
        try:
            made = self.registered[name]()
        except HarborError:
            raise
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise SettingsError(f"{origin} cannot be made: {what}") from error
        if not isinstance(made, Provider):
            raise SettingsError(
                f"{origin} is {made!r}; expected a pytest_harbor.Provider"
            )
        return made

    def _sweep(self, provider: Provider) -> None:
        self._try("sweeping", provider, provider.sweep)

    def _try(
        self, what: str, provider: Provider, function: Callable[[], Awaitable[T]]
    ) -> T | None:
        """Clean-up may fail without failing anything; it is told at the end."""
        try:
            return self._session.bridge.run(function)
        except SandboxUnavailable:
            return None  # nothing is there to clean up; whoever needs it is told
        except Exception as error:  # noqa: BLE001 - see above
            self._session.trouble.append(
                f"{what} {provider.name} sandboxes failed: {error}"
            )
            return None
