"""Makes the pictures of docs/ui.md in docs/images. After tests/ui/check has installed its tools:

target/clients/ui/venv/bin/python -m pip install pillow
TENURE_BINARY=target/debug/tenure target/clients/ui/venv/bin/python tests/ui/screenshots.py
"""

import io
import threading
import time
from pathlib import Path

from PIL import Image

import cluster
from browser import PHONE, PageTest, shared
from test_tls import ExpiringCluster

IMAGES = Path(__file__).resolve().parents[2] / "docs/images"
HOLDER = "host-a:4211:9f2c"


class Pictures(PageTest):
    def save(self, name):
        # A message would cover rows.
        self.wait(lambda: not self.script("return document.querySelector('#toast.shown')"), "no message")
        time.sleep(1)  # the transitions end
        picture = Image.open(io.BytesIO(self.driver.get_screenshot_as_png())).convert("RGB")
        picture.quantize(128).save(IMAGES / name, optimize=True)

    def wait_for_lease(self, url, name, holder):
        """A waiter until the cluster stops."""
        def claim():
            try:
                cluster.acquire(url, name, holder, wait_ms=3_600_000)
            except (OSError, cluster.Refused):
                pass

        threading.Thread(target=claim, daemon=True).start()
        path = f"/v1/leases/{name}/queue"
        self.wait(lambda: holder in str(cluster.request(url, "GET", path)), f"{holder} waits")

    def test_pictures(self):
        nodes = shared("expiring", ExpiringCluster)
        self.addCleanup(nodes.stop)
        old = nodes.leader()
        other = next(node for node in nodes.nodes if node is not old)
        url = other.url
        names = [f"{team}/{number:04}" for team in ("billing/invoice", "shards", "web/session") for number in range(3_333)]
        cluster.acquire_many(url, names, "worker-7f3a", 3_600_000)
        metadata = {"pod": "web-7", "region": "eu-west-1"}
        cluster.acquire(url, "nightly-report", HOLDER, metadata=metadata)
        for holder in ("host-c:12:bb01", "host-b:981:77aa"):
            self.wait_for_lease(url, "nightly-report", holder)
        cluster.acquire(url, "backup", HOLDER, ttl_ms=1_000)
        for name in names[5:25:4]:
            cluster.request(url, "DELETE", f"/v1/leases/{name.replace('/', '%2F')}?reason=stuck")
        self.open(other.url)
        nodes.kill(old)
        self.wait_text("#timeline-list", "leads in term")
        nodes.start(old)
        nodes.wait_ready(old)
        self.wait_text("#timeline-list", f"Node {old.id} is ok")
        self.wait(lambda: "…" not in self.text("#count"), "all leases are read")
        self.save("ui.png")
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]})
        self.open(other.url, "#lease/nightly-report")
        self.wait_text("#detail", "host-b:981:77aa")
        self.wait(lambda: "…" not in self.text("#count"), "all leases are read")
        self.save("ui-lease.png")
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
        self.size(*PHONE)
        self.open(other.url)
        self.wait(lambda: "…" not in self.text("#count"), "all leases are read")
        self.save("ui-phone.png")


if __name__ == "__main__":
    import unittest

    unittest.main()
