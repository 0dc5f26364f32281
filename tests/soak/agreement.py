"""What must be true of a site in a quiet moment: books, engine and hub say the same."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from gpuspawner.broker.invariants import broken_promises
from gpuspawner.domain.endings import START_MARGIN
from gpuspawner.domain.leases import Lease, State
from gpuspawner.engines.docker import labels
from tests.soak.site import USER_LABEL, Site

_ROUND = timedelta(seconds=5)


def never_true(site: Site) -> list[str]:
    """Return what must not be true at any moment, whatever goes wrong. The engine must answer."""
    # First the books: a lease ends after its server has.
    with site.ledger.read() as books:
        over = {x.fence: x for x in books.recent(limit=1000) if x.state is State.ENDED and x.fence}
    found, held = [], dict[str, str]()
    for summary in site.client().containers():
        given, name = summary["Labels"], summary["Names"][0]
        lease = over.get(labels.fence_of(given))
        if lease is not None:
            found.append(f"{name} runs, and lease {lease.lease_id} has ended: {lease.reason}")
        grant = labels.grant_of(given)
        for each in grant.slices if grant is not None else ():
            if each.slice_id in held:
                found.append(f"{each.slice_id} stands in {name} and in {held[each.slice_id]}")
            held[each.slice_id] = name
    return found


def disagreements(site: Site) -> list[str]:
    """Return in words what is not as it should be, or is not yet."""
    try:
        servers = site.servers()
    except OSError as error:
        return [f"the hub does not answer: {error}"]
    living, containers = site.living(), site.containers()
    return [
        *broken_promises(site.ledger),
        *_of_containers(living, containers),
        *_of_leases(living, containers, servers),
        *_of_servers(living, servers),
        *_of_agents(site),
    ]


def devices_of(container: dict[str, Any]) -> list[str]:
    """Return the devices that a container was given."""
    requests = container["HostConfig"]["DeviceRequests"] or []
    return [uuid for request in requests for uuid in request["DeviceIDs"]]


def _of_containers(living: list[Lease], containers: list[dict[str, Any]]) -> Iterator[str]:
    """Each container with devices has its living lease, and no device stands in two."""
    by_fence = {str(lease.fence): lease for lease in living}
    held: dict[str, str] = {}
    for container in containers:
        name, uuids = container["Name"], devices_of(container)
        if not uuids:
            continue
        lease = by_fence.get(container["Config"]["Labels"].get(labels.FENCE, ""))
        if lease is None:
            yield f"{name} has devices and no living lease"
            continue
        if uuids != [item.uuid for item in lease.slices]:
            yield f"{name} has {uuids}, and its lease {lease.lease_id} other devices"
        if not container["State"]["Running"] and not _is_young(lease):
            yield f"{name} is left over, {container['State']['Status']}"
        for uuid in uuids if not lease.slices[0].mode.is_share else ():
            if uuid in held:
                yield f"{uuid} stands in {name} and in {held[uuid]}"
            held[uuid] = name


def _of_leases(
    living: list[Lease], containers: list[dict[str, Any]], servers: dict[str, Any]
) -> Iterator[str]:
    """Each lease has a server that runs and that its hub knows, or is still young."""
    running = {each["Id"] for each in containers if each["State"]["Running"]}
    for lease in living:
        what = f"lease {lease.lease_id} of {lease.key.user} ({lease.state})"
        if lease.state is State.RUNNING:
            if lease.run_id not in running:
                yield f"{what} has no container that runs"
            if lease.key.user not in servers:
                yield f"{what} is of a server that its hub does not know"
        elif not _is_young(lease):
            yield f"{what} should run or be over"


def _is_young(lease: Lease) -> bool:
    """Whether its start, or a create of it that nobody has an answer to, may be under way."""
    until = lease.look_again_at if lease.state is State.ENDING else lease.start_deadline
    return until is not None and datetime.now(UTC) < until + START_MARGIN + _ROUND


def _of_servers(living: list[Lease], servers: dict[str, Any]) -> Iterator[str]:
    """The hub is busy with nothing, and each of its servers with a GPU has a lease."""
    # A hub that died during a start finds the server running; the agent notes that when the time
    # for the start is over.
    held = {
        lease.key.user for lease in living
        if lease.state is State.RUNNING or (lease.state is State.GRANTED and _is_young(lease))
    }  # fmt: skip
    for user, server in servers.items():
        if server["pending"] or not server["ready"]:
            yield f"the server of {user} is pending: {server['pending']}"
        profile = (server["user_options"] or {}).get("profile", "cpu")
        if server["ready"] and profile != "cpu" and user not in held:
            yield f"the hub has a server of {user} with {profile}, and there is no lease"


def _of_agents(site: Site) -> Iterator[str]:
    agents = site.agents()
    if len(agents) != 1:
        yield f"there are {len(agents)} agents"
    with site.ledger.read() as books:
        hosts, states = books.hosts(), books.engine_states()
    now = datetime.now(UTC)
    if not any(now - host.observed_at < 2 * _ROUND for host in hosts):
        yield "the devices are not observed"
    if any(each.engine == "docker" and each.silent_since is not None for each in states):
        yield "the agent takes the engine for silent"


def healthy(site: Site) -> dict[str, str]:
    """Return whose server runs in which container, for all that are ready."""
    servers = site.servers()
    return {
        user: f"{each['Id']} since {each['State']['StartedAt']}"
        for each in site.containers()
        if each["State"]["Running"]
        and (user := (each["Config"]["Labels"] or {}).get(USER_LABEL, "")) in servers
        and servers[user]["ready"]
    }
