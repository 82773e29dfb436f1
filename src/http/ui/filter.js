// The filter of the leases: prefix, holder, states and order.

/** @import { Filter } from "./types" */
import { byId, h, setText } from "./dom.js";
import * as format from "./format.js";

export class FilterForm {
    /** @type {Filter} */
    value = { prefix: "", holder: "", states: new Set(["active"]), sort: "name", descending: false };
    #changed;
    #prefix = /** @type {HTMLInputElement} */ (byId("prefix"));
    #holder = /** @type {HTMLInputElement} */ (byId("holder"));
    #order = /** @type {HTMLSelectElement} */ (byId("order"));
    /** @type {Map<string, { button: HTMLButtonElement, count: HTMLElement }>} */
    #states = new Map();

    /** @param {() => void} changed */
    constructor(changed) {
        this.#changed = changed;
        byId("filter").addEventListener("submit", (event) => event.preventDefault());
        for (const input of [this.#prefix, this.#holder]) input.addEventListener("input", () => this.#read());
        this.#order.addEventListener("change", () => {
            this.value.sort = this.#order.value;
            this.value.descending = false;
            this.#changed();
        });
        for (const state of format.STATES) this.#addState(state);
    }

    /** Orders by a column, or reverses its order.
     * @param {string} column */
    orderBy(column) {
        this.value.descending = this.value.sort === column && !this.value.descending;
        this.value.sort = column;
        this.#order.value = column;
        this.#changed();
    }

    /** Forgets what the user has entered. */
    clear() {
        for (const input of [this.#prefix, this.#holder]) input.value = "";
        [this.value.prefix, this.value.holder] = ["", ""];
    }

    /** @param {Map<string, number>} counts */
    showCounts(counts) {
        for (const state of counts.keys()) if (!this.#states.has(state)) this.#addState(state);
        for (const [state, { count }] of this.#states) setText(count, format.number(counts.get(state) ?? 0));
    }

    #read() {
        this.value.prefix = this.#prefix.value.trim();
        this.value.holder = this.#holder.value.trim();
        this.#changed();
    }

    /** @param {string} state */
    #addState(state) {
        const count = h("span", { class: "count" }, "0");
        const button = h("button", { type: "button", class: "chip", "data-kind": state, "aria-pressed": String(this.value.states.has(state)) },
            h("span", { class: "shape", "aria-hidden": "true" }, format.shapeOf(state)), format.wordsOf(state), " ", count);
        button.addEventListener("click", () => {
            const { states } = this.value;
            const isOn = !states.delete(state);
            if (isOn) states.add(state);
            button.setAttribute("aria-pressed", String(isOn));
            this.#changed();
        });
        this.#states.set(state, { button, count });
        byId("states").append(button);
    }
}
