import { setMaxListeners } from "node:events";

/**
 * A controller whose signal many parts of a program listen to. Node.js warns at the eleventh listener of other signals.
 */
export function sharedController(): AbortController {
  const controller = new AbortController();
  setMaxListeners(0, controller.signal);
  return controller;
}
