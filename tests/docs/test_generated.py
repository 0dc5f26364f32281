"""The pages that come from the code are what the code says."""

from tools.docs import generate


def test_the_generated_pages_are_fresh() -> None:
    assert generate.stale() == [], "run python -m tools.docs.generate"


def test_the_check_tells_what_is_stale(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(generate, "FOLDER", tmp_path)
    assert generate.main(["--check"]) == 1
    assert "docs/reference/cli.md is stale" in capsys.readouterr().out
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0
