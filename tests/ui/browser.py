"""A headless Chromium, and the base of all tests of the page."""

import atexit
import json
import os
import time
import unittest
from pathlib import Path
from urllib.parse import urlsplit

from selenium import webdriver
from selenium.common.exceptions import (
    ElementClickInterceptedException,
    ElementNotInteractableException,
    NoSuchElementException,
    StaleElementReferenceException,
    WebDriverException,
)
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By

import cluster
from proxy import ASSETS, Proxy

BINARY = os.environ.get("TENURE_BINARY", "target/debug/tenure")
WITHIN = 15  # seconds
WIDE = (1280, 800)
PHONE = (390, 844)
# These errors come before the click.
BEFORE_CLICK = (
    ElementClickInterceptedException,
    ElementNotInteractableException,
    NoSuchElementException,
    StaleElementReferenceException,
)

# Runs before the scripts of the page.
OBSERVER = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => window.violations.push(event.effectiveDirective));
"""

_shared = {}


def shared(key, make):
    """A cluster, proxy or browser that all tests use. The end of the program ends it."""
    if key not in _shared:
        one = make()
        atexit.register(one.stop if hasattr(one, "stop") else one.quit)
        _shared[key] = one
    return _shared[key]


def start_driver():
    options = webdriver.ChromeOptions()
    options.binary_location = os.environ.get("TENURE_CHROMIUM", "/usr/bin/chromium")
    for argument in ("--headless=new", "--disable-dev-shm-usage", "--disable-background-networking", "--no-first-run"):
        options.add_argument(argument)
    options.add_argument("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # Chromium refuses its sandbox for root
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    options.accept_insecure_certs = True  # of the clusters with a CA of their own
    service = Service(os.environ.get("TENURE_CHROMEDRIVER", "/usr/bin/chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": OBSERVER})
    return driver


class PageTest(unittest.TestCase):
    """Opens the page, and checks after each test that no request has left its origin."""

    def setUp(self):
        self.driver = shared("driver", start_driver)
        self.driver.get("about:blank")
        self.driver.get_log("performance")
        self.driver.get_log("browser")
        self.size(*WIDE)
        self.origins = set()
        self.secrets = []

    def tearDown(self):
        if self.failed():
            folder = Path(os.environ.get("TENURE_UI_SCREENSHOTS", "."))
            self.driver.save_screenshot(str(folder / f"failed-{self.id().split('.')[-1]}.png"))
        self.check_requests()
        self.driver.get("about:blank")

    def failed(self):
        result = self._outcome.result
        return any(test is self for test, _ in result.failures + result.errors)

    def check_requests(self):
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        blocked = {
            message["params"]["requestId"]
            for message in messages
            if message["method"] == "Network.loadingFailed" and message["params"].get("blockedReason") == "csp"
        }
        sent = [message["params"] for message in messages if message["method"] == "Network.requestWillBeSent"]
        urls = [one["request"]["url"] for one in sent if one["requestId"] not in blocked]
        outside = [url for url in urls if "://" in url and f"{urlsplit(url).scheme}://{urlsplit(url).netloc}" not in self.origins]
        self.assertEqual(outside, [], "requests to other origins")
        self.assertGreater(len(urls), 5, "the log has the requests")
        for secret in self.secrets:
            self.assertFalse([url for url in urls if secret in url], "a URL has a token")

    def size(self, width, height):
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def open(self, url, fragment="", ready=True):
        parts = urlsplit(url)
        if os.environ.get("TENURE_UI_ASSETS") and not parts.path:
            url = shared(url, lambda: Proxy(url, assets=ASSETS)).url
            parts = urlsplit(url)
        self.origins.add(f"{parts.scheme}://{parts.netloc}")
        # Another fragment alone does not load the page again.
        self.driver.get("about:blank")
        self.driver.get(f"{url}/ui{fragment}")
        if ready:
            self.wait_text("#connection-text", "Live")

    def script(self, text, *arguments):
        return self.driver.execute_script(text, *arguments)

    def find(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def wait(self, condition, what, within=WITHIN, repeated=WebDriverException):
        until = time.monotonic() + within
        while True:
            try:
                value = condition()
                if value:
                    return value
            except repeated:
                pass
            if time.monotonic() > until:
                self.fail(f"not within {within} s: {what}")
            time.sleep(0.03)

    def text(self, selector):
        return self.script("return document.querySelector(arguments[0])?.textContent ?? ''", selector)

    def wait_text(self, selector, part, within=WITHIN):
        try:
            self.wait(lambda: part in self.text(selector), part, within)
        except AssertionError:
            self.fail(f"{selector} has {self.text(selector)[:300]!r}, expected {part!r} within {within} s")

    def wait_visible(self, selector):
        return self.wait(lambda: (one := self.find(selector)).is_displayed() and one, f"{selector} is visible")

    def click(self, selector):
        """Clicks on the first visible element and returns its label. The page can replace it between two commands."""

        def clicked():
            element = next((one for one in self.driver.find_elements(By.CSS_SELECTOR, selector) if one.is_displayed()), None)
            if element is None:
                return None
            label = element.get_attribute("aria-label") or "clicked"
            element.click()
            return label

        return self.wait(clicked, f"a click on {selector}", repeated=BEFORE_CLICK)

    def choose_leader(self):
        """Opens the dialog that makes a follower the leader. Returns the number of its node."""
        return int(self.click('button[aria-label^="Make node "]').split()[2])

    def keys(self, *keys):
        for key in keys:
            ActionChains(self.driver).send_keys(key).perform()

    def fill(self, selector, text):
        element = self.wait_visible(selector)
        element.clear()
        element.send_keys(text)

    def rows(self):
        """The visible rows as (name, state, holder), from top to bottom."""
        return [
            tuple(row)
            for row in self.script(
                """const line = (element) => [Number(element.getAttribute("aria-rowindex")), ...["name", "state .words", "holder", "left .text"]
                       .map((name) => element.querySelector(".cell." + name).textContent)];
                   return [...document.querySelectorAll(".rows .line:not([hidden])")].map(line)
                       .sort((one, other) => one[0] - other[0]).map((row) => row.slice(1));"""
            )
        ]

    def wait_row(self, name, state, within=WITHIN):
        self.wait(lambda: any(row[:2] == (name, state) for row in self.rows()), f"{name} is {state}", within)

    def press_chip(self, state):
        self.click(f'.chip[data-kind="{state}"]')


def three_nodes():
    return shared("three", lambda: cluster.Cluster(BINARY, 3))
