"""A local provider that is tried out once for the runs of many tests."""

from __future__ import annotations

from pytest_harbor.collection.providers import Providers
from pytest_harbor.sandboxes.api import Capabilities, Provider
from pytest_harbor.sandboxes.local.provider import LocalProvider


class Borrower(LocalProvider):
    """One run's provider. Broker and userland are the lender's and outlive the run.

    They cost a third of a run in this process. Sandboxes are the run's own, and end
    with it; so are installations, images and everything else a provider remembers.
    """

    def __init__(self, lender: LocalProvider) -> None:
        super().__init__()
        self._lender = lender

    async def _probe(self) -> Capabilities:
        base = self._lender._base
        if base is not None and not base.folder.exists():  # the broker has ended
            await self._lender.aclose()
            self._lender._found = None
        found = await self._lender.probe()
        self._base = self._lender._base
        return found

    async def aclose(self) -> None:
        if self._base is self._lender._base:
            self._base = None
        await super().aclose()


class LendingProviders(Providers):
    """Makes every ``local`` provider that is asked for by its defaults a borrower."""

    lender: LocalProvider

    def _make(self, name: str) -> Provider:
        settings = self._session.settings
        is_plain = settings.local_mode == "auto" and not settings.local_images
        if name == "local" and name not in self.registered and is_plain:
            return Borrower(self.lender)
        return super()._make(name)
