"""Domain values as answers: spelled for the wire, with words in the reader's language."""

from collections.abc import Iterable

from gpuspawner.catalogue import Catalogue
from gpuspawner.domain.devices import Mode, Trouble, Unavailable
from gpuspawner.domain.knowledge import Unknown, Why
from gpuspawner.domain.leases import Lease
from gpuspawner.domain.picture import (
    HELD_OTHERWISE,
    NOT_HANDED_OUT,
    NOT_REPORTED,
    PARTITIONING_UNKNOWN,
    SHARES_NOT_HELD,
    DevicePicture,
    SlicePicture,
)
from gpuspawner.domain.placement import availability
from gpuspawner.domain.pool import Pool
from gpuspawner.domain.profiles import Profile
from gpuspawner.domain.slices import Slice
from gpuspawner.domain.uses import LeaseUse
from gpuspawner.service import schemas


def lease_body(
    lease: Lease, unknown: Unknown | None, use: LeaseUse | None, words: Catalogue
) -> schemas.LeaseBody:
    """Return a lease as an answer, with what is not known of its server, and what it uses."""
    why = lease.reason
    return schemas.LeaseBody(
        lease_id=lease.lease_id,
        user=lease.key.user,
        server=lease.key.server,
        state=lease.state,
        profile=schemas.ProfileName(name=lease.profile.name, title=lease.profile.title),
        image=lease.image,
        requested_at=lease.requested_at,
        granted_at=lease.granted_at,
        running_at=lease.running_at,
        finished_at=lease.finished_at,
        ended_at=lease.ended_at,
        unknown_since=None if unknown is None else unknown.since,
        use=None if use is None else _use_body(use),
        slices=[slice_body(item, words) for item in lease.slices],
        reason=None
        if why is None
        else schemas.ReasonBody(code=str(why.code), message=words.reason(why)),
    )


def _use_body(use: LeaseUse) -> schemas.UseBody:
    processes = use.processes
    return schemas.UseBody(
        observed_at=use.observed_at,
        memory_mib=use.memory_mib,
        busy_percent=use.busy_percent,
        processes=None
        if processes is None
        else [
            schemas.ProcessBody(
                memory_mib=each.memory_mib,
                busy_percent=each.busy_percent,
                command=each.command,
                kernel_id=each.kernel_id,
            )
            for each in processes
        ],
    )


def unknown_sentence(unknown: Unknown | None, words: Catalogue) -> str | None:
    """Say that it is not known whether a lease's server runs, and what that means for its owner.

    None where it is known, and where no agent has ever looked, which is no news to an owner.
    """
    if unknown is None or unknown.since is None:
        return None
    since = words.time(unknown.since)
    if unknown.why is Why.ENGINE_SILENT:
        return words.text(
            "It is not known whether it runs: the engine has not answered since {moment}. Nothing "
            "is lost; the GPU stays yours.",
            moment=since,
        )
    if unknown.why is Why.AGENT_AWAY:
        return words.text(
            "It is not known whether it runs: the agent of its host has not reported since "
            "{moment}. Nothing is lost; the GPU stays yours.",
            moment=since,
        )
    return words.text(
        "It is not known whether it runs: the engine has not shown it since {moment}. The GPU "
        "stays yours. If you cannot open it, tell the staff.",
        moment=since,
    )


def slice_body(item: Slice, words: Catalogue) -> schemas.SliceBody:
    """Return a held slice as an answer."""
    return schemas.SliceBody(
        slice_id=item.slice_id,
        host_id=item.host_id,
        device_uuid=item.device_uuid,
        model=item.model,
        modes=[item.mode],
        memory_mib=item.memory_mib,
        compute_percent=item.compute_percent,
        instance_profile=item.instance_profile,
        label=words.slice(item),
    )


def profile_body(profile: Profile, pool: Pool, words: Catalogue) -> schemas.ProfileBody:
    """Return a profile with what is free of it."""
    counted = availability(pool, profile)
    known = profile.mode is not None
    return schemas.ProfileBody(
        name=profile.name,
        title=profile.title,
        description=profile.description,
        mode=profile.mode,
        count=profile.count,
        memory_mib=profile.memory_mib,
        free=counted.free if known else None,
        total=counted.total if known else None,
        in_use=counted.in_use if known else None,
        unavailable=counted.unavailable if known else None,
        label=words.availability(counted, profile),
    )


def device_body(picture: DevicePicture, words: Catalogue) -> schemas.DeviceBody:
    """Return a device as an answer."""
    device, load = picture.device, picture.device.load
    return schemas.DeviceBody(
        uuid=device.uuid,
        host_id=device.host_id,
        index=device.index if device.index >= 0 else None,
        model=device.model,
        memory_mib=device.memory_mib,
        headroom_mib=picture.headroom_mib,
        partitioned=device.partitioned,
        simulated=picture.simulated,
        observed_at=picture.observed_at,
        load=schemas.LoadBody(
            used_mib=load.used_mib,
            reserved_mib=load.reserved_mib,
            busy_percent=load.busy_percent,
            temperature_c=load.temperature_c,
            power_w=load.power_w,
            power_limit_w=load.power_limit_w,
        ),
        unavailable=trouble_body(picture.unavailable, words),
    )


def pool_slices(pictures: Iterable[DevicePicture], words: Catalogue) -> Iterable[schemas.PoolSlice]:
    """Yield every part of every device."""
    for picture in pictures:
        for part in picture.slices:
            lease = part.lease
            yield schemas.PoolSlice(
                slice_id=part.slice_id,
                host_id=picture.device.host_id,
                device_uuid=picture.device.uuid,
                model=picture.device.model,
                modes=list(part.modes),
                memory_mib=part.memory_mib,
                compute_percent=None,
                instance_profile=part.instance_profile,
                label=part_label(part, words),
                shown=part.shown,
                used_mib=part.used_mib,
                user=None if lease is None else lease.key.user,
                server=None if lease is None else lease.key.server,
                lease_id=None if lease is None else lease.lease_id,
                unavailable=trouble_body(part.unavailable, words),
            )


def part_label(part: SlicePicture, words: Catalogue) -> str:
    """Name a part of a device in a few words: what it is and how much memory it has."""
    memory = words.memory(part.memory_mib)
    if part.instance_profile is not None:
        return f"{part.instance_profile}, {memory}"
    shared = any(mode.is_share for mode in part.modes)
    if Mode.WHOLE in part.modes and shared:
        return words.text("Whole GPU or shares, {memory}", memory=memory)
    if Mode.WHOLE in part.modes:
        return words.text("Whole GPU, {memory}", memory=memory)
    if not shared:
        return words.text("GPU, {memory}", memory=memory)
    if part.slice_id is None:
        return words.text("Room for shares, {memory}", memory=memory)
    return words.text("Share, {memory}", memory=memory)


def trouble_body(unavailable: Unavailable | None, words: Catalogue) -> schemas.TroubleBody | None:
    """Return why something is unavailable."""
    if unavailable is None:
        return None
    return schemas.TroubleBody(
        trouble=unavailable.trouble,
        detail=unavailable.detail,
        label=trouble_label(unavailable, words),
    )


def trouble_label(unavailable: Unavailable, words: Catalogue) -> str:
    """Say in one line why something is unavailable; an operator's note comes as it is."""
    special = {
        NOT_HANDED_OUT: words.text("this site does not hand it out"),
        NOT_REPORTED: words.text("its host does not report it now"),
        SHARES_NOT_HELD: words.text("nothing enforces the memory limit of a share on it yet"),
        PARTITIONING_UNKNOWN: words.text("it is not known how it is partitioned"),
        HELD_OTHERWISE: words.text("its GPU is still held in another way"),
    }
    if unavailable.detail in special and unavailable.trouble is not Trouble.FOREIGN:
        return special[unavailable.detail]
    said = {
        Trouble.CORDONED: words.text("taken out of use by the staff"),
        Trouble.LOST: words.text("the hardware does not answer any more"),
        Trouble.SICK: words.text("the hardware reports that it is broken"),
        Trouble.FOREIGN: words.text("used by something outside this site's books"),
        Trouble.UNKNOWN: words.text("it could not be asked"),
    }[unavailable.trouble]
    if not unavailable.detail:
        return said
    return words.text("{what}: {note}", what=said, note=unavailable.detail)
