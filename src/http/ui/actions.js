// The actions of an operator: revoke, hand over, transfer the leadership. Each one asks for a confirmation.

/** @import { Explanation, Lease, Member, Waiter } from "./types" */
/** @import { Api } from "./api.js" */
import { Failure, leasePath } from "./api.js";
import { confirm } from "./dialog.js";
import { h } from "./dom.js";
import * as format from "./format.js";

/** The limit of the server. */
const MAX_REASON_BYTES = 500;
/** Most holders that a dialog names. */
const MAX_NAMED = 5;

/** @param {Api} api
 * @param {string} name
 * @param {Explanation} seen as the user sees the lease
 * @param {() => void} done */
export function revoke(api, name, seen, done) {
    const { held, holders, waiters } = seen;
    const reason = h("input", { id: "reason", name: "reason", autocomplete: "off", "aria-describedby": "reason-hint" });
    confirm({
        title: `Revoke ${name}?`,
        content: [
            h("p", null, holders === 1 ? "This holder loses the lease at once:" : "All of these holders lose the lease at once:"),
            h("ul", null, ...named(held.map((lease) => lease.holder), holders)),
            held.length < holders && h("p", { class: "muted" },
                `Before the revoke, the page compares the first ${format.number(held.length)} holders and the number of all.`),
            h("p", null, next(waiters, held[0]?.lock_delay_ms ?? 0)),
            h("label", { for: "reason" }, "Reason"),
            reason,
            h("p", { class: "muted", id: "reason-hint" }, "The history and the event stream show it. At most 500 bytes."),
        ],
        action: "Revoke",
        isDangerous: true,
        check: async () => {
            if (new TextEncoder().encode(reason.value.trim()).length > MAX_REASON_BYTES) {
                throw new Failure("invalid", "The reason is too long", `It has more than ${MAX_REASON_BYTES} bytes.`, 0);
            }
            await checkHolders(api, name, seen);
        },
        run: async () => {
            const { revoked } = await api.revoke(name, reason.value.trim());
            done();
            return `Revoked ${name}: ${format.plural(revoked, "holder")} lost it.`;
        },
    });
}

/** @param {Api} api
 * @param {Lease} lease
 * @param {Waiter[]} waiters
 * @param {string | null} chosen the holder to preselect
 * @param {() => void} done */
export function handOver(api, lease, waiters, chosen, done) {
    const option = (/** @type {Waiter} */ waiter) =>
        h("option", { value: waiter.holder, selected: waiter.holder === chosen }, `${waiter.place + 1}. ${waiter.holder}`);
    const to = h("select", { id: "to" }, ...waiters.map(option));
    confirm({
        title: `Hand over ${lease.name}?`,
        content: [
            h("p", null, "The holder loses the lease, and the waiter gets it with a new token:"),
            h("ul", null, ...named([lease.holder], 1)),
            h("label", { for: "to" }, "To"),
            to,
        ],
        action: "Hand over",
        isDangerous: true,
        run: async () => {
            const body = { holder: lease.holder, token: lease.token, to: to.value };
            const granted = /** @type {Lease} */ (await api.post(`${leasePath(lease.name)}/handover`, body));
            done();
            return `Handed over ${lease.name} to ${granted.holder}.`;
        },
    });
}

/** @param {Api} api
 * @param {Member} member
 * @param {number | null} leader */
export function transfer(api, member, leader) {
    confirm({
        title: `Make node ${member.id} the leader?`,
        content: [
            h("p", null, `Node ${leader} transfers the leadership to node ${member.id} (${member.http}).`),
            h("p", null, "Requests wait for the new leader, usually for a few milliseconds. All leases stay."),
        ],
        action: "Transfer",
        run: async () => {
            const done = /** @type {{ from: number, leader: number }} */ (await api.post("v1/cluster/transfer", { to: member.id }));
            return `Node ${done.leader} leads, before node ${done.from}.`;
        },
    });
}

/** Fails if others hold the lease than the user has seen: a revoke names only the lease.
 * An old state cannot prove that, so this check needs a leader.
 * @param {Api} api
 * @param {string} name
 * @param {Explanation} seen */
async function checkHolders(api, name, seen) {
    const { value } = await api.readCurrent(`${leasePath(name)}/explain`);
    const { held, holders } = /** @type {Explanation} */ (value);
    const [before, now] = [seen.held, held].map((leases) => new Set(leases.map((lease) => lease.token)));
    const gone = seen.held.filter((lease) => !now.has(lease.token)).length;
    // An answer can name only the first holders. Its count has all, so it shows new ones in place of those that are gone.
    if (holders > 0 && holders + gone <= seen.holders) return;
    const other = held.length === holders ? held.find((lease) => !before.has(lease.token)) : undefined;
    const change = other ? `Now ${other.holder} has it.` : holders > 0 ? "It has other holders now." : "It has no holder any more.";
    throw new Failure("changed", "The holder has changed", `${change} Cancel, and look at the lease again.`, 0);
}

/** @param {number} waiters
 * @param {number} delay */
function next(waiters, delay) {
    const who = waiters === 0 ? "No client waits for it." : `${format.plural(waiters, "client")} wait${waiters === 1 ? "s" : ""}; the first one gets it`;
    if (waiters === 0) return delay > 0 ? `${who} Its lock delay is ${format.duration(delay)}.` : who;
    return delay > 0 ? `${who} after the lock delay of ${format.duration(delay)}.` : `${who} at once.`;
}

/** @param {string[]} holders the first ones
 * @param {number} total */
function named(holders, total) {
    const items = holders.slice(0, MAX_NAMED).map((holder) => h("li", null, h("code", null, holder)));
    const rest = total - items.length;
    return rest > 0 ? [...items, h("li", null, `and ${format.number(rest)} more`)] : items;
}
