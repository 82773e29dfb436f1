"""Requests of the page when answers are broken, old or slow."""

import json
import threading
import time

from selenium.webdriver.common.keys import Keys

import cluster
from browser import PageTest, three_nodes
from proxy import NO_LEADER, Intercepted, answer, refuse

UNAUTHENTICATED = {"title": "No valid credential", "status": 401, "detail": "the token is not valid", "code": "unauthenticated"}


class Requests(PageTest):
    def setUp(self):
        super().setUp()
        self.url = three_nodes().leader().url

    def open_lease(self, name, take):
        proxy = Intercepted(self.url, take)
        self.addCleanup(proxy.stop)
        self.open(proxy.url, f"#lease/{name}")
        self.wait_text("#summary", "Held by worker-1")

    def test_old_state_does_not_confirm_a_revoke(self):
        armed = threading.Event()

        def take(handler, path):
            if not (armed.is_set() and path.startswith("/v1/leases/failover/explain") and "stale" not in path):
                return False
            answer(handler, 503, "application/problem+json", json.dumps(NO_LEADER).encode())
            return True

        cluster.acquire(self.url, "failover", "worker-1")
        self.open_lease("failover", take)
        self.click("#revoke")
        armed.set()
        self.click("dialog .danger")
        self.wait_text("dialog .error", "503 no_leader")
        self.assertEqual(cluster.request(self.url, "GET", "/v1/leases/failover")["state"], "active")

    def test_broken_answer_to_a_revoke_is_unknown(self):
        def take(handler, path):
            if handler.command != "DELETE":
                return False
            cluster.request(self.url, "DELETE", path)
            handler.send_response(200)
            handler.send_header("content-type", "application/json")
            handler.send_header("content-length", "100")
            handler.end_headers()
            handler.wfile.write(b'{"rev')
            handler.close_connection = True
            return True

        cluster.acquire(self.url, "broken", "worker-1")
        self.open_lease("broken", take)
        self.click("#revoke")
        self.click("dialog .danger")
        self.wait_text("dialog .error", "The outcome is unknown")
        self.wait_text("dialog .error", "The connection broke")
        self.assertNotIn("Nothing was changed", self.text("dialog .error"))

    def test_only_known_refusals_prove_that_nothing_changed(self):
        self.open(self.url)
        codes = {
            "network": 0, "page": 0, "other": 200, "internal": 500, "outcome_unknown": 504, "from_the_future": 503,
            "held": 409, "changed": 0, "no_leader": 503, "shutting_down": 503, "not_ready": 503, "failed": 503, "unsupported": 501,
        }  # fmt: skip
        ambiguous = self.driver.execute_async_script(
            """const [codes, done] = arguments;
               import(new URL("ui/api.js", location.href.split("#")[0]).href).then(({ Failure }) =>
                   done(Object.entries(codes).filter(([code, status]) => new Failure(code, "", "", status).isAmbiguous).map(([code]) => code)));""",
            codes,
        )
        self.assertEqual(set(ambiguous), {"network", "page", "other", "internal", "outcome_unknown", "from_the_future"})

    def test_hot_lease_causes_few_reads_of_the_detail(self):
        reads = []

        def take(_handler, path):
            if path.startswith("/v1/leases/hot/queue"):
                reads.append(time.monotonic())
            return False

        cluster.acquire(self.url, "hot", "worker-1")
        self.open_lease("hot", take)
        for turn in range(150):
            cluster.change(self.url, "DELETE", "/v1/leases/hot")
            cluster.acquire(self.url, "hot", f"holder-{turn}")
        self.wait_text("#summary", "Held by holder-149")
        self.assertGreaterEqual(len(reads), 3)
        gaps = [later - earlier for earlier, later in zip(reads, reads[1:])]
        # The proxy notes the arrival of a request, so single gaps vary.
        self.assertGreater(sum(gaps) / len(gaps), 0.2, gaps)

    def test_slow_answer_does_not_replace_another_lease(self):
        answered, release = threading.Event(), threading.Event()
        self.addCleanup(release.set)

        def take(_handler, path):
            if path.startswith("/v1/leases/slow-a/explain?holder=") and release.wait(60):
                answered.set()
            return False

        cluster.acquire(self.url, "slow-a", "worker-1")
        cluster.acquire(self.url, "slow-b", "worker-1")
        self.open_lease("slow-a", take)
        # A frame after the whole answer has arrived, the page has used it.
        self.script(
            """const send = window.fetch;
               const used = () => requestAnimationFrame(() => setTimeout(() => (window.isUsed = true)));
               window.fetch = async (...all) => {
                   const response = await send(...all);
                   if (String(all[0]).includes("holder=")) void response.clone().text().then(used);
                   return response;
               };"""
        )
        self.fill("#explain-holder", "worker-1")
        self.click("#explain button")
        self.script("location.hash = '#lease/slow-b'")
        self.wait_text("#detail-name", "slow-b")
        release.set()
        self.assertTrue(answered.wait(60))
        self.wait(lambda: self.script("return window.isUsed"), "the page has the answer")
        self.assertEqual(self.text("#explanation"), "")


class Actions(PageTest):
    """Actions whose requests the test delays."""

    def setUp(self):
        super().setUp()
        self.upstream = three_nodes().leader().url
        self.armed, self.held, self.release, self.signed_out = (threading.Event() for _ in range(4))
        self.addCleanup(self.release.set)
        self.deletes, self.queues = [], []
        self.slow = None
        proxy = Intercepted(self.upstream, self.take)
        self.addCleanup(proxy.stop)
        self.url = proxy.url

    def take(self, handler, path):
        if self.signed_out.is_set() and path.startswith("/v1/cluster"):
            return refuse(handler, UNAUTHENTICATED)
        if handler.command == "DELETE":
            self.deletes.append(path)
        if path.startswith(f"/v1/leases/{self.name}/queue"):
            self.queues.append(path)
        if self.armed.is_set() and self.slow(handler, path):
            self.held.set()
            self.release.wait(60)
        return False

    def revoke(self, name, slow):
        self.name, self.slow = name, slow
        cluster.acquire(self.upstream, name, "worker-1")
        self.open(self.url, f"#lease/{name}")
        self.wait_text("#summary", "Held by worker-1")
        self.click("#revoke")
        self.armed.set()
        self.click("dialog .danger")
        self.assertTrue(self.held.wait(60))

    def slow_check(self, handler, path):
        return handler.command == "GET" and path.startswith(f"/v1/leases/{self.name}/explain")

    def slow_change(self, handler, path):
        return handler.command == "DELETE"

    def state(self):
        return cluster.request(self.upstream, "GET", f"/v1/leases/{self.name}")["state"]

    def test_cancelled_revoke_is_not_sent(self):
        self.revoke("cancelled", self.slow_check)
        self.click("dialog .buttons button")
        self.armed.clear()
        self.release.set()
        before = len(self.queues)
        self.wait(lambda: len(self.queues) >= before + 2, "the page has read the lease again")
        self.assertEqual(self.deletes, [])
        self.assertEqual(self.state(), "active")
        self.assertFalse(self.find("dialog").is_displayed())

    def test_sent_revoke_cannot_be_cancelled(self):
        self.revoke("sent", self.slow_change)
        self.keys(Keys.ESCAPE)
        self.assertFalse(self.find("dialog .buttons button").is_enabled())
        self.assertTrue(self.find("dialog").is_displayed())
        self.release.set()
        self.wait_text("#toast", "Revoked sent: 1 holder lost it.")
        self.assertFalse(self.find("dialog").is_displayed())

    def test_sign_out_during_the_check_ends_a_revoke(self):
        self.revoke("unchecked", self.slow_check)
        self.signed_out.set()
        self.wait_visible("#login")
        self.assertEqual(self.text("#connection-text"), "Signed out")
        self.release.set()
        time.sleep(1)
        self.assertEqual(self.deletes, [])

    def test_sign_out_hides_the_result_of_a_revoke(self):
        self.revoke("hidden", self.slow_change)
        self.signed_out.set()
        self.wait_visible("#login")
        self.release.set()
        self.wait(lambda: self.state() == "revoked", "the node has the change")
        time.sleep(1)
        self.assertEqual(self.text("#toast"), "")
        self.assertEqual(self.text("dialog"), "")


class Crowd(PageTest):
    """A counted lease with more holders than one answer can name."""

    def setUp(self):
        super().setUp()
        self.upstream = three_nodes().leader().url
        self.holders = 1_200
        cluster.acquire(self.upstream, "crowd", "worker-1", limit=2_000)
        proxy = Intercepted(self.upstream, self.take)
        self.addCleanup(proxy.stop)
        self.url = proxy.url

    def take(self, handler, path):
        if not path.startswith("/v1/leases/crowd/explain"):
            return False
        explanation = cluster.request(self.upstream, "GET", path)
        if explanation["holders"] > 0:
            explanation["holders"] = self.holders
        answer(handler, 200, "application/json", json.dumps(explanation).encode())
        return True

    def test_revoke_names_and_compares_the_number_of_holders(self):
        self.open(self.url, "#lease/crowd")
        self.wait_text("#summary", "Held by worker-1")
        self.click("#revoke")
        self.wait_text("dialog", "and 1,199 more")
        self.wait_text("dialog", "compares the first 1 holders and the number of all")
        self.holders = 1_201
        self.click("dialog .danger")
        self.wait_text("dialog .error", "It has other holders now.")
        self.holders = 1_200
        self.click("dialog .danger")
        self.wait_text("#toast", "Revoked crowd: 1 holder lost it.")
