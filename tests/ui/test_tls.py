"""The page over TLS, and the certificates of the nodes."""

import subprocess

import cluster
from browser import BINARY, PageTest, shared


class ExpiringCluster(cluster.Cluster):
    """Three nodes with TLS. The certificate of node 2 was made 350 days ago, so it has 15 days left."""

    def __init__(self):
        super().__init__(BINARY, 3, tls=True)

    def prepare(self):
        issue = ["faketime", "-f", "-350d", self.binary, "tls", "issue", self.folder / "tls", "--node", "2", "--config", self.file]
        subprocess.run(issue, check=True, capture_output=True)


class Tls(PageTest):
    def setUp(self):
        super().setUp()
        self.cluster = shared("expiring", ExpiringCluster)

    def certificates(self):
        cells = self.script(
            """return [...document.querySelectorAll("#node-rows tr")].map((row) => {
                   const cell = row.querySelector(".certificate");
                   return [row.querySelector("th").textContent.match(/Node \\d/)[0], cell.textContent, cell.title, cell.className];
               });"""
        )
        return {name: (text, title, "warning" in classes.split()) for name, text, title, classes in cells}

    def test_certificates_show_their_time_left_and_warn(self):
        self.open(self.cluster.nodes[0].url)
        self.wait(lambda: all("left" in text for text, _, _ in self.certificates().values()), "the certificates are known")
        shown = self.certificates()
        self.assertEqual(len(shown), 3)
        text, title, is_warning = shown["Node 2"]
        self.assertRegex(text, r"^▲ 1[45]d( \d+h)? left$")
        self.assertTrue(is_warning)
        self.assertIn("valid until", title)
        for name in ("Node 1", "Node 3"):
            text, _, is_warning = shown[name]
            self.assertRegex(text, r"^36[45]d.* left$")
            self.assertFalse(is_warning)

    def test_disk_of_each_node_is_shown(self):
        self.open(self.cluster.nodes[0].url)
        disks = """return [...document.querySelectorAll('#node-rows td[data-label="Disk"]')].map((cell) => cell.textContent);"""
        self.wait(lambda: self.script(disks) == ["✓OK"] * 3, "the disks are known")

    def test_page_acts_and_stays_live_over_tls(self):
        url = self.cluster.leader().url
        cluster.acquire(url, "secure", "worker-1")
        self.open(url, "#lease/secure")
        self.wait_text("#summary", "Held by worker-1")
        self.click("#revoke")
        self.click("dialog .danger")
        self.wait_text("#toast", "Revoked secure")
        cluster.acquire(url, "secure-2", "worker-1")
        self.wait_text("#timeline-list", "secure-2")
