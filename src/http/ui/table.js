// The table of leases. Only the rows on the screen have elements, so that 50,000 leases cost no more than 50.
// The grid keeps the focus, and `aria-activedescendant` names the active row: scrolling never removes a focused element.

/** @import { Row } from "./types" */
import { h, setText } from "./dom.js";
import * as format from "./format.js";

/** Rows above and below the screen that have elements, too. */
const MARGIN = 4;
/** A row that an event has changed is marked for this time. */
const FRESH_MS = 1500;
/** Below this part of the ttl, a row says that the time is short. */
const SHORT = 0.2;

/** @type {[id: string, label: string, isSortable: boolean][]} */
const COLUMNS = [
    ["state", "State", false],
    ["name", "Name", true],
    ["holder", "Holder", true],
    ["left", "Time left", true],
    ["ttl", "TTL", false],
    ["waiters", "Waiters", true],
    ["granted", "Age", true],
];

/** The elements of one row on the screen.
 * @typedef {{ element: HTMLElement, cells: Record<string, HTMLElement>, shape: HTMLElement, words: HTMLElement,
 *   bar: HTMLElement, left: HTMLElement, at: number }} Line */

export class Table {
    #grid;
    #body = h("div", { class: "rows", role: "rowgroup" });
    /** @type {Line[]} */
    #lines = [];
    /** @type {Row[]} */
    #rows = [];
    #rowHeight = 28;
    /** The key of the active row: it stays active when other rows come and go. */
    #active = "";
    #open;
    #sort;
    /** @type {Map<string, HTMLElement>} */
    #headers = new Map();

    /** @param {HTMLElement} grid
     * @param {(row: Row) => void} open
     * @param {(column: string) => void} sort */
    constructor(grid, open, sort) {
        this.#grid = grid;
        this.#open = open;
        this.#sort = sort;
        grid.append(this.#makeHeader(), this.#body);
        grid.addEventListener("scroll", () => this.#draw(), { passive: true });
        grid.addEventListener("keydown", (event) => this.#onKey(event));
        this.#body.addEventListener("click", (event) => this.#onClick(event));
        new ResizeObserver(() => this.#resize()).observe(grid);
    }

    /** @param {Row[]} rows */
    show(rows) {
        this.#rows = rows;
        this.#grid.setAttribute("aria-rowcount", String(rows.length + 1));
        this.#body.style.height = `${rows.length * this.#rowHeight}px`;
        this.#draw();
    }

    /** Removes all rows, and the elements that still have their texts. */
    clear() {
        this.#lines = [];
        this.#body.replaceChildren();
        this.#active = "";
        this.show([]);
    }

    /** The rows on the screen. */
    visible() {
        const first = Math.floor(this.#grid.scrollTop / this.#rowHeight);
        return this.#rows.slice(first, first + Math.ceil(this.#grid.clientHeight / this.#rowHeight));
    }

    /** Updates the times. */
    tick() {
        this.#draw();
    }

    /** Marks a row as the active one.
     * @param {string} key */
    activate(key) {
        this.#active = key;
        this.#draw();
    }

    focus() {
        this.#grid.focus();
    }

    /** @param {string} column
     * @param {boolean} isDescending */
    showOrder(column, isDescending) {
        for (const [id, header] of this.#headers) {
            header.setAttribute("aria-sort", id !== column ? "none" : isDescending ? "descending" : "ascending");
        }
    }

    #makeHeader() {
        const cells = COLUMNS.map(([id, label, isSortable]) => {
            const content = isSortable ? h("button", { type: "button", onclick: () => this.#sort(id) }, label) : label;
            const cell = h("div", { role: "columnheader", class: `cell ${id}` }, content);
            if (isSortable) this.#headers.set(id, cell);
            return cell;
        });
        return h("div", { class: "head", role: "rowgroup" }, h("div", { class: "line", role: "row", "aria-rowindex": 1 }, ...cells));
    }

    #resize() {
        const height = parseFloat(getComputedStyle(this.#grid).getPropertyValue("--row-height"));
        if (height > 0 && height !== this.#rowHeight) {
            this.#rowHeight = height;
            this.#lines.forEach((line) => (line.at = -1));
        }
        this.show(this.#rows);
    }

    #draw() {
        const shown = Math.ceil(this.#grid.clientHeight / this.#rowHeight) + 2 * MARGIN;
        const top = Math.floor(this.#grid.scrollTop / this.#rowHeight) - MARGIN;
        const first = Math.max(0, Math.min(top, this.#rows.length - shown));
        while (this.#lines.length < shown) this.#lines.push(this.#makeLine());
        const now = performance.now();
        let active = "";
        for (let offset = 0; offset < this.#lines.length; offset++) {
            const at = first + offset;
            const line = this.#lines[at % this.#lines.length];
            const row = offset < shown ? this.#rows[at] : undefined;
            line.element.hidden = row === undefined;
            if (!row) continue;
            this.#fill(line, row, at, now);
            if (row.key === this.#active) active = line.element.id;
        }
        if (active) this.#grid.setAttribute("aria-activedescendant", active);
        else this.#grid.removeAttribute("aria-activedescendant");
    }

    /** @param {Line} line
     * @param {Row} row
     * @param {number} at
     * @param {number} now */
    #fill(line, row, at, now) {
        const { element, cells } = line;
        if (line.at !== at) {
            line.at = at;
            element.style.transform = `translateY(${at * this.#rowHeight}px)`;
            element.setAttribute("aria-rowindex", String(at + 2));
        }
        if (element.dataset.state !== row.state) {
            element.dataset.state = row.state;
            line.shape.textContent = format.shapeOf(row.state);
            line.words.textContent = format.wordsOf(row.state);
        }
        setText(cells.name, row.name);
        setText(cells.holder, row.holder);
        setText(cells.ttl, format.ttl(row.ttl));
        setText(cells.waiters, row.waiters > 0 ? format.number(row.waiters) : "");
        setText(cells.granted, format.age(row.granted));
        const { text, part } = timeLeft(row, now);
        setText(line.left, text);
        line.bar.style.transform = `scaleX(${part.toFixed(3)})`;
        element.classList.toggle("short", row.state === "active" && part < SHORT && row.expires !== null);
        element.classList.toggle("fresh", now - row.changed < FRESH_MS);
        const isActive = row.key === this.#active;
        element.classList.toggle("active", isActive);
        element.setAttribute("aria-selected", String(isActive));
    }

    #makeLine() {
        const shape = h("span", { class: "shape", "aria-hidden": "true" });
        const words = h("span", { class: "words" });
        const left = h("span", { class: "text" });
        const bar = h("span", { class: "fill" });
        /** @type {Record<string, HTMLElement>} */
        const cells = {};
        for (const [id] of COLUMNS) cells[id] = h("div", { role: "gridcell", class: `cell ${id}` });
        cells.state.append(shape, words);
        cells.left.append(left, h("span", { class: "bar", "aria-hidden": "true" }, bar));
        const id = `line-${this.#lines.length}`;
        const element = h("div", { class: "line", role: "row", id }, ...Object.values(cells));
        this.#body.append(element);
        return { element, cells, shape, words, bar, left, at: -1 };
    }

    /** @param {MouseEvent} event */
    #onClick(event) {
        const element = event.target instanceof Element ? event.target.closest(".line") : null;
        const line = this.#lines.find((line) => line.element === element);
        const row = line && this.#rows[line.at];
        if (!row) return;
        this.activate(row.key);
        this.#open(row);
    }

    /** @param {KeyboardEvent} event */
    #onKey(event) {
        if (event.target !== this.#grid || event.ctrlKey || event.metaKey || event.altKey) return;
        const page = Math.max(1, Math.floor(this.#grid.clientHeight / this.#rowHeight) - 2);
        const at = this.#rows.findIndex((row) => row.key === this.#active);
        if (event.key === "Enter" || event.key === " ") {
            event.preventDefault();
            if (at >= 0) this.#open(this.#rows[at]);
            return;
        }
        /** @type {Record<string, number>} */
        const targets = {
            ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: this.#rows.length - 1,
        };
        const target = targets[event.key];
        if (target === undefined || this.#rows.length === 0) return;
        event.preventDefault();
        const next = Math.max(0, Math.min(this.#rows.length - 1, target));
        this.#active = this.#rows[next].key;
        this.#scrollTo(next);
        this.#draw();
    }

    /** @param {number} at */
    #scrollTo(at) {
        const head = this.#body.offsetTop;
        const top = at * this.#rowHeight;
        const bottom = top + this.#rowHeight + head - this.#grid.clientHeight;
        if (this.#grid.scrollTop > top) this.#grid.scrollTop = top;
        else if (this.#grid.scrollTop < bottom) this.#grid.scrollTop = bottom;
    }
}

/** The time left as text, and as part of the ttl.
 * @param {Row} row
 * @param {number} now
 * @returns {{ text: string, part: number }} */
function timeLeft(row, now) {
    if (row.state !== "active") return { text: "–", part: 0 };
    if (row.ttl === "infinite") return { text: "infinite", part: 1 };
    if (row.expires === null || row.ttl === null) return { text: "…", part: 0 };
    const left = Math.max(0, row.expires - now);
    return { text: format.whole(left), part: Math.min(1, left / row.ttl) };
}
