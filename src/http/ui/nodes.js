// The nodes of the cluster, and the state of the node that serves this page.

/** @import { Cluster, Member } from "./types" */
/** @import { Api } from "./api.js" */
import { byId, h, mark, setText } from "./dom.js";
import * as format from "./format.js";

/** A certificate that ends within this time is marked. `tenure doctor` warns at the same time. */
const CERTIFICATE_WARNING_MS = 30 * 24 * 3600 * 1000;
const SYNC_COUNT = /^tenure_storage_sync_seconds_count(?:\{[^}]*\})? (\S+)/gm;
const SYNC_SUM = /^tenure_storage_sync_seconds_sum(?:\{[^}]*\})? (\S+)/gm;

/** The table of the nodes. Its rows stay, so that a focused button keeps its focus while the values change. */
export class Nodes {
    /** @type {Map<number, { row: HTMLElement, cells: HTMLElement[], button: HTMLButtonElement, member: Member }>} */
    #rows = new Map();
    #transfer;

    /** @param {(member: Member) => void} transfer */
    constructor(transfer) {
        this.#transfer = transfer;
    }

    clear() {
        for (const { row } of this.#rows.values()) row.remove();
        this.#rows.clear();
    }

    /** @param {Cluster} cluster */
    show(cluster) {
        const ids = new Set(cluster.members.map((member) => member.id));
        for (const [id, { row }] of this.#rows) {
            if (ids.has(id)) continue;
            row.remove();
            this.#rows.delete(id);
        }
        for (const member of cluster.members) this.#fill(member, cluster);
    }

    /** @param {Member} member
     * @param {Cluster} cluster */
    #fill(member, cluster) {
        const line = this.#rows.get(member.id) ?? this.#make(member);
        line.member = member;
        const [role, state, lag, contact, disk, certificate, address, tag] = line.cells;
        fillMark(role, member.role);
        fillMark(state, member.state);
        setText(lag, member.lag === null ? "unknown" : format.number(member.lag));
        setText(contact, contactOf(member));
        fillMark(disk, member.disk ?? "unknown");
        const { text, title, isWarning } = certificateOf(member.certificate_expires_at);
        setText(certificate, text);
        certificate.title = title;
        certificate.classList.toggle("warning", isWarning);
        setText(address, member.http);
        tag.hidden = member.id !== cluster.node;
        line.row.dataset.kind = member.state;
        line.button.hidden = member.role !== "follower" || cluster.leader === null;
    }

    /** @param {Member} member */
    #make(member) {
        const cell = (/** @type {string} */ label, /** @type {string} */ kind) => h("td", { "data-label": label, class: kind });
        const tag = h("span", { class: "tag" }, "this page");
        const cells = [cell("Role", "role"), cell("State", "state"), cell("Lag", "number"), cell("Contact", "number"),
            cell("Disk", "state"), cell("Certificate", "certificate"), cell("Address", "address")];
        const button = h("button", { type: "button", class: "small", "aria-label": `Make node ${member.id} the leader` }, "Make leader…");
        const row = h("tr", null, h("th", { scope: "row" }, `Node ${member.id} `, tag), ...cells, h("td", { class: "action" }, button));
        const line = { row, cells: [...cells, tag], button, member };
        button.addEventListener("click", () => this.#transfer(line.member));
        byId("node-rows").append(row);
        this.#rows.set(member.id, line);
        return line;
    }
}

/** @param {HTMLElement} cell
 * @param {string} kind */
function fillMark(cell, kind) {
    if (cell.dataset.kind === kind) return;
    cell.dataset.kind = kind;
    cell.replaceChildren(mark(format.shapeOf(kind), format.wordsOf(kind), kind));
}

/** @param {Member} member */
function contactOf(member) {
    if (member.role === "leader") return "–";
    return member.last_contact_ms === null ? "unknown" : `${format.duration(member.last_contact_ms)} ago`;
}

/** @param {string | null} expires */
function certificateOf(expires) {
    if (expires === null) return { text: "none", title: "", isWarning: false };
    const left = Date.parse(expires) - format.now();
    const title = `valid until ${format.dateTime(expires)}`;
    if (left <= 0) return { text: "✕ expired", title, isWarning: true };
    const isWarning = left < CERTIFICATE_WARNING_MS;
    return { text: `${isWarning ? "▲ " : ""}${format.whole(left)} left`, title, isWarning };
}

/** Whether the node that answers is ready, and how long its disk takes for a sync. */
export class OwnNode {
    #api;
    /** The sums of each node at the last poll: behind a load balancer, several nodes answer.
     * @type {Map<string, { count: number, sum: number }>} */
    #last = new Map();

    /** @param {Api} api */
    constructor(api) {
        this.#api = api;
    }

    /** The state of the node in words. */
    async poll() {
        const [ready, sync] = await Promise.all([this.#ready(), this.#sync()]);
        return sync === null ? ready : `${ready} ${sync}`;
    }

    async #ready() {
        try {
            const node = (await this.#api.send("readyz")).headers.get("x-tenure-node");
            return `Node ${node} answers this page and is ready.`;
        } catch (error) {
            return `The node that answers this page is not ready: ${error instanceof Error ? error.message : error}.`;
        }
    }

    async #sync() {
        try {
            const response = await this.#api.send("metrics");
            const node = response.headers.get("x-tenure-node") ?? "";
            const text = await response.text();
            const [count, sum] = [total(text, SYNC_COUNT), total(text, SYNC_SUM)];
            const last = this.#last.get(node);
            this.#last.set(node, { count, sum });
            if (!last || count <= last.count) return null;
            return `Disk: ${format.number(Math.round((1e5 * (sum - last.sum)) / (count - last.count)) / 100)} ms for a sync on average.`;
        } catch {
            // A program that embeds a node may serve no metrics.
            return null;
        }
    }
}

/** The sum of a metric over all its series.
 * @param {string} text
 * @param {RegExp} pattern */
function total(text, pattern) {
    let sum = 0;
    for (const [, value] of text.matchAll(pattern)) sum += Number(value);
    return sum;
}
