// Requests to the node that serves this page. All URLs are relative to the page, so that a proxy may add a path.

/** @import { LeasePage, ProblemBody } from "./types" */

/** This file is in the folder `ui` next to the page, so the API is one level up. */
const BASE = new URL("../", import.meta.url);
/** Longest time for one request. The server answers each of them within about 12 s. */
const TIMEOUT_MS = 20_000;
/** The key of the access token. `sessionStorage` ends with the tab and is not sent anywhere. A proxy can serve several clusters
 * below one origin, so the key has the path. */
const STORED = `tenure-access-token ${BASE.pathname}`;
/** With these codes no leader answers, and the node's own state may be all that is left. */
const NO_LEADER = new Set(["no_leader", "outcome_unknown", "network"]);
/** Codes of the page itself: the answer is missing, incomplete or not one of a node, so it proves nothing. */
const NO_PROOF = new Set(["network", "other", "page"]);
/** After these codes with status 500 or above, the request is certainly not done. */
const NOT_DONE = new Set(["unsupported", "no_leader", "shutting_down", "not_ready", "failed"]);

/** An error of a request. */
export class Failure extends Error {
    /** @param {string} code
     * @param {string} title
     * @param {string} detail
     * @param {number} status
     * @param {number | null} [oldest] with `compacted`: the first position that the node still knows */
    constructor(code, title, detail, status, oldest = null) {
        super(detail);
        this.code = code;
        this.title = title;
        this.status = status;
        this.oldest = oldest;
    }

    /** Whether the request may have been carried out. A later version can add codes: status 500 or above is ambiguous for them. */
    get isAmbiguous() {
        return NO_PROOF.has(this.code) || (this.status >= 500 && !NOT_DONE.has(this.code));
    }
}

/** Options of a request. The timeout is in milliseconds.
 * @typedef {RequestInit & { token?: string, timeout?: number }} Options */

/** The answer to a read. It reflects the log up to `index`. `asOf` is the time of an old state on the clock of
 * `performance.now()`: `null` for a current state, `-Infinity` if the node does not know the age.
 * @template T
 * @typedef {{ value: T, index: number, asOf: number | null }} Answer */

export class Api {
    /** Called when a request fails because the token is missing or no longer valid. */
    onUnauthenticated = (/** @type {Failure} */ _failure) => {};
    /** Reads ask this node alone while it knows no leader. */
    isLeaderless = false;
    #token = sessionStorage.getItem(STORED);

    get hasToken() {
        return this.#token !== null;
    }

    /** Sets or forgets the access token.
     * @param {string | null} token */
    setToken(token) {
        this.#token = token;
        if (token === null) sessionStorage.removeItem(STORED);
        else sessionStorage.setItem(STORED, token);
    }

    /** Sends a request, and throws a `Failure` unless it succeeds.
     * @param {string} path relative, without a slash at its start
     * @param {Options} [init] */
    async send(path, init = {}) {
        const { token = this.#token, timeout = TIMEOUT_MS, ...options } = init;
        const headers = new Headers(options.headers);
        if (token) headers.set("authorization", `Bearer ${token}`);
        let response;
        try {
            const signal = options.signal ?? AbortSignal.timeout(timeout);
            // The page uses no cookies, but a proxy before the node can have some.
            response = await fetch(new URL(path, BASE), { cache: "no-store", credentials: "same-origin", ...options, headers, signal });
        } catch (error) {
            if (options.signal?.aborted) throw error;
            throw new Failure("network", "No answer", "The node does not answer. It may be down, or the network is.", 0);
        }
        if (response.ok) return response;
        const failure = await failureOf(response);
        // A check of another token, and an answer to an older token, say nothing about the current one.
        // A proxy that asks for credentials of its own answers 401, too.
        if (failure.code === "unauthenticated" && token === this.#token) this.onUnauthenticated(failure);
        throw failure;
    }

    /** @template T
     * @param {string} path
     * @param {Options} [init]
     * @returns {Promise<T>} */
    async json(path, init) {
        return /** @type {T} */ (await bodyOf(await this.send(path, init)));
    }

    /** Reads from the leader. If there is none, reads the state of this node, which can be old.
     * @template T
     * @param {string} path
     * @param {Record<string, string>} [parameters]
     * @returns {Promise<Answer<T>>} */
    async read(path, parameters = {}) {
        if (!this.isLeaderless) {
            try {
                return await this.#readWith(path, parameters);
            } catch (error) {
                if (!(error instanceof Failure && NO_LEADER.has(error.code))) throw error;
            }
        }
        return this.#readWith(path, { ...parameters, consistency: "stale" });
    }

    /** Reads from the leader, and fails if there is none.
     * @template T
     * @param {string} path
     * @returns {Promise<Answer<T>>} */
    readCurrent(path) {
        return this.#readWith(path, {});
    }

    /** @template T
     * @param {string} path
     * @param {Record<string, string>} parameters
     * @returns {Promise<Answer<T>>} */
    async #readWith(path, parameters) {
        const start = performance.now();
        const response = await this.send(`${path}?${new URLSearchParams(parameters)}`);
        const age = Number(response.headers.get("x-tenure-stale-ms") ?? Infinity);
        const index = Number(response.headers.get("x-tenure-index") ?? 0);
        return { value: /** @type {T} */ (await bodyOf(response)), index, asOf: parameters.consistency === "stale" ? start - age : null };
    }

    /** @param {string} prefix
     * @param {string | null} cursor
     * @param {number} limit
     * @returns {Promise<Answer<LeasePage>>} */
    list(prefix, cursor, limit) {
        return this.read("v1/leases", { prefix, limit: String(limit), ...(cursor === null ? {} : { cursor }) });
    }

    /** @template T
     * @param {string} path
     * @param {object} body
     * @returns {Promise<T>} */
    post(path, body) {
        const headers = { "content-type": "application/json" };
        return this.json(path, { method: "POST", headers, body: JSON.stringify(body) });
    }

    /** @param {string} name
     * @param {string} reason
     * @returns {Promise<{ revoked: number }>} */
    revoke(name, reason) {
        const query = reason === "" ? "" : `?${new URLSearchParams({ reason })}`;
        return this.json(`${leasePath(name)}${query}`, { method: "DELETE" });
    }
}

/** @param {string} name */
export function leasePath(name) {
    return `v1/leases/${encodeURIComponent(name)}`;
}

/** The JSON of a successful response.
 * @param {Response} response
 * @returns {Promise<unknown>} */
async function bodyOf(response) {
    let text;
    try {
        text = await response.text();
    } catch {
        throw new Failure("network", "Incomplete answer", "The connection broke before the answer was complete.", 0);
    }
    try {
        return JSON.parse(text);
    } catch {
        throw new Failure("other", "Unexpected answer", "The answer is not one of a Tenure node: it is not JSON.", response.status);
    }
}

/** The problem in a response, or a description of a response that has none, such as the page of a proxy.
 * @param {Response} response */
async function failureOf(response) {
    try {
        const problem = /** @type {ProblemBody} */ (await response.json());
        if (typeof problem.code === "string") {
            return new Failure(problem.code, problem.title, problem.detail, response.status, problem.oldest);
        }
    } catch {
        // The body is not JSON.
    }
    const isGateway = response.status >= 502 && response.status <= 504;
    const detail = isGateway
        ? `A proxy answers with status ${response.status}: it does not reach the node.`
        : `The answer has status ${response.status} and is not one of a Tenure node.`;
    return new Failure(isGateway ? "network" : "other", "Unexpected answer", detail, response.status);
}

/** A failure from any error.
 * @param {unknown} error */
export function asFailure(error) {
    if (error instanceof Failure) return error;
    return new Failure("page", "Fault in the page", error instanceof Error ? error.message : String(error), 0);
}
