"""The pages in a real browser, without a network: they draw, their switches work, and no text of others acts."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from nmtkit.json_toml import read_json_lines
from nmtkit.reports.run_facts import read_run
from nmtkit.reports.run_page import report_page

WIDTHS = (400, 1400)


@pytest.fixture(scope="module")
def report(browser: Any, finished: Path, finished_otherwise: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = [finished, finished_otherwise]
    page = tmp_path_factory.mktemp("page") / "report.html"
    page.write_text(report_page([read_run(run, runs) for run in runs]), encoding="utf-8")
    return page


def show(browser: Any, page: Path, *, width: int = 1400, scheme: str = "light") -> None:
    browser.get_log("performance"), browser.get_log("browser")  # those of the page before
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    browser.get(page.as_uri())


def click(browser: Any, selector: str) -> None:
    """A real click, as a person's: the element must be there, be seen and not be covered."""
    element = browser.find_element("css selector", selector)
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    element.click()


def drawn(browser: Any) -> dict[str, list[dict[str, Any]]]:
    """The lines of each picture: run, key, and the positions of their points in the picture."""
    found: dict[str, list[dict[str, Any]]] = browser.execute_script(
        "return Object.fromEntries([...document.querySelectorAll('.curve')].map(place => [place.id,"
        "[...place.querySelectorAll('g')].map(line => ({run: Number(line.dataset.run), key: line.dataset.key, "
        "points: [...line.querySelectorAll('circle')].map(point => "
        "[Number(point.getAttribute('cx')), Number(point.getAttribute('cy'))])}))]))"
    )
    return found


def assert_in_proportion(places: list[float], numbers: list[float], *, log: bool = False) -> None:
    """Assert that positions are numbers on a scale from some number to another."""
    values = [math.log10(number) if log else number for number in numbers]
    low, high = values.index(min(values)), values.index(max(values))
    spread = values[high] - values[low] or 1.0
    for place, value in zip(places, values, strict=True):
        share = (value - values[low]) / spread
        assert place == pytest.approx(places[low] + share * (places[high] - places[low]), abs=0.01)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_page_draws_without_errors_requests_or_overflow(browser: Any, report: Path, width: int) -> None:
    show(browser, report, width=width)
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = [entry["params"]["request"]["url"] for entry in messages if entry["method"] == "Network.requestWillBeSent"]
    assert urls
    assert {url for url in urls if not url.startswith("data:")} == {report.as_uri()}
    assert browser.get_log("browser") == []
    assert browser.title.startswith("nmtkit: ")  # hostile text would have changed it
    assert browser.execute_script("return [innerWidth, document.documentElement.scrollWidth <= innerWidth]") == [
        width,
        True,
    ]


def test_curves_show_the_numbers_of_the_runs(
    browser: Any, report: Path, finished: Path, finished_otherwise: Path
) -> None:
    show(browser, report)
    lines = [read_json_lines(run / "metrics.jsonl") for run in (finished, finished_otherwise)]

    def check(over: str, *, runs: set[int], log: bool) -> None:
        pictures = drawn(browser)
        assert len(pictures) == 7
        for name, picture in pictures.items():
            is_zero = name == "curve-bleu" and not any(of_line.get("valid_bleu") for of_line in lines[0] + lines[1])
            assert {line["run"] for line in picture} == (set() if log and is_zero else runs)
            for line in picture:
                known = [of_line for of_line in lines[line["run"]] if of_line.get(line["key"]) is not None]
                known = [of_line for of_line in known if not log or of_line[line["key"]] > 0]
                assert_in_proportion([x for x, _ in line["points"]], [of_line[over] for of_line in known])
                heights = [of_line[line["key"]] for of_line in known]
                assert_in_proportion([y for _, y in line["points"]], heights, log=log)
                ordered = [y for _, y in sorted(zip(heights, (y for _, y in line["points"]), strict=True))]
                assert ordered == sorted(ordered, reverse=True), "what is more is drawn higher up"

    check("step", runs={0, 1}, log=False)
    click(browser, "input[name=over][value=tokens]")
    click(browser, "input[name=runs][value='1']")
    click(browser, "input[name=log]")
    check("target_tokens", runs={0}, log=True)


def test_a_curve_shows_its_numbers_below_the_pointer(browser: Any, report: Path, finished: Path) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    show(browser, report)
    picture = browser.find_element("css selector", "#curve-loss svg")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", picture)
    ActionChains(browser).move_to_element_with_offset(picture, -picture.size["width"] // 2 + 60, 0).perform()
    first = read_json_lines(finished / "metrics.jsonl")[0]
    tip = browser.find_element("css selector", "#curve-loss .tip").text
    assert f"{finished.name} {first['loss']:.4g} at {first['step']}" in tip.split("\n")


def test_translations_of_each_validation_can_be_chosen(browser: Any, report: Path, finished: Path) -> None:
    show(browser, report)
    numbers = [number for number, line in enumerate(read_json_lines(finished / "metrics.jsonl"), start=1)
               if line.get("valid_nll") is not None]  # fmt: skip
    assert len(numbers) == 2

    def seen() -> list[str]:
        shown: list[str] = browser.execute_script(
            "return [...document.querySelector('.samples').querySelectorAll('[data-validation]')]"
            ".filter(one => one.checkVisibility()).map(one => one.dataset.validation)"
        )
        return shown

    assert seen() == [str(numbers[1])]
    click(browser, f"input[name=validation-0][value='{numbers[0]}']")
    assert seen() == [str(numbers[0])]
    click(browser, "input[name=validation-0][value=all]")
    assert seen() == [str(number) for number in numbers]


def test_colours_follow_the_device_and_the_switch(browser: Any, report: Path) -> None:
    def ground() -> str:
        colour: str = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        return colour

    show(browser, report, scheme="light")
    light = ground()
    show(browser, report, scheme="dark")
    dark = ground()
    assert (light, dark) == ("rgb(255, 255, 255)", "rgb(13, 17, 23)")
    click(browser, "input[name=theme][value=light]")
    assert ground() == light
    click(browser, "input[name=theme][value=dark]")
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "light"}]}
    )
    assert ground() == dark
    text = browser.execute_script("return getComputedStyle(document.querySelector('.curve text')).fill")
    assert text == "rgb(145, 152, 161)"


class TestAttention:
    """The interactive picture of attention, by mouse and by keys."""

    def data(self, browser: Any) -> dict[str, Any]:
        found: dict[str, Any] = browser.execute_script(
            "return JSON.parse(document.getElementById('attention-0').textContent)"
        )
        return found

    def opacities(self, browser: Any) -> list[list[float]]:
        """Row, column and strength of each line that is seen."""
        found: list[list[float]] = browser.execute_script(
            "return [...document.querySelector('.attention').querySelectorAll('line')].filter(line => "
            "line.style.display !== 'none').map(line => [Number(line.dataset.row), Number(line.dataset.column), "
            "Number(line.getAttribute('stroke-opacity'))])"
        )
        return found

    def expected(self, weights: list[list[list[int]]], heads: list[int]) -> list[list[float]]:
        return [
            [row, column, weight / 10000]
            for head in heads
            for row, columns in enumerate(weights[head])
            for column, weight in enumerate(columns)
            if weight >= 100
        ]

    def test_lines_are_the_weights_of_what_is_chosen(self, browser: Any, report: Path) -> None:
        show(browser, report)
        data = self.data(browser)
        assert self.opacities(browser) == self.expected(data["words"]["cross"]["weights"][0], [0, 1])
        click(browser, ".attention [data-switch=Attention] input[value=encoder]")
        click(browser, ".attention [data-switch=Tokens] input[value=pieces]")
        click(browser, ".attention [data-switch=Heads] input[value='0']")
        assert self.opacities(browser) == self.expected(data["pieces"]["encoder"]["weights"][0], [1])
        names = browser.execute_script(
            "return [...document.querySelectorAll('.attention .rows')][0].innerText.split('\\n')"
        )
        assert [name.strip() for name in names] == [row.strip() for row in data["pieces"]["encoder"]["rows"]]

    def test_the_matrix_is_the_mean_of_the_heads(self, browser: Any, report: Path) -> None:
        show(browser, report, width=400)
        click(browser, ".attention [data-switch=View] input[value=matrix]")
        cells = browser.execute_script(
            "return [...document.querySelector('.matrix').querySelectorAll('tbody tr')].map(row => "
            "[...row.querySelectorAll('td')].map(cell => Number(cell.textContent)))"
        )
        first, second = self.data(browser)["words"]["cross"]["weights"][0]
        assert len(cells) == len(first)
        for shown, *rows in zip(cells, first, second, strict=True):
            assert shown == [pytest.approx(sum(pair) / 200, abs=0.51) for pair in zip(*rows, strict=True)]
        assert browser.execute_script("return document.documentElement.scrollWidth") == 400

    def test_a_token_shows_its_lines_alone_by_mouse_and_by_keys(self, browser: Any, report: Path) -> None:
        from selenium.webdriver.common.keys import Keys

        show(browser, report)
        every = self.opacities(browser)
        click(browser, ".attention [data-switch=View] input[value=lines]")  # focus goes there
        for _ in range(4):  # past the tokens' switch to the first token
            browser.switch_to.active_element.send_keys(Keys.TAB)
            if browser.switch_to.active_element.get_attribute("data-side"):
                break
        chosen = browser.switch_to.active_element
        assert chosen.get_attribute("data-side") == "rows"
        row = int(chosen.get_attribute("data-index"))
        assert self.opacities(browser) == [line for line in every if line[0] == row]
        chosen.send_keys(Keys.ENTER)
        assert chosen.get_attribute("aria-pressed") == "true"
        said = browser.find_element("css selector", ".attention .said").text
        first, second = self.data(browser)["words"]["cross"]["weights"][0]
        strongest = max(sum(pair) / 2 for pair in zip(first[row], second[row], strict=True))
        assert f" {strongest / 100:.1f} %" in said or f" {strongest / 100 + 0.05:.1f} %" in said
        outline = browser.execute_script("return getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid"
        chosen.send_keys(Keys.ESCAPE)
        assert self.opacities(browser) == every


def test_a_report_of_a_run_that_has_hardly_begun_draws(browser: Any, copy: Path, tmp_path: Path) -> None:
    for name in ("averaged", "checkpoints", "resume", "translations"):
        shutil.rmtree(copy / name)
    for name in ("metrics.jsonl", "scores.json", "cost.json"):
        (copy / name).unlink()
    (tmp_path / "report.html").write_text(report_page([read_run(copy)]), encoding="utf-8")
    show(browser, tmp_path / "report.html", width=400)
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.documentElement.scrollWidth") == 400
