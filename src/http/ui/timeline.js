// The timeline: changes of the leader and of nodes, and lease events, newest first.

/** @import { Cluster, Entry, LeaseEvent } from "./types" */
import { announce, h } from "./dom.js";
import * as format from "./format.js";

/** Most entries of each kind that the page keeps: a burst of lease events does not push out changes of the leader. The list
 * has as many, so each kind alone is complete. */
const MAX_KEPT = 500;
const CLUSTER_KINDS = new Set(["leader", "no_leader", "cluster", "ok", "lagging", "unreachable", "stalled"]);

export class Timeline {
    #list;
    #choice;
    /** @type {Entry[]} newest first */
    #ofCluster = [];
    /** @type {Entry[]} newest first */
    #ofLeases = [];
    /** Entries that are not in the list yet, newest first. @type {Entry[]} */
    #fresh = [];
    #isUnsorted = false;
    #frame = 0;
    /** @type {Cluster | null} */
    #cluster = null;
    /** The last leader in the list. @type {{ term: number, leader: number | null }} */
    #last = { term: 0, leader: null };

    /** @param {HTMLElement} list
     * @param {HTMLSelectElement} choice */
    constructor(list, choice) {
        this.#list = list;
        this.#choice = choice;
        choice.addEventListener("change", () => this.#refill());
    }

    clear() {
        this.#ofCluster = [];
        this.#ofLeases = [];
        this.#cluster = null;
        this.#last = { term: 0, leader: null };
        this.#refill();
    }

    /** @param {LeaseEvent[]} events oldest first
     * @param {boolean} isPast whether they are from before the page was opened */
    addEvents(events, isPast) {
        // The list has newer entries already.
        this.#isUnsorted ||= isPast;
        this.#add(events.slice(-MAX_KEPT).map(entryOf).reverse(), this.#ofLeases);
    }

    /** Adds the differences to the last status.
     * @param {Cluster} cluster */
    addStatus(cluster) {
        const before = this.#cluster;
        this.#cluster = cluster;
        /** @type {[string, string][]} */
        const news = [];
        if (cluster.leader === null || !cluster.quorum) {
            if (!before || (before.leader !== null && before.quorum)) news.push(["no_leader", "No leader with a majority"]);
        } else if (before && (before.leader === null || !before.quorum) && before.term === cluster.term) {
            news.push(["leader", `Node ${cluster.leader} has a majority again`]);
        }
        const leaders = this.#leaderEntries(cluster);
        if (before) news.push(...changesOfMembers(before, cluster));
        if (before) [...leaders.map(({ text }) => text), ...news.map(([, text]) => text)].forEach(announce);
        this.#isUnsorted ||= leaders.length > 0;
        this.#add(leaders, this.#ofCluster);
        this.addNews(news);
    }

    /** The leaders of the terms after the last one in the list, newest first. A node knows them since its start.
     * @param {Cluster} cluster
     * @returns {Entry[]} */
    #leaderEntries(cluster) {
        const entries = [];
        for (const { term, leader, at } of cluster.leader_changes ?? []) {
            if (term <= this.#last.term) continue;
            const from = this.#last.leader === null ? "" : `, before node ${this.#last.leader}`;
            const text = leader === this.#last.leader ? `Node ${leader} leads again, in term ${term}` : `Node ${leader} leads in term ${term}${from}`;
            entries.unshift({ at: Date.parse(at), kind: "leader", text });
            this.#last = { term, leader };
        }
        return entries;
    }

    /** @param {[kind: string, text: string][]} news */
    addNews(news) {
        this.#add(news.map(([kind, text]) => ({ at: format.now(), kind, text })), this.#ofCluster);
    }

    /** @param {Entry[]} entries newest first
     * @param {Entry[]} kept */
    #add(entries, kept) {
        if (entries.length === 0) return;
        kept.unshift(...entries);
        kept.length = Math.min(kept.length, MAX_KEPT);
        this.#fresh = [...entries, ...this.#fresh].slice(0, MAX_KEPT);
        this.#frame ||= requestAnimationFrame(() => this.#prepend());
    }

    #prepend() {
        this.#frame = 0;
        if (this.#isUnsorted) return this.#refill();
        const shown = this.#fresh.filter((entry) => this.#shows(entry)).map((entry) => this.#itemOf(entry));
        this.#fresh = [];
        this.#list.prepend(...shown);
        while (this.#list.childElementCount > MAX_KEPT) this.#list.lastElementChild?.remove();
    }

    #refill() {
        this.#isUnsorted = false;
        this.#fresh = [];
        const all = [...this.#ofCluster, ...this.#ofLeases].sort((one, other) => other.at - one.at);
        const shown = all.filter((entry) => this.#shows(entry)).slice(0, MAX_KEPT);
        this.#list.replaceChildren(...shown.map((entry) => this.#itemOf(entry)));
    }

    /** @param {Entry} entry */
    #shows(entry) {
        const wanted = this.#choice.value;
        return wanted === "all" || (wanted === "cluster") === CLUSTER_KINDS.has(entry.kind);
    }

    /** @param {Entry} entry */
    #itemOf(entry) {
        const { name } = entry;
        const link = name && h("a", { href: `#lease/${encodeURIComponent(name)}` }, name);
        const isOfCluster = CLUSTER_KINDS.has(entry.kind);
        return h("li", { "data-kind": entry.kind, class: isOfCluster ? "of-cluster" : null },
            h("time", { datetime: new Date(entry.at).toISOString(), title: format.dateTime(entry.at) }, format.time(entry.at)),
            h("span", { class: "shape", "aria-hidden": "true" }, format.shapeOf(entry.kind)),
            h("span", { class: "what" }, link, link && " ", entry.text));
    }
}

/** @param {LeaseEvent} event
 * @returns {Entry} */
function entryOf(event) {
    const { event: kind, name, holder } = event;
    /** @type {Record<string, string>} */
    const texts = {
        granted: `granted to ${holder}${event.cause === "queue" ? " from the queue" : ""}`,
        expired: `expired, held by ${holder}`,
        released: `released by ${holder}`,
        revoked: `revoked from ${holder}${event.reason ? `: ${event.reason}` : ""}`,
        handed_over: `handed over by ${holder}${event.to ? ` to ${event.to}` : ""}`,
        restored: `ended by a restore, held by ${holder}`,
    };
    return { at: Date.parse(event.at), kind, name, text: texts[kind] ?? `${format.wordsOf(kind)}: ${holder}` };
}

/** @param {Cluster} before
 * @param {Cluster} after
 * @returns {[string, string][]} */
function changesOfMembers(before, after) {
    const known = new Map(before.members.map((member) => [member.id, member]));
    /** @type {[string, string][]} */
    const news = [];
    for (const member of after.members) {
        const old = known.get(member.id);
        known.delete(member.id);
        if (!old) news.push(["cluster", `Node ${member.id} was added`]);
        else if (old.state !== member.state) news.push([member.state, `Node ${member.id} is ${format.wordsOf(member.state).toLowerCase()}`]);
    }
    for (const { id, disk } of after.members) {
        const old = before.members.find((member) => member.id === id)?.disk;
        if (disk === "stalled" && old !== "stalled") news.push(["stalled", `The disk of node ${id} is stalled`]);
        if (disk === "ok" && old === "stalled") news.push(["ok", `The disk of node ${id} works again`]);
    }
    for (const id of known.keys()) news.push(["cluster", `Node ${id} was removed`]);
    return news;
}
