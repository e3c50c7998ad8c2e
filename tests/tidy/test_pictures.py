"""The console's pictures and the README's recording are complete and committed."""

import pytest
from PIL import Image, ImageSequence

from tests.tidy.tree import ROOT
from tools import recording
from tools.screenshots import FOLDER, NAMES, THEMES, WIDTHS, arguments


def test_every_page_has_its_pictures() -> None:
    """Every page has a picture in each theme and at each width, and no other picture exists."""
    wanted = {f"{name}-{at}-{theme}.png" for name in NAMES for at in WIDTHS for theme in THEMES}
    assert {each.name for each in FOLDER.iterdir()} == wanted | {recording.FILE.name}


def test_the_readme_shows_a_small_recording() -> None:
    """The README shows the recording, which repeats, takes 20 to 30 s and is smaller than 2 MB."""
    assert f"({recording.FILE.relative_to(ROOT)})" in (ROOT / "README.md").read_text()
    assert recording.FILE.stat().st_size < 2_000_000
    with Image.open(recording.FILE) as shown:
        assert (shown.size, shown.info["loop"]) == (recording.SIZE, 0)
        shown_ms = 0
        for frame in ImageSequence.Iterator(shown):
            frame.load()  # reads the frame's duration
            shown_ms += frame.info["duration"]
    assert 20_000 <= shown_ms <= 30_000


def test_help_takes_no_pictures(capsys: pytest.CaptureFixture[str]) -> None:
    """The tools print help for `--help`, and take no pictures."""
    with pytest.raises(SystemExit, match="0"):
        arguments().parse_args(["--help"])
    assert "--page" in capsys.readouterr().out
    for wrong in (["--pages"], ["--page", "nonsense"], ["--width", "1"]):
        with pytest.raises(SystemExit, match="2"):
            arguments().parse_args(wrong)
    with pytest.raises(SystemExit, match="0"):
        recording.arguments().parse_args(["--help"])
