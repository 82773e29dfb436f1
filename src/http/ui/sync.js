// Keeps the store current. Events tell about grants and ends. Renewals, metadata and queues cause no event, so the page
// also reads its leases again, page by page: first the pages whose rows are on the screen.

/** @import { LeaseEvent, LeasePage, Row } from "./types" */
/** @import { Answer, Api } from "./api.js" */
/** @import { Store } from "./store.js" */
import { Failure, asFailure } from "./api.js";
import { MAX_ROWS, firstAfter, keyOf } from "./store.js";
import { FINAL, Stream, pause } from "./stream.js";

const PAGE = 500;
const TICK_MS = 1000;
/** The lists are read without events if the watch has no position after this time. */
const OPEN_MS = 5000;
/** With fewer rows, a page that left out leases reads all lists again. */
const REFILL_ROWS = 40_000;
/** A page with rows on the screen is read again after this time, any other page after the longer time. */
const VISIBLE_AGE_MS = 3000;
const OTHER_AGE_MS = 30_000;
/** Log entries before the start whose events the timeline shows. */
const PAST_ENTRIES = 2000;

/** A page of the list: the rows after `key`. `readAt` is the start of its last read, and `wantedAt` the time of the first
 * grant since then (`Infinity`: none).
 * @typedef {{ key: string, cursor: string | null, readAt: number, wantedAt: number }} Page */

/** @typedef {object} Listeners
 * @property {() => void} changed the store has other rows
 * @property {(events: LeaseEvent[], isPast: boolean) => void} events
 * @property {(failure: Failure | null) => void} state why the list cannot be read; `null`: it can
 * @property {(failure: Failure | null) => void} watch why no events arrive; `null`: they do
 * @property {() => void} truncated the lists have more leases than the page keeps
 * @property {(isLive: boolean) => void} live */

export class Sync {
    /** Whether all leases below the prefix have been read, or as many as the page keeps. */
    isComplete = false;
    /** The time of the old state that the last list shows; `null`: it was current.
     * @type {number | null} */
    asOf = null;
    #api;
    #store;
    #listeners;
    #visible;
    /** @type {Page[]} */
    #pages = [];
    #prefix = "";
    /** @type {Stream | null} */
    #stream = null;
    /** Distinguishes the current prefix from earlier ones, whose requests may still be open. */
    #generation = 0;
    /** Events up to this log index are in the first lists. */
    #start = 0;
    /** The key of the last row that the page follows; `null`: it follows all. @type {string | null} */
    #end = null;

    /** @param {Api} api
     * @param {Store} store
     * @param {() => Row[]} visible the rows on the screen
     * @param {Listeners} listeners */
    constructor(api, store, visible, listeners) {
        this.#api = api;
        this.#store = store;
        this.#visible = visible;
        this.#listeners = listeners;
    }

    get prefix() {
        return this.#prefix;
    }

    /** Whether the cluster has more leases below the prefix than the page keeps. */
    get isTruncated() {
        return this.#end !== null;
    }

    /** Reads all leases with a prefix, and follows them.
     * @param {string} prefix
     * @param {number} applied the last log index that the node has applied, to show events of the past; 0: none
     * @param {number | null} [oldest] the position to watch from, if the node does not know an earlier one */
    start(prefix, applied, oldest = null) {
        this.stop();
        this.#prefix = prefix;
        this.#start = applied;
        const generation = this.#generation;
        let hasBegun = false;
        const begin = () => {
            if (hasBegun || generation !== this.#generation) return;
            hasBegun = true;
            void this.#run(generation);
        };
        const position = oldest ?? (applied > 0 ? Math.max(0, applied - PAST_ENTRIES) : null);
        this.#stream = new Stream(this.#api, prefix, position === null ? null : String(position), {
            // The lists must not be older than the start of the events.
            opened: () => (hasBegun ? this.#reload() : begin()),
            events: (events) => this.#take(events),
            failed: (failure) => {
                this.#listeners.watch(failure);
                if (failure) begin();
            },
            // The node has forgotten those events. A busy node forgets its oldest ones before the next request, too. After
            // `applied`, the events would look new.
            restart: (failure) => {
                if (oldest === null && failure.oldest !== null && failure.oldest <= applied) this.start(prefix, applied, failure.oldest);
                else this.start(prefix, 0);
            },
            live: (isLive) => this.#listeners.live(isLive),
        });
        if (position !== null) begin();
        else window.setTimeout(begin, OPEN_MS);
    }

    stop() {
        this.#generation += 1;
        this.#stream?.stop();
        this.#stream = null;
        this.#pages = [];
        this.#end = null;
        this.#store.clear();
        this.isComplete = false;
        this.asOf = null;
        this.#listeners.watch(null);
    }

    /** Reads all lists again. The rows stay meanwhile. */
    #reload() {
        this.#generation += 1;
        this.isComplete = false;
        void this.#run(this.#generation);
    }

    /** @param {LeaseEvent[]} events */
    #take(events) {
        const past = events.filter((event) => event.index <= this.#start);
        const fresh = events.filter((event) => event.index > this.#start);
        if (past.length > 0) this.#listeners.events(past, true);
        if (fresh.length === 0) return;
        const followed = fresh.filter((event) => this.#end === null || keyOf(event.name, event.token) <= this.#end);
        for (const event of followed) this.#store.apply(event);
        // An event has no ttl, so the pages of new grants are read at once.
        for (const event of followed) {
            const page = event.event === "granted" ? this.#pageOf(keyOf(event.name, event.token)) : null;
            if (page) page.wantedAt = Math.min(page.wantedAt, performance.now());
        }
        this.#listeners.events(fresh, false);
        this.#listeners.changed();
    }

    /** @param {number} generation */
    async #run(generation) {
        const isCurrent = () => generation === this.#generation;
        while (isCurrent()) {
            try {
                if (!this.isComplete) await this.#readAll(isCurrent);
                else await this.#readDue(isCurrent);
                if (isCurrent()) this.#listeners.state(null);
            } catch (error) {
                const failure = asFailure(error);
                if (!isCurrent()) return;
                this.#listeners.state(failure);
                if (FINAL.has(failure.code)) return;
            }
            await pause(TICK_MS);
        }
    }

    /** @param {() => boolean} isCurrent */
    async #readAll(isCurrent) {
        this.#store.setLoading(true);
        this.#pages = [];
        this.#end = null;
        let [key, cursor, rows] = ["", /** @type {string | null} */ (null), 0];
        do {
            // A grant that arrives during the request marks the page, so it needs its place before.
            /** @type {Page} */
            const page = { key, cursor, readAt: performance.now(), wantedAt: Infinity };
            this.#pages.push(page);
            const list = await this.#list(cursor);
            if (!isCurrent()) return;
            [key, cursor] = [this.#merge(page, list), list.value.cursor];
            rows += list.value.leases.length;
            this.#listeners.changed();
        } while (cursor !== null && rows < MAX_ROWS);
        this.#store.setLoading(false);
        this.isComplete = true;
        if (cursor !== null) this.#cut(key);
        this.#listeners.changed();
        if (this.isTruncated) this.#listeners.truncated();
    }

    /** Follows no rows after a key.
     * @param {string} end */
    #cut(end) {
        this.#end = end;
        this.#store.removeAfter(end);
    }

    /** @param {string | null} cursor */
    async #list(cursor) {
        const generation = this.#generation;
        const list = await this.#api.list(this.#prefix, cursor, PAGE);
        if (generation === this.#generation) this.asOf = list.asOf;
        return list;
    }

    /** Puts a list into the store.
     * @param {Page} page
     * @param {Answer<LeasePage>} list
     * @returns {string} the key of its last row */
    #merge(page, { value, index }) {
        const last = value.leases.at(-1);
        const end = last ? keyOf(last.name, last.token) : page.key;
        this.#store.merge(value.leases, index, page.key, value.cursor === null ? null : end);
        if (this.#end !== null && (value.cursor === null || end > this.#end)) this.#store.removeAfter(this.#end);
        return end;
    }

    /** Reads one page on the screen and one other page, if they are due. Each kind has its own read, so that grants in one
     * of them never delay the other.
     * @param {() => boolean} isCurrent */
    async #readDue(isCurrent) {
        for (const isVisible of [true, false]) {
            if (document.hidden || !isCurrent()) return;
            const page = this.#mostDue(isVisible);
            if (page) await this.#readPage(page, isCurrent);
        }
        if (this.isTruncated && isCurrent() && this.#store.size < REFILL_ROWS) this.isComplete = false;
    }

    /** The page that is due for the longest time.
     * @param {boolean} isVisible whether to choose among the pages on the screen or among the others
     * @returns {Page | null} */
    #mostDue(isVisible) {
        const visible = new Set(this.#visible().map((row) => this.#pageOf(row.key)));
        // After an old state, a current one must not take long.
        const age = isVisible || this.asOf !== null ? VISIBLE_AGE_MS : OTHER_AGE_MS;
        let [chosen, earliest] = [/** @type {Page | null} */ (null), performance.now()];
        for (const page of this.#pages) {
            const due = Math.min(page.wantedAt, page.readAt + age);
            if (visible.has(page) === isVisible && due < earliest) [chosen, earliest] = [page, due];
        }
        return chosen;
    }

    /** @param {Page} page
     * @param {() => boolean} isCurrent */
    async #readPage(page, isCurrent) {
        // The response may not have a grant that arrives during the request, so such a grant must mark the page again.
        Object.assign(page, { readAt: performance.now(), wantedAt: Infinity });
        let list;
        try {
            list = await this.#list(page.cursor);
        } catch (error) {
            // The time is new, so a page that fails again and again does not delay the others.
            page.wantedAt = performance.now();
            throw error;
        }
        if (!isCurrent()) return;
        this.#fit(page, this.#merge(page, list), list.value.cursor);
        this.#shrink();
        this.#listeners.changed();
    }

    /** Gives up the last pages while the store has too many rows. */
    #shrink() {
        const wasTruncated = this.isTruncated;
        while (this.#store.size > MAX_ROWS && this.#pages.length > 1) {
            this.#cut(this.#pages[this.#pages.length - 1].key);
            this.#pages.pop();
        }
        if (this.isTruncated && !wasTruncated) this.#listeners.truncated();
    }

    /** Adapts the following pages after a page was read up to `end`.
     * @param {Page} page
     * @param {string} end
     * @param {string | null} cursor */
    #fit(page, end, cursor) {
        const at = this.#pages.indexOf(page) + 1;
        if (at === 0) return;
        if (cursor === null) {
            this.#pages.length = at;
            return;
        }
        // An empty page has no end, so it does not tell where the next one starts.
        if (end === page.key) return;
        // Without this bound, the page would read the whole cluster.
        if (this.#end !== null && end >= this.#end) {
            this.#pages.length = at;
            return;
        }
        const covered = firstAfter(this.#pages, end);
        const now = performance.now();
        const isKnown = this.#pages[covered - 1].key === end;
        if (isKnown) this.#pages.splice(at, covered - 1 - at);
        else this.#pages.splice(at, covered - at, { key: end, cursor, readAt: now, wantedAt: now });
    }

    /** The page that lists the row with this key.
     * @param {string} key
     * @returns {Page | null} */
    #pageOf(key) {
        let at = firstAfter(this.#pages, key) - 1;
        // A page has the rows after its key.
        if (at > 0 && this.#pages[at].key === key) at -= 1;
        return this.#pages[Math.max(0, at)] ?? null;
    }
}
