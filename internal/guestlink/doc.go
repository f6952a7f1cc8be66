// Package guestlink is the host's end of the link to a guest agent. It opens a
// session over the two byte pipes that a driver hands out, and turns the calls of
// package guestproto into Go methods.
//
// The guest is hostile. Every frame is checked for length, channel, position and
// window, every text is bounded and cleaned, and a guest that breaks the protocol
// loses its link: all calls then end with an error, never with a success.
//
// Deadlines belong to the caller. A context that ends makes a call return at once
// and cancels it in the guest; what it had done by then is not known.
package guestlink
