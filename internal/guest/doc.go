// Package guest is the agent that is PID 1 in every sandbox. Commands and files go
// through it: it speaks package guestproto over its standard input and output,
// starts processes, keeps their output, kills them with all that they started, and
// reads and writes files as the user who asks.
//
// It runs inside the sandbox, beside code that wants to break it. What keeps them
// apart: commands live in a PID and a mount namespace of their own, in which the
// agent and its pipes cannot be named; they lose the capabilities that could undo
// that; and the sentry's control groups bound them. Whoever breaks it all the same
// has a sandbox that he had anyway: the host trusts nothing that comes from here.
//
// No deadline of the agent depends on a clock: a sandbox may be saved and restored
// a week later, and its monotonic clock then jumps by a week.
package guest
