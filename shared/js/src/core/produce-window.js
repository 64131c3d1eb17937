/**
 * How much a connection may have in flight: the batches that its gateway holds until they are acked. The rules are
 * those of the Python client (`tidelog/client/core/produce_window.py`).
 *
 * A gateway announces in its welcome how many bytes and batches of one connection may wait for their acks, and refuses
 * a batch beyond. All producers of a connection share that window. A batch counts until its ack, also if its producer
 * has given it up. A gateway of an earlier release announces nothing: then the window has no bound.
 */

export class ProduceWindow {
  /** Bytes of each batch in flight, by its number. */
  #sizes = new Map();
  #bytes = 0;
  #mostBytes = Infinity;
  #mostBatches = Infinity;
  #waiting = [];

  /** Begin again with nothing in flight, under the limits that the gateway of a new link has announced. */
  begin(limits) {
    this.#mostBytes = limits.produce_bytes ?? Infinity;
    this.#mostBatches = limits.produce_batches ?? Infinity;
    this.#sizes.clear();
    this.#bytes = 0;
    this.#wake();
  }

  /** Return whether a batch of so many bytes may be sent now; always if nothing is in flight. */
  hasRoom(size) {
    if (!this.#sizes.size) return true;
    return this.#bytes + size <= this.#mostBytes && this.#sizes.size < this.#mostBatches;
  }

  /** Count a batch that is sent now. */
  add(id, size) {
    this.#sizes.set(id, size);
    this.#bytes += size;
  }

  /** Count batches that were acked or refused no more, and wake those that wait for room. */
  remove(acks) {
    for (const { id } of acks) {
      this.#bytes -= this.#sizes.get(id) ?? 0;
      this.#sizes.delete(id);
    }
    this.#wake();
  }

  /** Have `wake` called once when there may be more room. */
  wait(wake) {
    this.#waiting.push(wake);
  }

  #wake() {
    for (const wake of this.#waiting.splice(0)) wake();
  }
}
