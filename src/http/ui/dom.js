// Helpers for the document. All text enters as text nodes: no value of the API is ever parsed as HTML.

/** @typedef {Node | string | null | undefined | false} Child */

/** Creates an element. Properties whose name starts with "on" are listeners; `class` and names with a dash are attributes.
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {Record<string, any> | null} [properties]
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[T]} */
export function h(tag, properties, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(properties ?? {})) {
        if (value === undefined || value === null || value === false) continue;
        if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
        else element.setAttribute(name, value === true ? "" : String(value));
    }
    element.append(...children.filter(isChild));
    return element;
}

/** @param {Child} child
 * @returns {child is Node | string} */
function isChild(child) {
    return child !== null && child !== undefined && child !== false;
}

/** The element with this id.
 * @template {HTMLElement} [T=HTMLElement]
 * @param {string} id
 * @returns {T} */
export function byId(id) {
    const element = document.getElementById(id);
    if (!element) throw new Error(`the page has no element with the id ${id}`);
    return /** @type {T} */ (element);
}

/** Sets a text only if it differs, because each change costs a layout.
 * @param {Element} element
 * @param {string} text */
export function setText(element, text) {
    if (element.textContent !== text) element.textContent = text;
}

/** A shape with its words.
 * @param {string} shape
 * @param {string} words
 * @param {string} kind selects the color */
export function mark(shape, words, kind) {
    return h("span", { class: "mark", "data-kind": kind }, h("span", { class: "shape", "aria-hidden": "true" }, shape), words);
}

/** Runs a function at most once in each interval, and always after the last call.
 * @param {number} ms
 * @param {() => void} run */
export function throttled(ms, run) {
    let timer = 0;
    let last = -Infinity;
    return () => {
        if (timer) return;
        const wait = Math.max(0, last + ms - performance.now());
        timer = window.setTimeout(() => {
            timer = 0;
            last = performance.now();
            run();
        }, wait);
    };
}

/** A message for screen readers only.
 * @param {string} text */
export function say(text) {
    byId("said").textContent = text;
}

/** A message for screen readers and at the bottom of the page.
 * @param {string} text */
export function announce(text) {
    const toast = byId("toast");
    toast.textContent = text;
    toast.classList.add("shown");
    window.clearTimeout(hideTimer);
    hideTimer = window.setTimeout(() => toast.classList.remove("shown"), 6000);
}
let hideTimer = 0;
