// The dialog that confirms an action, and shows the error if the cluster refuses it.

import { announce, byId, h } from "./dom.js";
import { asFailure } from "./api.js";

/** @import { Child } from "./dom.js" */

/** @typedef {object} Question
 * @property {string} title
 * @property {Child[]} content
 * @property {string} action the label of the button that confirms
 * @property {boolean} [isDangerous]
 * @property {() => Promise<void>} [check] fails if the change must not be sent. The user can cancel meanwhile
 * @property {() => Promise<string>} run sends the change and returns a sentence about its result */

/** Asks for a confirmation. The dialog stays open until the action succeeds or the user cancels it. A change that was sent
 * cannot be cancelled, so the dialog then waits for the answer. A sign-out removes the form and ends the action.
 * @param {Question} question */
export function confirm(question) {
    const dialog = /** @type {HTMLDialogElement} */ (byId("dialog"));
    const error = h("div", { class: "error", role: "alert" });
    const action = h("button", { type: "submit", class: question.isDangerous ? "danger" : "primary" }, question.action);
    const cancel = h("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
    const form = h("form", { method: "dialog", novalidate: true },
        h("h2", { id: "dialog-title" }, question.title),
        ...question.content, error,
        h("div", { class: "buttons" }, cancel, action));
    form.addEventListener("submit", async (event) => {
        event.preventDefault();
        if (action.disabled) return;
        action.disabled = true;
        error.replaceChildren();
        try {
            await question.check?.();
            if (!dialog.open || !form.isConnected) return;
            cancel.disabled = true;
            const result = await question.run();
            if (!form.isConnected) return;
            dialog.close();
            announce(result);
        } catch (thrown) {
            const isWanted = form.isConnected && (dialog.open || cancel.disabled);
            cancel.disabled = false;
            if (!isWanted) return;
            error.replaceChildren(...explain(thrown));
            // A browser can close a dialog even if the page refuses it.
            if (!dialog.open) dialog.showModal();
            cancel.focus();
        } finally {
            action.disabled = false;
        }
    });
    dialog.oncancel = (event) => {
        if (cancel.disabled) event.preventDefault();
    };
    dialog.replaceChildren(form);
    dialog.showModal();
    /** @type {HTMLElement} */ (form.querySelector("input, select, textarea") ?? cancel).focus();
}

/** @param {unknown} thrown
 * @returns {Node[]} */
export function explain(thrown) {
    const failure = asFailure(thrown);
    const hint = failure.isAmbiguous
        ? "The outcome is unknown: the cluster may have made the change. Check the current state before you try again."
        : "Nothing was changed.";
    return [
        h("strong", null, failure.title),
        h("p", null, failure.message),
        h("p", { class: "muted" }, `${hint} `, h("code", null, failure.status ? `${failure.status} ${failure.code}` : failure.code)),
    ];
}
