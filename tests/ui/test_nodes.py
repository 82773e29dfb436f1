"""The table of the nodes, with answers of the cluster that a test makes."""

import copy
import datetime
import json

import cluster
from browser import PageTest, three_nodes
from proxy import Intercepted, answer

# Role, state, lag, time since the last contact, disk: the answer, and what the table shows.
MEMBERS = [
    (("leader", "ok", 0, None, "ok"), ("★ Leader", "✓ OK", "0", "–", "✓ OK")),
    (("follower", "ok", 7, 40, "ok"), ("○ Follower", "✓ OK", "7", "40ms ago", "✓ OK")),
    (("follower", "lagging", 12_345, 130, "ok"), ("○ Follower", "▲ Lagging", "12,345", "130ms ago", "✓ OK")),
    (("follower", "ok", 3, 2_500, "stalled"), ("○ Follower", "✓ OK", "3", "2s ago", "■ Stalled")),
    (("follower", "unreachable", None, 75_000, None), ("○ Follower", "✕ Unreachable", "unknown", "1m 15s ago", "◇ unknown")),
    (("learner", "unreachable", None, None, None), ("◌ Learner", "✕ Unreachable", "unknown", "unknown", "◇ unknown")),
    (("witness", "on_holiday", 1, 1, "full"), ("◇ witness", "◇ on holiday", "1", "1ms ago", "◇ full")),
]


class Nodes(PageTest):
    def setUp(self):
        super().setUp()
        leader = three_nodes().leader()
        self.status = cluster.request(leader.url, "GET", "/v1/cluster")
        first = self.status["members"][0]
        keys = ("role", "state", "lag", "last_contact_ms", "disk")
        self.status["members"] = [
            {**first, "id": number, **dict(zip(keys, values))} for number, (values, _) in enumerate(MEMBERS, 1)
        ]
        self.status.update(node=2, leader=1)
        proxy = Intercepted(leader.url, self.take)
        self.addCleanup(proxy.stop)
        self.open(proxy.url)

    def take(self, handler, path):
        if not path.startswith("/v1/cluster"):
            return False
        answer(handler, 200, "application/json", json.dumps(self.status).encode())
        return True

    def table(self):
        return self.script(
            """const text = (cell) => [...(cell.querySelector(".mark") ?? cell).childNodes].map((part) => part.textContent).join(" ");
               return Object.fromEntries([...document.querySelectorAll("#node-rows tr")].map((row) =>
                   [row.querySelector("th").firstChild.data.trim(), [...row.cells].slice(1, 6).map(text)]));"""
        )

    def test_table_shows_role_state_lag_contact_and_disk(self):
        expected = {f"Node {number}": list(shown) for number, (_, shown) in enumerate(MEMBERS, 1)}
        self.wait(lambda: len(self.table()) == len(MEMBERS), "all members are in the table")
        self.assertEqual(self.table(), expected)
        tags = self.script("return [...document.querySelectorAll('#node-rows .tag:not([hidden])')].map((tag) => tag.closest('tr').rowIndex)")
        self.assertEqual(tags, [2], "the node that answers the page")
        buttons = self.script(
            """return [...document.querySelectorAll("#node-rows button:not([hidden])")].map((button) => button.getAttribute("aria-label"))"""
        )
        self.assertEqual(buttons, [f"Make node {number} the leader" for number in (2, 3, 4, 5)], "only followers can lead")

    def test_certificates_warn_30_days_before_their_end(self):
        now = datetime.datetime.fromisoformat(self.status["clock"]["wall"].replace("Z", "+00:00"))
        members = copy.deepcopy(self.status["members"])
        for member, days in zip(members, (-1, 29, 31)):
            expires = now + datetime.timedelta(days=days, hours=12, minutes=30)
            member["certificate_expires_at"] = expires.isoformat().replace("+00:00", "Z")
        self.status = {**self.status, "members": members}
        certificates = """return [...document.querySelectorAll("#node-rows .certificate")].slice(0, 3)
            .map((cell) => [cell.textContent, cell.classList.contains("warning")]);"""
        expected = [["✕ expired", True], ["▲ 29d 12h left", True], ["31d 12h left", False]]
        self.wait(lambda: self.script(certificates) == expected, f"the certificates are {expected}")

    def test_time_of_a_sync_is_the_average_since_the_last_poll(self):
        metric = "tenure_storage_sync_seconds"
        texts = [
            "".join(f"{metric}_sum{labels} {sum}\n{metric}_count{labels} {count}\n" for labels, sum, count in series)
            for series in ([("", 0.03, 6), ('{disk="b"}', 0.02, 4)], [("", 0.06, 14), ('{disk="b"}', 0.04, 6)])
        ]
        shown = self.driver.execute_async_script(
            """const [texts, done] = arguments;
               const headers = { "x-tenure-node": "2" };
               const api = { send: async (path) => new Response(path === "metrics" ? texts.shift() : "", { headers }) };
               import(new URL("ui/nodes.js", location.href.split("#")[0]).href).then(async ({ OwnNode }) => {
                   const own = new OwnNode(api);
                   done([await own.poll(), await own.poll()]);
               });""",
            texts,
        )
        ready = "Node 2 answers this page and is ready."
        self.assertEqual(shown, [ready, f"{ready} Disk: 5 ms for a sync on average."])

    def test_time_of_a_sync_is_of_the_node_that_answers(self):
        metric = "tenure_storage_sync_seconds"
        # Behind a load balancer, two nodes answer. Node 2 restarts at the end.
        polls = [("2", 0.05, 10), ("3", 9.0, 1000), ("2", 0.1, 20), ("3", 9.04, 1020), ("2", 0.01, 2)]
        polls = [(node, f"{metric}_sum {sum}\n{metric}_count {count}\n") for node, sum, count in polls]
        shown = self.driver.execute_async_script(
            """const [polls, done] = arguments;
               const answer = ([node, text]) => new Response(text, { headers: { "x-tenure-node": node } });
               const api = { send: async (path) => answer(path === "metrics" ? polls.shift() : polls[0]) };
               import(new URL("ui/nodes.js", location.href.split("#")[0]).href).then(async ({ OwnNode }) => {
                   const own = new OwnNode(api);
                   const shown = [];
                   while (polls.length > 0) shown.push(await own.poll());
                   done(shown);
               });""",
            polls,
        )
        ready = {node: f"Node {node} answers this page and is ready." for node in (2, 3)}
        of_sync = [f"{ready[node]} Disk: {ms} ms for a sync on average." for node, ms in ((2, 5), (3, 2))]
        self.assertEqual(shown, [ready[2], ready[3], *of_sync, ready[2]])

    def test_changes_of_members_are_in_the_table_and_in_the_timeline(self):
        self.wait(lambda: len(self.table()) == len(MEMBERS), "all members are in the table")
        members = copy.deepcopy(self.status["members"])
        members[1].update(state="lagging", lag=5_000)
        members[1].update(disk="stalled")
        members[2].update(state="unreachable", lag=None)
        members[3].update(disk="ok")
        members[4].update(state="ok", lag=0, last_contact_ms=10, disk="ok")
        del members[6]
        members.append({**members[1], "id": 9, "state": "ok"})
        # The proxy serves the page meanwhile, so all changes come at once.
        self.status = {**self.status, "members": members}
        self.wait(lambda: self.table().get("Node 2", [None] * 3)[1:3] == ["▲ Lagging", "5,000"], "node 2 lags")
        shown = self.table()
        self.assertEqual(shown["Node 3"][1:3], ["✕ Unreachable", "unknown"])
        self.assertEqual(shown["Node 5"], ["○ Follower", "✓ OK", "0", "10ms ago", "✓ OK"])
        self.assertNotIn("Node 7", shown)
        self.assertIn("Node 9", shown)
        for text in ("Node 2 is lagging", "Node 3 is unreachable", "Node 5 is ok", "Node 7 was removed", "Node 9 was added"):
            self.wait_text("#timeline-list", text)
        for text in ("The disk of node 2 is stalled", "The disk of node 4 works again"):
            self.wait_text("#timeline-list", text)
