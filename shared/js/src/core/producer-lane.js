/**
 * A *lane* of a producer: the queue of one partition. `producer.js` decides when its batches are sent and settled.
 */

export class Lane {
  open = null;
  queue = [];
  inFlight = [];
  /** Sum of the places of the batches that are closed or in flight. */
  sealedPlaces = 0;
  draining = false;
  /** Time before which nothing is sent (back-off, or a pause that the gateway asked for). */
  notBefore = 0;
  producerId = 0;
  nextSequence = 0;
  /** Number of batches that got a sequence. */
  numbered = 0;
  spoiled = false;
  /** Time before which nothing is to be done for the lane; null if an event must come first. */
  lookAt = null;

  constructor(partition) {
    this.partition = partition;
  }

  seal() {
    if (!this.open) return;
    this.open.count = this.open.records.length;
    this.sealedPlaces += this.open.places;
    this.queue.push(this.open);
    this.open = null;
  }

  /** Return the unsettled batch whose delivery timeout ends first. */
  oldest() {
    return this.inFlight[0] ?? this.queue[0] ?? this.open;
  }
}
