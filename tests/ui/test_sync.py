"""The order in which the page reads its leases, with a list and events that the test controls."""

import json
from urllib.parse import parse_qs, urlsplit

from browser import PageTest, three_nodes
from proxy import Intercepted, answer

# `makeSync` follows a list of pages of `size` leases: the names of page 2 start with "p002/". `reads` has the number of each page
# that was read. `grant` and `revoke` send an event of the first lease of a page, `revokeAtOnce` sends one of the same log entry as
# the last event, and `onList` runs during each request. `more` adds leases to the first page, and `pages` changes the number of pages.
FIXTURE = """
window.makeSync = async ({ pages, size, visible }) => {
    const load = (name) => import(new URL(`ui/${name}`, location.href.split("#")[0]).href);
    const [{ Sync }, { Store, keyOf }] = await Promise.all([load("sync.js"), load("store.js")]);
    const nameOf = (page, at) => `p${String(page).padStart(3, "0")}/${String(at).padStart(3, "0")}`;
    const leaseOf = (name) => ({ name, holder: "h", token: "1", ttl_ms: 1000, expires_in_ms: 1000, state: "active",
        granted_at: "2026-01-01T00:00:00Z", waiters: 0, index: 1 });
    let [controller, index] = [null, 10];
    const body = new ReadableStream({ start: (it) => (controller = it) });
    const send = (text) => controller.enqueue(new TextEncoder().encode(text));
    send("id: 10\\n\\n");
    const test = { reads: [], more: 0, pages, onList: window.onFirstLists ?? (() => {}), onEvents: () => {} };
    window.test = test;
    const api = {
        send: async () => new Response(body),
        list: async (_prefix, cursor) => {
            const [page, at] = [Number(cursor ?? 0), index];
            test.reads.push(page);
            await test.onList(page);
            const leases = Array.from({ length: size + (page === 0 ? test.more : 0) }, (_, at) => leaseOf(nameOf(page, at)));
            return { value: { leases, cursor: page + 1 < test.pages ? String(page + 1) : null }, index: at, asOf: null };
        },
    };
    const sendEvent = (kind, part = 0) => (page) => {
        if (part === 0) index += 1;
        const event = { event: kind, index, part, name: nameOf(page, 0), holder: "h", token: "1", at: "2026-01-01T00:00:00Z" };
        send(`id: ${index}\\ndata: ${JSON.stringify(event)}\\n\\n`);
    };
    test.grant = sendEvent("granted");
    test.revoke = sendEvent("revoked");
    test.revokeAtOnce = sendEvent("revoked", 1);
    const store = new Store();
    test.stateOf = (page) => store.get(keyOf(nameOf(page, 0), "1"))?.state ?? null;
    const rows = () => store.view({ prefix: "", holder: "", states: new Set(["active"]), sort: "name", descending: false }).rows;
    const onScreen = () => (visible === null ? [] : rows().filter((row) => row.name === nameOf(visible, 0)));
    const sync = new Sync(api, store, onScreen, { changed() {}, events: () => test.onEvents(), state() {}, live() {},
        watch() {}, truncated() {} });
    test.isComplete = () => sync.isComplete;
    test.isTruncated = () => sync.isTruncated;
    test.size = () => store.size;
    sync.start("", 0);
};
"""


class Reads(PageTest):
    def start(self, pages, size, visible, during_load=""):
        self.open(three_nodes().nodes[0].url)
        self.script(FIXTURE)
        self.script(during_load)
        self.script("return window.makeSync(arguments[0])", {"pages": pages, "size": size, "visible": visible})
        self.wait(lambda: self.script("return window.test.isComplete()"), "the list is read")
        self.script("window.test.reads.length = 0")

    def reads(self, page):
        return self.script("return window.test.reads").count(page)

    def test_grants_elsewhere_do_not_delay_the_screen(self):
        self.start(pages=3, size=5, visible=2)
        self.script("window.setInterval(() => window.test.grant(0), 100)")
        self.wait(lambda: self.reads(2) >= 2, "the rows on the screen are read", within=40)
        self.assertGreaterEqual(self.reads(0), 2)

    def test_grants_on_the_screen_do_not_delay_others(self):
        self.start(pages=3, size=5, visible=0)
        self.script("window.setInterval(() => window.test.grant(0), 100); window.test.grant(2)")
        self.wait(lambda: self.reads(2) >= 1 and self.reads(0) >= 2, "both pages are read", within=40)

    def test_full_store_reads_no_page_after_its_last(self):
        self.start(pages=200, size=500, visible=None)
        self.script("window.test.grant(150); window.test.grant(99)")
        self.wait(lambda: self.reads(99) >= 1, "the last page is read again")
        self.assertIsNone(self.script("return window.test.stateOf(150)"), "the page does not follow this row")
        self.script("window.test.grant(0)")
        self.wait(lambda: self.reads(0) >= 1, "the first page is read again")
        self.assertLess(max(self.script("return window.test.reads")), 100)

    def test_full_store_gives_up_its_last_page_for_new_rows(self):
        self.start(pages=100, size=500, visible=None)
        self.assertFalse(self.script("return window.test.isTruncated()"))
        self.script("window.test.more = 1; window.test.grant(0)")
        self.wait(lambda: self.script("return window.test.size()") == 49_501, "the last page is gone")
        self.assertTrue(self.script("return window.test.isTruncated()"))
        self.assertEqual(self.script("return [98, 99].map(window.test.stateOf)"), ["active", None])

    def test_page_reads_the_rest_when_many_rows_are_gone(self):
        self.start(pages=200, size=500, visible=None)
        self.script("window.test.pages = 70; window.test.grant(69)")
        self.wait(lambda: self.script("return window.test.size()") == 35_000, "the other rows are gone")
        self.wait(lambda: not self.script("return window.test.isTruncated()"), "the page has all leases")

    def test_failing_read_does_not_delay_other_pages(self):
        self.start(pages=3, size=5, visible=None)
        self.script(
            """window.test.onList = (page) => {
                   if (page === 0) throw new Error("this page fails");
               };
               window.test.grant(0);"""
        )
        self.wait(lambda: self.reads(0) >= 1, "the read fails")
        self.script("window.test.grant(1)")
        self.wait(lambda: self.reads(1) >= 1 and self.reads(0) >= 2, "both pages are read", within=40)

    def test_grant_during_a_read_causes_another_read(self):
        self.start(pages=3, size=5, visible=None)
        self.script(
            """window.test.onList = async () => {
                   window.test.onList = () => {};
                   const arrived = new Promise((resolve) => (window.test.onEvents = resolve));
                   window.test.grant(1);
                   await arrived;
               };
               window.test.grant(1);"""
        )
        self.wait(lambda: self.reads(1) >= 2, "the page is read again", within=40)

    def test_end_in_the_entry_of_its_grant_is_not_lost(self):
        self.start(pages=1, size=5, visible=None)
        self.script(
            """window.test.onList = () => new Promise(() => {});
               window.test.grant(0);
               window.test.revokeAtOnce(0);"""
        )
        self.wait(lambda: self.script("return window.test.stateOf(0)") == "revoked", "the end is applied")

    # Runs an event during the request for page 2, whose answer is older than the event.
    DURING_LOAD = """window.onFirstLists = async (page) => {{
        if (page !== 2) return;
        const arrived = new Promise((resolve) => (window.test.onEvents = resolve));
        window.test.{};
        await arrived;
    }};"""

    def test_end_during_the_first_lists_is_not_lost(self):
        self.start(pages=3, size=5, visible=None, during_load=self.DURING_LOAD.format("revoke(2)"))
        self.assertEqual(self.script("return [1, 2].map(window.test.stateOf)"), ["active", "revoked"])

    def test_grant_during_the_first_lists_causes_another_read(self):
        self.start(pages=3, size=5, visible=None, during_load=self.DURING_LOAD.format("grant(1)"))
        self.wait(lambda: self.reads(1) >= 1, "the page is read again")


class Truncated(PageTest):
    """60,000 leases, of which the page keeps the first 50,000."""

    def setUp(self):
        super().setUp()
        self.names = [f"n{number:06}" for number in range(60_000)]
        proxy = Intercepted(three_nodes().leader().url, self.take)
        self.addCleanup(proxy.stop)
        self.url = proxy.url

    def take(self, handler, path):
        if not path.startswith("/v1/leases?"):
            return False
        query = {name: values[0] for name, values in parse_qs(urlsplit(path).query).items()}
        found = [name for name in self.names if name.startswith(query.get("prefix", "")) and name > query.get("cursor", "")]
        page = found[: int(query["limit"])]
        lease = {"holder": "h", "token": "1", "ttl_ms": 60_000, "expires_in_ms": 60_000, "state": "active", "waiters": 0, "index": 1}
        leases = [{**lease, "name": name, "granted_at": "2026-01-01T00:00:00Z"} for name in page]
        body = {"leases": leases, "cursor": page[-1] if len(found) > len(page) else None}
        answer(handler, 200, "application/json", json.dumps(body).encode(), {"x-tenure-index": "1000000"})
        return True

    def test_prefix_during_the_first_lists_is_read(self):
        self.open(self.url)
        self.fill("#prefix", "n0599")
        self.wait_row("n059900", "Active", within=60)

    def test_prefix_is_read_after_a_row_is_gone(self):
        self.open(self.url)
        self.wait_text("#count", "The page reads the first 50,000", within=60)
        del self.names[0]
        self.wait_row("n000001", "Active")
        self.wait_text("#count", "49,999 of 49,999 The page reads the first 50,000")
        self.fill("#prefix", "n0599")
        self.wait_row("n059900", "Active", within=60)
        self.assertNotIn("The page reads", self.text("#count"))
