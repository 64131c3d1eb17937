/**
 * The queue of one partition in a producer. `producer.js` decides when its batches are sent and settled.
 */

/** The batches of one partition: the open one, the closed ones that wait to be sent, and those in flight. */
export class PartitionQueue {
  open = null;
  closed = [];
  inFlight = [];
  /** Sum of the places of the batches that are closed or in flight. */
  closedPlaces = 0;
  draining = false;
  /** Time before which nothing is sent (back-off, or a pause that the gateway asked for). */
  notBefore = 0;
  producerId = 0;
  nextSequence = 0;
  /** Number of batches that got a sequence. */
  numbered = 0;
  spoiled = false;
  /** Time before which nothing is to be done for the partition; null if an event must come first. */
  visitAt = null;

  constructor(partition) {
    this.partition = partition;
  }

  closeOpen() {
    if (!this.open) return;
    this.open.count = this.open.records.length;
    this.closedPlaces += this.open.places;
    this.closed.push(this.open);
    this.open = null;
  }

  /** Return the unsettled batch whose delivery timeout ends first. */
  oldest() {
    return this.inFlight[0] ?? this.closed[0] ?? this.open;
  }
}
