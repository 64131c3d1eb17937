// Package tidelog is a client of Tidelog, a replicated log whose clients speak
// CBOR over WebSockets.
//
// [Connect] opens a [Log]. A [Producer] writes records to a topic, a [Consumer]
// reads them, and a [Member] shares the partitions of topics with the other
// members of its group.
package tidelog
