"""The pictures of the console are all there, and what makes them says how it is asked."""

import pytest

from tools.screenshots import FOLDER, NAMES, THEMES, WIDTHS, arguments


def test_every_page_has_its_pictures() -> None:
    """In each theme and at each width, and none of a page that is no more."""
    wanted = {f"{name}-{at}-{theme}.png" for name in NAMES for at in WIDTHS for theme in THEMES}
    assert {each.name for each in FOLDER.iterdir()} == wanted


def test_help_is_no_folder(capsys: pytest.CaptureFixture[str]) -> None:
    """It is shown, and so is what no picture has."""
    with pytest.raises(SystemExit, match="0"):
        arguments().parse_args(["--help"])
    assert "--page" in capsys.readouterr().out
    for wrong in (["--pages"], ["--page", "nonsense"], ["--width", "1"]):
        with pytest.raises(SystemExit, match="2"):
            arguments().parse_args(wrong)
