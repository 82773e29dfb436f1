"""The order in which the page reads its leases again, with a list and events that the test controls."""

from browser import PageTest, three_nodes

# `makeSync` follows a list of pages of `size` leases: the names of page 2 start with "p002/". `reads` has the number of each page
# that was read, `grant` sends an event, and `onList` runs during each request.
FIXTURE = """
window.makeSync = async ({ pages, size, visible }) => {
    const load = (name) => import(new URL(`ui/${name}`, location.href.split("#")[0]).href);
    const [{ Sync }, { Store }] = await Promise.all([load("sync.js"), load("store.js")]);
    const nameOf = (page, at) => `p${String(page).padStart(3, "0")}/${String(at).padStart(3, "0")}`;
    const leaseOf = (name) => ({ name, holder: "h", token: "1", ttl_ms: 1000, expires_in_ms: 1000, state: "active",
        granted_at: "2026-01-01T00:00:00Z", waiters: 0, index: 1 });
    let [controller, index] = [null, 10];
    const body = new ReadableStream({ start: (it) => (controller = it) });
    const send = (text) => controller.enqueue(new TextEncoder().encode(text));
    send("id: 10\\n\\n");
    const test = { reads: [], onList: () => {}, onEvents: () => {} };
    const api = {
        send: async () => new Response(body),
        list: async (_prefix, cursor) => {
            const page = Number(cursor ?? 0);
            test.reads.push(page);
            await test.onList(page);
            const leases = Array.from({ length: size }, (_, at) => leaseOf(nameOf(page, at)));
            return { value: { leases, cursor: page + 1 < pages ? String(page + 1) : null }, index };
        },
    };
    test.grant = (page) => {
        index += 1;
        const event = { event: "granted", index, part: 0, name: nameOf(page, 0), holder: "h", token: "1", at: "2026-01-01T00:00:00Z" };
        send(`id: ${index}\\ndata: ${JSON.stringify(event)}\\n\\n`);
    };
    const store = new Store();
    const rows = () => store.view({ prefix: "", holder: "", states: new Set(["active"]), sort: "name", descending: false }).rows;
    const onScreen = () => (visible === null ? [] : rows().filter((row) => row.name === nameOf(visible, 0)));
    const sync = new Sync(api, store, onScreen, { changed() {}, events: () => test.onEvents(), state() {}, live() {} });
    test.isComplete = () => sync.isComplete;
    sync.start("", 0);
    window.test = test;
};
"""


class Reads(PageTest):
    def start(self, pages, size, visible):
        self.open(three_nodes().nodes[0].url)
        self.script(FIXTURE)
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
        self.script("window.test.grant(150)")
        self.wait(lambda: self.reads(99) >= 1, "the last page is read again")
        self.script("window.test.grant(0)")
        self.wait(lambda: self.reads(0) >= 1, "the first page is read again")
        self.assertLess(max(self.script("return window.test.reads")), 100)

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
