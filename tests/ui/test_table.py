"""The table of leases: many of them, the filter, and live changes."""

import cluster
from browser import BINARY, PHONE, PageTest, shared
from tracing import Trace

MANY = 10_000
# The longest time for which a script may keep the browser from answering the user.
LONGEST_STALL_MS = 200


def node():
    """A cluster of one node: it has no elections, which would disturb the measurement."""
    return shared("one", lambda: cluster.Cluster(BINARY, 1)).nodes[0]


def setUpModule():
    names = [f"{kind}/{number:04}" for kind in ("billing", "cron", "jobs", "shards") for number in range(MANY // 4)]
    cluster.acquire_many(node().url, names, "worker-1", 3_600_000)


class Many(PageTest):
    def test_10000_leases_cause_no_long_stall(self):
        longest = self.use_the_page("a")
        if longest > LONGEST_STALL_MS:
            # The host of a virtual machine can take the processor, so a second run decides.
            longest = self.use_the_page("b")
        print(f"longest stall: {longest:.0f} ms", end=" ", flush=True)
        self.assertLessEqual(longest, LONGEST_STALL_MS)

    def use_the_page(self, part):
        """Returns the longest processor time of a task of the page in ms."""
        with Trace(self.driver) as trace:
            self.change_leases(part)
            longest = trace.longest_task()
        with Trace(self.driver) as trace:
            busy = "const end = performance.now() + 3000; while (performance.now() < end); window.wasBusy = true;"
            self.script(f"setTimeout(() => {{ {busy} }})")
            self.wait(lambda: self.script("return window.wasBusy"), "the page is busy", within=40)
            self.assertGreater(trace.longest_task(), 100, "the measurement sees a busy page")
        return longest

    def change_leases(self, part):
        url = node().url
        self.open(url)
        self.wait(lambda: self.count() >= MANY and "…" not in self.text("#count"), "all leases are read")
        before = self.count()
        self.assertLess(len(self.rows()), 60, "only the rows on the screen have elements")
        for step in range(1, 21):
            self.script("const grid = document.getElementById('grid'); grid.scrollTop = grid.scrollHeight * arguments[0]", step / 20)
        self.wait(lambda: self.rows()[-1][0] == "shards/2499", "the last row is on the screen")
        self.assertLess(len(self.rows()), 60)
        self.click(".head .left button")
        burst = [f"burst-{part}/{number:03}" for number in range(500)]
        cluster.acquire_many(url, burst, "worker-2", 600_000)
        self.wait(lambda: self.count() == before + 500, "500 more leases")
        for name in burst[::5]:
            cluster.request(url, "DELETE", f"/v1/leases/{name.replace('/', '%2F')}")
        self.wait(lambda: self.count() == before + 400, "100 leases are revoked")
        for name in burst:
            cluster.request(url, "DELETE", f"/v1/leases/{name.replace('/', '%2F')}")

    def count(self):
        return int(self.text("#count").split(" of ")[0].replace(",", "") or 0)


class Filter(PageTest):
    def test_filter_selects_by_prefix_holder_and_state(self):
        url = node().url
        cluster.acquire(url, "filter/a", "Host-One")
        cluster.acquire(url, "filter/b", "host-two")
        cluster.acquire(url, "filter/c", "host-two")
        cluster.request(url, "DELETE", "/v1/leases/filter%2Fc")
        self.open(url)
        self.fill("#prefix", "filter/")
        self.wait(lambda: [row[0] for row in self.rows()] == ["filter/a", "filter/b"], "the prefix selects two")
        self.press_chip("revoked")
        self.wait(lambda: [row[1] for row in self.rows()] == ["Active", "Active", "Revoked"], "and the revoked one")
        self.fill("#holder", "host-one")
        self.wait(lambda: [row[0] for row in self.rows()] == ["filter/a"], "the holder selects one")
        self.fill("#holder", "nothing")
        self.wait_text("#empty", "No lease matches the filter.")
        self.wait_text("#said", "0 of 0")


class Timeline(PageTest):
    def test_burst_of_lease_events_leaves_the_changes_of_the_leader(self):
        url = node().url
        self.open(url)
        # Earlier lease events can push this entry out of the list of all kinds.
        self.choose("cluster")
        self.wait_text("#timeline-list", "Node 1 leads in term")
        self.choose("all")
        cluster.acquire_many(url, [f"kinds/{number:03}" for number in range(600)], "worker-3", 600_000)
        self.wait_text("#timeline-list", "granted to worker-3")
        self.choose("leases")
        self.wait(lambda: self.count("granted to worker-3") > 400 and self.count("") == 500, "500 lease events")
        self.choose("cluster")
        self.assertEqual(self.count("granted to"), 0)
        self.assertGreaterEqual(self.count("Node 1 leads in term"), 1)

    def choose(self, kind):
        choose = """const choice = document.getElementById("timeline-choice");
                    choice.value = arguments[0];
                    choice.dispatchEvent(new Event("change"));"""
        self.script(choose, kind)

    def count(self, part):
        items = "return [...document.querySelectorAll('#timeline-list li')].filter((item) => item.textContent.includes(arguments[0])).length"
        return self.script(items, part)


def seconds(text):
    """The seconds of a text such as 57s, and 0 for other texts."""
    return int(text.removesuffix("s")) if text.removesuffix("s").isdigit() else 0


class Live(PageTest):
    def setUp(self):
        super().setUp()
        self.url = node().url
        self.open(self.url)
        self.fill("#prefix", "live/")
        for state in ("expired", "released", "handed_over", "revoked"):
            self.press_chip(state)

    def test_grant_expiry_and_release_appear_without_a_reload(self):
        self.wait(lambda: "…" not in self.text("#count"), "the list is read")
        self.driver.execute_cdp_cmd("Network.enable", {})
        # Only events can tell about these leases.
        self.driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["*/v1/leases?*"]})
        self.addCleanup(self.driver.execute_cdp_cmd, "Network.setBlockedURLs", {"urls": []})
        lease = cluster.acquire(self.url, "live/a", "worker-1")
        self.wait_row("live/a", "Active")
        body = {"holder": "worker-1", "token": lease["token"]}
        cluster.request(self.url, "POST", "/v1/leases/live%2Fa/release", body)
        self.wait_row("live/a", "Released")
        cluster.acquire(self.url, "live/b", "worker-1", ttl_ms=10_000)
        self.wait_row("live/b", "Active")
        self.wait_row("live/b", "Expired", within=40)
        self.wait_text("#timeline-list", "live/b expired, held by worker-1")

    def test_time_left_counts_down_and_follows_a_renewal(self):
        lease = cluster.acquire(self.url, "live/renewed", "worker-1", ttl_ms=60_000)
        left = lambda: next((row[3] for row in self.rows() if row[0] == "live/renewed"), "")
        first = self.wait(lambda: seconds(left()), "the time is shown")
        self.wait(lambda: 0 < seconds(left()) < first, "the time counts down")
        body = {"holder": "worker-1", "token": lease["token"], "ttl_ms": 3_600_000}
        cluster.request(self.url, "POST", "/v1/leases/live%2Frenewed/renew", body)
        self.wait(lambda: left().startswith("59m"), "the page reads the renewed lease")

    def test_phone_shows_one_view_without_sideways_scrolling(self):
        cluster.acquire(self.url, f"live/{'long-name.' * 18}", "h" * 200)
        self.size(*PHONE)
        for view in ("leases", "nodes", "timeline"):
            self.click(f'nav a[href="#{view}"]')
            self.wait_visible(f"#{view}")
            hidden = [other for other in ("leases", "nodes", "timeline") if other != view]
            self.assertFalse(any(self.find(f"#{other}").is_displayed() for other in hidden), view)
            width = self.script("return document.documentElement.scrollWidth")
            self.assertLessEqual(width, PHONE[0], view)
