"""Record `docs/console/recording.webp` for the README: a GPU fails, and Apportion explains it.

    python -m tools.recording [FILE]

Runs a real `apportion up` with its simulated fleet and sample pods. Terminal scenes show the real
output of real commands, and console scenes are screenshots of real Chromium. Each frame is shown
for a time of its own, so the recording plays at the same speed however slow the machine is."""

from __future__ import annotations

import base64
import contextlib
import html
import io
import json
import os
import shlex
import subprocess
import tempfile
import time
from argparse import ArgumentParser
from pathlib import Path

from click import echo
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, expect
from rich.console import Console
from rich.text import Text

from tests.support.browser.chromium import follow, opened, running_browser, visit
from tests.support.standalone import APPORTION, Standalone
from tools.screenshots import FOLDER, PRICES

FILE = FOLDER / "recording.webp"
SIZE = (1280, 720)
CAPTION_HEIGHT = 48
VIEW = (SIZE[0], SIZE[1] - CAPTION_HEIGHT)
COLUMNS = 100
STEP_MS = 90
"""How long a frame of something that moves is shown: a pointer, or a command being typed."""
BROKEN_ON, LOST, ADDED = "a100-1", "l40s-mps-1", "1x8xL40S-48GB:mps"
REASON = "XID 79: GPU has fallen off the bus"
FONT = (
    Path(__file__).resolve().parents[1]
    / "services/apportion/gateway/console/static/fonts/jetbrains-mono-latin.woff2"
)
CAPTION = """\
<body style="margin:0;height:100vh;display:flex;align-items:center;background:#14213d;color:#fff;
font:600 22px Inter,'DejaVu Sans',sans-serif;padding:0 28px">{}</body>"""
TERMINAL = """\
<style>
  @font-face {{ font-family: mono; src: url(data:font/woff2;base64,{font}); font-weight: 100 800; }}
  body {{ margin: 0; background: #fafaf7; }}
  main {{ position: absolute; inset: 11px 28px; overflow: hidden; }} /* 26 whole lines */
  pre {{ position: absolute; bottom: 0; min-height: 100%; margin: 0; font: 18px/25px mono;
    color: #1c1c1c; }}
  b {{ color: #1d6fbf; }}
  i {{ display: inline-block; width: 10px; height: 21px; background: #1c1c1c;
    vertical-align: -4px; }}
</style><main><pre>{text}</pre></main>"""
POINTER = """() => {
  const pointer = document.createElement("div");
  Object.assign(pointer.style, {
    position: "fixed", zIndex: 2147483647, width: "20px", height: "30px", pointerEvents: "none",
    background: "#000", filter: "drop-shadow(0 0 1.5px #fff)", left: "640px", top: "330px",
    clipPath: "polygon(0 0, 0 80%, 28% 62%, 48% 100%, 64% 93%, 46% 57%, 90% 57%)",
  });
  document.documentElement.append(pointer);
  addEventListener("pointermove", event => {
    pointer.style.left = `${event.clientX}px`;
    pointer.style.top = `${event.clientY}px`;
  }, true);
}"""
IDLE = "() => document.getElementById('main').ariaBusy === 'false'"


class Reel:
    """The recording so far: frames with captions, and how long each frame is shown."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._caption = Image.new("RGB", (SIZE[0], CAPTION_HEIGHT))
        self._frames: list[Image.Image] = []
        self._durations_ms: list[int] = []

    def caption(self, text: str) -> None:
        """Set the caption for the frames that follow."""
        page = self._browser.new_page(viewport={"width": SIZE[0], "height": CAPTION_HEIGHT})
        page.set_content(CAPTION.format(html.escape(text)))
        self._caption = _picture(page)
        page.close()

    def shoot(self, page: Page, duration_ms: int = STEP_MS) -> None:
        """Add a frame with the current page, and show it for this long."""
        frame = Image.new("RGB", SIZE)
        frame.paste(self._caption, (0, 0))
        frame.paste(_picture(page), (0, CAPTION_HEIGHT))
        self._frames.append(frame)
        self._durations_ms.append(duration_ms)

    def save(self, path: Path) -> None:
        """Write the frames as a lossless WebP animation that repeats forever."""
        first, *others = self._frames
        first.save(path, save_all=True, append_images=others, duration=self._durations_ms, loop=0,
                   lossless=True, quality=90, method=4, minimize_size=True)  # fmt: skip
        seconds, kib = sum(self._durations_ms) / 1000, path.stat().st_size // 1024
        echo(f"{path.name}: {len(self._frames)} frames, {seconds:.1f} s, {kib} KiB")


class Terminal:
    """A page that looks like a terminal: it shows a command as it is typed, and then its real
    output."""

    def __init__(self, reel: Reel, page: Page, data: Path) -> None:
        self._reel = reel
        self._page = page
        self._data = data
        self._text = ""
        self._font = base64.b64encode(FONT.read_bytes()).decode()

    def run(self, *words: str, hold_ms: int) -> None:
        """Type this command, run it, and show its output for `hold_ms`."""
        typed = shlex.join(["apportion", *words])
        for end in range(0, len(typed), 4):
            self._show(typed[:end], STEP_MS)
        self._show(typed, 4 * STEP_MS)
        self._text += f"<b>$</b> {html.escape(typed)}\n{_as_html(self._output(*words))}"
        self._show("", hold_ms)

    def _show(self, typed: str, duration_ms: int) -> None:
        text = f"{self._text}<b>$</b> {html.escape(typed)}<i></i>"
        self._page.set_content(TERMINAL.format(font=self._font, text=text))
        self._page.wait_for_function("document.fonts.status === 'loaded'")
        self._reel.shoot(self._page, duration_ms)

    def _output(self, *words: str) -> str:
        """Run the command and return its coloured output, whatever its exit status."""
        environment = {"APPORTION_DATA": str(self._data), "COLUMNS": str(COLUMNS)}
        done = subprocess.run(
            [*APPORTION, *words], capture_output=True, text=True, check=False,
            env={**os.environ, **environment, "FORCE_COLOR": "1", "TERM": "xterm-256color"},
        )  # fmt: skip
        assert done.stdout, f"{words} printed nothing: {done.stderr}"
        return done.stdout


def _as_html(output: str) -> str:
    """Return a command's output as HTML with the same colours."""
    screen = Console(record=True, width=COLUMNS, file=io.StringIO())
    screen.print(Text.from_ansi(output), soft_wrap=True)
    return screen.export_html(inline_styles=True, code_format="{code}")


def _picture(page: Page) -> Image.Image:
    return Image.open(io.BytesIO(page.screenshot())).convert("RGB")


class Pointer:
    """A visible mouse pointer that acts in the console while it is recorded."""

    def __init__(self, reel: Reel, page: Page) -> None:
        self._reel = reel
        self._page = page
        self._at = (VIEW[0] * 0.8, 24.0)  # where no tooltip opens
        page.evaluate(POINTER)
        page.mouse.move(*self._at)

    def to(self, x: float, y: float, *, steps: int = 8) -> None:
        """Move the pointer to this position in `steps` frames."""
        from_x, from_y = self._at
        for step in range(1, steps + 1):
            part = step / steps
            self._page.mouse.move(from_x + (x - from_x) * part, from_y + (y - from_y) * part)
            self._page.wait_for_timeout(STEP_MS)
            self._reel.shoot(self._page)
        self._at = (x, y)

    def over(self, target: Locator) -> None:
        """Move the pointer to the lower right of an element, where it hides no text."""
        box = target.bounding_box()
        assert box, f"{target} is not visible"
        self.to(box["x"] + box["width"] * 0.85, box["y"] + box["height"] * 0.7)

    def drag_back(self, slider: Locator, time_ms: float) -> None:
        """Drag the time bar from now back to this time."""
        box = slider.bounding_box()
        assert box, "there is no time bar"
        first, last = (float(slider.get_attribute(name) or 0) for name in ("min", "max"))
        y = box["y"] + box["height"] / 2
        self.to(box["x"] + box["width"] - 4, y)
        self._page.mouse.down()
        self.to(box["x"] + box["width"] * (time_ms - first) / (last - first), y, steps=20)
        self._page.mouse.up()

    def fill(self, field: Locator, text: str) -> None:
        """Type into a field and press Enter."""
        self.over(field)
        field.click()
        for end in range(1, len(text), 2):
            field.fill(text[:end])
            self._reel.shoot(self._page)
        field.fill(text)
        field.press("Enter")


def in_the_terminal(reel: Reel, page: Page, up: Standalone) -> float:
    """Record a GPU's failure and the doctor's finding. Return the time just before the failure."""
    assert up.data is not None
    devices = up.json("get", "devices", "--node", BROKEN_ON)["items"]
    device = max(devices, key=lambda each: len(each["holders"]))["device"]
    terminal = Terminal(reel, page, up.data)
    before_s = time.time()
    reel.caption("1. Break a GPU of the simulated fleet")
    terminal.run("simulate", "fail", device, "--reason", REASON, hold_ms=1200)
    reel.caption("2. apportion doctor finds it and names the fix")
    terminal.run("doctor", hold_ms=4500)
    return before_s * 1000


def in_the_console(reel: Reel, page: Page, before_ms: float) -> None:
    """Record the use of the time bar and a what-if."""
    visit(page, "#/fleet")
    slider = page.get_by_role("slider", name="Time shown")
    expect(slider).to_be_visible()
    page.wait_for_function("document.fonts.status === 'loaded'")
    pointer = Pointer(reel, page)
    reel.caption("3. The console shows it live")
    reel.shoot(page, 2000)
    reel.caption("4. Drag the time bar back: the fleet before the failure")
    pointer.drag_back(slider, before_ms)
    page.wait_for_function(IDLE)
    reel.shoot(page, 2500)
    pointer.over(now := page.get_by_role("button", name="Now"))
    now.click()
    page.wait_for_function(IDLE)
    reel.caption(f"5. What if node {LOST} is lost?")
    what_if = page.get_by_role("navigation").get_by_role("link", name="What if")
    pointer.over(what_if)
    follow(page, what_if)
    ask(reel, page, pointer, "Lost nodes or devices", LOST)
    reel.shoot(page, 3000)
    reel.caption("6. And if we add such a node?")
    ask(reel, page, pointer, "Added nodes", ADDED)
    reel.shoot(page, 3500)


def ask(reel: Reel, page: Page, pointer: Pointer, label: str, text: str) -> None:
    """Type text into the what-if input with this label, and wait for the answer."""
    with page.expect_response("**/api/v1/plan*"):
        pointer.fill(page.get_by_label(label), text)
        reel.shoot(page)
    expect(page.locator(".working")).to_have_count(0)
    pointer.over(page.get_by_role("heading", level=1))


def arguments() -> ArgumentParser:
    """Return the parser of the command line."""
    parser = ArgumentParser("python -m tools.recording", description=__doc__.split("\n\n")[0])
    parser.add_argument("file", nargs="?", type=Path, default=FILE, metavar="FILE",
                        help="where the recording goes (docs/console/recording.webp)")  # fmt: skip
    return parser


def main() -> None:
    """Run `apportion up`, and make the recording."""
    file = arguments().parse_args().file.resolve()
    with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
        Path("prices.toml").write_text(PRICES)
        os.environ["APPORTION_PRICES"] = (
            "prices.toml"  # `doctor` prints it: no path of this machine
        )
        data = Path(scratch) / "data"
        with Standalone(data) as up, running_browser() as browser:
            up.up()
            reel = Reel(browser)
            with opened(browser, "http://127.0.0.1", size=VIEW) as page:
                before_ms = in_the_terminal(reel, page, up)
            base = str(json.loads((data / "connection.json").read_text())["gateway"])
            with opened(browser, base, size=VIEW) as page:
                in_the_console(reel, page, before_ms)
            reel.save(file)


if __name__ == "__main__":
    main()
