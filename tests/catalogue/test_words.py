"""Slices, quantities, times, availability and page strings."""

from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.catalogue import Catalogue
from gpuspawner.catalogue.placeholders import fill
from gpuspawner.domain.devices import DeviceUUID, HostId, Mode
from gpuspawner.domain.placement import Availability
from gpuspawner.domain.profiles import CPU_ONLY, Profile
from gpuspawner.domain.reasons import Code, reason
from gpuspawner.domain.slices import Slice

EN, ZH = Catalogue("en"), Catalogue("zh_Hans")
NOW = datetime(2026, 8, 21, 7, 4, 5, tzinfo=UTC)


def slice_of(mode: Mode, **changes: object) -> Slice:
    values: dict[str, object] = {
        "host_id": HostId("h"), "device_uuid": DeviceUUID("GPU-1"), "mode": mode, "unit": "u",
        "memory_mib": 10240, "model": "A100", **changes,
    }  # fmt: skip
    return Slice(**values)  # type: ignore[arg-type]


def profile_of(mode: Mode | None, count: int = 1) -> Profile:
    return Profile(name="p", title="P", mode=mode, count=count)


def test_a_catalogue_knows_its_language() -> None:
    assert (EN.lang, ZH.lang) == ("en", "zh-Hans")
    with pytest.raises(ValueError, match="expected a locale of en, zh_Hans, got 'fr'"):
        Catalogue("fr")


@pytest.mark.parametrize(
    ("slice_", "english", "chinese"),
    [
        (slice_of(Mode.WHOLE), "whole A100, 10 GiB", "A100 整卡，显存 10 GiB"),
        (
            slice_of(Mode.INSTANCE, instance_profile="2g.10gb"),
            "instance 2g.10gb of A100, 10 GiB",
            "A100 的 2g.10gb 实例，显存 10 GiB",
        ),
        (slice_of(Mode.TIME_SLICED), "share of A100, 10 GiB", "A100 共享，显存 10 GiB"),
        (
            slice_of(Mode.MPS, compute_percent=25),
            "share of A100, 10 GiB, compute 25%",
            "A100 共享，显存 10 GiB，算力 25%",
        ),
        (slice_of(Mode.WHOLE, memory_mib=None, model=""), "whole GPU, —", "GPU 整卡，显存 —"),
        (slice_of(Mode.INSTANCE), "instance — of A100, 10 GiB", "A100 的 — 实例，显存 10 GiB"),
    ],
)
def test_slices(slice_: Slice, english: str, chinese: str) -> None:
    assert EN.slice(slice_) == english
    assert ZH.slice(slice_) == chinese


@pytest.mark.parametrize("words", [EN, ZH])
def test_modes_and_isolation_differ_from_each_other(words: Catalogue) -> None:
    modes = [*Mode, None]
    assert len({words.mode(mode) for mode in modes}) == len(modes)
    assert len({words.isolation(profile_of(mode)) for mode in modes}) == len(modes)


def test_isolation_is_honest() -> None:
    assert EN.isolation(profile_of(Mode.WHOLE)) == "A whole GPU, nobody else on it"
    assert EN.isolation(profile_of(Mode.WHOLE, 2)) == "2 whole GPUs, nobody else on them"
    assert ZH.isolation(profile_of(Mode.WHOLE, 2)) == "2 块完整的 GPU，由你独占"
    assert "isolated" in EN.isolation(profile_of(Mode.INSTANCE))
    assert "nothing enforces the memory limit yet" in EN.isolation(profile_of(Mode.TIME_SLICED))
    assert EN.isolation(CPU_ONLY) == "No GPU"


@pytest.mark.parametrize(
    ("counted", "english", "chinese"),
    [
        (Availability(free=2, total=4), "2 of 4 free", "空闲 2 个，共 4 个"),
        (Availability(free=1, total=4, unavailable=1), "1 of 4 free", "空闲 1 个，共 4 个"),
        (Availability(free=0, total=4), "none free: 4 in use", "无空闲：4 个使用中"),
        (
            Availability(free=0, total=4, unavailable=1),
            "none free: 3 in use, 1 unavailable",
            "无空闲：3 个使用中，1 个不可用",
        ),
        (
            Availability(free=0, total=2, unavailable=2),
            "none free: 2 unavailable",
            "无空闲：2 个不可用",
        ),
        (Availability(free=0, total=0), "no GPU here fits", "这里没有符合要求的 GPU"),
        (
            Availability(free=0, total=0, unproven=True),
            "not handed out yet: memory limit not enforced",
            "暂不开放：显存上限尚无法强制执行",
        ),
        (
            Availability(free=0, total=3, silent_since=NOW),
            "not known right now: no GPU readings",
            "暂时未知：没有收到 GPU 数据",
        ),
    ],
)
def test_availability(counted: Availability, english: str, chinese: str) -> None:
    profile = profile_of(Mode.TIME_SLICED)
    assert EN.availability(counted, profile) == english
    assert ZH.availability(counted, profile) == chinese
    assert EN.availability(counted, CPU_ONLY) == "always free"


@pytest.mark.proves("P5")
@pytest.mark.parametrize("words", [EN, ZH])
def test_unknown_is_a_dash_and_never_zero(words: Catalogue) -> None:
    assert words.memory(None) == words.number(None) == words.time(None) == "—"
    assert words.memory(0) == "0 MiB"
    assert words.number(0) == "0"
    assert words.memory(9728) == "9.5 GiB"
    assert words.number(12345.5) == "12,345.5"


@pytest.mark.parametrize(
    ("zone", "english", "chinese"),
    [
        (None, "Aug 21, 2026 07:04 UTC", "2026年8月21日 07:04 UTC"),
        (UTC, "Aug 21, 2026 07:04 UTC", "2026年8月21日 07:04 UTC"),
        ("UTC", "Aug 21, 2026 07:04 UTC", "2026年8月21日 07:04 UTC"),
        ("Asia/Shanghai", "Aug 21, 2026 15:04", "2026年8月21日 15:04"),
        (ZoneInfo("America/Los_Angeles"), "Aug 21, 2026 00:04", "2026年8月21日 00:04"),
        (timezone(timedelta(hours=-8)), "Aug 20, 2026 23:04", "2026年8月20日 23:04"),
        ("Nowhere/Land", "Aug 21, 2026 07:04 UTC", "2026年8月21日 07:04 UTC"),
        ("../../etc/passwd", "Aug 21, 2026 07:04 UTC", "2026年8月21日 07:04 UTC"),
        ("America", "Aug 21, 2026 07:04 UTC", "2026年8月21日 07:04 UTC"),
        ("", "Aug 21, 2026 07:04 UTC", "2026年8月21日 07:04 UTC"),
        ("\x00", "Aug 21, 2026 07:04 UTC", "2026年8月21日 07:04 UTC"),
        ("é" * 5000, "Aug 21, 2026 07:04 UTC", "2026年8月21日 07:04 UTC"),
        ("\ud800", "Aug 21, 2026 07:04 UTC", "2026年8月21日 07:04 UTC"),
    ],
)
def test_times_in_the_readers_zone(zone: str | None, english: str, chinese: str) -> None:
    assert EN.time(NOW, zone) == english
    assert ZH.time(NOW, zone) == chinese
    assert english in EN.reason(reason(Code.INVENTORY_AWAY, since=NOW.isoformat()), zone)


def test_a_moment_needs_a_zone_of_its_own() -> None:
    with pytest.raises(ValueError, match="expected a moment with a zone"):
        EN.time(datetime(2026, 8, 21))  # noqa: DTZ001


@pytest.mark.parametrize(
    ("since", "shown"),
    [
        (None, "no report about the GPUs has come yet"),
        ("2026-08-21T07:04:05", "from Aug 21, 2026 07:04 UTC."),
        ("2026-08-21T15:04:05+08:00", "from Aug 21, 2026 07:04 UTC."),
        ("yesterday", "from yesterday."),
        ("0001-01-01T00:00:00+14:00", "from 0001-01-01T00:00:00+14:00."),
    ],
)
def test_since(since: str | None, shown: str) -> None:
    assert shown in EN.reason(reason(Code.INVENTORY_AWAY, since=since))


def test_page_strings() -> None:
    assert EN.text("CPU only") == "CPU only"
    assert ZH.text("CPU only") == "仅 CPU"
    assert ZH.text("not translated: {name}", name="x") == "not translated: x"
    assert ZH.text("") == "", "the header of the translations is no text"
    assert EN.text("{n} rows", n=1234) == "1234 rows", "ids and codes have no separators"
    assert EN.text("{name}", name="{other} %s") == "{other} %s"
    assert EN.text('a {"user_options": {}} 100% %s') == 'a {"user_options": {}} 100% %s'
    with pytest.raises(ValueError, match=r"no value came for \{name\}"):
        EN.text("{name}", nam="x")


def test_plurals() -> None:
    one, many = "A whole GPU, nobody else on it", "{n} whole GPUs, nobody else on them"
    assert EN.plural(one, many, 1) == one
    assert EN.plural(one, many, 0).startswith("0 whole")
    assert (
        EN.plural("{n} row of {who}", "{n} rows of {who}", 1234, who="ada") == "1,234 rows of ada"
    )
    assert ZH.plural(one, many, 1) == "1 块完整的 GPU，由你独占"


def test_names_are_listed_as_the_language_does_it() -> None:
    assert EN.join(["a", "b"]) == "a, b"
    assert ZH.join(["a", "b"]) == "a、b"
    assert EN.join([]) == ""


@given(text=st.text())
def test_a_value_never_changes_the_text_around_it(text: str) -> None:
    assert fill("<{a}|{b}>", {"a": text, "b": "b"}) == f"<{text}|b>"


def test_templates_say_and_escape() -> None:
    page = jinja2.Environment(autoescape=True)
    page.globals.update(ZH.jinja_globals())
    template = page.from_string(
        '{{ _("CPU only") }} {{ _("hi {name}", name=name) }} '
        '{{ ngettext("A whole GPU, nobody else on it", "{n} whole GPUs, nobody else on them", 2) }}'
    )
    assert template.render(name="<b>{x}</b>") == (
        "仅 CPU hi &lt;b&gt;{x}&lt;/b&gt; 2 块完整的 GPU，由你独占"
    )
