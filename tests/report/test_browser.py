"""The page in a real browser: it renders, in light and dark, and names no address."""

import shutil
import subprocess

import matplotlib.image
import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--disable-dev-shm-usage",
]

pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="no chromium, chromium-browser or google-chrome on this machine"
)


def browse(profile, page, *flags: str) -> str:
    done = subprocess.run(
        [BROWSER, *FLAGS, f"--user-data-dir={profile}", *flags, page.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout


def test_the_page_opens_with_every_section_and_every_plot(full_run, tmp_path):
    page = browse(tmp_path / "profile", full_run / "index.html", "--dump-dom")
    for section in ("verdict", "pins", "training", "families", "sandbox", "failures", "configuration"):
        assert f'id="{section}"' in page
    assert page.count("<svg") == 10
    assert "Training improved the policy" in page
    assert "://" not in page


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_drawn_in_the_reader_s_colours(full_run, tmp_path, scheme):
    shot = tmp_path / "page.png"
    preferred = f"--blink-settings=preferredColorScheme={int(scheme == 'light')}"
    browse(tmp_path / "profile", full_run / "index.html", preferred, "--window-size=1280,900", f"--screenshot={shot}")
    pixels = matplotlib.image.imread(shot)[:, :, :3]
    assert pixels.shape[:2] == (900, 1280)
    paper = pixels[5, 5].mean()
    assert paper > 0.9 if scheme == "light" else paper < 0.2
    ink = abs(pixels.mean(axis=2) - paper) > 0.3
    assert 0.01 < ink.mean() < 0.5  # text on paper: neither blank nor drowned
