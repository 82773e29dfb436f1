"""A node that hangs, has no leader or sends no events, and a browser with a wrong clock."""

import threading
import time

import cluster
from browser import PageTest, three_nodes
from proxy import NO_LEADER, Intercepted, answer, refuse


class Outages(PageTest):
    def setUp(self):
        super().setUp()
        self.upstream = three_nodes().leader().url
        self.answers = lambda handler, path: False
        self.release = threading.Event()
        self.addCleanup(self.release.set)
        proxy = Intercepted(self.upstream, lambda handler, path: self.answers(handler, path))
        self.addCleanup(proxy.stop)
        self.url = proxy.url

    def kind(self):
        return self.script("return document.getElementById('connection').dataset.kind")

    def test_hung_node_looks_disconnected(self):
        self.open(self.url)
        self.wait_text("#own-node", "is ready")
        self.answers = lambda handler, path: path.startswith("/v1/cluster") and self.release.wait(60)
        self.wait_text("#connection-text", "Disconnected", within=12)
        self.wait_text("#own-node", "These values are")
        self.assertNotIn("is ready", self.text("#own-node"))
        self.assertEqual(self.script("return document.getElementById('nodes').className"), "old")
        self.answers = lambda handler, path: False
        self.wait_text("#connection-text", "Live")
        self.assertEqual(self.script("return document.getElementById('nodes').className"), "")

    def test_old_list_is_not_live(self):
        cluster.acquire(self.upstream, "0-old", "worker-1")
        self.open(self.url, "#lease/0-old")
        self.wait_row("0-old", "Active")
        self.wait_text("#summary", "Held by worker-1")
        is_current_list = lambda path: path.startswith("/v1/leases?") and "stale" not in path
        self.answers = lambda handler, path: is_current_list(path) and refuse(handler, NO_LEADER)
        self.wait_text("#connection-text", "State ")
        self.assertEqual(self.kind(), "bad")
        # The open lease is current. That must not hide the age of the list.
        until = time.monotonic() + 3
        while time.monotonic() < until:
            self.assertNotIn("Live", self.text("#connection-text"))
            time.sleep(0.1)
        self.answers = lambda handler, path: False
        self.wait_text("#connection-text", "Live")

    def test_leases_are_read_without_a_watch(self):
        cluster.acquire(self.upstream, "watchless/a", "worker-1")
        refusals = [{"title": "Compacted", "status": 410, "detail": "compacted", "code": "compacted"}]
        busy = {"title": "Too busy", "status": 429, "detail": "all watches are in use", "code": "too_busy"}

        def take(handler, path):
            return path.startswith("/v1/watch") and refuse(handler, refusals.pop() if refusals else busy)

        self.answers = take
        self.open(self.url, ready=False)
        self.fill("#prefix", "watchless/")
        self.wait_row("watchless/a", "Active")
        self.wait_text("#banner", "no events arrive: all watches are in use.")
        cluster.change(self.upstream, "DELETE", "/v1/leases/watchless%2Fa")
        cluster.acquire(self.upstream, "watchless/b", "worker-1")
        self.answers = lambda handler, path: False
        self.wait_row("watchless/b", "Active")
        self.wait(lambda: [row[0] for row in self.rows()] == ["watchless/b"], "the lists are read after the start of the watch")
        self.wait_text("#connection-text", "Live")
        self.assertFalse(self.find("#banner").is_displayed())

    def test_past_events_are_shown_from_the_oldest_that_the_node_keeps(self):
        cluster.acquire(self.upstream, "0-past", "worker-1")
        cluster.change(self.upstream, "DELETE", "/v1/leases/0-past?reason=too+slow")
        granted = cluster.request(self.upstream, "GET", "/v1/leases/0-past/history")["transitions"][-2]["index"]
        compacted = {"title": "Compacted", "status": 410, "detail": "compacted", "code": "compacted", "oldest": granted}
        positions = []

        def take(handler, path):
            if not path.startswith("/v1/watch"):
                return False
            positions.append(int(handler.headers["last-event-id"]))
            return len(positions) == 1 and refuse(handler, compacted)

        self.answers = take
        self.open(self.url)
        self.wait_text("#timeline-list", "0-past revoked from worker-1: too slow")
        self.assertNotIn("0-past granted", self.text("#timeline-list"))
        self.assertLess(positions[0], max(1, granted - 1_000), "the page asks for older events first")
        self.assertEqual(positions[1], granted)

    def test_forgotten_events_after_the_start_are_not_shown_as_new(self):
        positions, refusals = [], []

        def take(handler, path):
            if not path.startswith("/v1/watch"):
                return False
            positions.append(handler.headers["last-event-id"])
            return bool(refusals) and refuse(handler, refusals.pop())

        self.answers = take
        self.open(self.url)
        before = len(positions)
        self.hide(True)
        self.wait_text("#connection-text", "Reconnecting")
        cluster.acquire(self.upstream, "0-forgotten", "worker-1")
        granted = cluster.request(self.upstream, "GET", "/v1/leases/0-forgotten/history")["transitions"][-1]["index"]
        compacted = {"title": "Compacted", "status": 410, "detail": "compacted", "code": "compacted", "oldest": granted}
        refusals.append(compacted)
        self.hide(False)
        self.wait(lambda: len(positions) >= before + 2, "a watch after the refusal")
        self.assertIsNone(positions[before + 1], "the page watches from now")

    def hide(self, is_hidden):
        change = """Object.defineProperty(document, "hidden", { configurable: true, value: arguments[0] });
                    document.dispatchEvent(new Event("visibilitychange"));"""
        self.script(change, is_hidden)

    def test_hidden_page_has_no_watch(self):
        watches = []
        self.answers = lambda handler, path: path.startswith("/v1/watch") and watches.append(path)
        self.open(self.url)
        before = len(watches)
        self.hide(True)
        self.wait_text("#connection-text", "Reconnecting")
        cluster.acquire(self.upstream, "0-hidden", "worker-1")
        time.sleep(1.5)  # A page that tries again does it within this time.
        self.assertEqual(len(watches), before)
        self.hide(False)
        self.wait_text("#timeline-list", "0-hidden granted to worker-1")
        self.wait_text("#connection-text", "Live")
        self.assertGreater(len(watches), before)

    def test_watch_that_falls_silent_is_opened_again(self):
        short = "const set = window.setTimeout; window.setTimeout = (run, ms) => set(run, ms === 25_000 ? 1_000 : ms);"
        added = self.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": short})
        self.addCleanup(self.driver.execute_cdp_cmd, "Page.removeScriptToEvaluateOnNewDocument", added)
        watches = []

        def take(handler, path):
            if not path.startswith("/v1/watch"):
                return False
            watches.append(path)
            if len(watches) > 1:
                return False
            handler.send_response(200)
            handler.send_header("content-type", "text/event-stream")
            handler.end_headers()
            handler.wfile.write(f"id: {handler.headers['last-event-id']}\n\n".encode())
            handler.close_connection = True
            return self.release.wait(60) or True

        self.answers = take
        self.open(self.url, ready=False)
        self.wait(lambda: len(watches) >= 2, "another watch")

    def test_refused_watch_offers_another_try(self):
        forbidden = {"title": "Forbidden", "status": 403, "detail": "may not watch", "code": "forbidden"}
        self.answers = lambda handler, path: path.startswith("/v1/watch") and refuse(handler, forbidden)
        self.open(self.url, ready=False)
        self.wait(lambda: "…" not in self.text("#count"), "the leases are read")
        self.answers = lambda handler, path: False
        time.sleep(2)
        self.wait_text("#banner", "no events arrive: may not watch.")
        self.click("#retry")
        self.wait_text("#connection-text", "Live")
        self.assertFalse(self.find("#banner").is_displayed())

    def test_watch_without_events_is_not_live(self):
        def take(handler, path):
            if not path.startswith("/v1/watch"):
                return False
            handler.send_response(200)
            handler.send_header("content-type", "text/event-stream")
            handler.end_headers()
            handler.close_connection = True
            return self.release.wait(60) or True

        self.answers = take
        self.open(self.url, ready=False)
        self.wait(lambda: "…" not in self.text("#count"), "the leases are read")
        time.sleep(1)
        self.assertEqual(self.text("#connection-text"), "Reconnecting")

    def test_refusal_of_a_proxy_does_not_sign_out(self):
        self.open(self.url)
        self.answers = lambda handler, path: answer(handler, 401, "text/html", b"<h1>Who are you?</h1>") or True
        self.wait_text("#banner", "The answer has status 401")
        self.assertFalse(self.find("#login").is_displayed())
        self.answers = lambda handler, path: False
        self.wait_text("#connection-text", "Live")

    def test_wrong_clock_of_the_browser_does_not_change_ages(self):
        late = "const now = Date.now; Date.now = () => now() + 7_200_000;"
        added = self.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": late})
        self.addCleanup(self.driver.execute_cdp_cmd, "Page.removeScriptToEvaluateOnNewDocument", added)
        cluster.acquire(self.upstream, "0-clock", "worker-1")
        self.open(self.url, "#lease/0-clock")
        self.wait_row("0-clock", "Active")
        self.assertRegex(self.text(".rows .cell.granted"), r"^\d+s$")
        self.wait_text("#detail dl", "last ")
        self.assertRegex(self.text("#detail dl"), r"last \d+s ago")
