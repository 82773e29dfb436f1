// Values as text for people, and the shape of each state. Every state has a word and a shape, so that no color is needed.

const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

const numbers = new Intl.NumberFormat("en-US");
const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const date = new Intl.DateTimeFormat("en-GB", {
    year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit",
});

/** States and kinds of events: shape and words. */
/** @type {Record<string, [shape: string, words: string]>} */
const SHAPES = {
    active: ["●", "Active"],
    granted: ["●", "Granted"],
    expired: ["◷", "Expired"],
    released: ["○", "Released"],
    revoked: ["✕", "Revoked"],
    handed_over: ["→", "Handed over"],
    restored: ["↺", "Restored"],
    leader: ["★", "Leader"],
    follower: ["○", "Follower"],
    learner: ["◌", "Learner"],
    ok: ["✓", "OK"],
    lagging: ["▲", "Lagging"],
    unreachable: ["✕", "Unreachable"],
    stalled: ["■", "Stalled"],
    cluster: ["◆", "Cluster"],
    no_leader: ["▲", "No leader"],
};

/** The states that a lease can have, in the order of the filter. */
export const STATES = ["active", "expired", "released", "revoked", "handed_over", "restored"];

/** @param {string} state */
export function shapeOf(state) {
    return SHAPES[state]?.[0] ?? "◇";
}

/** The words for a state. A newer server can send others.
 * @param {string} state */
export function wordsOf(state) {
    return SHAPES[state]?.[1] ?? state.replaceAll("_", " ");
}

/** @param {number} value */
export function number(value) {
    return numbers.format(value);
}

/** "1 holder", "2 holders".
 * @param {number} count
 * @param {string} one */
export function plural(count, one) {
    return `${number(count)} ${one}${count === 1 ? "" : "s"}`;
}

/** At most two units: "450ms", "7s", "1m 05s", "2h 14m", "3d 4h".
 * @param {number} ms */
export function duration(ms) {
    if (ms < SECOND) return `${Math.max(0, Math.round(ms))}ms`;
    return whole(ms);
}

/** A duration without milliseconds.
 * @param {number} ms */
export function whole(ms) {
    const units = /** @type {[number, string][]} */ ([[DAY, "d"], [HOUR, "h"], [MINUTE, "m"], [SECOND, "s"]]);
    const at = units.findIndex(([unit]) => ms >= unit);
    if (at < 0) return "0s";
    const [unit, letter] = units[at];
    const first = `${Math.floor(ms / unit)}${letter}`;
    const next = units[at + 1];
    const rest = next ? Math.floor((ms % unit) / next[0]) : 0;
    return next && rest > 0 ? `${first} ${String(rest).padStart(2, "0")}${next[1]}` : first;
}

/** @param {number | "infinite" | null} ttl */
export function ttl(ttl) {
    if (ttl === null) return "…";
    return ttl === "infinite" ? "infinite" : duration(ttl);
}

/** The time of day.
 * @param {number} at milliseconds since 1970 */
export function time(at) {
    return clock.format(at);
}

/** @param {string | number} at */
export function dateTime(at) {
    return date.format(new Date(at));
}

/** The clock of the node minus the clock of the browser. */
let offset = 0;

/** Sets the clock of the node, which a browser with a wrong clock needs for the time since a moment.
 * @param {number} wall milliseconds since 1970 */
export function setClock(wall) {
    offset = wall - Date.now();
}

/** The time on the clock of the node, in milliseconds since 1970. */
export function now() {
    return Date.now() + offset;
}

/** The time since a moment, in one unit.
 * @param {number} at milliseconds since 1970 */
export function age(at) {
    return whole(Math.max(0, now() - at)).split(" ")[0];
}

/** A text of the server with its times as people read them. A holder in the text stays as it is: it can look like a time.
 * @param {string} text
 * @param {string} [holder]
 * @returns {string} */
export function readable(text, holder) {
    const at = holder ? text.indexOf(holder) : -1;
    if (holder && at >= 0) return `${readable(text.slice(0, at))}${holder}${readable(text.slice(at + holder.length))}`;
    return text
        .replace(/\d{4}-\d{2}-\d{2}T[\d:.]+Z/g, (at) => (Number.isNaN(Date.parse(at)) ? at : dateTime(at)))
        .replace(/\b(\d+) ms\b/g, (_, ms) => duration(Number(ms)));
}

/** The cause of a grant, as part of a sentence.
 * @param {string | null | undefined} cause */
export function causeOf(cause) {
    /** @type {Record<string, string>} */
    const words = { asked: "the lease was free", queue: "from the queue", hand_over: "by a hand-over" };
    return cause ? (words[cause] ?? cause) : "";
}
