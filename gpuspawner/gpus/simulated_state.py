"""The state file of a simulated lab: what differs from the preset, checked at the edge.

JSON, so that a person can write it::

    {"trouble": "the driver is gone",
     "devices": {"GPU-…": {"lost": true, "xid": 79, "partitioned": true,
                           "layout": ["3g.20gb", "3g.20gb"], "generation": 2}},
     "loads": {"GPU-… or MIG-…": {"used_mib": 1024, "busy_percent": 80}},
     "processes": [{"pid": 4711, "uuid": "GPU-… or MIG-…", "memory_mib": 2048,
                    "busy_percent": 80, "mps": false}]}

All keys may be left out, but a process needs ``pid``, ``uuid`` and ``memory_mib``; null is an
unknown reading. ``preset`` may name the lab. A changed layout needs a generation that was not used
before, since an instance's UUID never comes back; the inventory's methods see to it. Loads win
over what the processes add up to. A process stays until it is taken away, whatever its PID does.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from gpuspawner.domain.devices import DeviceUUID
from gpuspawner.gpus import simulated_processes
from gpuspawner.gpus.simulated_lab import DeviceState, Lab
from gpuspawner.gpus.simulated_processes import SimulatedProcess
from gpuspawner.gpus.simulated_sentences import in_range, known_keys, refuse

Reading = int | None
LOAD_KEYS = ("used_mib", "busy_percent")
_TOP_KEYS = ("preset", "trouble", "devices", "loads", "processes")
_DEVICE_KEYS = tuple(item.name for item in fields(DeviceState))


@dataclass(frozen=True, slots=True)
class State:
    """The whole state of a lab: an entry for each GPU, loads that somebody set, and what runs."""

    devices: Mapping[DeviceUUID, DeviceState]
    loads: Mapping[DeviceUUID, Mapping[str, Reading]]
    trouble: str | None = None
    processes: tuple[SimulatedProcess, ...] = ()


def initial(lab: Lab) -> State:
    """Return the state of a lab that nobody touched."""
    return State({uuid: device.initial for uuid, device in lab.devices.items()}, {})


def preset_of(text: str) -> str:
    """Return the lab that a state file names.

    Raises:
        ValueError: it is no state file, or names none.
    """
    name = _document(text).get("preset")
    if not isinstance(name, str):
        refuse("the key 'preset' must name a simulated lab, such as \"four-a100\"")
    return name


def parse(text: str, lab: Lab) -> State:
    """Read a state file.

    Raises:
        ValueError: one sentence that says what is wrong and where.
    """
    document = _document(text)
    if document.get("preset", lab.preset_name) != lab.preset_name:
        refuse(f"it is for the lab {document['preset']!r}, and this one is {lab.preset_name!r}")
    trouble = document.get("trouble")
    if not (trouble is None or (isinstance(trouble, str) and trouble)):
        refuse("'trouble' must be a sentence or null")
    devices = dict(initial(lab).devices)
    for name, entry in _entries(document, "devices"):
        uuid = lab.device(name).uuid
        devices[uuid] = _device_state(name, entry, devices[uuid])
    processes = simulated_processes.parse(document.get("processes", []), lab.devices)
    state = State(devices, dict(_loads(document)), trouble, processes)
    check(state, lab)
    return state


def dump(state: State, lab: Lab) -> str:
    """Spell a state as a file: what differs from the preset, in a fixed order."""
    devices = {
        uuid: _changes(state.devices[uuid], device.initial)
        for uuid, device in lab.devices.items()
        if state.devices[uuid] != device.initial
    }
    document: dict[str, Any] = {
        "preset": lab.preset_name,
        "devices": devices,
        "loads": state.loads,
    }
    if state.trouble:
        document["trouble"] = state.trouble
    if state.processes:
        document["processes"] = simulated_processes.spell(state.processes)
    return json.dumps(document, indent=2, ensure_ascii=False, default=dict) + "\n"


def check(state: State, lab: Lab) -> None:
    """Refuse what no hardware can be.

    Raises:
        ValueError: layouts that do not fit, loads or processes of unknown UUIDs, numbers out of
            range.
    """
    sizes: dict[DeviceUUID, int] = {}
    for uuid, device in lab.devices.items():
        at = state.devices[uuid]
        if at.layout != device.initial.layout and at.generation == device.initial.generation:
            refuse(f"{uuid}: a change of 'partitioned' or 'layout' needs an unused 'generation'")
        instances = {item.uuid: item.profile.memory_mib for item in device.instances(at)}
        sizes |= instances
        if not at.partitioned:
            sizes[uuid] = device.board.memory_mib
        elif uuid in state.loads:
            refuse(f"{uuid} is partitioned: set the loads of its instances")
    _check_loads(state, sizes, lab)
    simulated_processes.check(state.processes, sizes, lab.devices)


def _check_loads(state: State, sizes: Mapping[DeviceUUID, int], lab: Lab) -> None:
    for uuid, load in state.loads.items():
        if uuid not in sizes:
            refuse(f"there is no GPU or instance {uuid!r} to be loaded")
        if load.get("busy_percent") is not None and uuid not in lab.devices:
            refuse(f"{uuid}: no hardware tells how busy one instance is")
        in_range(uuid, "used_mib", load.get("used_mib"), sizes[uuid], may_be_unknown=True)
        in_range(uuid, "busy_percent", load.get("busy_percent"), 100, may_be_unknown=True)


def without_work_on(state: State, *uuids: DeviceUUID) -> State:
    """Return the state without what runs on GPUs or instances that are reset or gone."""
    return replace(
        state,
        loads={uuid: load for uuid, load in state.loads.items() if uuid not in uuids},
        processes=tuple(item for item in state.processes if item.uuid not in uuids),
    )


def _document(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except RecursionError:
        refuse("it is nested too deeply")
    except ValueError as error:
        refuse(f"it is not JSON ({error})")
    if not isinstance(document, dict):
        refuse("it must be one JSON object")
    known_keys("", document, _TOP_KEYS)
    return document


def _entries(document: Mapping[str, Any], key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    table = document.get(key, {})
    if not isinstance(table, dict):
        refuse(f"{key!r} must be an object with a UUID as each key")
    for name, entry in table.items():
        if not isinstance(entry, dict):
            refuse(f"{key!r}: the entry of {name!r} must be an object")
        yield name, entry


def _device_state(name: str, entry: dict[str, Any], before: DeviceState) -> DeviceState:
    known_keys(name, entry, _DEVICE_KEYS)
    for key in ("lost", "partitioned"):
        if not isinstance(entry.get(key, False), bool):
            refuse(f"{name}: {key!r} must be true or false")
    if entry.get("xid") is not None:
        in_range(name, "xid", entry["xid"], 999, least=1)
    in_range(name, "generation", entry.get("generation", 0), 2**31)
    layout = entry.get("layout", list(before.layout) if entry.get("partitioned", True) else [])
    if not isinstance(layout, list) or not all(isinstance(item, str) for item in layout):
        refuse(f"{name}: 'layout' must be a list of instance profiles")
    return replace(before, **{**entry, "layout": tuple(layout)})


def _loads(document: Mapping[str, Any]) -> Iterator[tuple[DeviceUUID, dict[str, Reading]]]:
    for name, entry in _entries(document, "loads"):
        known_keys(name, entry, LOAD_KEYS)
        yield DeviceUUID(name), entry


def _changes(state: DeviceState, before: DeviceState) -> dict[str, Any]:
    return {
        key: getattr(state, key)
        for key in _DEVICE_KEYS
        if getattr(state, key) != getattr(before, key)
    }
