"""Every reason can be said in every language, whatever its values are."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.catalogue import SUPPORTED, Catalogue
from gpuspawner.catalogue.placeholders import names
from gpuspawner.catalogue.sentences import SENTENCES
from gpuspawner.catalogue.words import SHORT
from gpuspawner.domain.reasons import VALUES_OF, Code, Reason, reason
from tests.catalogue.examples import EDGES, EMPTY, SINGLE, USUAL, every_edge, make

EN, ZH = Catalogue("en"), Catalogue("zh_Hans")
BOTH = pytest.mark.parametrize("words", [EN, ZH], ids=SUPPORTED)
HAN = re.compile(r"[\u4e00-\u9fff]")

# Texts that somebody else chose, each shown where the reason has it.
AS_GIVEN = {"key", "profile", "server", "setting", "why", "image", "detail", "log", "actor", "note"}


def test_every_code_has_sentences_and_a_short_form() -> None:
    assert set(SENTENCES) == set(Code) == set(SHORT)


@pytest.mark.proves("P6")
@pytest.mark.parametrize("code", Code)
def test_sentences_use_exactly_the_values_of_their_code(code: Code) -> None:
    lines = [line for part in SENTENCES[code] for line in part]
    used = frozenset[str]().union(*(names(line.text) for line in lines))
    asked = {name for line in lines for name in (*line.needs, line.count) if name}
    assert used == VALUES_OF[code]
    assert asked <= VALUES_OF[code]
    for line in lines:
        assert bool(line.one) == bool(line.count)
        assert names(line.one) <= names(line.text)


@pytest.mark.parametrize("code", Code)
def test_the_last_line_of_a_part_always_holds_or_the_part_is_only_an_addition(code: Code) -> None:
    first = SENTENCES[code][0]
    assert not first[-1].needs, "the first part is never left out"


@BOTH
@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("code", Code)
def test_every_edge_is_said_without_a_placeholder(words: Catalogue, edge: str, code: Code) -> None:
    why = make(code, EDGES[edge])
    for told in (words.reason(why), words.short(why)):
        assert told.strip() == told != ""
        assert not names(told)
        assert not re.search(r"\bNone\b(?! of)", told)
        assert "[" not in told


@pytest.mark.proves("P6")
@BOTH
@pytest.mark.parametrize("code", Code)
def test_numbers_and_names_are_all_said(words: Catalogue, code: Code) -> None:
    why = make(code, USUAL)
    told = words.reason(why)
    for name, value in why.values.items():
        if isinstance(value, list):
            assert all(item in told for item in value), name
        elif isinstance(value, int) or name in AS_GIVEN:
            assert str(value) in told, name


@pytest.mark.parametrize("why", list(every_edge()), ids=lambda why: why.code)
def test_chinese_is_chinese(why: Reason) -> None:
    told = ZH.reason(why)
    assert HAN.search(told)
    assert HAN.search(ZH.short(why))
    assert told != EN.reason(why)
    assert not HAN.search(EN.reason(why))
    assert not re.search(r"[\u4e00-\u9fff][,.;:?!]", told), "full-width punctuation"


def in_use(**changes: Any) -> Reason:
    values = {"total": 3, "in_use": 2, "unavailable": 1, "alternatives": ["CPU only", "Small"]}
    return reason(Code.ALL_IN_USE, profile="A100 2g", **{**values, **changes})


@pytest.mark.parametrize(
    ("why", "english", "chinese"),
    [
        (
            in_use(),
            "All 3 places of “A100 2g” are taken: 2 in use, 1 unavailable. Free right now: "
            "CPU only, Small. Or try again when somebody stops a server.",
            "“A100 2g”的 3 个名额都没有空闲：2 个使用中，1 个不可用。"
            "当前空闲：CPU only、Small。也可以等有人停止服务器后再试。",
        ),
        (
            in_use(in_use=3, unavailable=0, alternatives=[]),
            "All 3 places of “A100 2g” are in use. Try again when somebody stops a server.",
            "“A100 2g”的 3 个名额已全部在使用中。请等有人停止服务器后再试。",
        ),
        (
            in_use(total=1, in_use=1, unavailable=0, alternatives=["CPU only"]),
            "The one place of “A100 2g” is in use. Free right now: CPU only. "
            "Or try again when somebody stops a server.",
            "“A100 2g”的 1 个名额已全部在使用中。当前空闲：CPU only。"
            "也可以等有人停止服务器后再试。",
        ),
        (
            in_use(in_use=0, unavailable=3, alternatives=[]),
            "All 3 places of “A100 2g” are unavailable right now. "
            "Try again later; the staff can see why.",
            "“A100 2g”的 3 个名额目前全部不可用。请稍后再试；管理员可以查到原因。",
        ),
        (
            in_use(in_use=0, unavailable=3),
            "All 3 places of “A100 2g” are unavailable right now. Free right now: CPU only, Small.",
            "“A100 2g”的 3 个名额目前全部不可用。当前空闲：CPU only、Small。",
        ),
    ],
)
def test_all_in_use_says_the_numbers_and_what_would_work(
    why: Reason, english: str, chinese: str
) -> None:
    assert EN.reason(why) == english
    assert ZH.reason(why) == chinese


def test_the_default_server_has_no_name() -> None:
    named = make(Code.SERVER_HOLDS, USUAL)
    default = make(Code.SERVER_HOLDS, {**USUAL, "server": ""})
    assert "The server “thesis”" in EN.reason(named)
    assert "The default server" in EN.reason(default)
    assert "默认服务器" in ZH.reason(default)
    assert "“”" not in EN.reason(default) + ZH.reason(default)


@pytest.mark.parametrize("code", [Code.PULL_FAILED, Code.CREATE_FAILED, Code.START_FAILED])
@BOTH
def test_a_detail_stands_on_its_own_line_after_the_sentences(words: Catalogue, code: Code) -> None:
    assert words.reason(make(code, USUAL)).splitlines()[1:] == ["manifest unknown"]
    assert "\n" not in words.reason(make(code, EMPTY))


@BOTH
def test_a_death_at_boot_shows_exit_code_and_last_lines(words: Catalogue) -> None:
    told = words.reason(make(Code.DIED_AT_BOOT, USUAL))
    assert "137" in told.splitlines()[0]
    assert told.splitlines()[1:] == ["first line", "last line"]
    assert " 0" in words.reason(make(Code.DIED_AT_BOOT, SINGLE)), "0 is a code, not an absence"


def test_words_that_are_values_are_translated_and_only_those() -> None:
    wrong = reason(Code.OPTION_TYPE, key="image", expected="a text", got="a list")
    assert "应为文本" in ZH.reason(wrong)
    assert "列表" in ZH.reason(wrong)
    odd = reason(Code.OPTION_TYPE, key="image", expected="a text", got="date")
    assert "date" in ZH.reason(odd)
    asked = reason(Code.PROFILE_UNKNOWN, key="profile", got="a list", known=[])
    assert "“a list”" in ZH.reason(asked), "what a person typed is never translated"


@pytest.mark.parametrize("code", Code)
def test_the_status_reason_is_short_ascii_and_the_same_in_every_language(code: Code) -> None:
    why = make(code, USUAL)
    assert EN.status_reason(why) == ZH.status_reason(why) == code.value
    assert re.fullmatch(r"[A-Za-z0-9-]{1,40}", EN.status_reason(why))
    assert type(EN.status_reason(why)) is str


NASTY = st.one_of(
    st.sampled_from(
        ["{profile}", "{}", "{0.__class__}", "%s", "100 %", "%(key)s", "{{", "<b>&amp;</b>",
         "a\nb", "\\1", "\\g<0>", "\x00", "“”", "\u202e"]
    ),
    st.text(),
).filter(bool)  # fmt: skip


@given(text=NASTY, code=st.sampled_from(sorted(Code)), words=st.sampled_from([EN, ZH]))
def test_values_are_shown_as_given_and_never_interpreted(
    text: str, code: Code, words: Catalogue
) -> None:
    values = {
        name: [text, text] if isinstance(value, list) else text if isinstance(value, str) else value
        for name, value in USUAL.items()
    }
    marked = make(code, {**values, **dict.fromkeys(AS_GIVEN, f"⟦{text}⟧")})
    told = words.reason(marked)
    for name in VALUES_OF[code] & AS_GIVEN:
        assert f"⟦{text}⟧" in told, name


@given(
    values=st.fixed_dictionaries(
        {
            name: st.one_of(st.none(), st.lists(st.text(), max_size=3))
            if isinstance(value, list)
            else st.one_of(st.none(), st.integers())
            if isinstance(value, int)
            else st.one_of(st.none(), st.text())
            for name, value in USUAL.items()
        }
    ),
    code=st.sampled_from(sorted(Code)),
    words=st.sampled_from([EN, ZH]),
)
def test_no_record_makes_it_raise(values: dict[str, Any], code: Code, words: Catalogue) -> None:
    assert words.reason(make(code, values), "Asia/Shanghai")
