/**
 * What a gateway can do beyond the first release of the protocol, by the names in its `welcome`
 * (`shared/tidelog/wire/capabilities.py`).
 */

import { BrokerError } from "../errors.js";

/** The gateway refuses requests with a key that it does not know, since this client asks for that. */
const STRICT = "strict";
/** The gateway heeds `expected_offset` of a batch. */
export const CONDITIONAL_APPEND = "conditional_append";
/** The capabilities that this client asks for. */
export const ASKED = [STRICT];

/** Return `UNSUPPORTED` if the gateway lacks the capability that `what` of a request needs; null if it has it. */
export function refuseWithout(capability, what, { node, capabilities }) {
  if (capabilities.includes(capability)) return null;
  const why = `gateway ${node} does not announce ${capability}, and may ignore ${what}: nothing was sent; upgrade it`;
  return new BrokerError(why, { code: "UNSUPPORTED", detail: { capability } });
}
