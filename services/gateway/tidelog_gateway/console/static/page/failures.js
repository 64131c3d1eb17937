/** Why something is not known or not done: the words of the error, its code, what to do, and the missing right. */

import { h } from "./dom.js";
import { ADVICE } from "./error-advice.js";

/** An error as a sentence with its code, and then what to do about it. */
export function reason({ message, code }) {
  const words = code ? `${message} (${code})` : message;
  return ADVICE[code] ? `${words}. ${ADVICE[code]}` : words;
}

/** A paragraph that says why something is not known. A refusal by the rules names the missing right, and who can give it. */
export function unknown(error, words = "Not known") {
  const { operation, resource } = error.code === "FORBIDDEN" ? error.detail : {};
  return h(
    "p",
    { class: "bad", role: "status" },
    `${words}: ${reason(error)}`,
    operation ? [" The missing right is ", h("code", {}, `${operation} ${resource}`), "; who has ", h("code", {}, "security cluster"), " can give it, also in the panel Security."] : null,
  );
}
