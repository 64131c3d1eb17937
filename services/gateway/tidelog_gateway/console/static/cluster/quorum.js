/** What the controllers say of themselves, asked now and then while there is one and the same client. */

const LOOK_MS = 2000;
/** A hidden page looks so often. */
const HIDDEN_MS = 20_000;

/**
 * Ask `log` for the controllers until it is no longer the page's client (`isCurrent()`), or the user has no right to see
 * them: each refusal would push out one that the user may ask about. `onQuorum(quorum)` is called when something else is
 * said; `{error}` if there is no answer. `pause(ms)` resolves after that time.
 */
export async function followQuorum(log, isCurrent, onQuorum, pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms))) {
  let before = "";
  while (isCurrent()) {
    const quorum = await log.quorum().catch((error) => ({ error }));
    const text = quorum.error ? quorum.error.code : JSON.stringify(quorum);
    if (log.gateway && isCurrent() && text !== before) {
      before = text;
      onQuorum(quorum);
    }
    if (log.gateway && quorum.error?.code === "FORBIDDEN") return;
    await pause(document.hidden ? HIDDEN_MS : LOOK_MS);
  }
}
