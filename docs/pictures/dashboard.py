"""The picture of the dashboard in README.md and docs/demo.md: a job of a running server, as Chromium shows it.

    python docs/pictures/dashboard.py 'http://127.0.0.1:8000/#token=…' [--job NAME] [--out dashboard.png]

`spry up` and `spry status` print the address with its token; take the picture in the middle of a job.
"""

import argparse
import os
import shutil
from pathlib import Path
from urllib.parse import urlsplit

from PIL import Image
from playwright.sync_api import sync_playwright

SIZE = {"width": 1440, "height": 1620}
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("address")
    parser.add_argument("--job", default="", help="its name; the server's newest job when left out")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".png"))
    options = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE, color_scheme="light", reduced_motion="reduce")
        page.goto(options.address)
        if options.job:
            page.locator("#job-list").get_by_text(options.job, exact=True).click()
        page.locator("#chart-loss canvas").wait_for()
        page.wait_for_timeout(1000)  # charts are drawn when the window has been still
        page.screenshot(path=options.out)
        browser.close()
    Image.open(options.out).quantize(128).save(options.out, optimize=True)  # a third of the bytes
    print(f"{options.out}: {urlsplit(options.address).netloc}")


if __name__ == "__main__":
    main()
