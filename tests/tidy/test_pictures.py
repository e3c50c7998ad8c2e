"""Every picture of the console is committed, and the tool that makes them has help."""

import pytest

from tools.screenshots import FOLDER, NAMES, THEMES, WIDTHS, arguments


def test_every_page_has_its_pictures() -> None:
    """Every page has a picture in each theme and at each width, and no others exist."""
    wanted = {f"{name}-{at}-{theme}.png" for name in NAMES for at in WIDTHS for theme in THEMES}
    assert {each.name for each in FOLDER.iterdir()} == wanted


def test_help_takes_no_pictures(capsys: pytest.CaptureFixture[str]) -> None:
    """`--help` prints help and takes no pictures."""
    with pytest.raises(SystemExit, match="0"):
        arguments().parse_args(["--help"])
    assert "--page" in capsys.readouterr().out
    for wrong in (["--pages"], ["--page", "nonsense"], ["--width", "1"]):
        with pytest.raises(SystemExit, match="2"):
            arguments().parse_args(wrong)
