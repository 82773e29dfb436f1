"""The page itself: its headers, its policy, and its URLs below a path."""

import http.client
import os

import cluster
from browser import PageTest, three_nodes
from proxy import Nginx, Proxy

ATTACK = "<img src=x onerror='window.injected=1'><script>window.injected=1</script>"


class Page(PageTest):
    def test_policy_stops_inline_scripts_and_styles(self):
        url = three_nodes().nodes[0].url
        cluster.acquire(url, "attack", ATTACK, metadata={ATTACK: ATTACK})
        self.open(url, "#lease/attack")
        self.wait_text("#detail dl", ATTACK)
        self.script(
            """const script = document.createElement("script");
               script.append(new Text("window.injected = 1"));
               document.body.append(script);
               const style = document.createElement("style");
               style.append(new Text("body { outline: 9px solid red }"));
               document.body.append(style);
               const image = document.createElement("img");
               image.src = "https://example.com/leak.png";
               document.body.append(image);"""
        )
        blocked = {"require-trusted-types-for", "style-src-elem", "img-src"}
        self.wait(lambda: blocked <= set(self.script("return window.violations")), "the browser reports what it blocks")
        self.assertIsNone(self.script("return window.injected ?? null"))
        self.assertNotIn("9px", self.script("return getComputedStyle(document.body).outline"))
        cluster.request(url, "DELETE", "/v1/leases/attack")

    def test_page_violates_no_policy_and_logs_no_error(self):
        self.open(three_nodes().nodes[0].url)
        self.wait_text("#own-node", "answers this page and is ready")
        self.assertEqual(self.script("return window.violations"), [])
        errors = [entry for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]
        # A node answers so during an election.
        self.assertEqual([entry for entry in errors if "status of 503" not in entry["message"]], [])

    def test_page_works_below_the_path_of_a_proxy(self):
        proxy = Proxy(three_nodes().nodes[0].url, "/tools/tenure")
        self.addCleanup(proxy.stop)
        self.check_proxied(proxy.upstream, proxy.url, "0-proxied/a")

    def test_nginx_of_the_documentation_serves_the_page(self):
        if Nginx.PROGRAM is None:
            self.assertNotEqual(os.environ.get("TENURE_REQUIRE_SERVERS"), "1", "install Debian's package nginx-light")
            self.skipTest("NOT CHECKED: the proxy of docs/ui.md, because nginx is not installed")
        upstream = three_nodes().nodes[0].url
        nginx = Nginx(upstream)
        self.addCleanup(nginx.stop)
        self.check_proxied(upstream, nginx.url, "0-proxied/nginx")

    def check_proxied(self, upstream, url, name):
        path = name.replace("/", "%2F")
        cluster.acquire(upstream, name, "worker-1")
        self.open(url)
        self.wait_row(name, "Active")
        self.open(url, f"/#lease/{path}")
        self.wait_text("#summary", "Held by worker-1")
        self.assertEqual(self.driver.current_url, f"{url}/ui#lease/{path}")
        cluster.request(upstream, "DELETE", f"/v1/leases/{path}")
        # Only the watch brings events of leases.
        self.wait_text("#timeline-list", f"{name} revoked from worker-1")

    def test_fragment_can_have_the_slash_of_a_name(self):
        url = three_nodes().nodes[0].url
        cluster.acquire(url, "slash/a/b", "worker-1")
        self.open(url, "#lease/slash/a/b")
        self.wait_text("#detail-name", "slash/a/b")
        self.wait_text("#summary", "Held by worker-1")

    def test_broken_fragment_shows_the_leases(self):
        self.open(three_nodes().nodes[0].url, "#lease/%")
        self.wait_visible("#leases")
        self.assertIsNone(self.script("return document.body.dataset.detail ?? null"))
        self.assertEqual(self.text("nav a[aria-current]"), "Leases")
        self.assertNotIn("malformed", self.text("#timeline-list"))

    def test_headers_forbid_frames_and_referrers(self):
        node = three_nodes().nodes[0]
        self.open(node.url)
        for path in ("/ui", "/ui/main.js", "/ui/style.css"):
            connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=5)
            connection.request("GET", path)
            headers = connection.getresponse().headers
            connection.close()
            policy = headers["content-security-policy"]
            self.assertIn("frame-ancestors 'none'", policy)
            self.assertNotIn("unsafe", policy)
            self.assertEqual(headers["x-content-type-options"], "nosniff")
            self.assertEqual(headers["referrer-policy"], "no-referrer")
            self.assertEqual(headers["cache-control"], "no-cache")
