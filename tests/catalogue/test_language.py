"""Accept-Language: who gets which language."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.catalogue import SUPPORTED, catalogue_for


@pytest.mark.parametrize(
    ("header", "lang"),
    [
        (None, "en"),
        ("", "en"),
        ("en", "en"),
        ("en-GB,en;q=0.9", "en"),
        ("zh", "zh-Hans"),
        ("zh-CN", "zh-Hans"),
        ("ZH-cn", "zh-Hans"),
        ("zh-Hans", "zh-Hans"),
        ("zh-Hans-CN", "zh-Hans"),
        ("zh-Hans-HK", "zh-Hans"),
        ("zh-SG", "zh-Hans"),
        ("zh-TW", "en"),
        ("zh-Hant", "en"),
        ("zh-HK,zh-TW;q=0.9", "en"),
        ("zh-TW,zh;q=0.9,en;q=0.8", "zh-Hans"),
        ("fr-FR,fr;q=0.9", "en"),
        ("fr,zh;q=0.5", "zh-Hans"),
        ("zh-CN,zh;q=0.9,en-US;q=0.8,en;q=0.7", "zh-Hans"),
        ("en;q=0.8,zh;q=0.9", "zh-Hans"),
        ("en;q=0.9 , zh ; q=0.8", "en"),
        ("en,zh", "en"),
        ("zh,en", "zh-Hans"),
        ("en;q=0.5,zh;q=0.5", "en"),
        ("zh;q=0", "en"),
        ("zh;q=0.000,en;q=0.001", "en"),
        ("en;q=0.001,zh;Q=0.002", "zh-Hans"),
        ("*", "en"),
        ("fr,*;q=0.5", "en"),
        ("en;q=0,*;q=0.5", "zh-Hans"),
        ("zh;q=0.1,*;q=0.9", "en"),
        ("*;q=0.1,zh;q=0.2", "zh-Hans"),
        ("*;q=0", "en"),
        ("zh;q=1.000", "zh-Hans"),
        # Malformed parts are passed over, the others count.
        (",,zh,", "zh-Hans"),
        ("en;q=2,zh;q=0.1", "zh-Hans"),
        ("en;q=,zh;q=0.1", "zh-Hans"),
        ("en;q=0.1234,zh;q=0.1", "zh-Hans"),
        ("en;level=1;q=1,zh;q=0.1", "zh-Hans"),
        ("zh_CN", "en"),
        ("chinese please", "en"),
        (";;;q=1", "en"),
        ("zh-", "en"),
        ("\x00\ud800,;=", "en"),
    ],
)
def test_table(header: str | None, lang: str) -> None:
    assert catalogue_for(header).lang == lang


def test_the_site_may_choose_the_default() -> None:
    assert catalogue_for(None, "zh_Hans").lang == "zh-Hans"
    assert catalogue_for("fr", "zh_Hans").lang == "zh-Hans"
    assert catalogue_for("*", "zh_Hans").lang == "zh-Hans"
    assert catalogue_for("zh;q=0,*", "zh_Hans").lang == "en"
    assert catalogue_for("en-US", "zh_Hans").lang == "en"
    with pytest.raises(ValueError, match="expected a default of en, zh_Hans, got 'fr'"):
        catalogue_for("en", "fr")


@given(st.text() | st.text(alphabet="zhen-*;,q=01.9 \t"))
def test_no_header_raises(header: str) -> None:
    assert catalogue_for(header).locale in SUPPORTED
