"""Memory sizes: what is read, what is refused, and how they are spelled."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.domain.units import format_memory_mib, parse_memory_mib


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("1MiB", 1), ("512 MiB", 512), ("8G", 8192), ("8Gi", 8192), ("8GiB", 8192),
        ("  16 gib  ", 16384), ("0.5GiB", 512), ("9.5G", 9728), ("1T", 1024**2),
        ("2tib", 2 * 1024**2), ("1.9M", 1), ("7m", 7), ("7mi", 7),
    ],
)  # fmt: skip
def test_sizes_are_read_as_whole_mib(text: str, mib: int) -> None:
    assert parse_memory_mib(text) == mib


@pytest.mark.parametrize(
    "value",
    ["", "8", "8192", "GiB", "-1GiB", "1e3MiB", "8GB", "8KiB", "1,5GiB", "1 2GiB", "8GiB!", "0.G",
     ".5GiB", "∞GiB", 8192, 8.0, None, True, ["8GiB"]],
)  # fmt: skip
def test_what_is_not_a_size_with_a_unit_is_refused_and_shown(value: object) -> None:
    with pytest.raises(ValueError, match="expected a memory size with its unit") as caught:
        parse_memory_mib(value)  # type: ignore[arg-type]
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("text", ["0GiB", "0.0MiB", "0.4MiB", "0.0001GiB"])
def test_less_than_one_mib_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a memory size above zero"):
        parse_memory_mib(text)


@given(st.text() | st.from_regex(r"\s*\d+(\.\d+)?\s*[a-zA-Z]*\s*", fullmatch=True))
def test_any_text_is_read_or_refused_with_value_error(text: str) -> None:
    try:
        mib = parse_memory_mib(text)
    except ValueError as error:
        words = str(error)
        assert repr(text) in words
    else:
        assert mib > 0


@pytest.mark.parametrize("digits", [400, 5000])
def test_an_absurdly_long_number_is_refused_like_any_other_mistake(digits: int) -> None:
    with pytest.raises(ValueError, match="expected a memory size"):
        parse_memory_mib("9" * digits + "GiB")


@pytest.mark.parametrize(
    ("mib", "text"),
    [
        (None, "—"), (0, "0 MiB"), (512, "512 MiB"), (1023, "1023 MiB"), (1024, "1 GiB"),
        (9728, "9.5 GiB"), (10240, "10 GiB"), (81559, "79.6 GiB"), (1024**2, "1024 GiB"),
    ],
)  # fmt: skip
def test_mib_are_spelled_for_people_and_unknown_is_a_dash(mib: int | None, text: str) -> None:
    assert format_memory_mib(mib) == text


@given(st.integers(1, 10_000_000))
def test_spelling_and_reading_differ_by_rounding_only(mib: int) -> None:
    assert abs(parse_memory_mib(format_memory_mib(mib)) - mib) <= 52  # half of 0.1 GiB
