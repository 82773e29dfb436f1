// The form for an access token. The token is checked before the page keeps it.

/** @import { Api, Failure } from "./api.js" */
import { asFailure } from "./api.js";
import { byId, h } from "./dom.js";

/** Only these codes are about the token. */
const REFUSALS = new Set(["unauthenticated", "forbidden"]);

export class Login {
    #api;
    #signedIn;
    #error = byId("login-error");
    #input = /** @type {HTMLInputElement} */ (byId("token"));

    /** @param {Api} api
     * @param {() => void} signedIn */
    constructor(api, signedIn) {
        this.#api = api;
        this.#signedIn = signedIn;
        byId("login-form").addEventListener("submit", (event) => {
            event.preventDefault();
            void this.#submit();
        });
    }

    get isOpen() {
        return !byId("login").hidden;
    }

    /** @param {string} title
     * @param {Failure | null} why the reason of the node; `null`: the user has signed out */
    open(title, why) {
        byId("login").hidden = false;
        this.#input.value = "";
        this.#error.replaceChildren();
        if (why) this.#explain(title, why);
        this.#input.focus();
    }

    async #submit() {
        const token = this.#input.value.trim();
        // A header has only these characters, so another text is no token.
        if (!/^[\x21-\x7e]+$/.test(token)) return this.#input.focus();
        try {
            await this.#api.json("v1/cluster", { token });
        } catch (error) {
            const failure = asFailure(error);
            this.#explain(REFUSALS.has(failure.code) ? "The cluster refuses this token" : "The node cannot check this token", failure);
            this.#input.select();
            return;
        }
        this.#input.value = "";
        this.#api.setToken(token);
        byId("login").hidden = true;
        this.#signedIn();
    }

    /** @param {string} title
     * @param {Failure} failure */
    #explain(title, failure) {
        this.#error.replaceChildren(h("strong", null, title), h("p", null, failure.message));
    }
}
