// The detail view of one lease: its holders, queue and history, an explanation for a holder, and the actions.

/** @import { Explanation, Lease, LeaseEvent, Queue, Waiter } from "./types" */
/** @import { Answer, Api } from "./api.js" */
import { Failure, asFailure, leasePath } from "./api.js";
import * as actions from "./actions.js";
import { byId, h, mark, setText } from "./dom.js";
import * as format from "./format.js";

const REFRESH_MS = 2000;
/** Shortest time between the starts of two reads: a lease can change hundreds of times in a second. */
const SHORTEST_MS = 300;
/** Most holders and most waiters on the screen. */
const MAX_SHOWN = 100;

/** @typedef {{ lease: Lease | null, explanation: Explanation, queue: Queue, history: LeaseEvent[],
 *   asOf: number | null }} Facts */

export class Detail {
    /** The name of the open lease. */
    name = "";
    /** The time of the oldest state that the view shows; `null`: all of it was current. @type {number | null} */
    asOf = null;
    #api;
    #panel = byId("detail");
    #content = byId("detail-content");
    #timer = 0;
    /** The read in progress, and whether another one must follow it. @type {{ isAgain: boolean } | null} */
    #reading = null;
    /** The explanation on the screen, which an action must match. @type {Explanation | null} */
    #explanation = null;
    /** Counts the explanations for a holder, so that a late answer does not replace a newer one. */
    #explained = 0;
    /** The start of the last read of this lease. */
    #readAt = -Infinity;
    /** The shape of the content. While it stays, only texts change, so that focus and selection stay, too. */
    #shown = "";
    /** Times on the screen by a key, on the clock of `performance.now()`.
     * @type {Map<string, { element: HTMLElement, from: number, isAge: boolean }>} */
    #times = new Map();

    /** @param {Api} api */
    constructor(api) {
        this.#api = api;
        const form = /** @type {HTMLFormElement} */ (byId("explain"));
        form.addEventListener("submit", (event) => {
            event.preventDefault();
            void this.#explainHolder();
        });
    }

    /** @param {string} name */
    open(name) {
        if (this.name !== name) {
            this.#reading = null;
            this.asOf = null;
            this.#readAt = -Infinity;
            this.#shown = "";
            this.#times.clear();
            this.#content.replaceChildren(h("p", { class: "muted" }, "Loading…"));
            byId("explanation").replaceChildren();
            /** @type {HTMLInputElement} */ (byId("explain-holder")).value = "";
        }
        this.name = name;
        setText(byId("detail-name"), name);
        this.#panel.hidden = false;
        this.refresh();
    }

    /** Hides the view and removes its data. */
    close() {
        window.clearTimeout(this.#timer);
        this.name = "";
        this.#reading = null;
        this.asOf = null;
        this.#explanation = null;
        this.#panel.hidden = true;
        this.#shown = "";
        this.#times.clear();
        for (const id of ["detail-name", "detail-content", "explanation", "known-holders"]) byId(id).replaceChildren();
        /** @type {HTMLInputElement} */ (byId("explain-holder")).value = "";
    }

    /** Reads the lease again soon, and then every two seconds. A call during a read causes another read after it. */
    refresh() {
        if (this.name === "") return;
        if (this.#reading) this.#reading.isAgain = true;
        else this.#schedule(SHORTEST_MS);
    }

    /** @param {number} ms the time between the start of the last read and the next one */
    #schedule(ms) {
        window.clearTimeout(this.#timer);
        const wait = Math.max(0, this.#readAt + ms - performance.now());
        this.#timer = window.setTimeout(() => void this.#update(), wait);
    }

    async #update() {
        const reading = { isAgain: false };
        this.#reading = reading;
        this.#readAt = performance.now();
        try {
            const facts = await this.#read(this.name);
            if (this.#reading !== reading) return;
            this.#show(facts);
        } catch (error) {
            if (this.#reading !== reading) return;
            const failure = asFailure(error);
            this.#shown = "";
            this.asOf = null;
            this.#content.replaceChildren(h("div", { class: "error" }, h("strong", null, failure.title), h("p", null, failure.message)));
        }
        this.#reading = null;
        this.#schedule(reading.isAgain ? SHORTEST_MS : REFRESH_MS);
    }

    /** Updates the times. */
    tick() {
        const now = performance.now();
        for (const { element, from, isAge } of this.#times.values()) {
            const ms = isAge ? now - from : Math.max(0, from - now);
            setText(element, from === Infinity ? "never" : format.whole(ms));
        }
    }

    /** @param {string} name
     * @returns {Promise<Facts>} */
    async #read(name) {
        const path = leasePath(name);
        /** @returns {Promise<Answer<Lease> | null>} */
        const lease = async () => {
            try {
                return /** @type {Answer<Lease>} */ (await this.#api.read(path));
            } catch (error) {
                // The lease has only waiters, or its last grant is forgotten.
                if (error instanceof Failure && error.code === "not_found") return null;
                throw error;
            }
        };
        // A browser opens at most six connections to a node. The status must get one while these reads wait for a leader.
        const [held, explanation] = await Promise.all([lease(), this.#api.read(`${path}/explain`)]);
        const [queue, history] = await Promise.all([this.#api.read(`${path}/queue`), this.#api.read(`${path}/history`)]);
        const times = [held, explanation, queue, history].map((answer) => answer?.asOf ?? null).filter((asOf) => asOf !== null);
        return {
            asOf: times.length > 0 ? Math.min(...times) : null,
            lease: held?.value ?? null,
            explanation: /** @type {Explanation} */ (explanation.value),
            queue: /** @type {Queue} */ (queue.value),
            history: /** @type {{ transitions: LeaseEvent[] }} */ (history.value).transitions,
        };
    }

    /** @param {Facts} facts */
    #show({ lease, explanation, queue, history, asOf }) {
        this.asOf = asOf;
        this.#explanation = explanation;
        const holders = explanation.held.slice(0, MAX_SHOWN);
        const waiters = queue.waiters.slice(0, MAX_SHOWN);
        const shape = JSON.stringify([
            lease?.token, lease?.state, lease?.metadata, lease?.ttl_ms, holders.map((held) => [held.token, held.ttl_ms]),
            waiters.map((waiter) => waiter.holder), queue.total, explanation.holders, history.length, history.at(-1)?.index, history.at(-1)?.part,
        ]);
        const isNew = shape !== this.#shown;
        if (isNew) {
            this.#shown = shape;
            this.#times.clear();
            const focused = this.#content.contains(document.activeElement) ? document.activeElement?.id : null;
            this.#content.replaceChildren(
                h("p", { class: "summary", id: "summary" }),
                ...this.#actionsOf(explanation, queue),
                ...(lease ? this.#factsOf(lease) : []),
                ...this.#holdersOf(explanation, waiters),
                ...this.#queueOf(explanation, queue, waiters),
                ...historyOf(history),
            );
            // The focus stays in the view when its element is gone.
            if (focused !== null) byId(focused && document.getElementById(focused) ? focused : "detail-name").focus();
            this.#suggest([...holders.map((held) => held.holder), ...waiters.map((waiter) => waiter.holder), ...history.map((event) => event.holder)]);
        }
        setText(byId("summary"), format.readable(sentence(explanation.summary), explanation.held[0]?.holder));
        const now = performance.now();
        if (lease && lease.state === "active") {
            this.#set("left", lease.expires_in_ms === null ? Infinity : now + lease.expires_in_ms);
            this.#set("renewed", now - (format.now() - Date.parse(lease.renewed_at)));
            setText(byId("renewals"), format.number(lease.renewals));
        }
        for (const held of holders) this.#set(`left ${held.token}`, held.expires_in_ms === null ? Infinity : now + held.expires_in_ms);
        for (const waiter of waiters) {
            this.#set(`waited ${waiter.holder}`, now - waiter.waited_ms);
            this.#set(`expires ${waiter.holder}`, now + waiter.expires_in_ms);
        }
        this.tick();
    }

    /** @param {string} key
     * @param {number} from */
    #set(key, from) {
        const time = this.#times.get(key);
        if (time) time.from = from;
    }

    /** An element for a time that `#set` fills.
     * @param {string} key
     * @param {boolean} isAge */
    #time(key, isAge) {
        const element = h("span", { class: "number" });
        this.#times.set(key, { element, from: 0, isAge });
        return element;
    }

    /** @param {Explanation} explanation
     * @param {Queue} queue */
    #actionsOf(explanation, queue) {
        const { held } = explanation;
        if (held.length === 0) return [];
        const done = () => this.refresh();
        const revoke = () => actions.revoke(this.#api, this.name, this.#explanation ?? explanation, done);
        const handOver = () => actions.handOver(this.#api, held[0], queue.waiters, null, done);
        return [h("div", { class: "actions" },
            h("button", { type: "button", class: "danger", id: "revoke", onclick: revoke }, "Revoke…"),
            queue.total > 0 && held.length === 1 && h("button", { type: "button", id: "hand-over", onclick: handOver }, "Hand over…"))];
    }

    /** @param {Lease} lease */
    #factsOf(lease) {
        const isActive = lease.state === "active";
        /** @type {[string, import("./dom.js").Child][]} */
        const facts = [
            ["State", mark(format.shapeOf(lease.state), format.wordsOf(lease.state), lease.state)],
            [isActive ? "Holder" : "Last holder", h("code", null, lease.holder)],
            ["Token", h("span", null, h("code", null, lease.token), h("span", { class: "muted" }, ` term ${lease.term}, index ${format.number(lease.index)}`))],
            ["Granted", h("span", { class: "number" }, format.dateTime(lease.granted_at))],
            ["TTL", format.ttl(lease.ttl_ms)],
        ];
        if (isActive) {
            facts.push(["Time left", this.#time("left", false)]);
            facts.push(["Renewals", h("span", null, h("span", { id: "renewals", class: "number" }), h("span", { class: "muted" }, ", last "), this.#time("renewed", true), h("span", { class: "muted" }, " ago"))]);
        }
        if (lease.limit > 1) facts.push(["Limit", format.plural(lease.limit, "holder")]);
        if (lease.lock_delay_ms > 0) facts.push(["Lock delay", format.duration(lease.lock_delay_ms)]);
        for (const [key, value] of Object.entries(lease.metadata ?? {})) facts.push([key, h("code", null, value)]);
        return [h("dl", null, ...facts.flatMap(([name, value]) => [h("dt", null, name), h("dd", null, value)]))];
    }

    /** The holders of a counted lease, each with its own token.
     * @param {Explanation} explanation
     * @param {Waiter[]} waiters */
    #holdersOf(explanation, waiters) {
        if (explanation.holders < 2) return [];
        const rows = explanation.held.slice(0, MAX_SHOWN).map((held) => h("tr", null,
            h("td", null, h("code", null, held.holder)),
            h("td", { class: "number" }, held.token),
            h("td", { class: "number" }, this.#time(`left ${held.token}`, false)),
            h("td", { class: "action" }, waiters.length > 0 && h("button", {
                type: "button", class: "small", "aria-label": `Hand over the lease of ${held.holder}`,
                onclick: () => actions.handOver(this.#api, held, waiters, null, () => this.refresh()),
            }, "Hand over…"))));
        return section("Holders", explanation.holders, rows, ["Holder", "Token", "Time left", ""]);
    }

    /** @param {Explanation} explanation
     * @param {Queue} queue
     * @param {Waiter[]} waiters */
    #queueOf(explanation, queue, waiters) {
        const only = explanation.held.length === 1 ? explanation.held[0] : null;
        const rows = waiters.map((waiter) => h("tr", null,
            h("td", { class: "number" }, String(waiter.place + 1)),
            h("td", null, h("code", null, waiter.holder)),
            h("td", { class: "number" }, this.#time(`waited ${waiter.holder}`, true)),
            h("td", { class: "number" }, this.#time(`expires ${waiter.holder}`, false)),
            h("td", { class: "action" }, only && h("button", {
                type: "button", class: "small", "aria-label": `Hand over to ${waiter.holder}`,
                onclick: () => actions.handOver(this.#api, only, waiters, waiter.holder, () => this.refresh()),
            }, "Hand over…"))));
        return section("Queue", queue.total, rows, ["", "Holder", "Waited", "Gives up in", ""]);
    }

    /** @param {string[]} holders */
    #suggest(holders) {
        const options = [...new Set(holders)].slice(0, MAX_SHOWN).map((value) => h("option", { value }));
        byId("known-holders").replaceChildren(...options);
    }

    async #explainHolder() {
        const holder = /** @type {HTMLInputElement} */ (byId("explain-holder")).value.trim();
        const output = byId("explanation");
        const { name } = this;
        if (holder === "") return;
        this.#explained += 1;
        const current = this.#explained;
        const isCurrent = () => this.name === name && this.#explained === current;
        try {
            const { value } = await this.#api.read(`${leasePath(name)}/explain`, { holder });
            if (!isCurrent()) return;
            output.replaceChildren(h("p", null, standingOf(holder, /** @type {Explanation} */ (value))));
        } catch (error) {
            if (!isCurrent()) return;
            const failure = asFailure(error);
            output.replaceChildren(h("div", { class: "error" }, h("strong", null, failure.title), h("p", null, failure.message)));
        }
    }
}

/** @param {string} text */
function sentence(text) {
    return `${text.charAt(0).toUpperCase()}${text.slice(1)}.`.replace(/\.\.$/, ".");
}

/** The standing of a holder as a sentence.
 * @param {string} holder
 * @param {Explanation} explanation */
function standingOf(holder, { standing }) {
    switch (standing?.status) {
        case "holds": {
            const cause = format.causeOf(standing.cause);
            const since = standing.lease ? ` since ${format.dateTime(standing.lease.granted_at)} with token ${standing.lease.token}` : "";
            return `${holder} has the lease${since}${cause ? ` (${cause})` : ""}.`;
        }
        case "waits": {
            const { waiter } = standing;
            return waiter
                ? `${holder} waits at position ${waiter.place + 1}, since ${format.duration(waiter.waited_ms)}. It gives up in ${format.duration(waiter.expires_in_ms)}.`
                : `${holder} waits.`;
        }
        case "ended": {
            const { event } = standing;
            return event
                ? `${holder} had the lease. It ended at ${format.dateTime(event.at)}: ${format.wordsOf(event.event).toLowerCase()}${detailOf(event)}.`
                : `${holder} had the lease.`;
        }
        default:
            return `${holder} does not have the lease and does not wait for it. The history shows no grant to it.`;
    }
}

/** @param {LeaseEvent} event */
function detailOf(event) {
    if (event.reason) return `: ${event.reason}`;
    if (event.to) return `, to ${event.to}`;
    return event.cause && event.cause !== "asked" ? `, ${format.causeOf(event.cause)}` : "";
}

/** @param {LeaseEvent[]} history oldest first */
function historyOf(history) {
    const rows = [...history].reverse().map((event) => h("tr", null,
        h("td", null, h("time", { datetime: event.at, title: format.dateTime(event.at) }, format.time(Date.parse(event.at)))),
        h("td", null, mark(format.shapeOf(event.event), format.wordsOf(event.event), event.event)),
        h("td", null, h("code", null, event.holder), h("span", { class: "muted" }, detailOf(event))),
        h("td", { class: "number" }, event.token)));
    return section("History", history.length, rows, ["Time", "Event", "Holder", "Token"]);
}

/** @param {string} title
 * @param {number} count
 * @param {HTMLElement[]} rows
 * @param {string[]} columns */
function section(title, count, rows, columns) {
    const heading = h("h3", null, title, " ", h("span", { class: "count" }, format.number(count)));
    if (rows.length === 0) return [heading, h("p", { class: "muted" }, title === "Queue" ? "No client waits." : "None.")];
    // A header has the alignment of its cells.
    const align = (/** @type {number} */ at) => rows[0].children[at].className;
    const head = h("thead", null, h("tr", null, ...columns.map((column, at) => h("th", { scope: "col", class: align(at) }, column))));
    const more = count > rows.length && h("p", { class: "muted" }, `and ${format.number(count - rows.length)} more`);
    return [heading, h("table", { "aria-label": title }, head, h("tbody", null, ...rows)), more].filter((part) => part instanceof Node);
}
