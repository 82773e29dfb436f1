"""Crashes of nodes while the page is open."""

import cluster
from browser import PageTest, shared, three_nodes
from proxy import Proxy


class Crashes(PageTest):
    def restart(self, node):
        three_nodes().start(node)
        three_nodes().wait_ready(node)

    def test_page_follows_the_next_leader(self):
        nodes = three_nodes()
        leader = nodes.leader()
        follower = next(node for node in nodes.nodes if node is not leader)
        self.open(follower.url)
        self.fill("#prefix", "crash/")
        self.wait_text("#timeline-list", f"Node {leader.id} leads in term")
        nodes.kill(leader)
        self.addCleanup(self.restart, leader)
        others = [f"Node {node.id}" for node in nodes.nodes if node is not leader]
        shown = self.wait(lambda: next((one for one in others if one == self.text("#leader")), None), "another leader")
        self.wait_text("#timeline-list", f"{shown} leads in term")
        self.wait_text("#timeline-list", f"Node {leader.id} is unreachable")
        self.wait(lambda: self.text("#leader") == f"Node {nodes.leader(follower).id}", "the page shows the leader")
        cluster.acquire(follower.url, "crash/after", "worker-1")
        self.wait_row("crash/after", "Active")
        self.wait_text("#connection-text", "Live")

    def test_timeline_has_changes_from_before_the_page_was_opened(self):
        nodes = three_nodes()
        leader = nodes.leader()
        other = next(node for node in nodes.nodes if node is not leader)
        nodes.kill(leader)
        try:
            next_leader = self.wait(lambda: (one := nodes.leader(other)) is not leader and one, "another leader")
        finally:
            self.restart(leader)
        self.open(other.url)
        self.wait_text("#timeline-list", f"Node {next_leader.id} leads in term")
        self.wait_text("#timeline-list", f"before node {leader.id}")
        is_past = """return [...document.querySelectorAll("#timeline-list .of-cluster")]
            .filter((item) => item.textContent.includes("leads in term"))
            .every((item) => Date.parse(item.querySelector("time").dateTime) < performance.timeOrigin);"""
        self.assertTrue(self.script(is_past))

    def test_page_survives_the_loss_of_its_own_node(self):
        nodes = three_nodes()
        own = nodes.leader()
        other = next(node for node in nodes.nodes if node is not own)
        proxy = Proxy(own.url)
        self.addCleanup(proxy.stop)
        cluster.acquire(own.url, "moved/before", "worker-1")
        self.open(proxy.url)
        self.fill("#prefix", "moved/")
        self.wait_row("moved/before", "Active")
        nodes.kill(own)
        self.addCleanup(self.restart, own)
        self.wait_text("#connection-text", "Disconnected")
        self.wait_text("#banner", other.url.removeprefix("http://"))
        nodes.leader(other)
        cluster.acquire(other.url, "moved/meanwhile", "worker-1")
        proxy.upstream = other.url
        self.wait_row("moved/meanwhile", "Active")
        self.wait_row("moved/before", "Active")
        self.wait_text("#connection-text", "Live")
        # Lists do not fill the timeline: the stream has resumed after its last event.
        self.wait_text("#timeline-list", "moved/meanwhile granted to worker-1")
        self.wait_text("#timeline-list", f"Node {other.id} answers this page again")

    def test_page_shows_old_state_without_a_majority(self):
        pair = shared("pair", lambda: cluster.Cluster(three_nodes().binary, 2))
        cluster.acquire(pair.nodes[0].url, "alone", "worker-1")
        self.open(pair.nodes[0].url)
        self.wait_row("alone", "Active")
        pair.kill(pair.nodes[1])
        self.wait_text("#connection-text", "No leader")
        self.wait_text("#banner", "No leader with a majority")
        self.wait_text("#timeline-list", "No leader with a majority")
        self.script("location.hash = '#lease/alone'")
        self.wait_text("#summary", "Held by worker-1")
        self.click("#revoke")
        self.click("dialog .danger")
        self.wait_text("dialog .error", "503 no_leader")
