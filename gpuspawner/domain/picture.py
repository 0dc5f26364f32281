"""The picture of a pool: each device cut into what is held, free and unavailable, for one viewer.

Pages and API draw what this says and work nothing out again. People see their own slices; what
others hold is only *busy*, and what uses a device without a lease has no name, unless the viewer
is an administrator of the same hub.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from gpuspawner.domain.devices import Device, Instance, Mode, Trouble, Unavailable
from gpuspawner.domain.leases import Lease, ServerKey
from gpuspawner.domain.pool import Pool, PooledDevice
from gpuspawner.domain.slices import Hold

NOT_HANDED_OUT = "not-handed-out"
NOT_REPORTED = "not-reported"
SHARES_NOT_HELD = "shares-not-held"
HELD_OTHERWISE = "held-otherwise"
PARTITIONING_UNKNOWN = "partitioning-unknown"


class Shown(StrEnum):
    """What a viewer is told of a slice."""

    FREE = "free"
    OWN = "own"
    BUSY = "busy"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewer:
    """Who looks: a person of a hub, perhaps its administrator."""

    hub_id: str
    user: str
    admin: bool = False

    def owns(self, key: ServerKey) -> bool:
        """Whether a server is this person's."""
        return key.hub_id == self.hub_id and key.user == self.user

    def may_name(self, key: ServerKey) -> bool:
        """Whether this person may know whose server it is."""
        return self.owns(key) or (self.admin and key.hub_id == self.hub_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicePicture:
    """One part of a device. ``lease`` is set only where the viewer may know whose it is.

    ``slice_id`` is None for room that nobody has cut a slice from yet; ``modes`` is how such
    room may be handed out. ``memory_mib`` is None where the hardware does not say.
    """

    slice_id: str | None
    shown: Shown
    memory_mib: int | None
    modes: tuple[Mode, ...] = ()
    instance_profile: str | None = None
    used_mib: int | None = None
    unavailable: Unavailable | None = None
    lease: Lease | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePicture:
    """One device with its parts in a stable order. ``headroom_mib`` is kept back from shares."""

    device: Device
    simulated: bool
    observed_at: datetime | None
    unavailable: Unavailable | None
    slices: tuple[SlicePicture, ...]
    headroom_mib: int = 0


def draw(pool: Pool, leases: Iterable[Lease], viewer: Viewer) -> tuple[DevicePicture, ...]:
    """Draw every device of a pool, by host and index, then those that only leases speak of."""
    by_id = {lease.lease_id: lease for lease in leases}
    items = sorted(pool.devices.values(), key=lambda item: (item.device.host_id, item.device.index))
    pictures = (
        *(_device(item, by_id, viewer) for item in items),
        *_unreported(pool, by_id.values(), viewer),
    )
    return pictures if viewer.admin else tuple(map(_without_names, pictures))


def _device(item: PooledDevice, leases: Mapping[int, Lease], viewer: Viewer) -> DevicePicture:
    device = item.device
    headroom = 0
    if device.partitioned:
        slices = _instances(item, leases, viewer)
    elif item.holds:
        slices = [_held(hold, leases, viewer) for _, hold in sorted(item.holds.items(), key=_order)]
        if item.held_mode is not None and item.held_mode.is_share:
            slices += _remainder(item)
            headroom = item.rule.headroom_mib
    else:
        slices = [_empty(item)]
    return DevicePicture(
        device=device,
        simulated=item.simulated,
        observed_at=item.observed_at,
        unavailable=item.unavailable,
        slices=tuple(slices),
        headroom_mib=headroom,
    )


def _without_names(picture: DevicePicture) -> DevicePicture:
    """Return a picture that does not say what uses a device beside the leases: it may be a name."""
    slices = tuple(
        replace(part, unavailable=_nameless(part.unavailable)) for part in picture.slices
    )
    return replace(picture, unavailable=_nameless(picture.unavailable), slices=slices)


def _nameless(unavailable: Unavailable | None) -> Unavailable | None:
    if unavailable is None or unavailable.trouble is not Trouble.FOREIGN:
        return unavailable
    return replace(unavailable, detail="")


def _held(hold: Hold, leases: Mapping[int, Lease], viewer: Viewer) -> SlicePicture:
    lease = leases.get(hold.lease_id)
    known = lease is not None and viewer.may_name(lease.key)
    own = lease is not None and viewer.owns(lease.key)
    return SlicePicture(
        slice_id=hold.slice.slice_id,
        shown=Shown.OWN if own else Shown.BUSY,
        memory_mib=hold.slice.memory_mib,
        modes=(hold.slice.mode,),
        instance_profile=hold.slice.instance_profile,
        lease=lease if known else None,
    )


def _instances(
    item: PooledDevice, leases: Mapping[int, Lease], viewer: Viewer
) -> list[SlicePicture]:
    slices = []
    left = dict(item.holds)
    for instance in item.device.instances:
        hold = left.pop(instance.uuid, None)
        if hold is not None:
            slices.append(_held(hold, leases, viewer))
        else:
            slices.append(_free_instance(item, instance))
    # Held, and no longer in the driver's list: unknown is not gone.
    slices += [_held(hold, leases, viewer) for hold in left.values()]
    return slices


def _free_instance(item: PooledDevice, instance: Instance) -> SlicePicture:
    trouble = item.unavailable or item.unavailable_units.get(instance.uuid)
    if trouble is None and not item.may_take(Mode.INSTANCE):
        trouble = _site_says_no()
    elif trouble is None and not item.is_free_instance(instance):
        trouble = Unavailable(trouble=Trouble.UNKNOWN, detail=HELD_OTHERWISE)
    return SlicePicture(
        slice_id=instance.uuid,
        shown=Shown.FREE if trouble is None else Shown.UNAVAILABLE,
        memory_mib=instance.memory_mib,
        modes=(Mode.INSTANCE,),
        instance_profile=instance.profile,
        used_mib=instance.used_mib,
        unavailable=trouble,
    )


def _remainder(item: PooledDevice) -> list[SlicePicture]:
    """Return what is left for further shares of a device that has some."""
    if item.room_mib <= 0 or item.held_mode is None:
        return []
    return [_room(item, item.room_mib, (item.held_mode,))]


def _empty(item: PooledDevice) -> SlicePicture:
    modes = tuple(mode for mode in Mode if item.may_take(mode))
    only_shares = bool(modes) and all(mode.is_share for mode in modes)
    memory_mib = item.capacity_mib if only_shares else item.device.memory_mib
    return _room(item, memory_mib, modes)


def _room(item: PooledDevice, memory_mib: int | None, modes: tuple[Mode, ...]) -> SlicePicture:
    """Draw room that is free unless something stands against each way of handing it out."""
    usable = tuple(mode for mode in modes if not mode.is_share or item.caps_are_held)
    trouble = item.unavailable
    if trouble is None and not usable:
        trouble = _why_unusable(item, modes)
    return SlicePicture(
        slice_id=None,
        shown=Shown.FREE if trouble is None else Shown.UNAVAILABLE,
        memory_mib=memory_mib,
        modes=usable or modes,
        unavailable=trouble,
    )


def _why_unusable(item: PooledDevice, modes: tuple[Mode, ...]) -> Unavailable:
    if item.device.partitioned is None:
        return Unavailable(trouble=Trouble.UNKNOWN, detail=PARTITIONING_UNKNOWN)
    if not modes:
        return _site_says_no()
    if item.simulated:  # fresh would have made it usable
        return Unavailable(trouble=Trouble.UNKNOWN, detail=NOT_REPORTED)
    return Unavailable(trouble=Trouble.UNKNOWN, detail=SHARES_NOT_HELD)


def _site_says_no() -> Unavailable:
    return Unavailable(trouble=Trouble.CORDONED, detail=NOT_HANDED_OUT)


def _unreported(pool: Pool, leases: Iterable[Lease], viewer: Viewer) -> Iterable[DevicePicture]:
    """Draw devices that living leases hold and that no host reports."""
    found: dict[str, list[tuple[Hold, Lease]]] = {}
    for lease in leases:
        for item in lease.slices:
            if item.device_uuid not in pool.devices:
                hold = Hold(lease_id=lease.lease_id, slice=item)
                found.setdefault(item.device_uuid, []).append((hold, lease))
    for _, pairs in sorted(found.items()):
        first = pairs[0][0].slice
        yield DevicePicture(
            device=Device(
                uuid=first.device_uuid, host_id=first.host_id, index=-1, model=first.model,
                memory_mib=None, partitioned=None,
            ),
            simulated=False,
            observed_at=None,
            unavailable=Unavailable(trouble=Trouble.UNKNOWN, detail=NOT_REPORTED),
            slices=tuple(_held(hold, {lease.lease_id: lease}, viewer) for hold, lease in pairs),
        )  # fmt: skip


def _order(pair: tuple[str, Hold]) -> tuple[int, str]:
    """Order shares by their number: share-2 comes before share-10."""
    number = pair[0].rpartition("-")[2]
    return (int(number) if number.isdigit() else -1, pair[0])
