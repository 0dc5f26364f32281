"""What our spawners share: judge the options, hold a lease, start, stop, and tell why not.

A sibling is an upstream spawner class plus this mixin; everything engine-shaped stands in its
methods ``_launch``, ``_look``, ``_halt``, ``_tidy``, ``_absence`` and ``_images``.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

from traitlets import default

from gpuspawner.catalogue import Catalogue, catalogue_for
from gpuspawner.config import GPUSettings
from gpuspawner.domain.choices import Choice, allowed_profiles, judge
from gpuspawner.domain.leases import Claim, Evidence, Lease, ServerKey
from gpuspawner.domain.reasons import Code, Reason, reason
from gpuspawner.engines.docker.client import DockerEngine
from gpuspawner.engines.look import (
    Absent,
    EngineError,
    EngineUnknownError,
    Look,
    Running,
    evidence_of,
)
from gpuspawner.hubid import read_hub_id
from gpuspawner.ledger.store import Ledger, LedgerAwayError
from gpuspawner.spawners.books import ServerBooks
from gpuspawner.spawners.form import Form, options_from_form
from gpuspawner.spawners.progress import Progress
from gpuspawner.spawners.refusals import Refusal, reason_of
from gpuspawner.spawners.site import Site, site_of
from gpuspawner.steps import steps_from

# How long a start without GPU waits for the books; it goes on without them, and the agent makes
# up for it.
BOOKS_PATIENCE_SECONDS: Final = 5.0


class GPUSpawner(ServerBooks, GPUSettings):
    """The mixin. `GPUDockerSpawner` and `GPULocalSpawner` are what a site names."""

    engine_name = ""

    # What JupyterHub's Spawner gives to the class that this is mixed into.
    log: Any
    user: Any
    name: Any
    handler: Any
    orm_spawner: Any
    user_options: Any
    http_timeout: Any
    start_timeout: Any
    _log_name: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Begin with no start under way."""
        super().__init__(*args, **kwargs)
        self._starting = False
        # Between a cancelled start and the stop() that the hub sends after it, the hub must
        # believe that we run, else it never calls stop() (hub facts H7).
        self._awaits_stop = False
        # stop() may come while start() still runs (SIGTERM of the hub): then nothing more is made.
        self._given_up = False
        # Why the hub is about to call stop(), where nobody asked for it.
        self._cut_off: Reason | None = None
        self._progress = Progress()
        self._preselected: Mapping[str, Any] = {}
        self._engine_was_away = False

    @default("apply_user_options")
    def _default_apply_user_options(self):
        # Options are judged in start(): the hub shall neither apply nor warn (hub facts H11).
        return lambda _spawner, _options: None

    @default("start_timeout")
    def _default_start_timeout(self):
        # The hub's limit stands behind our own ones, each of which says what took too long.
        return self.pull_seconds + self.http_timeout + 180

    @default("http_timeout")
    def _default_http_timeout(self):
        return 120

    @default("poll_interval")
    def _default_poll_interval(self):
        return 10

    @default("options_form")
    def _default_options_form(self):
        return self._render_form

    @default("options_from_form")
    def _default_options_from_form(self):
        return options_from_form

    # What the hub calls.

    async def start(self) -> tuple[str, int]:
        """Judge the options, get a slice if one is asked for, and start the server.

        Raises:
            Refusal: for every expected failure; nothing is left behind.
        """
        self._starting, self._awaits_stop, self._given_up = True, False, False
        self._cut_off = None
        if self._progress.is_over:
            self._progress = Progress()
        # Just before the hub's own limit, which tells nobody what happened.
        limit = asyncio.timeout(max(self.start_timeout - 1, self.start_timeout / 2))
        try:
            async with limit:
                with self._site.steps.around("hub:start"):
                    return await self._start()
        except asyncio.CancelledError:
            self._awaits_stop = True
            raise
        except Refusal:
            raise
        except Exception as error:
            why = reason_of(error)
            if limit.expired():
                self._awaits_stop = True
                detail = f"the start took longer than start_timeout ({self.start_timeout} s)"
                self._cut_off = why = reason(Code.START_FAILED, detail=detail)
            elif why is None:
                self.log.exception("Starting %s failed unexpectedly", self._log_name)
                why = reason(Code.INTERNAL)
            raise Refusal(why, self._reader(), self.retry_seconds) from error
        finally:
            self._starting = False
            self._progress.finish()

    def clear_state(self) -> None:
        """Forget the last start: the hub calls this first of all, long before `start`."""
        super().clear_state()  # type: ignore[misc]
        # Its page asks for progress while hooks still run, and must not be told of the last one.
        self._progress = Progress()

    async def stop(self, now: bool = False) -> None:
        """Stop the server, give its place or grant up, and end its lease on the engine's word.

        Raises:
            EngineError: the engine does not answer or says no; the lease stays held, and the
                agent stops the server when it can.
        """
        self._given_up = True
        with self._site.steps.around("hub:stop"):
            await self._stop(now)

    async def _stop(self, now: bool) -> None:
        why, self._cut_off = self._cut_off or reason(Code.STOPPED), None
        try:
            may_come = await self._may_still_come(None)
            found = await self._halt(now=now, clear=False)
        except EngineError as error:
            self.log.error("%s cannot be stopped now, the agent will: %s", self._log_name, error)  # noqa: TRY400 - the engine's trouble needs no traceback
            await self._or_log(self._want_end(why))
            raise
        finally:
            self._awaits_stop = False
        await self._or_log(self._want_end(why) if may_come else self._end_living(why, found))

    async def poll(self) -> int | str | None:
        """Say whether the server runs: None if it does, and also while nobody can know.

        Never raises: the hub takes an exception for "stopped" (hub facts H14).
        """
        if self._starting or self._awaits_stop:
            return None
        looked_at = self._site.now()
        try:
            look = await self._look()
        except EngineUnknownError as error:
            if not self._engine_was_away:
                self.log.warning("%s: unknown whether it runs: %s", self._log_name, error)
            self._engine_was_away = True
            return None
        except Exception:
            self.log.exception("%s: unknown whether it runs", self._log_name)
            return None
        self._engine_was_away = False
        if isinstance(look, Running):
            return None
        evidence = evidence_of(look)
        assert evidence is not None
        await self._or_log(self._close(look, evidence, looked_at))
        return evidence.exit_code or 0

    async def progress(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the steps of the present start in plain words."""
        async for event in self._progress.follow():
            yield event

    async def rename(self, old_name: str, new_name: str) -> None:
        """Refuse a new name while the server holds a lease or its container is not known."""
        await super().rename(old_name, new_name)  # type: ignore[misc]
        try:
            living = await self._living()
            look = await self._look()
        except (EngineUnknownError, LedgerAwayError):
            self._refuse(reason(Code.CONTAINER_UNKNOWN, server=old_name))
        if living is not None:
            self._refuse(_holds(living))
        if not isinstance(look, Absent):
            self._refuse(reason(Code.CONTAINER_UNKNOWN, server=old_name))

    # What a sibling brings.

    async def _launch(self, choice: Choice, lease: Lease | None) -> tuple[str, int]:
        """Make and start the server; return when it answers, or raise a refusal when it ended."""
        raise NotImplementedError

    async def _look(self) -> Look:
        """Look at the server; raises EngineUnknownError when nothing is known."""
        raise NotImplementedError

    async def _halt(self, *, now: bool, clear: bool) -> dict[str, Evidence]:
        """Stop whatever runs of this server; return how it ended, by run id.

        Args:
            now: without a grace.
            clear: remove also what the site wants kept after a stop.
        """
        raise NotImplementedError

    async def _may_still_come(self, error: Exception | None) -> bool:
        """Whether a server may appear after everything that we see now (hub facts H8).

        A call without answer may still be carried out. ``error`` is what ended the start, if it
        ended by itself.
        """
        return isinstance(error, EngineUnknownError) and not error.answered

    def _images(self) -> Mapping[str, str]:
        """Return the images that a person may name, where the profile names none."""
        return {}

    # The way of a start.

    async def _start(self) -> tuple[str, int]:
        self._tell(5, self._reader().text("Choosing a place for your server"))
        choice = judge(self.user_options, self._site.policy.profiles, self._groups, self._images())
        await self._clear_remains(choice)
        lease = await self._acquire(choice)
        try:
            return await self._launch(choice, lease)
        except asyncio.CancelledError:
            if lease is not None:
                self._in_background(self._site.broker.detach, lease.lease_id, self._site.now())
            raise
        except Exception as error:
            await self._undo(lease, error)
            raise

    async def _clear_remains(self, choice: Choice) -> None:
        """Remove what earlier starts of this server left, and end the leases they had.

        Nothing of an older lease is ever started again: not its devices, image, or environment.
        """
        found = await self._halt(now=True, clear=True)
        without_gpu = choice.profile.mode is None
        try:
            async with asyncio.timeout(BOOKS_PATIENCE_SECONDS if without_gpu else None):
                await self._end_living(reason(Code.GIVEN_UP), found)
        except Exception:
            if not without_gpu:
                raise
            # Whatever ails the books, a server without GPU needs none of them.
            self.log.warning("%s: the books are away", self._log_name, exc_info=True)

    async def _acquire(self, choice: Choice) -> Lease | None:
        if choice.profile.mode is None:
            return None
        profiles = self._site.policy.profiles
        claim = Claim(
            key=self.key,
            profile=choice.profile,
            image=choice.image,
            engine=self.engine_name,
            start_seconds=int(self.start_timeout),
            alternatives=allowed_profiles(profiles, self._groups),
        )
        lease = await self._site.request(claim)
        reader = self._reader()
        slices = reader.join([reader.slice(item) for item in lease.slices])
        self._tell(20, reader.text("You have: {slices}", slices=slices))
        return lease

    async def _undo(self, lease: Lease | None, error: Exception) -> None:
        """Take a failed start back: container, slices. What cannot be known now, the agent ends."""
        why = reason_of(error) or reason(Code.INTERNAL)
        found: dict[str, Evidence] = {}
        try:
            is_sure = not await self._may_still_come(error)
            found = await self._halt(now=True, clear=True)
        except EngineError as trouble:
            self.log.warning("%s: left to the agent: %s", self._log_name, trouble)
            is_sure = False
        if lease is not None:
            await self._or_log(self._end_living(why, found) if is_sure else self._want_end(why))

    # Small things.

    @property
    def key(self) -> ServerKey:
        """Whose server this is."""
        return ServerKey(hub_id=self._site.hub_id, user=self.user.name, server=self.name or "")

    @property
    def _site(self) -> Site:
        return site_of(self.user.settings, self._make_site)

    def _make_site(self) -> Site:
        if not self.hub_id:
            self.hub_id = read_hub_id(Path(self.hub_id_file))
        steps = steps_from(os.environ)
        return Site(
            hub_id=self.hub_id,
            policy=self.policy(),
            ledger=Ledger(self.ledger_url, steps=steps),
            engine=DockerEngine(self._engine_settings(), steps=steps),
            concurrent_starts=self.concurrent_starts,
            steps=steps,
        )

    def _engine_settings(self) -> dict[str, Any]:
        return {}

    @property
    def _groups(self) -> frozenset[str]:
        return frozenset(group.name for group in self.user.orm_user.groups)

    def _reader(self) -> Catalogue:
        """Return the catalogue in the language that the request's reader asks for."""
        request = getattr(self.handler, "request", None)
        accepted = request.headers.get("Accept-Language") if request is not None else None
        return catalogue_for(accepted, self.language)

    def _tell(self, percent: int, message: str) -> None:
        self._progress.tell(percent, message)

    def _refuse(self, why: Reason) -> None:
        raise Refusal(why, self._reader(), self.retry_seconds)

    async def _render_form(self, _spawner: Any) -> str:
        """Render the cards, with what is free now where the ledger answers in time."""
        # A page or a script may want the profiles before anybody has asked for a GPU.
        self._in_background(self._site.publish)
        form = Form(
            site=self._site,
            groups=self._groups,
            chosen={**(self.orm_spawner.user_options or {}), **self._preselected},
            images=list(self._images()),
            reader=self._reader(),
        )
        self._preselected = {}
        return await form.render()

    def options_from_query(self, query: Mapping[str, Any]) -> None:
        """Keep a link's options for the form; a link never starts a server by itself (H11)."""
        self._preselected = options_from_form(query)
        shown = RefusedQuery(reason(Code.QUERY_PRESELECTS), self._reader(), self.retry_seconds)
        if not self._preselected:  # the address of a form that was sent and refused
            shown.jupyterhub_message = shown.jupyterhub_html_message = ""
        raise shown


class RefusedQuery(Refusal):
    """A link chose something: the form is shown with it, which is no error."""

    def __init__(self, why: Reason, reader: Catalogue, retry_seconds: int) -> None:
        """Answer 200: the page is what was wanted."""
        super().__init__(why, reader, retry_seconds)
        self.status_code = 200


def _holds(lease: Lease) -> Reason:
    return reason(
        Code.SERVER_HOLDS,
        server=lease.key.server,
        profile=lease.profile.title,
        state=str(lease.state),
    )
