// The stream of lease events. `EventSource` cannot send the header `Authorization`, so this reads the stream with `fetch`.

/** @import { LeaseEvent } from "./types" */
/** @import { Api } from "./api.js" */
import { Failure, asFailure } from "./api.js";

/** The server sends a message at least every 10 s. */
const SILENCE_MS = 25_000;
const RETRY_MS = [300, 600, 1000, 2000, 4000];
/** After these codes a repetition of the request does not help. */
export const FINAL = new Set(["unauthenticated", "forbidden", "invalid"]);
/** With these, the position is unknown to the server: the page must read everything again. */
const RESTART = new Set(["compacted"]);

/** A message of the stream.
 * @typedef {{ id: string | null, event: string, data: string }} Message */

/** Splits a stream of server-sent events into messages. It keeps an incomplete message until the rest arrives. */
export class Parser {
    #rest = "";

    /** @param {string} chunk
     * @returns {Message[]} */
    push(chunk) {
        const text = this.#rest + chunk;
        const end = text.lastIndexOf("\n\n");
        if (end < 0) {
            this.#rest = text;
            return [];
        }
        this.#rest = text.slice(end + 2);
        return text.slice(0, end).split("\n\n").map(parseMessage);
    }
}

/** @param {string} text
 * @returns {Message} */
function parseMessage(text) {
    /** @type {Message} */
    const message = { id: null, event: "", data: "" };
    for (const line of text.split("\n")) {
        const colon = line.indexOf(":");
        const value = line.slice(colon + 1).replace(/^ /, "");
        const field = line.slice(0, colon);
        if (field === "id") message.id = value;
        else if (field === "event") message.event = value;
        else if (field === "data") message.data += value;
    }
    return message;
}

/** Listeners of a stream.
 * @typedef {object} Listeners
 * @property {() => void} opened the stream has its first position
 * @property {(events: LeaseEvent[]) => void} events
 * @property {(failure: Failure | null) => void} failed why no events arrive; `null`: they do. The codes of `FINAL` end the stream
 * @property {(failure: Failure) => void} restart the server has forgotten the position
 * @property {(isLive: boolean) => void} live */

/** A watch that reconnects and resumes after its last event. A hidden page has no open watch: a browser opens at most six
 * connections to a node, for all its tabs together. */
export class Stream {
    #api;
    #prefix;
    #listeners;
    #stop = new AbortController();
    /** @type {string | null} */
    #position;

    /** @param {Api} api
     * @param {string} prefix
     * @param {string | null} after the position to start from; `null`: now
     * @param {Listeners} listeners */
    constructor(api, prefix, after, listeners) {
        this.#api = api;
        this.#prefix = prefix;
        this.#position = after;
        this.#listeners = listeners;
        void this.#run();
    }

    stop() {
        this.#stop.abort();
    }

    async #run() {
        let attempt = 0;
        while (!this.#stop.signal.aborted) {
            await visible();
            /** @type {Failure | null} */
            let failure = null;
            try {
                await this.#follow(() => {
                    attempt = 0;
                    this.#listeners.live(true);
                    this.#listeners.failed(null);
                });
            } catch (error) {
                failure = asFailure(error);
            }
            if (this.#stop.signal.aborted) return;
            this.#listeners.live(false);
            if (document.hidden) continue;
            if (failure && RESTART.has(failure.code)) return this.#listeners.restart(failure);
            if (failure) this.#listeners.failed(failure);
            if (failure && FINAL.has(failure.code)) return;
            await pause(RETRY_MS[Math.min(attempt, RETRY_MS.length - 1)]);
            attempt += 1;
        }
    }

    /** Reads one connection until its end.
     * @param {() => void} connected the first message has arrived: a proxy can send the headers and hold the events back */
    async #follow(connected) {
        const connection = new AbortController();
        const stop = () => connection.abort();
        this.#stop.signal.addEventListener("abort", stop);
        document.addEventListener("visibilitychange", stop);
        let isSilent = false;
        const end = () => {
            isSilent = true;
            stop();
        };
        let timer = window.setTimeout(end, SILENCE_MS);
        let isConnected = false;
        try {
            const headers = this.#position === null ? undefined : { "last-event-id": this.#position };
            const query = new URLSearchParams({ prefix: this.#prefix });
            const response = await this.#api.send(`v1/watch?${query}`, { headers, signal: connection.signal });
            if (!response.body) return;
            const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
            const parser = new Parser();
            for (;;) {
                const { value, done } = await reader.read().catch(fail);
                if (done) return;
                window.clearTimeout(timer);
                timer = window.setTimeout(end, SILENCE_MS);
                if (!isConnected) connected();
                isConnected = true;
                this.#take(parser.push(value));
            }
        } catch (error) {
            throw isSilent ? new Failure("silent", "No events", "No message arrives. A proxy may hold the events back.", 0) : error;
        } finally {
            window.clearTimeout(timer);
            this.#stop.signal.removeEventListener("abort", stop);
            document.removeEventListener("visibilitychange", stop);
        }
    }

    /** @param {Message[]} messages */
    #take(messages) {
        const isFirst = this.#position === null;
        /** @type {LeaseEvent[]} */
        const events = [];
        for (const message of messages) {
            if (message.id !== null) this.#position = message.id;
            // `lagged` has no position: the next connection resumes after the last event.
            if (message.data !== "" && message.event !== "lagged") events.push(JSON.parse(message.data));
        }
        if (isFirst && this.#position !== null) this.#listeners.opened();
        if (events.length > 0) this.#listeners.events(events);
    }
}

/** @returns {never} */
function fail() {
    throw new Failure("network", "No events", "The connection of the events broke.", 0);
}

/** Waits until the page is visible. */
async function visible() {
    while (document.hidden) {
        await new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
    }
}

/** @param {number} ms */
export function pause(ms) {
    return new Promise((resolve) => window.setTimeout(resolve, ms));
}
