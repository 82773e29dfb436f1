// The leases that the page knows. Lists fill it, and events change it. An entry is one grant: a name and a token.

/** @import { Filter, Lease, LeaseEvent, Row } from "./types" */

/** Most rows that the page keeps. A cluster can have 2,000,000 leases. */
export const MAX_ROWS = 50_000;
/** Most ends that the page keeps while it reads the lists. */
const MAX_ENDS = 50_000;
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
    /** The ends of unknown grants while the lists are read: an older list can still have these grants as active. `null`: all
     * lists are read. @type {Map<string, LeaseEvent> | null} */
    #ends = new Map();
    /** All rows by key. Valid unless `#isUnsorted`. @type {Row[]} */
    #sorted = [];
    #isUnsorted = false;

    get size() {
        return this.#rows.size;
    }

    clear() {
        this.#rows.clear();
        this.#ends = new Map();
        this.#sorted = [];
        this.#isUnsorted = false;
    }

    /** Says whether the first lists are being read.
     * @param {boolean} isLoading */
    setLoading(isLoading) {
        this.#ends = isLoading ? new Map() : null;
    }

    /** Removes the rows after a key.
     * @param {string} key */
    removeAfter(key) {
        for (const row of this.#between(key, null)) this.#remove(row.key);
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
            this.#put(rowOf(key, lease, index, known, now));
            const end = this.#ends?.get(key);
            if (end && end.index > index) this.apply(end);
        }
        for (const row of this.#between(from, to)) {
            if (!listed.has(row.key) && row.index <= index) this.#remove(row.key);
        }
    }

    /** Applies an event. Repeated and older events change nothing. A full store takes no new grant: its page is read again.
     * @param {LeaseEvent} event */
    apply(event) {
        const key = keyOf(event.name, event.token);
        const known = this.#rows.get(key);
        if (known && (known.index > event.index || (known.index === event.index && known.part >= event.part))) return;
        if (event.event !== "granted" && !known) {
            if (this.#ends && this.#ends.size < MAX_ENDS) this.#ends.set(key, event);
            return;
        }
        if (!known && this.size >= MAX_ROWS) return;
        const state = event.event === "granted" ? "active" : event.event;
        const { name, holder, token, index, part } = event;
        const granted = known?.granted ?? Date.parse(event.at);
        const rest = { ttl: known?.ttl ?? null, waiters: known?.waiters ?? 0 };
        this.#put({ key, name, holder, token, state, granted, index, part, expires: null, changed: performance.now(), ...rest });
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
        part: known?.part ?? Infinity,
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
