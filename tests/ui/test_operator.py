"""The detail view and the actions of an operator."""

import threading

from selenium.webdriver.common.keys import Keys

import cluster
from browser import PageTest, three_nodes


class Operator(PageTest):
    def setUp(self):
        super().setUp()
        self.url = three_nodes().leader().url

    def wait_in_queue(self, name, holder, **more):
        """Waits for a lease in the background, until the lease is granted."""
        claim = threading.Thread(target=cluster.acquire, args=(self.url, name, holder), kwargs={"wait_ms": 30_000, **more}, daemon=True)
        claim.start()
        path = f"/v1/leases/{name}/queue"
        self.wait(lambda: holder in [one["holder"] for one in cluster.request(self.url, "GET", path)["waiters"]], "the queue")
        self.addCleanup(claim.join, 10)

    def test_detail_shows_metadata_queue_history_and_standing(self):
        cluster.acquire(self.url, "detail", "worker-0")
        cluster.change(self.url, "DELETE", "/v1/leases/detail?reason=too+slow")
        cluster.acquire(self.url, "detail", "worker-1", metadata={"region": "north"})
        self.wait_in_queue("detail", "worker-2")
        self.open(self.url, "#lease/detail")
        self.wait_text("#summary", "Held by worker-1")
        self.wait_text("#detail dl", "north")
        self.wait_text('table[aria-label="Queue"]', "worker-2")
        self.wait_text('table[aria-label="History"]', "worker-0: too slow")
        for holder, standing in (
            ("worker-1", "has the lease since"),
            ("worker-2", "waits at position 1"),
            ("worker-0", "revoked: too slow"),
            ("other", "does not have the lease"),
        ):
            self.fill("#explain-holder", holder + Keys.ENTER)
            self.wait_text("#explanation", f"{holder} ")
            self.wait_text("#explanation", standing)
        cluster.change(self.url, "DELETE", "/v1/leases/detail")
        self.wait_text("#summary", "Held by worker-2")

    def test_holder_with_the_form_of_a_time_is_shown_as_it_is(self):
        self.open(self.url)
        for name, holder in (
            ("backup", "backup-2026-01-02T10:11:12Z"),
            ("probe", "probe 60000 ms"),
            ("nightly", "backup-2026-01-02T101112Z"),
        ):
            cluster.acquire(self.url, name, holder)
            self.script("location.hash = `#lease/${arguments[0]}`", name)
            self.wait_text("#summary", f"Held by {holder} since")
            self.assertRegex(self.text("#summary"), r"since \d+ \w+ \d{4}, [\d:]+, expires in \d+m")
        self.click("#revoke")
        self.fill("#reason", "too slow")
        self.click("dialog .danger")
        self.wait_text("#toast", "Revoked nightly: 1 holder lost it.")

    def test_revoke_sends_the_reason(self):
        cluster.acquire(self.url, "stuck", "worker-1")
        self.open(self.url, "#lease/stuck")
        self.click("#revoke")
        self.fill("#reason", "process hangs")
        self.click("dialog .danger")
        self.wait_text("#toast", "Revoked stuck: 1 holder lost it.")
        history = cluster.request(self.url, "GET", "/v1/leases/stuck/history")["transitions"]
        self.assertEqual((history[-1]["event"], history[-1]["reason"]), ("revoked", "process hangs"))
        self.wait_text("#timeline-list", "stuck revoked from worker-1: process hangs")
        self.assertFalse(self.find("dialog").is_displayed())

    def test_revoke_of_another_holder_needs_a_new_confirmation(self):
        cluster.acquire(self.url, "changed", "worker-1")
        self.open(self.url, "#lease/changed")
        self.click("#revoke")
        cluster.change(self.url, "DELETE", "/v1/leases/changed")
        cluster.acquire(self.url, "changed", "worker-2")
        self.click("dialog .danger")
        self.wait_text("dialog .error", "Now worker-2 has it.")
        self.assertEqual(cluster.request(self.url, "GET", "/v1/leases/changed")["state"], "active")

    def test_long_reason_is_refused_before_it_is_sent(self):
        cluster.acquire(self.url, "long", "worker-1")
        self.open(self.url, "#lease/long")
        self.click("#revoke")
        self.script("document.getElementById('reason').value = 'é'.repeat(251)")
        self.click("dialog .danger")
        self.wait_text("dialog .error", "more than 500 bytes")

    def test_hand_over_goes_to_the_chosen_waiter(self):
        cluster.acquire(self.url, "given", "worker-1")
        self.wait_in_queue("given", "worker-2")
        self.wait_in_queue("given", "worker-3")
        self.open(self.url, "#lease/given")
        self.click('button[aria-label="Hand over to worker-3"]')
        self.click("dialog .danger")
        self.wait_text("#toast", "Handed over given to worker-3.")
        self.wait_text("#summary", "Held by worker-3")
        cluster.change(self.url, "DELETE", "/v1/leases/given")

    def test_counted_lease_shows_each_holder_and_ends_for_all(self):
        for worker in (1, 2, 3):
            cluster.acquire(self.url, "counted", f"worker-{worker}", limit=3)
        self.wait_in_queue("counted", "worker-4", limit=3)
        self.open(self.url, "#lease/counted")
        for worker in (1, 2, 3):
            self.wait_text('table[aria-label="Holders"]', f"worker-{worker}")
        self.click('button[aria-label="Hand over the lease of worker-2"]')
        self.wait_text("dialog ul", "worker-2")
        self.click("dialog .danger")
        self.wait_text("#toast", "Handed over counted to worker-4.")
        self.wait_text('table[aria-label="Holders"]', "worker-4")
        self.assertNotIn("worker-2", self.text('table[aria-label="Holders"]'))
        self.click("#revoke")
        for worker in (1, 3, 4):
            self.wait_text("dialog ul", f"worker-{worker}")
        self.click("dialog .danger")
        self.wait_text("#toast", "Revoked counted: 3 holders lost it.")
        self.wait_text("#summary", "Free")

    def test_infinite_lease_never_expires(self):
        cluster.acquire(self.url, "0-infinite", "worker-1", "infinite")
        self.open(self.url, "#lease/0-infinite")
        self.wait_text("#detail dl", "infinite")
        self.wait_text("#detail dl", "never")
        cluster.change(self.url, "DELETE", "/v1/leases/0-infinite")
        self.wait_text("#summary", "Free")

    def test_transfer_makes_another_node_the_leader(self):
        self.open(self.url)
        target = self.choose_leader()
        self.click("dialog .primary")
        self.wait_text("#toast", f"Node {target} leads")
        self.wait_text("#leader", f"Node {target}")
        self.wait_text("#timeline-list", f"Node {target} leads in term")

    def test_keyboard_alone_opens_and_revokes_a_lease(self):
        cluster.acquire(self.url, "0-keyboard", "worker-1")
        self.open(self.url)
        self.wait_row("0-keyboard", "Active")
        self.keys(Keys.TAB)
        self.assertEqual(self.focused(), "Skip to the leases")
        self.keys(Keys.ENTER)
        self.wait(lambda: self.script("return document.activeElement.id") == "grid", "the table has the focus")
        self.keys(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.HOME)
        active = "return document.getElementById(document.getElementById('grid').getAttribute('aria-activedescendant'))"
        self.assertIn("0-keyboard", self.script(f"{active}.textContent"))
        self.keys(Keys.ENTER)
        self.wait_text("#summary", "Held by worker-1")
        self.assertEqual(self.focused(), "0-keyboard")
        self.keys(Keys.TAB, Keys.TAB)
        self.assertEqual(self.focused(), "Revoke…")
        outline = self.script("return getComputedStyle(document.activeElement).outlineStyle")
        self.assertEqual(outline, "solid", "the focus is visible")
        self.keys(Keys.ENTER)
        self.wait_visible("dialog")
        self.keys("no mouse", Keys.TAB, Keys.TAB)
        self.assertEqual(self.focused(), "Revoke")
        self.keys(Keys.ENTER)
        self.wait_text("#toast", "Revoked 0-keyboard")
        self.wait_text("#summary", "Free")
        self.assertEqual(self.script("return document.querySelector('#detail').contains(document.activeElement)"), True)
        self.keys(Keys.ESCAPE)
        self.wait(lambda: self.script("return document.activeElement.id") == "grid", "the table has the focus again")
        history = cluster.request(self.url, "GET", "/v1/leases/0-keyboard/history")["transitions"]
        self.assertEqual(history[-1]["reason"], "no mouse")

    def focused(self):
        return self.script("return document.activeElement.textContent").strip()
