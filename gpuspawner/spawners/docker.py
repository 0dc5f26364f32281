"""GPUDockerSpawner: DockerSpawner whose containers see exactly the devices of their lease."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import docker
from docker.errors import NotFound
from dockerspawner import DockerSpawner
from jupyterhub.utils import url_path_join
from traitlets import Bool, CaselessStrEnum, Unicode, default

from gpuspawner.domain.choices import Choice
from gpuspawner.domain.leases import Lease
from gpuspawner.domain.reasons import Code, RefusedError, reason
from gpuspawner.engines.docker import labels
from gpuspawner.engines.docker.client import (
    Inspected,
)
from gpuspawner.engines.docker.settings import Attach, Terms, finish
from gpuspawner.engines.look import (
    EngineRefusedError,
    EngineUnknownError,
    Look,
    Running,
    evidence_of,
)
from gpuspawner.engines.naming import safe_part
from gpuspawner.spawners.base import GPUSpawner
from gpuspawner.spawners.containers import OwnContainers
from gpuspawner.spawners.waiting import answers, until_it_answers


class GPUDockerSpawner(OwnContainers, GPUSpawner, DockerSpawner):
    """Runs each server in a container with a share of a GPU, or without one."""

    engine_name = "docker"
    image: Any  # an upstream trait

    attach = CaselessStrEnum(
        [str(way) for way in Attach],
        default_value=str(Attach.NVIDIA),
        config=True,
        help="""
        How devices get into containers: ``nvidia`` (a device request for the engine's nvidia
        driver), ``cdi`` (CDI names; engine 25 or later), or ``none`` (for simulated devices on an
        engine that knows no GPU).
        """,
    )
    home_path = Unicode(
        "/home/jovyan",
        config=True,
        help="""
        Where each person's home volume is mounted, kept over stops and changes of profile. Empty:
        no home volume. A mount of the site's own at this path takes its place. `configure` empties
        it where `volumes` keep homes already.
        """,
    )
    home_volume = Unicode(
        "{prefix}-{hub_id}-{safe_user}",
        config=True,
        help="""
        The name of a person's home volume. Besides DockerSpawner's fields there are ``{hub_id}``
        and ``{safe_user}``, a form of the name that is different for each user.
        """,
    )

    keeps_docker_names = Bool(
        False,
        config=True,
        help="""
        Name containers as plain DockerSpawner does, without the hub's id, where the site sets no
        ``name_template``. `gpuspawner.configure` sets it for a hub that ran DockerSpawner before.
        """,
    )

    @default("remove")
    def _default_remove(self):
        return True

    @default("name_template")
    def _default_name_template(self):
        if self.keeps_docker_names:
            return super()._default_name_template()
        if self.name:
            return "{prefix}-{hub_id}-{safe_user}--{safe_server}"
        return "{prefix}-{hub_id}-{safe_user}"

    def template_namespace(self):
        """Return DockerSpawner's fields and ours."""
        return {
            **super().template_namespace(),
            "hub_id": self._site.hub_id,
            "safe_user": safe_part(self.user.name),
            "safe_server": safe_part(self.name or ""),
        }

    # Calls to the engine: in order for one server, and nobody waits for another.

    @property
    def client(self) -> docker.APIClient:
        """The hub's one client of the engine."""
        return self._site.engine.client()

    @property
    def executor(self):
        """The hub's threads for calls to the engine."""
        return self._site.lanes.pool

    async def docker(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Make a call of docker-py's client by name, in this server's lane."""
        if self._captured is not None and method == "create_container":
            self._captured.update(kwargs)
            return {"Id": ""}
        return await self._in_lane(self._call, method, args, kwargs)

    def _call(self, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return self._site.engine.call(method, *args, **kwargs)

    async def _in_lane(self, call: Any, *args: Any) -> Any:
        return await self._site.lanes.run(self.key.lane, call, *args)

    def _engine_settings(self) -> dict[str, Any]:
        settings = dict(self.client_kwargs)
        if self.tls_config:
            settings["tls"] = docker.tls.TLSConfig(**self.tls_config)
        return settings

    # Making and starting a container.

    _captured: dict[str, Any] | None = None
    _lease: Lease | None = None

    async def create_object(self) -> Inspected:
        """Create the container: upstream's own request, completed by ours, and nothing reused."""
        self._captured, lease = {}, self._lease
        try:
            await super().create_object()
            request = self._captured
        finally:
            self._captured = None
        terms = Terms(
            labels=labels.of_new(self.key, lease),
            slices=lease.slices if lease else (),
            attach=Attach(self.attach),
            home_volume=self.home_volume.format(**self.template_namespace()),
            home_path=self.home_path,
        )
        return await self._in_lane(self._create, finish(request, terms), lease)

    async def _launch(self, choice: Choice, lease: Lease | None) -> tuple[str, int]:
        site, lane = self._site, self.key.lane
        self._unanswered = None
        with self._using(choice.image, lease):
            await self.pull_image(self.image)
            async with site.slot():
                self._tell(60, self._reader().text("Starting your server"))
                engine_id = None
                if lease is not None:
                    engine_id = await self._in_lane(site.engine.identity_now)
                container = await self.create_object()
                self.object_id = container["Id"]
                self.object_name = container["Name"]
                if lease is not None:
                    await site.books_in_slot(
                        lane, site.broker.bind, lease, self.object_id, site.now(), engine_id
                    )
                with _as_failed_start():
                    await self._start_container()
                    if self.post_start_cmd:
                        await self.post_start_exec()
                    look = await self._look()
                if not isinstance(look, Running):
                    await self._died(look)
                elif lease is not None:
                    await site.books_in_slot(
                        lane, site.broker.run, lease, look.started_at, site.now()
                    )
            with _as_failed_start():
                address = await self._address()
            self._tell(80, self._reader().text("Waiting for JupyterLab to answer"))
            path = url_path_join(self.server.base_url, "api")
            await until_it_answers(
                lambda: answers(*address, path, tls=self.internal_ssl),
                self._check,
                int(self.http_timeout),
            )
            return address

    @contextmanager
    def _using(self, image: str | None, lease: Lease | None) -> Iterator[None]:
        """Use an image and a lease for this start only: the next one must not inherit them."""
        own_image = self.image
        self._lease = lease
        if image:
            self.image = image
        try:
            yield
        finally:
            self._lease = None
            if self.image != own_image:
                name = self.object_name
                self.image = own_image
                self.object_name = name

    async def _start_container(self) -> None:
        try:
            await self.start_object()
        except EngineUnknownError:
            # Its answer may be lost; and a device driver or a mount that fails is a 500 of the
            # engine and yet an answer: the container is there and was not started.
            if not isinstance(await self._look(), Running):
                raise

    async def _address(self) -> tuple[str, int]:
        try:
            ip, port = await self.get_ip_and_port()
        except RuntimeError as error:
            raise RefusedError(reason(Code.START_FAILED, detail=str(error)[:500])) from error
        return ip, int(port)

    async def _check(self) -> None:
        try:
            look = await self._look()
        except EngineUnknownError:
            return  # unknown is not gone: it may be booting, and the wait has its own limit
        if not isinstance(look, Running):
            await self._died(look)

    async def _died(self, look: Look) -> None:
        evidence = evidence_of(look)
        log = await self._in_lane(self._site.engine.last_lines, self.object_id)
        if self.api_token:
            log = log.replace(self.api_token, "[token]")
        exit_code = evidence.exit_code if evidence else None
        raise RefusedError(reason(Code.DIED_AT_BOOT, exit_code=exit_code, log=log))

    # Images.

    async def pull_image(self, image: str) -> None:
        """Have the image, by the site's ``pull_policy``, within ``pull_seconds``."""
        policy = self.pull_policy.lower()
        if policy == "skip":
            return
        present = await self._in_lane(self._site.engine.image, image)
        if present is not None and policy != "always":
            return
        if policy == "never":
            raise RefusedError(reason(Code.IMAGE_MISSING, image=image))
        message = self._reader().text(
            "Downloading the image {image}; the first time this takes minutes", image=image
        )
        self._tell(30, message)
        try:
            async with asyncio.timeout(self.pull_seconds):
                await self._site.pulls.run(image, self._pull, image, policy == "always")
        except TimeoutError:
            raise RefusedError(
                reason(Code.PULL_TOO_LONG, image=image, seconds=self.pull_seconds)
            ) from None
        except (EngineRefusedError, EngineUnknownError, NotFound) as error:
            detail = str(error)[:500]
            raise RefusedError(reason(Code.PULL_FAILED, image=image, detail=detail)) from error

    def _pull(self, image: str, even_if_present: bool) -> None:
        """Pull, unless the start before in the queue of this image has done it. Blocks."""
        if even_if_present or self._site.engine.image(image) is None:
            self._site.engine.pull(image, lambda _status: None)

    def _images(self) -> Mapping[str, str]:
        allowed = self._get_allowed_images()
        return _AnyImage() if allowed == "*" else allowed or {}


@contextmanager
def _as_failed_start() -> Iterator[None]:
    """Say in the engine's words why a container that was made could not be started."""
    try:
        yield
    except EngineUnknownError as error:
        if not error.answered:
            raise
        raise RefusedError(reason(Code.START_FAILED, detail=str(error)[:500])) from error
    except (EngineRefusedError, NotFound) as error:
        raise RefusedError(reason(Code.START_FAILED, detail=str(error)[:500])) from error


class _AnyImage(dict[str, str]):
    """The site allows any image (``allowed_images = '*'``)."""

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str)

    def __missing__(self, name: str) -> str:
        return name
