"""Draws the pictures of docs/report.md: python docs/make_report_pictures.py RUN [RUN ...], in the folder of the runs.

Needs chromium and its driver (Debian: apt install chromium chromium-driver) and Pillow, which matplotlib brings along.
Only runs on the built-in corpus: the pictures show sentences.
"""

import argparse
import base64
import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

PICTURES = Path(__file__).parent / "report"
SOURCE = "While the queen does not get up early, Julia does not find our expensive lamp."
SHOTS = [
    # name, page, width, light or dark, what stands on top, height, what is clicked before
    ("report-1400-light", "report", 1400, "light", "h1", 1450, []),
    ("report-1400-dark", "report", 1400, "dark", "h1", 1450, []),
    ("report-400-light", "report", 400, "light", "h1", 1500, []),
    ("report-400-dark", "report", 400, "dark", "#curve-nll", 1500, []),
    ("attention-1400-light", "attention", 1400, "light", "h1", 900, ["[data-switch=Tokens] input[value=words]"]),
    (
        "attention-1400-dark", "attention", 1400, "dark", "h1", 900,
        ["[data-switch=Attention] input[value=cross]", "[data-switch=View] input[value=matrix]"],
    ),
    ("attention-400-light", "attention", 400, "light", "h1", 1270, [".lines .rows li:nth-child(5) button"]),
    ("attention-400-dark", "attention", 400, "dark", "h1", 1330, ["[data-switch=Attention] input[value=cross]"]),
]  # fmt: skip


def shoot(driver: Any, page: Path, width: int, scheme: str, top: str, height: int, clicks: list[str]) -> bytes:
    """A part of a page as PNG, from the element that stands on top."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme_of_device = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", scheme_of_device)
    driver.get(page.as_uri())
    for selector in clicks:
        driver.find_element("css selector", selector).click()
    position = "document.querySelector(arguments[0]).getBoundingClientRect().top + scrollY"
    y = max(0.0, driver.execute_script(f"return {position}", top) - (60 if top == "h1" else 40))
    clip = {"x": 0, "y": y, "width": width, "height": height, "scale": 1}
    taken = driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
    return base64.b64decode(taken["data"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    runs = parser.parse_args().runs
    PICTURES.mkdir(exist_ok=True)
    nmtkit = [sys.executable, "-m", "nmtkit"]
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(argument)
    with tempfile.TemporaryDirectory() as folder:
        pages = {name: Path(folder) / f"{name}.html" for name in ("report", "attention")}
        subprocess.run([*nmtkit, "report", *runs, "--output", pages["report"]], check=True)
        of_sentence = [*nmtkit, "attention", runs[0], "--source", SOURCE]
        subprocess.run([*of_sentence, "--output", pages["attention"]], check=True)
        figure = PICTURES / "figure.svg"
        subprocess.run([*of_sentence, "--words", "--kind", "encoder", "--head", "1", "--output", figure], check=True)
        service = Service(shutil.which("chromedriver"))  # named, or selenium looks for one in the network
        with webdriver.Chrome(options=options, service=service) as driver:
            for name, page, *how in SHOTS:
                picture = Image.open(io.BytesIO(shoot(driver, pages[page], *how)))
                picture.convert("RGB").quantize(255).save(PICTURES / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
