// The page: it signs in, follows the cluster and its leases, and shows one view for each fragment of the URL.

/** @import { Cluster, LeaseEvent, Row } from "./types" */
import * as actions from "./actions.js";
import { Api, Failure, asFailure } from "./api.js";
import { Detail } from "./detail.js";
import { byId, say, setText, throttled } from "./dom.js";
import { FilterForm } from "./filter.js";
import * as format from "./format.js";
import { Login } from "./login.js";
import { Nodes, OwnNode } from "./nodes.js";
import { MAX_ROWS, Store } from "./store.js";
import { FINAL, pause } from "./stream.js";
import { Sync } from "./sync.js";
import { Table } from "./table.js";
import { Timeline } from "./timeline.js";

const STATUS_MS = 1000;
/** A node answers a request for the status within about 250 ms, so a longer time is an outage. */
const STATUS_TIMEOUT_MS = 4000;
const OWN_NODE_MS = 10_000;
const TICK_MS = 500;
/** Shortest time between two updates of the table. */
const RENDER_MS = 200;
/** A changed prefix is sent after this pause. */
const TYPING_MS = 300;
/** A reader hears the number of matches after this pause. */
const SAY_MS = 800;

const api = new Api();
const store = new Store();
/** @type {Cluster | null} */
let cluster = null;
/** Why the node does not answer; `null`: it does. @type {Failure | null} */
let statusFailure = null;
/** Why the leases cannot be read; `null`: they can. @type {Failure | null} */
let listFailure = null;
/** Why no events arrive; `null`: they do. @type {Failure | null} */
let watchFailure = null;
/** The time of the last status, on the clock of `performance.now()`. */
let statusAt = 0;
let isLive = false;
let isFollowing = false;
/** Counts the sign-ins, so that an earlier loop ends. */
let session = 0;

const detail = new Detail(api);
const nodes = new Nodes((member) => actions.transfer(api, member, cluster?.leader ?? null));
const ownNode = new OwnNode(api);
const timeline = new Timeline(byId("timeline-list"), byId("timeline-choice"));
const table = new Table(byId("grid"), openRow, (column) => filter.orderBy(column));
const filter = new FilterForm(onFilter);
const login = new Login(api, () => void start());
const render = throttled(RENDER_MS, renderNow);
const sync = new Sync(api, store, () => table.visible(), {
    changed: render,
    events: onEvents,
    state: (failure) => {
        if (listFailure?.code === failure?.code && listFailure?.message === failure?.message) return;
        listFailure = failure;
        showBanner();
        render();
    },
    watch: (failure) => {
        watchFailure = failure;
        showBanner();
    },
    truncated: () => {
        if (filter.value.prefix !== sync.prefix) sync.start(filter.value.prefix, 0);
    },
    live: (value) => {
        isLive = value;
        showConnection();
    },
});

api.onUnauthenticated = (/** @type {Failure} */ failure) => {
    if (!login.isOpen) signOut(api.hasToken ? "You are signed out" : "The cluster needs a token", failure);
};

/** @param {LeaseEvent[]} events
 * @param {boolean} isPast */
function onEvents(events, isPast) {
    timeline.addEvents(events, isPast);
    if (!isPast && events.some((event) => event.name === detail.name)) detail.refresh();
}

/** Follows the cluster until the user signs out. */
async function start() {
    session += 1;
    const current = session;
    void followOwnNode(current);
    while (session === current) {
        await readStatus();
        await pause(STATUS_MS);
    }
}

async function readStatus() {
    try {
        const status = /** @type {Cluster} */ (await api.json("v1/cluster", { timeout: STATUS_TIMEOUT_MS }));
        if (login.isOpen) return;
        if (statusFailure) {
            timeline.addNews([["cluster", `Node ${status.node} answers this page again`]]);
            setText(byId("own-node"), "");
        }
        statusFailure = null;
        statusAt = performance.now();
        showStatus(status);
    } catch (error) {
        const failure = asFailure(error);
        if (failure.code === "unauthenticated" || login.isOpen) return;
        if (!statusFailure) timeline.addNews([["no_leader", `No answer for this page: ${failure.message}`]]);
        statusFailure = failure;
    }
    showConnection();
    showNodesAge();
    showBanner();
}

/** Marks the table of the nodes as old while the node does not answer. */
function showNodesAge() {
    byId("nodes").classList.toggle("old", statusFailure !== null);
    if (statusFailure && cluster) setText(byId("own-node"), `These values are ${format.whole(performance.now() - statusAt)} old.`);
}

/** @param {Cluster} status */
function showStatus(status) {
    if (cluster && cluster.cluster_id !== status.cluster_id) location.reload();
    cluster = status;
    format.setClock(Date.parse(status.clock.wall));
    api.isLeaderless = status.leader === null || !status.quorum;
    byId("board").hidden = false;
    byId("status").hidden = false;
    byId("sign-out").hidden = !api.hasToken;
    setText(byId("cluster-id"), status.cluster_id);
    setText(byId("leader"), status.leader === null ? "none" : `Node ${status.leader}`);
    setText(byId("term"), format.number(status.term));
    setText(byId("applied"), format.number(status.applied));
    nodes.show(status);
    timeline.addStatus(status);
    if (!isFollowing) {
        isFollowing = true;
        sync.start(filter.value.prefix, status.applied);
        route();
    }
}

/** @param {number} current */
async function followOwnNode(current) {
    while (session === current) {
        if (cluster && !statusFailure && !document.hidden) {
            const text = await ownNode.poll();
            if (session === current && !statusFailure) setText(byId("own-node"), text);
        }
        await pause(cluster ? OWN_NODE_MS : STATUS_MS);
    }
}

/** Forgets the token, removes all data from the document, and shows the form for a token.
 * @param {string} title
 * @param {Failure | null} why */
function signOut(title, why) {
    session += 1;
    isFollowing = false;
    cluster = null;
    [statusFailure, listFailure, watchFailure, isLive] = [null, null, null, false];
    api.setToken(null);
    sync.stop();
    timeline.clear();
    detail.close();
    /** @type {HTMLDialogElement} */ (byId("dialog")).close();
    table.clear();
    nodes.clear();
    filter.showCounts(new Map());
    for (const id of ["dialog", "toast", "said", "own-node", "count", "leader", "term", "applied", "cluster-id"]) byId(id).replaceChildren();
    byId("board").hidden = true;
    byId("status").hidden = true;
    byId("sign-out").hidden = true;
    login.open(title, why);
    showBanner();
    showConnection();
    showNodesAge();
}

function showConnection() {
    const age = staleAge();
    const [kind, shape, text] = login.isOpen ? ["waiting", "○", "Signed out"]
        : statusFailure ? ["bad", "✕", "Disconnected"]
        : !cluster ? ["waiting", "◌", "Connecting"]
        : age !== null ? ["bad", "▲", `${api.isLeaderless ? "No leader, state" : "State"} ${age}`]
        : api.isLeaderless ? ["bad", "▲", "No leader"]
        : isLive ? ["good", "●", "Live"]
        : ["waiting", "◌", "Reconnecting"];
    const element = byId("connection");
    if (element.dataset.kind === kind && byId("connection-text").textContent === text) return;
    element.dataset.kind = kind;
    setText(/** @type {Element} */ (element.firstElementChild), shape);
    setText(byId("connection-text"), text);
}

/** The age of the oldest state that the list or the open lease shows; `null`: both are current. */
function staleAge() {
    const times = [sync.asOf, detail.asOf].filter((asOf) => asOf !== null);
    if (times.length === 0) return null;
    const age = performance.now() - Math.min(...times);
    return Number.isFinite(age) ? `${format.whole(age)} old` : "of unknown age";
}

function showBanner() {
    const [text, isRetry] = bannerText();
    const banner = byId("banner");
    banner.hidden = text === "";
    byId("retry").hidden = !isRetry;
    setText(byId("banner-text"), text);
}

/** @returns {[text: string, isRetry: boolean]} */
function bannerText() {
    if (login.isOpen) return ["", false];
    if (statusFailure) {
        const others = cluster?.members.filter((member) => member.id !== cluster?.node).map((member) => member.http) ?? [];
        const advice = others.length > 0 ? ` The page tries again. Other nodes have it, too: ${others.join(", ")}.` : " The page tries again.";
        return [`${statusFailure.message}${advice}`, false];
    }
    if (api.isLeaderless) return ["No leader with a majority: no lease changes, and the page shows the state of one node, which can be old.", false];
    if (listFailure) {
        return [`The leases cannot be read: ${listFailure.message}.`.replace(/\.\.$/, "."), FINAL.has(listFailure.code)];
    }
    // A broken connection is opened again at once, and the status tells if the node does not answer.
    if (watchFailure && watchFailure.code !== "network") {
        return [`Changes appear late, because no events arrive: ${watchFailure.message}.`.replace(/\.\.$/, "."), FINAL.has(watchFailure.code)];
    }
    return ["", false];
}

const restart = debounced(TYPING_MS, () => sync.start(filter.value.prefix, 0));
const sayCount = debounced(SAY_MS, () => say(byId("count").textContent ?? ""));

function onFilter() {
    const { prefix, sort, descending } = filter.value;
    table.showOrder(sort, descending);
    // The page has all leases below the prefix that it follows. For others it must ask.
    const isKnown = prefix.startsWith(sync.prefix) && !sync.isTruncated && listFailure === null;
    if (isFollowing && !isKnown && prefix !== sync.prefix) restart();
    renderNow();
    sayCount();
}

function renderNow() {
    const { rows, counts } = store.view(filter.value);
    table.show(rows);
    filter.showCounts(counts);
    let total = 0;
    for (const count of counts.values()) total += count;
    const limit = sync.isTruncated ? ` The page reads the first ${format.number(MAX_ROWS)}: enter a prefix.` : "";
    setText(byId("count"), `${format.number(rows.length)} of ${format.number(total)}${sync.isComplete ? "" : "…"}${limit}`);
    const empty = byId("empty");
    empty.hidden = rows.length > 0 || listFailure !== null;
    const isAny = filter.value.prefix !== "" || filter.value.holder !== "" || total > 0;
    const isLoading = !sync.isComplete || (sync.isTruncated && filter.value.prefix !== sync.prefix);
    const none = sync.isTruncated ? "No lease that the page has read matches the filter." : "No lease matches the filter.";
    setText(empty, isLoading ? "Loading…" : isAny ? none : "No leases yet.");
}

/** @param {number} ms
 * @param {() => void} run */
function debounced(ms, run) {
    let timer = 0;
    return () => {
        window.clearTimeout(timer);
        timer = window.setTimeout(run, ms);
    };
}

/** @param {Row} row */
function openRow(row) {
    location.hash = `#lease/${encodeURIComponent(row.name)}`;
    route();
}

/** Shows the view that the fragment names, and moves the focus if the user has changed it. */
function route() {
    const [view] = location.hash.slice(1).split("/", 1);
    const name = decoded(location.hash.slice(view.length + 2));
    const isKnown = ["leases", "nodes", "timeline"].includes(view);
    if (view === "lease" && name) {
        document.body.dataset.view ||= "leases";
        document.body.dataset.detail = "open";
        if (!isFollowing) return;
        detail.open(name);
        if (document.activeElement !== document.body) byId("detail-name").focus();
        return;
    }
    const wasOpen = detail.name !== "";
    delete document.body.dataset.detail;
    document.body.dataset.view = isKnown ? view : "leases";
    detail.close();
    for (const link of document.querySelectorAll("nav a")) {
        if (link.getAttribute("href") === `#${document.body.dataset.view}`) link.setAttribute("aria-current", "page");
        else link.removeAttribute("aria-current");
    }
    if (wasOpen) table.focus();
}

/** The text of a part of the URL, or an empty one if the part is not valid.
 * @param {string} part */
function decoded(part) {
    try {
        return decodeURIComponent(part);
    } catch {
        return "";
    }
}

function closeDetail() {
    location.hash = `#${document.body.dataset.view ?? "leases"}`;
    route();
}

window.addEventListener("hashchange", route);
byId("close").addEventListener("click", closeDetail);
byId("retry").addEventListener("click", () => sync.start(filter.value.prefix, 0));
byId("dialog").addEventListener("close", () => {
    // The button that opened the dialog can be gone.
    if (document.activeElement === document.body && detail.name !== "") byId("detail-name").focus();
});
byId("sign-out").addEventListener("click", () => {
    // The next user of this tab does not see the names that this one has entered. Earlier entries of the history stay.
    filter.clear();
    history.replaceState(null, "", "#leases");
    signOut("", null);
    route();
});
document.querySelector(".skip")?.addEventListener("click", () => window.setTimeout(() => table.focus()));
document.addEventListener("keydown", (event) => {
    const isInDialog = /** @type {HTMLDialogElement} */ (byId("dialog")).open;
    if (event.key === "Escape" && detail.name !== "" && !isInDialog) closeDetail();
});
window.setInterval(() => {
    if (document.hidden || !cluster) return;
    table.tick();
    detail.tick();
    showConnection();
    showNodesAge();
}, TICK_MS);

table.showOrder("name", false);
route();
void start();
