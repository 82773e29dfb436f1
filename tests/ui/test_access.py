"""Sign-in with an access token, and refusals by access control."""

import os
import threading
import time

import cluster
from browser import BINARY, PageTest, shared
from proxy import ASSETS, NO_LEADER, Intercepted, Proxy, answer, refuse


class Guarded(cluster.Cluster):
    """One node with access control: the principals root (admin), reader (all names) and team (names below team/)."""

    def __init__(self):
        super().__init__(BINARY, 1)
        self.url = self.nodes[0].url
        self.root = None
        roles = {
            "admin": [{"right": "admin"}],
            "reader": [{"right": "read"}],
            "team": [{"right": "operate", "prefix": "team/"}],
        }
        for role, permissions in roles.items():
            self.call("PUT", f"/v1/access/roles/{role}", {"permissions": permissions})
        for principal, role in (("root", "admin"), ("reader", "reader"), ("team", "team")):
            self.call("PUT", f"/v1/access/principals/{principal}", {"roles": [role]})
        root = self.create_token("root")["token"]
        cluster.request(self.url, "POST", "/v1/access/enable", token=root)
        self.root = root
        for name in ("team/a", "other/b"):
            cluster.acquire(self.url, name, "worker-1", token=root)

    def call(self, method, path, body=None):
        return cluster.request(self.url, method, path, body, self.root)

    def create_token(self, principal, query=""):
        return self.call("POST", f"/v1/access/principals/{principal}/tokens{query}")


class ThreeGuarded(cluster.Cluster):
    """Three nodes with access control: the principals root (admin), holder (hold) and operator (operate on ops/)."""

    def __init__(self):
        super().__init__(BINARY, 3)
        self.url = self.leader().url
        self.tokens = {}
        roles = {
            "admin": [{"right": "admin"}],
            "holder": [{"right": "hold"}],
            "operator": [{"right": "operate", "prefix": "ops/"}],
        }
        for role, permissions in roles.items():
            self.call("PUT", f"/v1/access/roles/{role}", {"permissions": permissions})
        for principal, role in (("root", "admin"), ("holder", "holder"), ("operator", "operator")):
            self.call("PUT", f"/v1/access/principals/{principal}", {"roles": [role]})
            created = self.call("POST", f"/v1/access/principals/{principal}/tokens")
            self.tokens[principal] = created["token"]
        cluster.request(self.url, "POST", "/v1/access/enable", token=self.tokens["root"])

    def call(self, method, path, body=None, principal=None):
        return cluster.request(self.url, method, path, body, self.tokens.get(principal))


class TwoPaths(Proxy):
    """Serves a node below /one and below /two."""

    def __init__(self, upstream):
        super().__init__(upstream, assets=ASSETS if os.environ.get("TENURE_UI_ASSETS") else None)

    def handle(self, handler):
        handler.path = handler.path.removeprefix("/one").removeprefix("/two")
        super().handle(handler)


class Operator(PageTest):
    """Each action of the page with the right that it needs, on leases of another principal."""

    def setUp(self):
        super().setUp()
        self.cluster = shared("three-guarded", ThreeGuarded)

    def sign_in(self, principal, fragment=""):
        token = self.cluster.tokens[principal]
        self.secrets.append(token)
        self.open(self.cluster.url, fragment, ready=False)
        self.script("sessionStorage.clear()")
        self.open(self.cluster.url, fragment, ready=False)
        self.fill("#token", token)
        self.click("#login button")

    def acquire(self, name, holder, **more):
        return cluster.acquire(self.cluster.url, name, holder, token=self.cluster.tokens["holder"], **more)

    def test_operator_revokes_a_lease_of_another_principal(self):
        self.acquire("ops/stuck", "worker-1")
        self.sign_in("operator", "#lease/ops%2Fstuck")
        self.click("#revoke")
        self.fill("#reason", "hangs")
        self.click("dialog .danger")
        self.wait_text("#toast", "Revoked ops/stuck")
        history = self.cluster.call("GET", "/v1/leases/ops%2Fstuck/history", principal="holder")["transitions"]
        self.assertEqual((history[-1]["event"], history[-1]["reason"]), ("revoked", "hangs"))

    def test_operator_hands_over_a_lease_of_another_principal(self):
        self.acquire("ops/given", "worker-1")
        claim = threading.Thread(target=self.acquire, args=("ops/given", "worker-2"), kwargs={"wait_ms": 30_000}, daemon=True)
        claim.start()
        self.addCleanup(claim.join, 10)
        self.sign_in("operator", "#lease/ops%2Fgiven")
        self.click('button[aria-label="Hand over to worker-2"]')
        self.click("dialog .danger")
        self.wait_text("#toast", "Handed over ops/given to worker-2.")
        self.wait_text("#summary", "Held by worker-2")

    def test_administrator_transfers_the_leadership(self):
        self.sign_in("root")
        self.wait_text("#connection-text", "Live")
        target = self.choose_leader()
        self.click("dialog .primary")
        self.wait_text("#toast", f"Node {target} leads")
        self.wait(lambda: self.cluster.call("GET", "/v1/cluster", principal="root")["leader"] == target, "the leader")

    def test_operator_may_not_transfer_the_leadership(self):
        self.sign_in("operator")
        target = self.choose_leader()
        before = self.leadership()
        self.click("dialog .primary")
        self.wait_text("dialog .error", "403 forbidden")
        after = self.leadership()
        # An election without a transfer has a new term, too.
        self.assertTrue(after == before or after[0] > before[0] and after[1] != target, f"{before}, {after}")

    def leadership(self):
        """The term and its leader."""

        def known():
            status = self.cluster.call("GET", "/v1/cluster", principal="root")
            return status["leader"] and (status["term"], status["leader"])

        return self.wait(known, "a leader")


class Access(PageTest):
    def setUp(self):
        super().setUp()
        self.cluster = shared("guarded", Guarded)
        self.open(self.cluster.url, ready=False)
        self.script("sessionStorage.clear()")

    def sign_in(self, token, fragment=""):
        self.open(self.cluster.url, fragment, ready=False)
        self.enter(token)

    def enter(self, token):
        self.secrets.append(token)
        self.fill("#token", token)
        self.click("#login button")

    def test_token_signs_in_and_stays_for_a_reload(self):
        self.sign_in(self.cluster.root)
        self.wait_row("team/a", "Active")
        self.driver.refresh()
        self.wait_row("team/a", "Active")
        self.click("#sign-out")
        self.wait_visible("#login")
        self.assertEqual(self.script("return sessionStorage.length"), 0)
        self.assertEqual(self.rows(), [])
        self.assertEqual(self.driver.get_cookies(), [])

    def test_answer_after_the_sign_out_leaves_no_data(self):
        self.sign_in(self.cluster.root)
        self.wait_text("#own-node", "answers this page")
        self.script("""
            const fetched = window.fetch;
            window.held = [];
            window.fetch = async (...request) => {
                const answer = await fetched(...request);
                if (String(request[0]).endsWith("metrics")) await new Promise((release) => window.held.push(release));
                return answer;
            };
        """)
        self.wait(lambda: self.script("return window.held.length"), "an answer that the page waits for", within=40)
        self.click("#sign-out")
        self.wait_visible("#login")
        self.script("window.held.forEach((release) => release())")
        time.sleep(0.5)
        self.assertEqual(self.text("#own-node"), "")

    def test_sign_out_leaves_no_data_in_the_document(self):
        self.sign_in(self.cluster.root)
        self.wait_row("team/a", "Active")
        self.fill("#prefix", "team/a")
        self.fill("#holder", "worker-1")
        self.wait_text("#own-node", "answers this page")
        self.script("location.hash = '#lease/team%2Fa'")
        self.wait_text("#summary", "Held by worker-1")
        self.fill("#explain-holder", "worker-1")
        self.click("#explain button")
        self.wait_text("#explanation", "worker-1 has the lease")
        self.click("#revoke")
        self.click("dialog .buttons button")
        self.click("#sign-out")
        self.wait_visible("#login")
        texts = self.script("return document.body.textContent + [...document.querySelectorAll('input, option')].map((one) => one.value)")
        for secret in ("team/a", "other/b", "worker-1", "Node 1", "ui-test", "127.0.0.1"):
            self.assertNotIn(secret, texts)
        self.assertEqual(self.find("#token").get_attribute("autocomplete"), "off")
        self.assertNotIn("team", self.driver.current_url)
        self.driver.back()
        self.assertNotIn("team", self.driver.current_url)

    def test_each_path_of_an_origin_has_its_own_token(self):
        proxy = TwoPaths(self.cluster.url)
        self.addCleanup(proxy.stop)
        self.open(f"{proxy.url}/one", ready=False)
        self.enter(self.cluster.root)
        self.wait_row("team/a", "Active")
        self.open(f"{proxy.url}/two", ready=False)
        self.wait_visible("#token")
        self.open(f"{proxy.url}/one", ready=False)
        self.wait_row("team/a", "Active")

    def test_wrong_token_is_refused_with_its_reason(self):
        self.sign_in("tenure_wrong")
        self.wait_text("#login-error", "The cluster refuses this token")
        self.wait_text("#login-error", "Authorization")
        self.assertTrue(self.find("#login").is_displayed())
        self.assertFalse(self.find("#board").is_displayed())

    def test_form_tells_if_the_node_cannot_check_the_token(self):
        answers = [
            ("no leader", lambda handler: refuse(handler, NO_LEADER)),
            ("status 502", lambda handler: answer(handler, 502, "text/plain", b"the node does not answer") or True),
        ]
        take = lambda handler, path: path.startswith("/v1/cluster") and armed and armed[0](handler)
        armed = []
        proxy = Intercepted(self.cluster.url, take)
        self.addCleanup(proxy.stop)
        self.open(proxy.url, ready=False)
        self.wait_visible("#token")
        for detail, refusal in answers:
            armed[:] = [refusal]
            self.enter(self.cluster.root)
            self.wait_text("#login-error p", detail)
            self.assertEqual(self.text("#login-error strong"), "The node cannot check this token")

    def test_late_refusal_of_an_earlier_token_does_not_sign_out(self):
        created = self.cluster.create_token("reader")
        self.sign_in(created["token"])
        self.wait_row("other/b", "Active")
        # One request of the first token waits. Its own time limit must not end it.
        self.script("""
            const send = window.fetch;
            window.fetch = async (url, options) => {
                if (!String(url).includes("v1/leases?") || window.release) return send(url, options);
                await new Promise((release) => (window.release = release));
                const response = await send(url, { ...options, signal: undefined });
                window.late = response.status;
                return response;
            };
        """)
        self.wait(lambda: self.script("return window.release !== undefined"), "a request that waits")
        self.cluster.call("DELETE", f"/v1/access/tokens/{created['id']}")
        self.wait_text("#login-error", "You are signed out")
        self.enter(self.cluster.root)
        self.wait_row("other/b", "Active")
        self.script("window.release()")
        self.wait(lambda: self.script("return window.late") == 401, "the late answer")
        time.sleep(0.5)
        self.assertFalse(self.find("#login").is_displayed())
        self.assertEqual(self.script("return sessionStorage.length"), 1)

    def test_revoked_token_returns_to_the_form(self):
        created = self.cluster.create_token("reader")
        self.sign_in(created["token"])
        self.wait_row("other/b", "Active")
        self.cluster.call("DELETE", f"/v1/access/tokens/{created['id']}")
        self.wait_text("#login-error", "You are signed out")
        self.assertFalse(self.find("#board").is_displayed())
        self.assertEqual(self.script("return sessionStorage.length"), 0)

    def test_expired_token_returns_to_the_form(self):
        self.open(self.cluster.url, ready=False)
        self.wait_visible("#token")
        self.enter(self.cluster.create_token("reader", "?ttl_ms=20000")["token"])
        self.wait_row("other/b", "Active")
        self.wait_text("#login-error", "You are signed out", within=40)
        self.assertFalse(self.find("#board").is_displayed())
        self.assertEqual(self.script("return sessionStorage.length"), 0)

    def test_reader_sees_why_a_revoke_is_refused(self):
        self.sign_in(self.cluster.create_token("reader")["token"], "#lease/team%2Fa")
        self.click("#revoke")
        self.click("dialog .danger")
        self.wait_text("dialog .error", "403 forbidden")
        self.wait_text("dialog .error", 'may not revoke "team/a"')
        self.click("dialog .buttons button")
        self.wait_text("#connection-text", "Live")
        self.assertEqual(self.cluster.call("GET", "/v1/leases/team%2Fa")["state"], "active")

    def test_principal_of_a_prefix_reads_below_it(self):
        self.sign_in(self.cluster.create_token("team")["token"])
        self.wait_text("#banner", "The leases cannot be read")
        self.wait_text("#leader", "Node 1")
        self.fill("#prefix", "team/")
        self.wait_row("team/a", "Active")
        self.wait(lambda: not self.find("#banner").is_displayed(), "the error is gone")
