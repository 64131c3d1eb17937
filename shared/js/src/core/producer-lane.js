/** A producer's *lane*: the state of one partition. `producer.js` decides what becomes of its batches. */

export class Lane {
  open = null;
  queue = [];
  inFlight = [];
  /** Of the batches in the queue and in flight. */
  sealedPlaces = 0;
  draining = false;
  /** Nothing is sent before this time (back-off, or a pause that the gateway asked for). */
  notBefore = 0;
  producerId = 0;
  nextSequence = 0;
  /** How many batches got a sequence. */
  numbered = 0;
  spoiled = false;
  /** Nothing is to be done with it before this time; null: before something happens to it. */
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

  /** The batch whose delivery timeout ends first. */
  oldest() {
    return this.inFlight[0] ?? this.queue[0] ?? this.open;
  }
}
