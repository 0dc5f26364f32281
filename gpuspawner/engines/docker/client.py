"""Calls to the Docker Engine: each with a time limit, each error told apart.

404 is an answer. 5xx, a time-out, a refused connection or half a body are not: they raise
`EngineUnknownError`. The client is built at the first call, in the caller's worker thread, since
building it asks the engine for its version. Every call blocks.
"""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

import docker
import requests
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.utils import kwargs_from_env

from gpuspawner.domain.leases import Evidence, Source
from gpuspawner.engines.docker import labels as our_labels
from gpuspawner.engines.docker.reading import Inspected, parse_time
from gpuspawner.engines.look import EngineRefusedError, EngineUnknownError
from gpuspawner.steps import UNWATCHED, Steps

CALL_SECONDS: Final = 60
STOP_GRACE_SECONDS: Final = 10
REMOVE_SECONDS: Final = 30
_WATCHED: Final = ("create", "start", "die", "destroy")


class DockerEngine:
    """One engine, by a client that is made once. Safe to call from several threads."""

    def __init__(
        self,
        client_settings: Mapping[str, Any] | None = None,
        *,
        connections: int = 10,
        steps: Steps = UNWATCHED,
    ) -> None:
        """Name the engine; nothing is asked yet.

        Args:
            client_settings: arguments of ``docker.APIClient``; the environment's ``DOCKER_HOST``
                and friends otherwise.
            connections: how many calls may be under way at once.
            steps: is told of each call.
        """
        self._settings: dict[str, Any] = {
            "version": "auto",
            "timeout": CALL_SECONDS,
            "num_pools": connections,
            "max_pool_size": connections,
        }
        self._own_settings = dict(client_settings or {})
        self._steps = steps
        self._client: docker.APIClient | None = None
        self._info: Inspected | None = None
        self._image_labels: dict[str, Mapping[str, str]] = {}  # an image never changes
        self._lock = threading.Lock()

    def client(self) -> docker.APIClient:
        """Return the client.

        Raises:
            EngineUnknownError: the engine could not be asked for its version.
        """
        client = self._client
        if client is not None:
            return client
        # While the engine hangs, each caller waits for one of its time limits, not for those of
        # everybody before it.
        if not self._lock.acquire(timeout=self._own_settings.get("timeout") or CALL_SECONDS):
            raise EngineUnknownError("the engine does not answer: its version is still asked for")
        try:
            with _translated():
                if self._client is None:
                    with self._steps.around("engine:connect"):
                        self._client = docker.APIClient(
                            **{**self._settings, **kwargs_from_env(), **self._own_settings}
                        )
                return self._client
        finally:
            self._lock.release()

    @property
    def client_if_made(self) -> docker.APIClient | None:
        """The client if there is one; never asks the engine."""
        return self._client

    def close(self) -> None:
        """Close the client's connections; the next call makes a new one."""
        with self._lock:
            client, self._client, self._info = self._client, None, None
        if client is not None:
            client.close()

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Make one call of docker-py's ``APIClient`` by name, with errors told apart.

        Raises:
            docker.errors.NotFound: the engine's 404.
            EngineRefusedError: another 4xx.
            EngineUnknownError: everything else.
        """
        client = self.client()
        try:
            with _translated(), self._steps.around(f"engine:{method}"):
                return getattr(client, method)(*args, **kwargs)
        except EngineUnknownError:
            self._info = None  # whoever answers next may be another engine
            raise

    def identity(self) -> str:
        """Return the engine's own id, which no other engine has.

        Raises:
            EngineUnknownError: it does not answer, or has none.
        """
        identity = str(self._asked_once().get("ID") or "")
        if not identity:
            raise EngineUnknownError("the engine does not say its id", answered=True)
        return identity

    def identity_now(self) -> str:
        """Ask anew: behind one address another engine may answer than a moment ago.

        Raises:
            EngineUnknownError: it does not answer, or has none.
        """
        self._info = None
        return self.identity()

    def default_runtime(self) -> str:
        """Return the runtime of containers that name none."""
        return str(self._asked_once().get("DefaultRuntime") or "runc")

    def _asked_once(self) -> Inspected:
        """Return what the engine says of itself; while it answers, it is the same engine."""
        info = self._info
        if info is None:
            info = self._info = self.call("info")
        return info

    def containers(self) -> list[Inspected]:
        """Return the engine's list of all containers, running or not: a summary of each."""
        found: list[Inspected] = self.call("containers", all=True)
        return found

    def inspect(self, name_or_id: str) -> Inspected | None:
        """Return a container, or None when the engine is sure that there is none."""
        try:
            container: Inspected = self.call("inspect_container", name_or_id)
        except NotFound:
            return None
        return container

    def find(self, labels: Mapping[str, str]) -> list[Inspected]:
        """Return the containers that carry all of these labels, oldest first, running or not.

        What only their image carries does not count.
        """
        wanted = [f"{key}={value}" for key, value in labels.items()]
        found = self.call("containers", all=True, filters={"label": wanted})
        inspected = [self.inspect(item["Id"]) for item in found]
        present = [
            item
            for item in inspected
            if item is not None and labels.items() <= self.own_labels(item).items()
        ]
        return sorted(present, key=lambda item: parse_time(item["Created"]))

    def own_labels(self, container: Inspected) -> dict[str, str]:
        """Return the labels of a container that was inspected, without its image's of ours.

        Raises:
            EngineError: the engine does not say what the image carries.
        """
        return self.without_images(container["Config"]["Labels"] or {}, container["Image"])

    def without_images(self, labels: Mapping[str, str], image_id: str) -> dict[str, str]:
        """Return a container's labels without those of ours that its image carries.

        Raises:
            EngineError: the engine does not say what the image carries.
        """
        if image_id and (our_labels.MADE in labels or our_labels.FENCE in labels):
            return our_labels.without_images(labels, self._labels_of_image(image_id))
        return dict(labels)

    def _labels_of_image(self, image_id: str) -> Mapping[str, str]:
        found = self._image_labels.get(image_id)
        if found is not None:
            return found
        image = self.image(image_id)
        if image is None:  # nothing is known of it, nor ever will be
            return {}
        found = self._image_labels[image_id] = (image.get("Config") or {}).get("Labels") or {}
        return found

    def remove(self, container_id: str) -> None:
        """Remove a container, by force, and wait until it is gone.

        The engine answers 409 while another removal is under way; the name and the devices are
        free only once that one is over (moby issue 37698).
        """
        try:
            self.call("remove_container", container_id, force=True, v=True)
        except NotFound:
            return
        except EngineRefusedError as error:
            if error.status != 409:
                raise
        else:
            return
        try:
            over = self.call("wait", container_id, condition="removed", timeout=REMOVE_SECONDS)
        except NotFound:
            return
        if over.get("Error"):
            raise EngineUnknownError(f"not removed: {over['Error']}", answered=True)

    def stop(self, container_id: str, grace_seconds: int = STOP_GRACE_SECONDS) -> None:
        """Ask a container to end, kill it after the grace. One that is gone is fine."""
        try:
            self.call("stop", container_id, timeout=grace_seconds)
        except NotFound:
            return

    def last_lines(self, container_id: str, lines: int = 15) -> str:
        """Return the last lines that a container printed; empty when they cannot be had."""
        try:
            raw = self.call("logs", container_id, stdout=True, stderr=True, tail=lines)
        except (NotFound, EngineRefusedError, EngineUnknownError):
            return ""
        text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw)
        return text.strip()[-4000:]

    def image(self, reference: str) -> Inspected | None:
        """Return an image, or None when it is not there."""
        try:
            image: Inspected = self.call("inspect_image", reference)
        except (NotFound, ImageNotFound):
            return None
        return image

    def pull(self, reference: str, on_progress: Callable[[str], None]) -> None:
        """Pull an image, telling of its progress. Has no time limit of its own.

        Raises:
            EngineRefusedError: the registry or the engine said no.
        """
        repository, tag = docker.utils.parse_repository_tag(reference)
        client = self.client()
        with _translated(), self._steps.around("engine:pull"):
            stream = client.pull(repository, tag=tag or "latest", stream=True, decode=True)
            for line in stream:
                if "error" in line:
                    raise EngineRefusedError(str(line["error"]))
                on_progress(str(line.get("status", "")))

    def watch(self, on_event: Callable[[str], None]) -> None:
        """Tell of each container's events by their name, until the stream ends.

        A stream that is silent for as long as a call may take ends too: whoever watches looks at
        everything then, which costs little.

        Raises:
            EngineUnknownError: the engine does not answer, or does so no more.
        """
        client = self.client()
        with _translated(), self._steps.around("engine:events"):
            filters = {"type": ["container"], "event": list(_WATCHED)}
            for event in client.events(filters=filters, decode=True):
                on_event(str(event.get("Action", "")))

    def end_of_absent(
        self, container_id: str, since: datetime, last_seen_at: datetime | None
    ) -> Evidence:
        """Return the best record of how a container that is gone ended.

        The engine keeps a short history of events; where it has forgotten, the time when the
        server was last seen alive stands in, and the record says so (hub facts H9).

        Raises:
            EngineUnknownError: the engine does not answer; asked again it may know.
        """
        filters = {"container": [container_id], "event": ["die"]}
        try:
            deaths = self._past_events(since, filters)
        except (NotFound, EngineRefusedError):
            deaths = []
        except EngineUnknownError as error:
            if not error.answered:
                raise
            deaths = []
        if deaths:
            last = deaths[-1]
            exit_code = last.get("Actor", {}).get("Attributes", {}).get("exitCode")
            return Evidence(
                source=Source.EVENTS,
                finished_at=datetime.fromtimestamp(last["timeNano"] / 1e9, UTC),
                exit_code=int(exit_code) if str(exit_code).lstrip("-").isdigit() else None,
            )
        return Evidence(source=Source.LAST_SEEN, finished_at=last_seen_at)

    def _past_events(self, since: datetime, filters: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the events up to now; docker-py's own call has no time limit and cuts seconds."""
        client = self.client()
        with _translated(), self._steps.around("engine:past_events"):
            until = f"{datetime.now(UTC).timestamp():.6f}"
            answer = client.get(
                client._url("/events"),
                params={
                    "since": int(since.timestamp()), "until": until,
                    "filters": docker.utils.convert_filters(filters),
                },
                timeout=client.timeout,
            )  # fmt: skip
            client._raise_for_status(answer)
            return [json.loads(line) for line in answer.text.splitlines() if line.strip()]


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except NotFound:
        raise
    except APIError as error:
        text = str(error.explanation or error)
        if error.is_client_error():
            raise EngineRefusedError(text, error.status_code) from error
        raise EngineUnknownError(text, answered=True) from error
    except (DockerException, requests.RequestException, OSError, ValueError) as error:
        raise EngineUnknownError(f"the engine does not answer: {error}") from error
