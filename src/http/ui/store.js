// The leases that the page knows. Lists fill it, and events change it. An entry is one grant: a name and a token.

/** @import { Filter, Lease, LeaseEvent, Row } from "./types" */

/** Most rows that the page keeps. A cluster can have 2,000,000 leases. */
export const MAX_ROWS = 50_000;
/** The decimal digits of the largest token. */
const TOKEN_DIGITS = 19;

/** The order of the server: names are ASCII, and a space is below each of their characters.
 * @param {string} name
 * @param {string} token */
export function keyOf(name, token) {
    return `${name} ${token.padStart(TOKEN_DIGITS, "0")}`;
}

export class Store {
    /** @type {Map<string, Row>} */
    #rows = new Map();
    /** All rows by key. Valid unless `#isUnsorted`. @type {Row[]} */
    #sorted = [];
    #isUnsorted = false;

    get size() {
        return this.#rows.size;
    }

    get isFull() {
        return this.#rows.size >= MAX_ROWS;
    }

    clear() {
        this.#rows.clear();
        this.#sorted = [];
        this.#isUnsorted = false;
    }

    /** @param {string} key */
    get(key) {
        return this.#rows.get(key);
    }

    /** Replaces the rows after `from`, and up to `to`, by those of a list that reflects the log up to `index`. Rows that
     * a later event has changed stay.
     * @param {Lease[]} leases
     * @param {number} index
     * @param {string} from
     * @param {string | null} to `null`: the end */
    merge(leases, index, from, to) {
        const now = performance.now();
        const listed = new Set();
        for (const lease of leases) {
            const key = keyOf(lease.name, lease.token);
            listed.add(key);
            const known = this.#rows.get(key);
            if (known && known.index > index) continue;
            if (!known && this.isFull) continue;
            this.#put(rowOf(key, lease, index, known, now));
        }
        for (const row of this.#between(from, to)) {
            if (!listed.has(row.key) && row.index <= index) this.#remove(row.key);
        }
    }

    /** Applies an event. Repeated and older events change nothing.
     * @param {LeaseEvent} event */
    apply(event) {
        const key = keyOf(event.name, event.token);
        const known = this.#rows.get(key);
        if (known && known.index >= event.index) return;
        if (event.event !== "granted" && !known) return;
        if (!known && this.isFull) return;
        const state = event.event === "granted" ? "active" : event.event;
        const { name, holder, token, index } = event;
        const granted = known?.granted ?? Date.parse(event.at);
        const rest = { ttl: known?.ttl ?? null, waiters: known?.waiters ?? 0 };
        this.#put({ key, name, holder, token, state, granted, index, expires: null, changed: performance.now(), ...rest });
    }

    /** The rows that match, and how many match without the filter by state.
     * @param {Filter} filter
     * @returns {{ rows: Row[], counts: Map<string, number> }} */
    view(filter) {
        const counts = new Map();
        const holder = filter.holder.toLowerCase();
        const rows = [];
        for (const row of this.#inOrder()) {
            if (!row.name.startsWith(filter.prefix)) continue;
            if (holder !== "" && !row.holder.toLowerCase().includes(holder)) continue;
            counts.set(row.state, (counts.get(row.state) ?? 0) + 1);
            if (filter.states.has(row.state)) rows.push(row);
        }
        const order = ORDERS[filter.sort];
        if (order) rows.sort(order);
        if (filter.descending) rows.reverse();
        return { rows, counts };
    }

    /** @param {Row} row */
    #put(row) {
        const known = this.#rows.get(row.key);
        if (known) {
            Object.assign(known, row);
            return;
        }
        this.#rows.set(row.key, row);
        this.#sorted.push(row);
        this.#isUnsorted = true;
    }

    /** @param {string} key */
    #remove(key) {
        this.#rows.delete(key);
        this.#isUnsorted = true;
    }

    #inOrder() {
        if (this.#isUnsorted) {
            this.#sorted = [...this.#rows.values()].sort((one, other) => (one.key < other.key ? -1 : 1));
            this.#isUnsorted = false;
        }
        return this.#sorted;
    }

    /** @param {string} from
     * @param {string | null} to */
    #between(from, to) {
        const rows = this.#inOrder();
        let at = firstAfter(rows, from);
        const end = at;
        while (at < rows.length && (to === null || rows[at].key <= to)) at += 1;
        return rows.slice(end, at);
    }
}

/** The position of the first row after a key.
 * @param {{ key: string }[]} rows
 * @param {string} key */
export function firstAfter(rows, key) {
    let [low, high] = [0, rows.length];
    while (low < high) {
        const middle = (low + high) >> 1;
        if (rows[middle].key <= key) low = middle + 1;
        else high = middle;
    }
    return low;
}

/** @param {string} key
 * @param {Lease} lease
 * @param {number} index
 * @param {Row | undefined} known
 * @param {number} now
 * @returns {Row} */
function rowOf(key, lease, index, known, now) {
    return {
        key,
        name: lease.name,
        holder: lease.holder,
        token: lease.token,
        state: lease.state,
        ttl: lease.ttl_ms,
        expires: lease.expires_in_ms === null ? null : now + lease.expires_in_ms,
        granted: Date.parse(lease.granted_at),
        waiters: lease.waiters,
        // A list does not say when a row changed, so the index of the last event stays.
        index: known?.index ?? Math.min(index, lease.index),
        changed: known?.changed ?? -Infinity,
    };
}

/** Orders other than by name. Equal rows stay in the order of their names.
 * @type {Record<string, (one: Row, other: Row) => number>} */
const ORDERS = {
    holder: (one, other) => (one.holder < other.holder ? -1 : one.holder > other.holder ? 1 : 0),
    left: (one, other) => (one.expires ?? Infinity) - (other.expires ?? Infinity) || 0,
    waiters: (one, other) => one.waiters - other.waiters,
    granted: (one, other) => one.granted - other.granted,
};
