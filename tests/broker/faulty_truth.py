"""What must be true of a site with faults: at every moment, and once all of them are over."""

from collections.abc import Iterator
from itertools import combinations

from gpuspawner.broker.invariants import broken_promises
from gpuspawner.domain.devices import DeviceUUID
from gpuspawner.domain.leases import State
from gpuspawner.domain.profiles import Profile
from gpuspawner.domain.slices import Slice
from gpuspawner.engines.docker import labels
from tests.broker.faulty_site import LAB, UUIDS, Site

MEMORY_MIB = {each.uuid: each.memory_mib or 0 for each in LAB}


def broken(site: Site) -> list[str]:
    """Return what is not true and must be at every moment."""
    return [*broken_promises(site.reader), *_shared(site), *_ended(site), *_given_away(site)]


def _shared(site: Site) -> Iterator[str]:
    """No two containers run on what only one may have."""
    granted = {each.run_id: labels.grant_of(each.labels) for each in site.ours()}
    memory: dict[DeviceUUID, int] = {}
    for grant in granted.values():
        assert grant is not None
        for each in grant.slices:
            if each.mode.is_share:
                added = memory.get(each.device_uuid, 0) + (each.memory_mib or 0)
                memory[each.device_uuid] = added
    for uuid, mib in memory.items():
        if mib > MEMORY_MIB[uuid]:
            yield f"{uuid} is promised to running containers with {mib} MiB"
    for one, two in combinations(sorted(granted), 2):
        mine, other = granted[one], granted[two]
        assert mine is not None
        assert other is not None
        for left in mine.slices:
            for right in other.slices:
                if not _may_both_run(left, mine.profile, right, other.profile):
                    yield f"{left.slice_id} of {one} and {right.slice_id} of {two} both run"


def _may_both_run(left: Slice, profile: Profile, right: Slice, other: Profile) -> bool:
    if left.device_uuid != right.device_uuid:
        return True
    if left.mode.is_share and right.mode.is_share:
        return profile.share_group == other.share_group
    return left.mode is right.mode and not left.mode.is_share and left.unit != right.unit


def _ended(site: Site) -> Iterator[str]:
    """No lease has ended while its container runs."""
    for each in site.ours():
        lease = site.of_container(each)
        if lease is not None and lease.state is State.ENDED:
            yield f"lease {lease.lease_id} has ended, and {each.run_id} runs"


def _given_away(site: Site) -> Iterator[str]:
    """Nobody was granted what the books show as used past the hub."""
    present: set[str] = set()
    for stray in site.strays().values():
        present.update(UUIDS if stray.devices is None else stray.devices)
    for lease in site.living():
        if lease.granted_at is not None and lease.granted_at > site.looked_at:
            for each in lease.slices:
                if each.device_uuid in present & site.foreign:
                    yield f"lease {lease.lease_id} was granted {each.device_uuid}, which is in use"
    site.foreign, site.looked_at = present, site.clock.now


def calm(site: Site) -> None:
    """Lift every fault, and let hub and agent do what they do for some twenty minutes."""
    while site.engine.late:
        site.engine.finish_late()
    site.engine.faults.clear()
    site.engine.silent = False
    site.steps.clear()
    hub = site.start_hub()
    hub.steps.clear()
    hub.go_on()
    for _ in range(3):
        site.pass_time(400)
        _go_round(site)


def _go_round(site: Site) -> None:
    hub = site.start_hub()
    for _ in range(2):
        site.compare()
        site.observe()
        site.ask_hub()
        for user in sorted(hub.servers):
            hub.poll(user)
        hub.go_on()
        site.pass_time(6)


def expect_agreement(site: Site) -> None:
    """Books and engine say the same."""
    living = {lease.fence: lease for lease in site.living()}
    strays = site.strays()
    for each in site.engine.containers.values():
        lease = living.pop(each.fence, None)
        if each.fence is None:
            assert not each.runs or not each.devices or each.run_id in strays, each
        elif lease is None:
            assert not each.devices or each.run_id in strays, f"{each} is nobody's"
            assert each.runs, f"{each} is left over"
        else:
            assert each.runs, f"{each} does not run and lease {lease.lease_id} lives"
            assert (lease.state, lease.run_id) == (State.RUNNING, each.run_id), lease
    assert living == {}, "these have nothing that runs"


def stop_all(site: Site) -> None:
    """Stop every server, and remove by hand what nobody answers for; all is free then."""
    hub = site.start_hub()
    for user in sorted(hub.servers):
        hub.stop(user)
    hub.go_on()
    foreign = {each.run_id for each in site.engine.containers.values() if each.fence is None}
    for run_id in site.engine.containers.keys() & (foreign | site.strays().keys()):
        site.engine.remove_by_hand(run_id)
    for _ in range(3):  # whom the hub does not know is forgotten
        site.pass_time(400)
        _go_round(site)
    assert site.database == {}
    assert site.living() == []
    assert [each for each in site.engine.containers.values() if each.devices] == []
    assert site.strays() == {}
    with site.reader.read() as books:
        assert books.holds() == []
