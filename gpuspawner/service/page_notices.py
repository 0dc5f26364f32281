"""What a reader must know before believing the rest of the page."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from gpuspawner.catalogue import Catalogue
from gpuspawner.domain.devices import HostInventory
from gpuspawner.domain.knowledge import Why
from gpuspawner.domain.pool import FRESH_FOR
from gpuspawner.service.auth import Asker
from gpuspawner.service.questions import Overview


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Something that a reader must know before believing the rest; ``kind`` is info or warning."""

    kind: str
    text: str


def notices_of(seen: Overview, words: Catalogue, asker: Asker, now: datetime) -> Iterable[Notice]:
    """Yield what stands against believing the page; some of it only the staff can do about."""
    yield from _of_hosts(seen.hosts, words, now, published=seen.policy is not None)
    yield from _of_engines(seen, words, now)
    if asker.admin:
        yield from _of_processes(seen, words)


def _of_hosts(
    hosts: Sequence[HostInventory], words: Catalogue, now: datetime, *, published: bool
) -> Iterable[Notice]:
    if any(host.simulated for host in hosts):
        yield Notice(kind="info", text=words.text(
            "This is a simulated lab: the GPUs below are not real, and notebooks see none."
        ))  # fmt: skip
    if not hosts:
        yield Notice(kind="warning", text=words.text(
            "No host has reported its GPUs yet, so none can be handed out. Servers without a "
            "GPU start as always. If it stays like this, tell the staff: “no GPU agent runs”."
        ))  # fmt: skip
    elif not published:
        yield Notice(kind="info", text=words.text(
            "JupyterHub has not said yet what can be chosen; it does when the first server "
            "is started."
        ))  # fmt: skip
    for host in hosts:
        age = now - host.observed_at
        if age > FRESH_FOR:
            yield Notice(kind="warning", text=words.text(
                "No report from the host {host} for {time}: what is shown of its GPUs is old. "
                "Running servers go on; shares of its GPUs are not handed out until it "
                "reports again.",
                host=host.host_id, time=words.duration(now - host.observed_at),
            ))  # fmt: skip
        elif host.trouble is not None:
            yield Notice(kind="warning", text=words.text(
                "The host {host} cannot ask its GPUs right now: what is shown of them is from "
                "the last time it could.",
                host=host.host_id,
            ))  # fmt: skip


def _of_engines(seen: Overview, words: Catalogue, now: datetime) -> Iterable[Notice]:
    for state in seen.silent:
        unknown = seen.own.knowledge.of_engine(state)
        if unknown is None or unknown.since is None or unknown.why is Why.AGENT_AWAY:
            continue  # an agent that is away is told of by the age of its report
        yield Notice(kind="warning", text=words.text(
            "The engine that runs the servers of the host {host} has not answered for {time}: "
            "none can be started or stopped there right now. Running servers go on, and keep "
            "their GPUs.",
            host=state.host_id, time=words.duration(now - unknown.since),
        ))  # fmt: skip


def _of_processes(seen: Overview, words: Catalogue) -> Iterable[Notice]:
    """Say to the staff where it cannot be told whose the processes on the GPUs are."""
    for host_id, attribution in seen.attributions.items():
        if attribution.unavailable is not None:
            yield Notice(kind="warning", text=words.text(
                "It cannot be told whose the processes on the GPUs of the host {host} are: "
                "{why}",
                host=host_id, why=attribution.unavailable,
            ))  # fmt: skip
