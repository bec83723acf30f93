"""The page in a real browser: type on the left, and the translation appears on the right, with no other host asked."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from nmtkit.decoding.request import Translation, TranslationRequest
from tests.serving.conftest import LIMITS, Server, Shouting, serving, serving_engine, wait_until


class Reversing(Shouting):
    """An engine that reverses the words of each line and writes them in capitals; further translations get a number."""

    def translations(self, lines: Any, request: TranslationRequest, **options: Any) -> list[list[Translation]]:
        super().translations(lines, request, **options)
        return [[self._reversed(line, rank, request) for rank in range(request.n_best)] for line in lines]

    def _reversed(self, line: str, rank: int, request: TranslationRequest) -> Translation:
        words = line.split()
        text = " ".join([word.upper() for word in reversed(words)] + [str(rank + 1)] * (rank > 0))
        if not request.attention:
            return Translation(text)
        pieces = tuple(f"\u2581{word}" for word in text.split())
        alignment = tuple(range(len(words) - 1, -1, -1)) + (0,) * (rank > 0)
        return Translation(text, pieces=pieces, alignment=alignment, source_pieces=tuple(f"\u2581{w}" for w in words))


@pytest.fixture(scope="module")
def engine() -> Reversing:
    return Reversing()


@pytest.fixture(scope="module")
def server(engine: Reversing) -> Iterator[Server]:
    pairs = (("en", "de"), ("de", "en"), ("en", "fr"), ("en", "eng_Latn"), ("fr", "en"))
    with serving(lambda: dict.fromkeys(pairs, (engine, TranslationRequest()))) as running:
        yield running


class Page:
    """A page in the browser."""

    def __init__(
        self, browser: Any, server: Server, path: str = "/", *, width: int = 1300, scheme: str = "light"
    ) -> None:
        self.browser = browser
        browser.get_log("performance"), browser.get_log("browser")  # those of the page before
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        self.url = f"http://127.0.0.1:{server.port}{path}"
        browser.get(self.url)

    def element(self, selector: str) -> Any:
        return self.browser.find_element("css selector", selector)

    def script(self, code: str, *arguments: Any) -> Any:
        return self.browser.execute_script(f"return {code}", *arguments)

    def text(self, selector: str) -> str:
        return str(self.script("document.querySelector(arguments[0]).textContent", selector))

    def texts(self, selector: str) -> list[str]:
        code = "[...document.querySelectorAll(arguments[0])].map(each => each.textContent)"
        found: list[str] = self.script(code, selector)
        return found

    def type(self, text: str) -> None:
        self.element("#text").send_keys(text)

    def put(self, text: str) -> None:
        """Enters a whole text at once."""
        self.script("(text.value = arguments[0], text.dispatchEvent(new Event('input')))", text)

    def choose(self, selector: str, value: str) -> None:
        self.element(f"{selector} option[value='{value}']").click()

    def wait_for(self, selector: str, text: str) -> None:
        wait_until(lambda: self.text(selector) == text)

    def press(self, *keys: str) -> None:
        from selenium.webdriver.common.action_chains import ActionChains

        chain = ActionChains(self.browser)
        for key in keys:
            chain = chain.send_keys(key)
        chain.perform()

    def hover(self, element: Any) -> None:
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.browser).move_to_element(element).perform()

    def console(self) -> list[Any]:
        """Messages of the browser: errors, warnings, violations of the policy."""
        return [entry for entry in self.browser.get_log("browser") if entry["level"] != "DEBUG"]

    def requested(self) -> set[str]:
        """The addresses of all requests since the page was opened."""
        messages = [json.loads(entry["message"])["message"] for entry in self.browser.get_log("performance")]
        sent = [entry for entry in messages if entry["method"] == "Network.requestWillBeSent"]
        return {entry["params"]["request"]["url"] for entry in sent}


@pytest.fixture
def page(browser: Any, server: Server) -> Page:
    return Page(browser, server)


def test_what_is_typed_on_the_left_is_translated_on_the_right(page: Page, engine: Reversing) -> None:
    engine.calls.clear()
    page.type("the dog sleeps\n\nhere")
    page.wait_for("#output", "SLEEPS DOG THE\n\nHERE")
    assert len(engine.calls) < len("the dog sleeps\n\nhere") / 2  # not at every key
    left, right = (page.element(selector).rect for selector in ("#text", "#output"))
    assert left["x"] + left["width"] <= right["x"]
    assert abs(left["y"] - right["y"]) < 2
    page.element("#text").clear()
    page.type("x")
    page.wait_for("#output", "X")
    page.press("\ue003")
    page.wait_for("#output", "")
    assert page.text("#status") == ""
    assert page.console() == []
    origin = page.url.removesuffix("/")
    assert page.requested() - {f"{origin}/favicon.ico"} == {f"{origin}/", f"{origin}/translate"}


def test_several_translations_are_listed(page: Page) -> None:
    assert page.texts("#count option") == ["1", "2", "3", "4"]  # as many as the beam
    page.type("the dog")
    page.wait_for("#output", "DOG THE")
    assert page.texts("#others li") == []
    page.choose("#count", "3")
    wait_until(lambda: page.texts("#others li") == ["DOG THE 2", "DOG THE 3"])
    assert page.text("#output") == "DOG THE"


def test_pointing_at_a_word_shows_where_it_comes_from(page: Page) -> None:
    page.type("the 😀 dog, sees\na cat")
    page.wait_for("#output", "SEES DOG, 😀 THE\nCAT A")
    words = {element.text: element for element in page.browser.find_elements("css selector", "#output span")}
    for word, source in (("SEES", "sees"), ("DOG", "dog,"), ("THE", "the"), ("CAT", "cat"), ("A", "a")):
        page.hover(words[word])
        assert "".join(page.texts("#backdrop mark")) == source
        assert word in page.texts("#output .marked")
        mark, text = page.element("#backdrop mark").rect, page.element("#text").rect
        assert text["x"] < mark["x"] < text["x"] + text["width"] / 2
    assert page.text("#backdrop") == "the 😀 dog, sees\na cat\n"
    page.hover(page.element("h1"))
    assert page.texts("mark") == page.texts(".marked") == []
    # And the other way: the word at the cursor is marked in the translation.
    page.script("document.getElementById('text').setSelectionRange(8, 8)")  # in "dog"; the sign before takes two units
    wait_until(lambda: "".join(page.texts("#output .marked")) == "DOG,")


def test_the_arrow_keys_go_through_the_translation_and_say_where_each_word_comes_from(page: Page) -> None:
    page.type("the old dog")
    page.wait_for("#output", "DOG OLD THE")
    page.press("\ue004")  # Tab
    assert page.script("document.activeElement.id") == "output"
    told = []
    for key in ("\ue014", "\ue014", "\ue014", "\ue014", "\ue012"):  # right, right, right, right, left
        page.press(key)
        told.append((page.text("#status"), "".join(page.texts("mark"))))
    assert told == [
        ("DOG: dog", "dog"),
        ("OLD: old", "old"),
        ("THE: the", "the"),
        ("DOG: dog", "dog"),
        ("THE: the", "the"),
    ]
    assert page.element("#status").get_attribute("role") == "status"


def test_everything_can_be_reached_by_keyboard_and_has_a_name(page: Page) -> None:
    page.type("the dog")
    page.wait_for("#output", "DOG THE")
    reached = []
    for _ in range(10):
        page.press("\ue004")
        focused = page.script("(e => e.id || e.name || e.textContent)(document.activeElement)")
        if focused in reached:
            break
        reached.append(focused)
        if page.script("document.activeElement !== document.body"):
            seen = "(e => getComputedStyle(e.matches('input') ? e.nextElementSibling : e).outlineStyle)"
            assert page.script(f"{seen}(document.activeElement)") == "solid"
    assert {"source", "swap", "target", "count", "output", "theme", "API"} <= set(reached)
    tree = page.browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    roles = {"textbox", "combobox", "button", "radio", "link", "group", "list"}
    named = [(node["role"]["value"], node["name"]["value"]) for node in tree
             if node["role"]["value"] in roles and not node["ignored"]]  # fmt: skip
    assert all(name for _, name in named)
    assert {("textbox", "Text"), ("combobox", "From"), ("combobox", "To"), ("combobox", "Translations"),
            ("button", "Swap the languages"), ("radio", "dark"), ("link", "API")} <= set(named)  # fmt: skip
    assert any(role == "group" and name.startswith("Translation ") for role, name in named)
    assert (
        page.element("#output").get_attribute("aria-live")
        == page.element("#others").get_attribute("aria-live")
        == "polite"
    )
    assert page.element("html").get_attribute("lang") == "en"
    assert [page.element(each).get_attribute("lang") for each in ("#text", "#output")] == ["en", "de"]


def test_the_languages_are_those_of_the_server_and_can_be_swapped(page: Page) -> None:
    assert page.texts("#source option") == ["English", "German", "French"]
    assert page.texts("#target option") == ["German", "French", "eng_Latn"]
    page.type("the dog")
    page.wait_for("#output", "DOG THE")
    page.element("#swap").click()
    page.wait_for("#output", "THE DOG")
    assert page.script("[source.value, target.value, text.value]") == ["de", "en", "DOG THE"]
    page.choose("#source", "fr")
    page.element("#swap").click()
    assert page.script("[source.value, target.value]") == ["en", "fr"]
    page.choose("#target", "eng_Latn")
    assert page.script("swap.disabled")


def test_the_characters_left_are_counted_and_too_many_are_not_sent(page: Page, engine: Reversing) -> None:
    page.wait_for("#left", f"{LIMITS.characters} characters left")
    page.type("😀 dog")
    page.wait_for("#left", f"{LIMITS.characters - 5} characters left")
    page.wait_for("#output", "DOG 😀")
    engine.calls.clear()
    page.script(
        "(text.value = 'x'.repeat(arguments[0]), text.dispatchEvent(new Event('input')))", LIMITS.characters + 2
    )
    page.wait_for("#left", "2 characters too many")
    time.sleep(0.5)
    assert engine.calls == []
    page.put("x" * LIMITS.characters)
    page.wait_for("#left", "0 characters left")
    page.wait_for("#output", "X" * LIMITS.characters)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_are_those_of_the_system_or_as_chosen(browser: Any, server: Server, scheme: str) -> None:
    page = Page(browser, server, scheme=scheme)

    def brightness() -> int:
        red, green, blue = page.script("getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).map(Number)")
        return int(red + green + blue)

    assert (brightness() > 600) == (scheme == "light")
    for chosen in ("dark", "light"):
        page.element(f".theme input[value='{chosen}']").click()
        assert (brightness() > 600) == (chosen == "light")
        text, output = (
            page.script(f"getComputedStyle(document.getElementById('{each}')).color") for each in ("text", "output")
        )
        assert text == output


@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("path", ["/", "/docs"])
def test_pages_fit_the_screen_without_errors_or_requests_elsewhere(
    browser: Any, server: Server, width: int, path: str
) -> None:
    page = Page(browser, server, path, width=width)
    if path == "/":
        page.type("word " * 100 + "x" * 300)
        wait_until(lambda: page.text("#output").startswith("X" * 300))
        assert page.script("text.scrollHeight <= text.clientHeight + 2")  # it grows with its content
    assert page.script("[innerWidth, document.documentElement.scrollWidth <= innerWidth]") == [width, True]
    assert page.console() == []
    assert {url.split("/")[2] for url in page.requested()} == {page.url.split("/")[2]}


def test_text_is_never_markup(page: Page) -> None:
    hostile = "<img src=x onerror=\"document.title='taken'\"> </script><script>document.title='taken'</script>"
    hostile += " &amp; \u202e x"
    page.choose("#count", "2")
    page.put(hostile)
    expected = " ".join(word.upper() for word in reversed(hostile.split()))
    page.wait_for("#output", expected)
    assert page.texts("#others li") == [f"{expected} 2"]
    page.hover(page.element("#output span"))
    assert page.browser.title == "nmtkit"
    assert page.browser.find_elements("css selector", "img") == []
    assert page.console() == []


def test_a_new_text_ends_the_request_for_the_old_one(page: Page, engine: Reversing, server: Server) -> None:
    engine.calls.clear()
    engine.gate.clear()
    try:
        page.type("old")
        wait_until(lambda: engine.calls == [["old"]])
        assert page.element("#output").get_attribute("aria-busy") == "true"
        page.type(" new")
        wait_until(lambda: engine.calls == [["old"], ["old new"]])  # the engine left the old one, its gate closed
    finally:
        engine.gate.set()
    page.wait_for("#output", "NEW OLD")
    assert page.text("#status") == ""


def test_faults_are_shown_and_a_busy_server_is_tried_again(browser: Any) -> None:
    engine = Reversing()
    with serving_engine(engine, waiting=1, keys=["0123456789abcdef", "schlüssel-der-zweite"]) as server:
        page = Page(browser, server)
        page.type("the dog")
        page.wait_for("#status", "a valid API key is needed")
        page.element("#key").send_keys("schlüssel-der-zweite")
        page.wait_for("#output", "DOG THE")
        assert page.text("#status") == ""
        engine.gate.clear()

        def occupy() -> None:
            server.post("other", beam=2, api_key="0123456789abcdef")

        def wait_behind() -> None:
            wait_until(lambda: ["other"] in engine.calls)
            server.post("other", beam=3, api_key="0123456789abcdef")

        def type_more() -> None:
            wait_until(lambda: ["other"] in engine.calls and _waiting(server) == 1)
            page.type(" sees")
            page.wait_for("#status", "too many requests are waiting; try again later")
            engine.gate.set()

        server.together([occupy, wait_behind, type_more])
        page.wait_for("#output", "SEES DOG THE")
        assert page.text("#status") == ""
    page.type(" more")
    page.wait_for("#status", "The server does not answer.")


def _waiting(server: Server) -> float:
    metrics = server.get("/metrics", Authorization="Bearer 0123456789abcdef").body.decode()
    return float(metrics.split("\nnmtkit_waiting_requests ")[1].split("\n")[0])
