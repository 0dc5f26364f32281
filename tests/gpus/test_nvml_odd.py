"""Answers that nobody can make sense of: they are one GPU's, and no other's."""

import pytest

from gpuspawner.domain.devices import Trouble
from gpuspawner.gpus import nvml_gpus

ODD = [TypeError("'NoneType' object is not subscriptable"), OverflowError("int too large")]


@pytest.mark.parametrize("error", ODD)
def test_one_whose_answer_breaks_the_reading(double, inventory, at, monkeypatch, caplog, error):
    def read(nvml, handle, before, **values):
        if before.uuid == "GPU-0":
            raise error
        return real(nvml, handle, before, **values)

    real = nvml_gpus.read_device
    before = inventory.look(at()).devices
    with monkeypatch.context() as patch:
        patch.setattr(nvml_gpus, "read_device", read)
        for seconds in (2, 4):
            odd, *others = inventory.look(at(seconds)).devices
            assert others == list(before[1:])
            assert (odd.uuid, odd.unavailable.trouble) == ("GPU-0", Trouble.UNKNOWN)
            assert type(error).__name__ in odd.unavailable.detail
            assert (odd.load.used_mib, odd.processes) == (None, None)
    assert len(caplog.records) == 1  # said once
    assert inventory.look(at(6)).devices == before


def test_one_whose_lookup_breaks_is_looked_up_again(double, inventory, at, monkeypatch):
    def look_up(nvml, index):
        if index == 0:
            raise ODD[0]
        return real(nvml, index)

    real = nvml_gpus._look_up
    with monkeypatch.context() as patch:
        patch.setattr(nvml_gpus, "_look_up", look_up)
        assert [each.uuid for each in inventory.look(at()).devices] == ["GPU-1", "GPU-2"]
    assert [each.uuid for each in inventory.look(at(2)).devices] == ["GPU-0", "GPU-1", "GPU-2"]
