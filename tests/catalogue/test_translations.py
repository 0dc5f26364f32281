"""The translations are complete, and fit the texts that they translate."""

import io
import re
from pathlib import Path

import pytest
from babel.messages.catalog import Catalog, Message
from babel.messages.pofile import read_po

from gpuspawner.catalogue import extract
from gpuspawner.catalogue.placeholders import names
from gpuspawner.catalogue.translations import po_path


@pytest.fixture(scope="module")
def wanted() -> Catalog:
    return extract.collect()


@pytest.fixture(scope="module")
def chinese() -> Catalog:
    with po_path("zh_Hans").open("rb") as file:
        return read_po(file, locale="zh_Hans", abort_invalid=True)


def forms(value: str | tuple[str, ...] | list[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def entries(catalog: Catalog) -> dict[tuple[str, ...], Message]:
    return {forms(message.id): message for message in catalog if message.id}


def test_exactly_the_texts_in_use_are_translated(wanted: Catalog, chinese: Catalog) -> None:
    assert set(entries(chinese)) == set(entries(wanted)), (
        "run python -m gpuspawner.catalogue.extract, then translate what it names"
    )
    assert not chinese.obsolete


@pytest.mark.proves("P6")
def test_every_translation_is_there_and_has_the_same_placeholders(chinese: Catalog) -> None:
    for ids, message in entries(chinese).items():
        translated = forms(message.string or "")
        assert all(translated), ids
        assert not message.fuzzy, ids
        assert len(translated) == 1, "Chinese has one form"
        assert names(translated[0]) == names(ids[-1]), ids


def test_chinese_punctuation_is_full_width(chinese: Catalog) -> None:
    for message in entries(chinese).values():
        (text,) = forms(message.string or "")
        assert not re.search(r"[\u4e00-\u9fff}][,;:?!]|[\u4e00-\u9fff]\.", text), text


def test_the_check_is_content_with_what_is_committed(capsys: pytest.CaptureFixture[str]) -> None:
    assert extract.main(["--check"]) == 0
    assert capsys.readouterr().out == ""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    root = tmp_path / "gpuspawner"
    for folder in ("ledger", "service/templates", "service/static"):
        (root / folder).mkdir(parents=True)
    (root / "service/pages.py").write_text(
        'words.text("page {n}", n=1)\n_("short")\nwords.plural("{n} row", "{n} rows", 2)\n'
        'words.text(variable)\nwords.text(\n    "in two "\n    "parts"\n)\n'
    )
    (root / "ledger/store.py").write_text('text("SELECT 1")\n')
    (root / "service/templates/page.html").write_text(
        '{% block a %}{{ _("from a template") }} {{ _("with {x}", x=1) }}{% endblock %}'
        '{{ ngettext("{n} GPU", "{n} GPUs", 3) }}'
    )
    (root / "service/static/no.html").write_text('{{ _("not a template") }}')
    return root


def test_texts_are_found_in_code_and_templates(package: Path) -> None:
    found = extract.collect(package)
    data = set(entries(extract.collect(package / "ledger")))
    assert set(entries(found)) - data == {
        ("page {n}",), ("short",), ("{n} row", "{n} rows"), ("in two parts",),
        ("from a template",), ("with {x}",), ("{n} GPU", "{n} GPUs"),
    }  # fmt: skip


def test_an_update_keeps_translations_and_drops_what_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    po = tmp_path / "gpuspawner.po"
    monkeypatch.setattr(extract, "po_path", lambda locale: po)
    po.write_text('msgid "kept"\nmsgstr "留"\n\nmsgid "gone"\nmsgstr "去"\n', encoding="utf-8")
    template = Catalog()
    template.add("kept")
    template.add("new")
    written = extract.update("zh_Hans", template)
    after = read_po(io.BytesIO(written), locale="zh_Hans")
    assert {ids[0]: entry.string for ids, entry in entries(after).items()} == {
        "kept": "留",
        "new": "",
    }
    assert not after.obsolete
    assert extract.missing(written, "zh_Hans") == ["new"]
    po.write_bytes(written)
    assert extract.update("zh_Hans", template) == written, "a second run changes nothing"


def test_the_check_tells_what_is_stale_or_missing_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    po = tmp_path / "gpuspawner.po"
    po.write_text('msgid "gone"\nmsgstr "去"\n', encoding="utf-8")
    before = po.read_bytes()
    monkeypatch.setattr(extract, "po_path", lambda locale: po)
    assert extract.main(["--check"]) == 1
    assert po.read_bytes() == before
    told = capsys.readouterr().out
    assert "zh_Hans: no translation of 'All taken'" in told
    assert "run without --check" in told
    assert extract.main([]) == 0
    assert b"gone" not in po.read_bytes()
